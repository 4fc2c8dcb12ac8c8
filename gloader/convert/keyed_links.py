"""Link tables whose ends and labels are keys, such as the triples of a knowledge graph.

A *key* is a value that identifies a node. A triple has a head, a relation and a tail. Its head and its tail are nodes
of one type, and its relation is a node of another type: the label of the row. `KeyedLinks.append_keys` reads the three
columns once, and hands the keys to the numberings of both types. When all keys are numbered, `numbered_links` reads the
ids back as link tables, without repeated rows. A repeated row is a row that an earlier row of its table equals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.convert.keyed_edges import column_where
from gloader.convert.keys.values import interleaved, key_chunk
from gloader.convert.links.edge_parts import RandomParts
from gloader.convert.links.repeated_rows import find_repeats
from gloader.convert.options import PARTS, TRAIN
from gloader.convert.read_ahead import read_ahead
from gloader.convert.readers.node_arrays import require_memory
from gloader.convert.readers.table_streams import regroup
from gloader.convert.source import EdgeChunk, LinkChunk, LinkSource, LinkStream
from gloader.dataset.schema import relation_text
from gloader.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.keys.numbering import KeyStream, Numbering
    from gloader.convert.links.repeated_rows import Repeats
    from gloader.convert.options import PrepareOptions
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.readers.table_streams import NumberTable
    from gloader.core.keys import KeyChunk
    from gloader.types import IdArray, Relation

_COUNTED_ROWS: Final = 1 << 16  # rows per step of a pass that counts
# Options of edges that triples do not have, by their flags.
_OF_EDGES: Final = {
    "--symmetrize": "symmetrize",
    "--add-reverse": "add_reverse",
    "--self-loops": "self_loops",
    "--deduplicate": "deduplicate",
    "--reverse": "reverse",
    "--edge-split-relation": "edge_split_relation",
    "--dtype": "dtype",
    "--edge-dtype": "edge_dtype",
    "--allow-nan": "allow_nan",
    "--missing": "missing",
    "--ranges": "ranges",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedLinks:
    """A table of triples. The keys of its heads and tails are those of one type."""

    name: str  # the link table's name, such as "train"
    table: NumberTable
    columns: tuple[str, str, str]  # the columns of heads, relations and tails
    relation: Relation  # the link table's relation, which leads from the heads' type to itself
    label_type: str  # the type of the relations

    def append_keys(
        self, numberings: Mapping[str, Numbering], progress: PrepareProgress, *, is_ahead: bool
    ) -> LinkKeys:
        """Read the keys of all rows, and give them to the numberings of their types.

        If ``is_ahead``, a thread reads the next keys while earlier ones are numbered.

        Raises
        ------
        SourceError
            A key is missing or has the wrong form. Or the file is malformed. The message names file and row.
        BudgetError, StoreWriteError
            As `KeyStream.append`.
        """
        nodes, labels = numberings[self.relation[0]], numberings[self.label_type]
        heads, relations, tails = (column_where(self.table, column) for column in self.columns)
        ends, of_labels = nodes.open_stream((heads, tails)), labels.open_stream(relations)

        def chunks() -> Iterator[tuple[KeyChunk, KeyChunk]]:
            done = 0
            for batch in self.table.read_arrow(self.columns, error=SourceError):
                first, label, last = (
                    key_chunk(column, kind, first_row=done, where=where)
                    for column, kind, where in zip(
                        batch.columns,
                        (nodes.kind, labels.kind, nodes.kind),
                        (heads, relations, tails),
                        strict=True,
                    )
                )
                yield interleaved(first, last), label
                done += batch.num_rows

        step = f"reading the keys of {self.table.path.name}"
        with read_ahead(chunks(), name="keys", is_on=is_ahead) as ahead:
            for both, label in ahead:
                ends.append(both)
                of_labels.append(label)
                progress.advance(step, of_labels.num_keys, self.table.num_rows, "triples")
        ends.close()
        of_labels.close()
        return LinkKeys(links=self, nodes=nodes, labels=labels, ends=ends, of_labels=of_labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkKeys:
    """The keys of a table of triples, in the numberings that were given them."""

    links: KeyedLinks
    nodes: Numbering
    labels: Numbering
    ends: KeyStream  # head and tail of each row in turn
    of_labels: KeyStream

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return self.of_labels.num_keys

    def ids(self, max_rows: int) -> Iterator[IdArray]:
        """Yield the rows' ids (n, 3): head, relation and tail. The keys must be numbered."""
        both = regroup(((ids,) for ids in self.nodes.ids(self.ends, 2 * max_rows)), 2 * max_rows)
        labels = regroup(((ids,) for ids in self.labels.ids(self.of_labels, max_rows)), max_rows)
        for (pairs,), (label,) in zip(both, labels, strict=True):
            yield np.column_stack([pairs[0::2], label, pairs[1::2]])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The rows of a link table: those of a table of triples that belong to a part, without repeated rows."""

    keys: LinkKeys
    repeats: Repeats
    rule: RandomParts | None = None  # the rule of a split; None if the table is a part itself
    part: int = 0  # the part's number

    def kept(self, max_rows: int) -> Iterator[IdArray]:
        """Yield the ids (n, 3) of the rows in order."""
        done = 0
        for ids in self.keys.ids(max_rows):
            is_kept = ~self.repeats.of(done, done + len(ids))
            done += len(ids)
            if self.rule is not None:
                is_kept &= self.rule.parts(EdgeChunk(src=ids[:, 0], dst=ids[:, 2])) == self.part
            # All rows of a chunk may be left out, and a stream has no empty chunks.
            if is_kept.any():
                yield ids[is_kept]

    def count(self, is_in: NDArray[np.bool_] | None) -> int:
        """Return the number of rows, and mark their nodes in ``is_in`` (N,)."""
        num_rows = 0
        for ids in self.kept(_COUNTED_ROWS):
            num_rows += len(ids)
            if is_in is not None:
                is_in[ids[:, 0]] = is_in[ids[:, 2]] = True
        return num_rows

    def source(self, name: str, num_rows: int) -> LinkSource:
        """Return the link table."""

        def chunks(max_rows: int) -> Iterator[LinkChunk]:
            for ids in self.kept(max_rows):
                yield LinkChunk(src=ids[:, 0].copy(), dst=ids[:, 2].copy())

        def labels(max_rows: int) -> Iterator[NDArray[np.generic]]:
            for ids in self.kept(max_rows):
                yield ids[:, 1].copy()

        links = self.keys.links
        return LinkSource(
            name=name,
            rows=LinkStream(chunks=chunks, num_rows=num_rows, label_dtype="int64", labels=labels),
            where=str(links.table.path),
            relation=relation_text(links.relation),
            is_free=True,
        )


def require_no_edges(options: PrepareOptions, origin: str) -> None:
    """Raise ConfigError for an option that is about edges or features, which triples do not have. Pure."""
    for flag, name in _OF_EDGES.items():
        if getattr(options, name):
            raise ConfigError(
                f"{flag} is about edges or features of nodes, and {origin} has triples alone, which are rows to "
                "predict; leave it out"
            )
    if options.edge_split_by != "random":
        raise ConfigError(
            f"--edge-split-by {options.edge_split_by} needs times, and triples have none; leave it out"
        )


def numbered_links(
    tables: Sequence[LinkKeys], options: PrepareOptions, *, folder: Path, budget_bytes: int, origin: str
) -> tuple[tuple[LinkSource, ...], str]:
    """Return the link tables of triples with ids, and the receipt's text on them.

    With ``options.edge_split``, the only table is divided into train, valid and test by a hash of the two ends, so that
    all triples of a pair of entities are in one part.

    Parameters
    ----------
    tables : the tables with numbered keys
    options : the conversion's options
    folder : an existing folder for temporary files
    budget_bytes : the memory budget
    origin : the source, for messages

    Raises
    ------
    ConfigError
        The split does not fit the tables, or leaves a part empty.
    BudgetError
        Marks of rows and nodes do not fit. The message has their bytes.
    StoreWriteError
        The disk has no room for the temporary files.
    """
    if options.edge_split is not None and len(tables) > 1:
        raise ConfigError(
            f"--edge-split divides one table of triples, and {origin} has {len(tables)}: "
            f"{', '.join(each.links.name for each in tables)}; leave it out, or name one file"
        )
    num_nodes = tables[0].nodes.resolve().num_nodes
    mark_bytes = num_nodes + sum(each.num_rows for each in tables) // 8
    require_memory(mark_bytes, f"marks of the rows and entities of {origin}", budget_bytes)
    repeats = find_repeats(
        [(each.num_rows, each.ids) for each in tables], folder, budget_bytes=budget_bytes - mark_bytes
    )
    parts = {
        each.links.name: _Rows(keys=each, repeats=found) for each, found in zip(tables, repeats, strict=True)
    }
    if options.edge_split is not None:
        (whole,) = parts.values()
        rule = RandomParts(seed=options.edge_split_seed, shares=options.edge_split)
        parts = {name: replace(whole, rule=rule, part=number) for number, name in enumerate(PARTS)}
    is_learned = np.zeros(num_nodes, np.bool_)
    counts = {name: rows.count(is_learned if name == TRAIN else None) for name, rows in parts.items()}
    for name, count in counts.items():
        if not count:
            raise ConfigError(
                f"{origin}: the table {name!r} has no triples; "
                + (
                    "give it a larger share in --edge-split, or leave --edge-split out"
                    if options.edge_split
                    else "leave its file out"
                )
            )
    texts = [", ".join(f"{name} {count:,}" for name, count in counts.items())]
    remarks = {each.links.name: each.links.table.remark for each in tables}
    texts += [f"{name} is {remark}" for name, remark in remarks.items() if remark]
    if options.edge_split is not None:
        texts.append("divided by a hash of the two entities, so that all triples of a pair are in one part")
    texts += [
        f"{each.links.name}: {found.num_repeated:,} repeated rows left out"
        for each, found in zip(tables, repeats, strict=True)
        if found.num_repeated
    ]
    texts += [
        f"{found.num_shared:,} rows of {each.links.name} are in an earlier table too"
        for each, found in zip(tables, repeats, strict=True)
        if found.num_shared
    ]
    if lacking := num_nodes - int(np.count_nonzero(is_learned)):
        texts.append(f"{lacking:,} of {num_nodes:,} entities are in no triple of train, and are not learned")
    sources = tuple(rows.source(name, counts[name]) for name, rows in parts.items())
    return sources, "; ".join(texts)
