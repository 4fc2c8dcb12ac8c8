"""Writing a relation's edges with their features, which move from source order into dataset order out of core.

The source order is the order of the edges in the source's files. The dataset order is the order of the edges in the
dataset, sorted by destination. `write_edges` sorts a relation's edges with `build_csc`, which also gives the number
that each edge has in the source. `EdgeMoves` inverts these numbers: it finds each source row's *places*, the positions
in dataset order that get the row. Then `ordered_rows` moves the rows. `plan_edge_rows` plans the memory and disk for
the move.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.csc.external_csc import EdgeNumbers, build_csc
from gloader.convert.csc.spill import Spill, TemporaryArray
from gloader.convert.node_order import (
    MAX_RANGES,
    ROW_SORT_BYTES,
    ordered_rows,
    ranges_per_pass,
    spill_dtype,
)
from gloader.convert.source import edges_over, numbered
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ShapeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.csc.edge_rules import EdgeEnds
    from gloader.convert.csc.external_csc import CscReport
    from gloader.convert.options import EdgeRules, PrepareOptions
    from gloader.convert.progress import PrepareProgress
    from gloader.convert.source import EdgeChunk, EdgeStream, FeatureStream
    from gloader.dataset.writer import EdgeTableWriter
    from gloader.types import IdArray


# Bytes of memory per pair (row, place): the pair as read from a file, two sort orders, and the sorted pair.
PAIR_BYTES = 48
# Bytes of memory per position while pairs go to files: edge number, range number, sort order, and the pair twice.
DEAL_BYTES = 64


@dataclass(slots=True, kw_only=True)
class EdgeMoves:
    """The places of each source edge's row, for `ordered_rows`.

    The input is the source edge number at each position in dataset order. Pairs (number, position) are sorted by
    number. If the pairs do not fit into memory, they first go to files, one per range of numbers, and each range is
    sorted when it is needed. Owns the files ``moves-*`` in ``folder`` until ``close()``.
    """

    # (num_rows,) the source edge's number at each position; negative for an added self loop.
    numbers: TemporaryArray
    num_rows: int  # number of positions
    num_edges: int  # number of source edges
    folder: Path
    range_edges: int  # source edges per range; the pairs of one range are in memory together
    deal_positions: int  # positions per read
    is_read_again: bool = False  # True if the rows are read in several passes, so that the pairs' files stay
    _spill: Spill = field(init=False)  # the pairs by range
    _loaded: int = field(default=-1, init=False)  # number of the range in memory; -1 means none
    _rows: IdArray = field(init=False)  # this range's source rows, ascending, counted from the range's first
    _places: IdArray = field(init=False)  # the place of each of these rows

    def __post_init__(self) -> None:
        num_ranges = max(1, -(-self.num_edges // self.range_edges))
        place = np.uint32 if self.num_rows < 2**32 else np.int64
        # A row counts from its range's first row, so it always fits in 32 bits.
        dtype = np.dtype([("row", np.uint32), ("place", place)])
        self._spill = Spill(folder=self.folder, name="moves", dtype=dtype, num_buckets=num_ranges)

    def are_in_place(self) -> bool:
        """Return True if source order and dataset order are the same."""
        if self.num_rows != self.num_edges:
            return False
        return all(
            np.array_equal(piece, np.arange(first, first + piece.shape[0])) for first, piece in self._pieces()
        )

    def deal_out(self, progress: PrepareProgress) -> None:
        """Write the pairs to the files of their ranges. Call it once, before `targets`, which reads these files.

        Raises
        ------
        StoreWriteError
            The disk refuses.
        """
        # A single range needs no file: `_load` makes it from the edge numbers.
        if self._spill.num_buckets == 1:
            return
        for first, piece in self._pieces():
            offsets = np.flatnonzero(piece >= 0)
            numbers = piece[offsets].astype(np.int64)
            pairs = np.empty(offsets.shape[0], self._spill.dtype)
            pairs["row"], pairs["place"] = numbers % self.range_edges, offsets + first
            self._spill.deal_out(pairs, numbers // self.range_edges)
            progress.advance("placing edge features", first + piece.shape[0], self.num_rows, "edges")

    def targets(self, first: int, stop: int) -> tuple[IdArray, IdArray]:
        """Return the places of rows ``first`` ... ``stop - 1``.

        Returns
        -------
        rows : (m,) source rows, ascending, counted from ``first``
        places : (m,) the place of each; a row with several places is repeated
        """
        rows, places = [], []
        for number in range(first // self.range_edges, (stop - 1) // self.range_edges + 1):
            self._load(number)
            start = number * self.range_edges
            low, high = np.searchsorted(self._rows, [first - start, stop - start])
            rows.append(self._rows[low:high] + (start - first))
            places.append(self._places[low:high])
        return np.concatenate(rows), np.concatenate(places)

    def arrivals(self, first: int, stop: int) -> IdArray:
        """Return the places ``first`` ... ``stop - 1`` that get a row, counted from ``first``, in order of their rows.

        `ordered_rows` sends the rows to ranges of places in source order. This is the order in which they arrive.
        """
        numbers = self.numbers.read(first, stop)
        # An edge and its reverse get the same row, so the sort need not be stable.
        order = np.argsort(numbers)
        # Places without a source edge have negative numbers, and are first after the sort.
        return order[int(np.count_nonzero(numbers < 0)) :]

    def close(self) -> None:
        """Remove the files. Idempotent."""
        self._spill.close()

    def _load(self, number: int) -> None:
        """Load range ``number``'s pairs into memory, sorted by row."""
        if number == self._loaded:
            return
        self._loaded, self._rows, self._places = number, np.empty(0, np.int64), np.empty(0, np.int64)
        if self._spill.num_buckets == 1:
            numbers = self.numbers.read(0, self.num_rows)
            self._places = self.arrivals(0, self.num_rows)
            self._rows = numbers[self._places].astype(np.int64)
            return
        # All pairs of the range are one piece. Without pairs the loop does nothing.
        for pairs in self._spill.pieces(number, max(1, int(self._spill.counts[number]))):
            order = np.argsort(pairs["row"])
            self._rows = pairs["row"][order].astype(np.int64)
            self._places = pairs["place"][order].astype(np.int64)
        # One pass requests each range once, because it reads the rows in order.
        if not self.is_read_again:
            self._spill.drop(number)

    def _pieces(self) -> Iterator[tuple[int, NDArray[np.integer]]]:
        """Yield the source edge numbers in pieces, each with its first position."""
        first = 0
        for piece in self.numbers.pieces(self.num_rows, self.deal_positions):
            yield first, piece
            first += piece.shape[0]


