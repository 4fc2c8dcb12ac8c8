"""Find the edge positions of a link table's rows, and of their reverse edges, in a graph on disk, out of core.

A link table lists pairs of nodes whose edges a model predicts. An edge's position is its index in the stored
``indices`` of its relation. A destination's *list* is its in-neighbours in the stored graph. The search has three
steps:

1. A *bucket* is a group of consecutive destinations. Each row goes to its destination's bucket. Then each bucket's rows
   are looked up in the lists of its destinations.
2. For the reverse relation, the rows go to buckets by source, and are looked up in the same way.
3. The rows go to ranges of row numbers, which restores the table's order.

The rows of a bucket, and the lists, are read in pieces, because they may be larger than memory. `write_table` calls
`plan_locate`, which divides the memory budget among the steps, and `LocatedRows`, which takes the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from gloader.convert.csc.csc_kernels import count_ahead, match_edges
from gloader.convert.csc.spill import Spill
from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.types import NO_EDGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from gloader.convert.source import LinkChunk
    from gloader.convert.stored_parts import StoredCsc
    from gloader.types import IdArray


# Bytes of the widest spilled row: its number, two ends and two positions.
SPILLED_ROW_BYTES = 40
# Maximum number of buckets. Each bucket's file is opened and closed once per chunk, so more buckets would cost more
# than they save.
_MAX_BUCKETS = 1024
# Bytes per destination of a bucket: the start of its list, the start of its rows, and a sum.
_NODE_BYTES = 24
# Bytes per row of a chunk: the row as read, the row for the spill, the copy in bucket order, and the sort.
_CHUNK_BYTES = 160
# Bytes per row during the look-up: the row, a row of another piece, the sorted columns, the sort, and the state of its
# group. The row for the next spill is included.
_JOIN_BYTES = 320
# Bytes per row while the order is restored: the output row, two copies of it, the spilled row and its index.
_ORDER_BYTES = 120
_MAX_CHUNK_ROWS = 1 << 20  # maximum number of rows per chunk of a table
_MIN_ROWS = 4_096  # minimum number of rows per look-up
_PIECE_BYTES = 4 << 20  # bytes per piece of a list


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatePlan:
    """Shares of a memory budget for finding link-table rows in a graph."""

    chunk_rows: int  # rows per chunk of a table
    # Bytes of rows that a `Spill` (the rows of all buckets) holds before it writes files. Two spills may exist at once.
    held_bytes: int
    join_rows: int  # rows that are looked up together
    list_edges: int  # edges per piece of a list
    range_rows: int  # rows per range while the table's order is restored
    bucket_nodes: int  # maximum number of destinations per bucket
    memory_bytes: int  # peak memory of the search

    def shift(self, num_nodes: int, num_rows: int | None) -> int:
        """Return the number of bits by which a destination id is shifted right to give its bucket. Pure.

        Parameters
        ----------
        num_nodes : number of destinations
        num_rows : the table's number of rows, or None if unknown, which counts as a large number
        """
        # A bucket gets half the rows that one look-up can take, because rows are unevenly spread over destinations.
        by_rows = _MAX_BUCKETS // 4 if num_rows is None else -(-2 * num_rows // self.join_rows)
        # A bucket's number of destinations is a power of two, which may be up to twice as large as planned.
        by_nodes = 1 if num_nodes <= self.bucket_nodes else -(-2 * num_nodes // self.bucket_nodes)
        buckets = min(_MAX_BUCKETS, max(1, by_rows, by_nodes))
        return max(0, (max(1, num_nodes) - 1).bit_length() - (buckets - 1).bit_length())


def plan_locate(num_nodes: int, *, budget_bytes: int, num_rows: int | None = None) -> LocatePlan:
    """Divide a memory budget among the steps of a search. Pure.

    Parameters
    ----------
    num_nodes : the larger of the relation's numbers of source and destination nodes
    budget_bytes : the memory budget
    num_rows : the table's number of rows, or None if unknown

    Raises
    ------
    BudgetError
        Not even the smallest useful buffers fit. The message gives needed and allowed bytes.
    """
    # Destinations per bucket, rounded up. The factor 2: their number is a power of two, see `LocatePlan.shift`.
    least_nodes = -(-2 * num_nodes // _MAX_BUCKETS)
    # The factor 2 leaves room for the spills, which take a quarter of the memory besides the piece.
    needed = _PIECE_BYTES + 2 * (_NODE_BYTES * least_nodes + _JOIN_BYTES * _MIN_ROWS)
    if needed > budget_bytes:
        raise BudgetError(
            f"finding link tables in a graph of {num_nodes} nodes needs at least {format_bytes(needed)}; the memory "
            f"budget leaves {format_bytes(budget_bytes)} for it. Raise --memory-budget"
        )
    free = budget_bytes - _PIECE_BYTES
    # The steps run one after another, so each may use the whole of ``work``. Two spills hold rows all the time.
    held = free // 8
    work = free - 2 * held
    node_bytes = max(_NODE_BYTES * least_nodes, work // 4)
    most = budget_bytes if num_rows is None else num_rows  # an unknown number of rows limits nothing below
    chunk = min(_MAX_CHUNK_ROWS, work // _CHUNK_BYTES)
    join, ordered = (work - node_bytes) // _JOIN_BYTES, work // _ORDER_BYTES
    return LocatePlan(
        chunk_rows=chunk,
        held_bytes=held,
        join_rows=join,
        list_edges=_PIECE_BYTES // 8,
        range_rows=ordered,
        bucket_nodes=node_bytes // _NODE_BYTES,
        # The source files' buffers are left out, because the conversion's plan counts them.
        memory_bytes=min(2 * held, 2 * most * SPILLED_ROW_BYTES)
        + max(
            min(chunk, most) * _CHUNK_BYTES,
            _PIECE_BYTES + min(node_bytes, _NODE_BYTES * num_nodes) + min(join, most) * _JOIN_BYTES,
            _PIECE_BYTES + min(ordered, most) * _ORDER_BYTES,
        ),
    )


# Columns of a row, an int64 array. `LocatedRows._looked_up` appends the position, and then the reverse position.
_ROW, _SOURCE, _DESTINATION, _TIME = range(4)
# Maximum number of ranges in the last step. Each range has a file, and no other step has files then.
_MAX_RANGES = 4096


@dataclass(frozen=True, slots=True)
class _Lists:
    """The lists of consecutive destinations."""

    graph: StoredCsc  # the stored topology
    first: int  # the first destination
    stop: int  # the destination after the last one
    max_edges: int  # edges per piece


class _Groups:
    """Rows that are looked up together, sorted by destination, source, time and row number.

    Rows with the same pair of nodes are a *group*, and are adjacent after the sort. The group's first row is its
    *head*. A row's *rank* is its number among all rows of its pair, counted from 0. A row of rank k gets the pair's
    k-th edge.

    Parameters
    ----------
    rows : (n, W) rows in table order
    lists : the lists of the rows' destinations
    key : the columns that count as destination and source; exchanged for the reverse relation
    """

    def __init__(self, rows: IdArray, lists: _Lists, key: tuple[int, int]) -> None:
        self._lists = lists
        self._node_column, self._source_column = key
        nodes = rows[:, self._node_column] - lists.first
        # Rows come in table order, and the sort is stable.
        self._order = np.lexsort((rows[:, _TIME], rows[:, self._source_column], nodes))
        counts = np.bincount(nodes, minlength=lists.stop - lists.first)
        # Bounds of each destination's rows. All arrays below are in sorted order.
        self._start = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        nodes = nodes[self._order]
        self._sources = rows[self._order, self._source_column]
        self._times, self._rows = rows[self._order, _TIME], rows[self._order, _ROW]
        is_head = np.ones(rows.shape[0], np.bool_)
        is_head[1:] = (nodes[1:] != nodes[:-1]) | (self._sources[1:] != self._sources[:-1])
        numbers = np.arange(rows.shape[0], dtype=np.int64)
        self._heads = np.maximum.accumulate(np.where(is_head, numbers, 0))
        self._ranks = numbers - self._heads

    def count(self, others: IdArray) -> None:
        """Increase each row's rank by the number of rows in ``others`` that have its pair and come before it.

        ``others`` (m, W) is another piece of the same bucket.
        """
        added = np.zeros_like(self._ranks)
        columns = (_ROW, self._node_column, self._source_column, _TIME)
        count_ahead(
            *(np.ascontiguousarray(others[:, column]) for column in columns),
            self._lists.first,
            self._start,
            self._sources,
            self._times,
            self._rows,
            added,
        )
        # ``added`` counts each other row at the first row after it. A running sum in each group gives the increase.
        ahead = np.cumsum(added)
        self._ranks += ahead - (ahead - added)[self._heads]

    def look_up(self) -> IdArray:
        """Return each row's edge position (n,), in the given row order, or `NO_EDGE`.

        One pass over the lists matches the k-th edge of each pair with the row of rank k. Rows without a match get the
        pair's last edge.
        """
        lists, num_rows = self._lists, self._heads.shape[0]
        indptr = lists.graph.offsets(lists.first, lists.stop)
        # The state of each group, stored at its head: number of matched edges, last edge's position, next row.
        num_matched, last = np.zeros(num_rows, np.int64), np.full(num_rows, NO_EDGE, np.int64)
        cursor = np.arange(num_rows, dtype=np.int64)
        sorted_positions = np.empty(num_rows, np.int64)
        # Lists before the first row's destination and after the last row's destination are not read.
        with_rows = np.flatnonzero(np.diff(self._start))
        node, position = int(with_rows[0]), int(indptr[with_rows[0]])
        for sources in lists.graph.sources(position, int(indptr[with_rows[-1] + 1]), lists.max_edges):
            node = match_edges(
                indptr,
                node,
                position,
                sources,
                self._start,
                self._sources,
                self._heads,
                self._ranks,
                num_matched,
                cursor,
                last,
                sorted_positions,
            )
            position += sources.shape[0]
        # From a group's cursor on, rows have no edge of their own.
        is_waiting = np.arange(num_rows) >= cursor[self._heads]
        sorted_positions[is_waiting] = last[self._heads[is_waiting]]
        positions = np.empty(num_rows, np.int64)
        positions[self._order] = sorted_positions
        return positions


class LocatedRows:
    """One link table's rows with their positions and reverse positions. A context manager; not thread-safe.

    Call `fill` once, then `rows` once. A pair's k-th row gets the pair's k-th parallel edge. If a pair has more rows
    than edges, the other rows get the last edge. The rows of a pair are counted in table order, or in time order if the
    lists are sorted by time. Owns its temporary files until ``close()``.

    Parameters
    ----------
    plan : shares of the memory budget
    scratch : an existing folder for temporary files
    """

    def __init__(self, plan: LocatePlan, scratch: Path) -> None:
        self.num_rows = 0  # rows read so far
        self.num_found = 0  # rows whose edge is in the graph
        self.num_reversed = 0  # rows for which only the reverse edge is in the graph
        self.spilled_bytes = 0  # bytes of rows written to temporary files
        self._plan = plan
        self._scratch = scratch
        self._uses_times = False  # True if the lists are sorted by time
        self._range_rows = plan.range_rows  # rows per range of the last step
        self._spills: list[Spill] = []  # one for each step, the last one with the results

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the rows and remove the files. Idempotent."""
        while self._spills:
            self._spills.pop().close()

    def fill(
        self,
        chunks: Iterable[LinkChunk],
        graph: StoredCsc,
        back: StoredCsc | None,
        *,
        num_rows: int | None,
    ) -> None:
        """Look up every row. Call once.

        Parameters
        ----------
        chunks : the rows, with checked ids
        graph : the topology of the table's relation
        back : the topology of the reverse relation; None makes all reverse positions `NO_EDGE`
        num_rows : the table's number of rows, or None if unknown; it affects sizes, not results

        Raises
        ------
        StoreWriteError
            The disk refuses a temporary file.
        """
        self._uses_times = graph.has_times and (back is None or back.has_times)
        rows = self._numbered(chunks)
        rows = self._looked_up(rows, graph, key=(_DESTINATION, _SOURCE), num_rows=num_rows)
        if back is None:
            rows = (np.column_stack([each, np.full(each.shape[0], NO_EDGE)]) for each in rows)
        else:
            rows = self._looked_up(rows, back, key=(_SOURCE, _DESTINATION), num_rows=num_rows)
        ordered: Spill | None = None
        for located in rows:
            if ordered is None:  # the first result comes after all rows were read and counted
                self._range_rows = max(self._plan.range_rows, -(-self.num_rows // _MAX_RANGES))
                ordered = self._spill("by-row", width=5, num_buckets=-(-self.num_rows // self._range_rows))
            # The last two columns are the position and the reverse position.
            self.num_found += int(np.count_nonzero(located[:, -2] != NO_EDGE))
            self.num_reversed += int(
                np.count_nonzero((located[:, -2] == NO_EDGE) & (located[:, -1] != NO_EDGE))
            )
            ordered.deal_out(np.delete(located, _TIME, axis=1), located[:, _ROW] // self._range_rows)
        self.spilled_bytes = sum(spill.spilled_bytes for spill in self._spills)

    def rows(self) -> Iterator[IdArray]:
        """Yield (n, 4) source, destination, position and reverse position for all rows in order. Call once."""
        if not self.num_rows:
            return
        ordered = self._spills[-1]
        # Lists are no longer read. So a piece of rows may use the memory for a piece of a list, 8 bytes per edge.
        piece_rows = max(1, 8 * self._plan.list_edges // SPILLED_ROW_BYTES)
        for number, first in enumerate(range(0, self.num_rows, self._range_rows)):
            out = np.empty((min(self._range_rows, self.num_rows - first), 4), np.int64)
            for piece in ordered.pieces(number, piece_rows):
                out[piece[:, 0] - first] = piece[:, 1:]
            ordered.drop(number)
            yield out

    def _numbered(self, chunks: Iterable[LinkChunk]) -> Iterator[IdArray]:
        """Yield the chunks as (n, 4) arrays: row number, source, destination, and time or 0."""
        for chunk in chunks:
            rows = np.zeros((chunk.num_rows, 4), np.int64)
            rows[:, _ROW] = np.arange(self.num_rows, self.num_rows + chunk.num_rows)
            rows[:, _SOURCE], rows[:, _DESTINATION] = chunk.src, chunk.dst
            if self._uses_times and chunk.time is not None:
                rows[:, _TIME] = chunk.time
            self.num_rows += chunk.num_rows
            yield rows

    def _looked_up(
        self, rows: Iterable[IdArray], graph: StoredCsc, *, key: tuple[int, int], num_rows: int | None
    ) -> Iterator[IdArray]:
        """Put ``rows`` (n, W) into buckets by column ``key[0]``. Yield (n, W + 1) rows with their edge positions.

        Parameters
        ----------
        rows : the rows; those with the same pair are in table order
        graph : the topology to search
        key : the columns that count as destination and source
        num_rows : the table's number of rows, or None if unknown
        """
        shift = self._plan.shift(graph.num_nodes, num_rows)
        num_buckets = max(1, -(-graph.num_nodes // (1 << shift)))
        name, width = ("by-destination", 4) if key[0] == _DESTINATION else ("by-source", 5)
        spill = self._spill(name, width=width, num_buckets=num_buckets)
        for chunk in rows:
            spill.deal_out(chunk, chunk[:, key[0]] >> shift)
        for bucket in np.flatnonzero(spill.counts).tolist():
            first = bucket << shift
            stop = min(graph.num_nodes, first + (1 << shift))
            yield from self._joined(spill, bucket, _Lists(graph, first, stop, self._plan.list_edges), key)
            spill.drop(bucket)
        # The spill frees its memory here, so that at most two spills are alive.
        spill.close()

    def _joined(self, spill: Spill, bucket: int, lists: _Lists, key: tuple[int, int]) -> Iterator[IdArray]:
        """Yield a bucket's rows with their edge positions, piece by piece."""
        join_rows = self._plan.join_rows
        for number, piece in enumerate(spill.full_pieces(bucket, join_rows)):
            groups = _Groups(piece, lists, key)
            if piece.shape[0] < spill.counts[bucket]:
                # One pair's rows may lie in several pieces, so each row counts the rows ahead of it in other pieces.
                for other_number, other in enumerate(spill.full_pieces(bucket, join_rows)):
                    if other_number != number:
                        groups.count(other)
            yield np.column_stack([piece, groups.look_up()])

    def _spill(self, name: str, width: int, num_buckets: int) -> Spill:
        """Return a new spill for rows with ``width`` columns, which `close` removes."""
        spill = Spill(
            folder=self._scratch,
            name=name,
            dtype=np.dtype(np.int64),
            row_shape=(width,),
            num_buckets=num_buckets,
            held_bytes=self._plan.held_bytes,
        )
        self._spills.append(spill)
        return spill
