"""Edges whose tables name nodes by keys: the keys become ids, and all other columns are read beside them.

A *key* is a value that identifies a node. `KeyedTable` is an edge table with keys in one or both of its end columns.
`KeyedTable.append_keys` reads these columns once, and hands the keys to the numbering of each node type. When all keys
are numbered, `NumberedEdges` reads the ids back in the order of the table, together with the table's weights, times and
plain node ids. An edge may be dropped because no node has its key. Its weight, time and features are left out with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.csc.edge_rules import check_chunk
from gloader.convert.keys.values import interleaved, key_chunk
from gloader.convert.read_ahead import read_ahead
from gloader.convert.readers.table_streams import regroup
from gloader.convert.source import EdgeStream
from gloader.core.malformed import shown
from gloader.errors import GraphError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from gloader.convert.csc.edge_rules import EdgeEnds
    from gloader.convert.keys.numbering import KeyStream, Numbering
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.readers.table_streams import Columns, NumberTable, TableEdges
    from gloader.convert.source import EdgeChunk, FeatureStream
    from gloader.core.keys import KeyChunk, KeyKind
    from gloader.types import Relation


_COUNTED_EDGES = 1 << 16  # edges per step of counting
# Most edges per chunk, and bytes for the ids of a chunk: 32 for each end while they are read (`Numbering.ids`), and as
# many again for the chunk that is put together.
_CHUNK_EDGES = 1 << 16
_IDS_BYTES = 4 * 32 * _CHUNK_EDGES


def column_where(table: NumberTable, column: str) -> str:
    """Return a table's file and one of its columns, for messages. Pure."""
    return f"{table.path}, column {shown(column)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeKeys:
    """The keys of a relation's ends, in the numberings that were given them."""

    # The numbering and the stream of sources, and those of destinations. None for an end with plain node ids. If both
    # ends are keys of one type, both have the same stream, with the keys of each edge one after the other.
    sources: tuple[Numbering, KeyStream] | None
    destinations: tuple[Numbering, KeyStream] | None
    num_rows: int  # rows of the table

    @property
    def has_dropped(self) -> bool:
        """True if some keys of the ends' types have no node. The keys must be numbered."""
        ends = filter(None, (self.sources, self.destinations))
        return any(sum(numbering.resolve().dropped) for numbering, _ in ends)

    def ids(self, max_edges: int) -> Iterator[Columns]:
        """Yield the ids of the keyed ends, in groups of ``max_edges`` edges; -1 for a key that no node has."""
        if self.sources is not None and self.sources == self.destinations:
            numbering, stream = self.sources
            both = regroup(((ids,) for ids in numbering.ids(stream, 2 * max_edges)), 2 * max_edges)
            return ((pairs[0::2], pairs[1::2]) for (pairs,) in both)
        ends = [
            regroup(((ids,) for ids in numbering.ids(stream, max_edges)), max_edges)
            for numbering, stream in filter(None, (self.sources, self.destinations))
        ]
        return (tuple(ids for (ids,) in groups) for groups in zip(*ends, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedTable:
    """An edge table of a graph with keys."""

    relation: Relation
    edges: TableEdges  # the table's columns
    has_keys: tuple[bool, bool]  # True if the sources are keys, and if the destinations are

    @property
    def key_columns(self) -> tuple[tuple[str, str], ...]:
        """The node type and the column of each end with keys."""
        ends = ((self.relation[0], self.edges.src), (self.relation[2], self.edges.dst))
        return tuple(end for end, is_key in zip(ends, self.has_keys, strict=True) if is_key)

    @property
    def other_columns(self) -> tuple[str, ...]:
        """The table's columns besides the ends."""
        return tuple(name for name in self.edges.table.names if name not in (self.edges.src, self.edges.dst))

    def append_keys(
        self, numberings: Mapping[str, Numbering], progress: PrepareProgress, *, is_ahead: bool
    ) -> EdgeKeys:
        """Read the keys of all rows, and give them to the numberings of their node types.

        If ``is_ahead``, a thread reads the next keys while earlier ones are numbered.

        Raises
        ------
        SourceError
            A key is missing, has the wrong form, or is refused by its numbering. Or the file is malformed. The message
            names file and row.
        StoreWriteError
            The disk has no room for the keys.
        """
        table, columns = self.edges.table, self.key_columns
        places = tuple(column_where(table, column) for _, column in columns)
        # Within one type, the keys of each edge follow one another, so that nodes appear row by row.
        is_joint = len(columns) == 2 and columns[0][0] == columns[1][0]
        opened = [
            (numberings[node_type], numberings[node_type].open_stream(places if is_joint else place))
            for (node_type, _), place in zip(
                columns[:1] if is_joint else columns, places, strict=not is_joint
            )
        ]
        kinds = [numberings[node_type].kind for node_type, _ in columns]
        done = 0
        with read_ahead(self._key_chunks(kinds, is_joint), name="keys", is_on=is_ahead) as ahead:
            for num_rows, chunks in ahead:
                for (_, stream), chunk in zip(opened, chunks, strict=True):
                    stream.append(chunk)
                done += num_rows
                progress.advance(
                    f"reading the keys of {table.path.name}", done, self.edges.num_edges, "edges"
                )
        for _, stream in opened:
            stream.close()
        return EdgeKeys(
            sources=opened[0] if self.has_keys[0] else None,
            destinations=opened[-1] if self.has_keys[1] else None,
            num_rows=done,
        )

    def _key_chunks(self, kinds: Sequence[KeyKind], is_joint: bool) -> Iterator[tuple[int, list[KeyChunk]]]:
        """Yield the number of rows of each batch, and its keys: a chunk for each end, or one for both."""
        table, columns = self.edges.table, [column for _, column in self.key_columns]
        done = 0
        # One column may hold both ends, and is read once.
        names = list(dict.fromkeys(columns))
        for batch in table.read_arrow(names, error=SourceError):
            chunks = [
                key_chunk(
                    batch.column(names.index(column)), kind, first_row=done, where=column_where(table, column)
                )
                for column, kind in zip(columns, kinds, strict=True)
            ]
            yield batch.num_rows, [interleaved(*chunks)] if is_joint else chunks
            done += batch.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedEdges:
    """A relation's edges with ids in place of keys, without the edges that were dropped."""

    table: KeyedTable
    keys: EdgeKeys
    num_edges: int  # edges that are left
    first_dropped: tuple[int, str] | None = None  # row and key column of the first edge that was dropped

    @classmethod
    def of(cls, table: KeyedTable, keys: EdgeKeys) -> NumberedEdges:
        """Return the edges, and count those that are left. The ids are read once, if keys were dropped."""
        numbered = cls(table=table, keys=keys, num_edges=keys.num_rows)
        if not keys.has_dropped:
            return numbered
        num_edges, done, first = 0, 0, None
        for ids in keys.ids(_COUNTED_EDGES):
            kept = _kept(ids)
            num_edges += int(np.count_nonzero(kept))
            if first is None and not kept.all():
                row = int(kept.argmin())
                end = next(number for number, each in enumerate(ids) if each[row] < 0)
                first = done + row, table.key_columns[end][1]
            done += len(kept)
        return replace(numbered, num_edges=num_edges, first_dropped=first)

    @property
    def num_dropped(self) -> int:
        """Edges that were dropped."""
        return self.keys.num_rows - self.num_edges

    def stream(self, ends: EdgeEnds | None = None) -> EdgeStream:
        """Return the edges as a stream. ``ends`` are their nodes, or None if these are not counted yet. Pure."""
        edges = self.table.edges
        columns = edges.columns(self.table.has_keys)
        return EdgeStream(
            chunks=partial(self._chunks, ends),
            num_edges=self.num_edges,
            has_weights=edges.weight is not None,
            has_times=edges.time is not None,
            columns=self.table.other_columns,
            reading_bytes=_IDS_BYTES + (edges.table.reading_bytes(columns) if columns else 0),
        )

    def kept_rows(self, features: FeatureStream) -> FeatureStream:
        """Return the feature rows of the edges that are left. ``features`` has one row for each row of the table."""
        if not self.num_dropped:
            return features

        def chunks(max_rows: int) -> Iterator[NDArray[np.generic]]:
            rows = regroup(((chunk,) for chunk in features.chunks(max_rows)), max_rows)
            for (chunk,), ids in zip(rows, self.keys.ids(max_rows), strict=True):
                # All edges of a chunk may be dropped, and a stream has no empty chunks.
                if (kept := _kept(ids)).any():
                    yield chunk[kept]

        rounded = None if features.rounded is None else self.kept_rows(features.rounded)
        return replace(features, chunks=chunks, num_rows=self.num_edges, rounded=rounded)

    def _chunks(self, ends: EdgeEnds | None, max_edges: int) -> Iterator[EdgeChunk]:
        """Yield the edges in chunks of at most ``max_edges``; the values are checked here."""
        edges, first = self.table.edges, 0
        columns, max_edges = edges.columns(self.table.has_keys), min(max_edges, _CHUNK_EDGES)
        others = regroup(edges.table.read(columns, error=GraphError), max_edges) if columns else None
        for ids in self.keys.ids(max_edges):
            arrays = () if others is None else next(others)
            given = iter(ids)
            src, dst = (next(given) if is_key else None for is_key in self.table.has_keys)
            chunk = edges.chunk(dict(zip(columns, arrays, strict=True)), first, (src, dst))
            if self.num_dropped:
                chunk = self._without_dropped(chunk, ids, ends, first)
            first += len(ids[0])
            yield chunk

    def _without_dropped(
        self, chunk: EdgeChunk, ids: Columns, ends: EdgeEnds | None, first: int
    ) -> EdgeChunk:
        """Return the edges of a chunk that are left, after a check of all its rows."""
        if ends is not None and min(ends.num_nodes, ends.num_sources):
            # The check counts rows of the table. A later check would count only the edges that are left.
            nowhere = np.zeros(len(chunk.src), np.int64)
            check_chunk(
                replace(
                    chunk,
                    src=nowhere if self.table.has_keys[0] else chunk.src,
                    dst=nowhere if self.table.has_keys[1] else chunk.dst,
                ),
                ends=ends,
                first=first,
            )
        return chunk.take(_kept(ids))


def _kept(ids: Columns) -> NDArray[np.bool_]:
    """Return which edges have a node for each of their keys, from the ids of the keys of one or two ends. Pure."""
    kept: NDArray[np.bool_] = np.logical_and.reduce([each >= 0 for each in ids])
    return kept