_CHUNK_BYTES = 4 << 20  # maximum number of feature bytes per chunk
_CHUNK_COPIES = 4  # copies of a chunk in memory: as read, as float32, as stored, grouped by range
_DEAL_POSITIONS = 1 << 18  # maximum number of positions per read while pairs go to files


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRowPlan:
    """Memory and disk for moving edge features into dataset order, and each part's share."""

    chunk_rows: int  # feature rows per chunk
    range_rows: int  # positions per range of reordered rows
    range_edges: int  # source edges per range of pairs
    deal_positions: int  # positions per read while pairs go to files
    memory_bytes: int  # peak memory
    # Bytes of edge numbers on disk, where they stay from the edge sort to the end of the move.
    number_bytes: int
    scratch_bytes: int  # largest size of all temporary files together, ``number_bytes`` included


NO_EDGE_ROWS: Final = EdgeRowPlan(  # the plan for a relation without edge features
    chunk_rows=0,
    range_rows=0,
    range_edges=0,
    deal_positions=0,
    memory_bytes=0,
    number_bytes=0,
    scratch_bytes=0,
)


def plan_edge_rows(
    features: FeatureStream,
    num_edges: int,
    *,
    dtype: str,
    rules: EdgeRules,
    budget_bytes: int,
    where: str,
    num_passes: int = 1,
) -> EdgeRowPlan:
    """Divide a memory budget for moving edge features into dataset order. Pure.

    Parameters
    ----------
    features : the features (E_s, F_e) in source order; only their sizes are used
    num_edges : the dataset's number of edges, or an upper bound
    dtype : the stored dtype
    rules : changes to the edges
    budget_bytes : the memory budget
    where : the source, for messages
    num_passes : number of passes over the rows; each pass writes only a part of them to temporary files, so that more
        passes need less disk

    Raises
    ------
    BudgetError
        The smallest useful buffers do not fit. The message gives needed and allowed bytes.
    """
    row_bytes = features.dim * max(4, features.dtype.itemsize)
    places = 2 if rules.symmetrize else 1  # places of an edge's row
    stored = features.dim * spill_dtype(dtype).itemsize  # bytes of a row in a temporary file
    # Half of the budget is for a range of rows. A quarter is for a chunk of rows, and a quarter for (row, place) pairs.
    # The expression -(-a // b) is a / b, rounded up.
    least_range = max(1, -(-num_edges // MAX_RANGES)) * (stored + ROW_SORT_BYTES)
    least_chunk = places * _CHUNK_COPIES * row_bytes
    least_moves = max(1, -(-features.num_rows // MAX_RANGES)) * places * PAIR_BYTES
    needed = max(2 * least_range, 4 * least_chunk, 4 * least_moves)
    if needed > budget_bytes:
        raise BudgetError(
            f"{where}: putting the features of {num_edges} edges in order takes at least {format_bytes(needed)}; the "
            f"memory budget leaves {format_bytes(budget_bytes)} for it. Raise --memory-budget"
        )
    chunk = max(1, min(_CHUNK_BYTES, budget_bytes // 4 // _CHUNK_COPIES) // (places * row_bytes))
    chunk_rows = min(chunk, max(1, features.num_rows))
    range_rows = max(1, min(num_edges, budget_bytes // 2 // (stored + ROW_SORT_BYTES)))
    range_edges = max(1, min(features.num_rows, budget_bytes // 4 // (places * PAIR_BYTES), 2**32 - 1))
    dealt = max(1, min(_DEAL_POSITIONS, num_edges, budget_bytes // DEAL_BYTES))
    # With a single range, the rows or the pairs need no files.
    is_spilled, is_dealt_out = range_rows < num_edges, range_edges < features.num_rows
    held = (
        range_rows * (stored + ROW_SORT_BYTES)
        + chunk_rows * places * _CHUNK_COPIES * row_bytes
        + range_edges * places * PAIR_BYTES
    )
    number = EdgeNumbers.bytes_of(features.num_rows)  # bytes per edge number
    pair = 8 if num_edges < 2**32 else 12  # bytes per pair on disk, see `EdgeMoves`
    # The disk holds only the ranges of one pass.
    of_pass = ranges_per_pass(-(-num_edges // range_rows), num_passes)
    spilled = min(num_edges, of_pass * range_rows) if is_spilled else 0
    return EdgeRowPlan(
        chunk_rows=chunk_rows,
        range_rows=range_rows,
        range_edges=range_edges,
        deal_positions=dealt,
        memory_bytes=max(held, dealt * DEAL_BYTES),
        number_bytes=num_edges * number,
        scratch_bytes=num_edges * (number + pair * is_dealt_out) + spilled * stored,
    )


def most_edges(num_edges: int, rules: EdgeRules, num_nodes: int) -> int:
    """Return the largest number of edges after ``rules``, from ``num_edges`` edges. Pure."""
    return num_edges * (2 if rules.symmetrize else 1) + num_nodes * rules.self_loops


@dataclass(frozen=True, slots=True, kw_only=True)
class FeaturedEdges:
    """A source's edges with their features."""

    edges: EdgeStream
    features: FeatureStream | None  # in the order of the edges; None without features
    dtype: str  # dtype of the stored features
    num_passes: int = 1  # passes over the features if they are reordered on disk; each pass reorders a part


def numbered_edges(edges: EdgeStream, num_rows: int, where: str) -> EdgeStream:
    """Return the edges with their numbers in the source, which are the numbers of their feature rows. Pure.

    A stream that leaves out some edges of the file must number the remaining edges itself. The returned stream's
    ``chunks`` raises ShapeError if an edge has no row. For a stream without numbers of its own, a row without an edge
    is an error too.

    Parameters
    ----------
    edges : the source's edges
    num_rows : number of feature rows
    where : the edges' file or source, for messages
    """

    def chunks(max_edges: int) -> Iterator[EdgeChunk]:
        # ``are_all`` is True while no chunk had numbers of its own: then the stream has all edges of the file.
        done, are_all = 0, True
        for read_chunk in edges.chunks(max_edges):
            chunk = numbered(read_chunk, done)
            are_all &= read_chunk.number is None
            done += chunk.src.shape[0]
            if chunk.number is not None and chunk.number.max(initial=-1) >= num_rows:
                raise ShapeError(
                    f"{where}: edge {num_rows} (counted from 0) has no edge features; there are {num_rows} rows"
                )
            yield chunk
        if are_all and done != num_rows:
            raise ShapeError(f"{where}: edge features have {num_rows} rows for {done} edges")

    return edges_over(edges, chunks)


def write_edges(
    featured: FeaturedEdges,
    sink: EdgeTableWriter,
    *,
    ends: EdgeEnds,
    rules: EdgeRules,
    budget_bytes: int,
    scratch: Path,
    progress: PrepareProgress,
) -> CscReport:
    """Write edges sorted by destination, as in `build_csc`, and then their features.

    A reverse edge has the same features. Merged parallel edges have the first edge's features, and an added self loop
    has zeros.

    Parameters
    ----------
    featured : the source's edges; each stream is read once, features in ``featured.num_passes`` passes
    sink : receives all arrays
    ends, rules, budget_bytes, scratch, progress : see `build_csc`

    Raises
    ------
    GraphError, BudgetError, StoreWriteError
        As `build_csc`.
    ShapeError
        The numbers of feature rows and edges differ.
    FeatureValueError
        A value cannot be stored.
    """
    sort = partial(
        build_csc,
        sink=sink,
        ends=ends,
        rules=rules,
        budget_bytes=budget_bytes,
        scratch=scratch,
        progress=progress,
    )
    features, dtype = featured.features, featured.dtype
    if features is None:
        return sort(featured.edges)
    numbers = EdgeNumbers.of(scratch / "edge-numbers", features.num_rows)
    try:
        report = sort(numbered_edges(featured.edges, features.num_rows, ends.where), numbers=numbers)
        count = report.num_edges
        plan = plan_edge_rows(
            features, count, dtype=dtype, rules=rules, budget_bytes=budget_bytes, where=ends.where
        )
        done, total = 0, 4 * features.dim * count
        with sink.edge_features(count, features.dim, dtype) as column:
            for chunk in _rows(featured, numbers, plan, count, scratch, progress):
                column.append(chunk)
                done += 4 * chunk.size
                progress.advance("writing edge features", done, total, "bytes")
    finally:
        numbers.array.remove()
    return report


def _rows(
    featured: FeaturedEdges,
    numbers: EdgeNumbers,
    plan: EdgeRowPlan,
    num_edges: int,
    scratch: Path,
    progress: PrepareProgress,
) -> Iterator[NDArray[Any]]:
    """Yield the feature rows (n, F_e) in dataset order, in chunks.

    Parameters
    ----------
    featured : the source's edges with their features
    numbers : each stored edge's number in the source
    plan : the memory for the move
    num_edges : the dataset's number of edges
    scratch, progress : see `build_csc`
    """
    features = featured.features
    if features is None:
        return
    moves = EdgeMoves(
        numbers=numbers.array,
        num_rows=num_edges,
        num_edges=features.num_rows,
        folder=scratch,
        range_edges=plan.range_edges,
        deal_positions=plan.deal_positions,
        is_read_again=featured.num_passes > 1,
    )
    # No row moves if the source has the dataset's order, for example in a CSC file.
    if moves.are_in_place():
        yield from features.chunks(plan.chunk_rows)
        return
    try:
        moves.deal_out(progress)
        yield from ordered_rows(
            features,
            moves,
            dtype=featured.dtype,
            chunk_rows=plan.chunk_rows,
            range_rows=plan.range_rows,
            num_passes=featured.num_passes,
            scratch=scratch,
            progress=progress,
            step="ordering edge features",
        )
    finally:
        moves.close()


def recorded_dtype(options: PrepareOptions, *features: FeatureStream | None) -> dict[str, str]:
    """Return the edge feature dtype for the commit record, empty without edge features. Pure."""
    return {} if all(rows is None for rows in features) else {"edge_dtype": options.stored_edge_dtype}
