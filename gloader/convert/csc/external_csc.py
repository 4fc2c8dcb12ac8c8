"""Sorting a stream of edges into CSC within a memory budget: an external counting sort in two passes.

In CSC, ``indices`` (E,) holds the edges' sources grouped by destination, and ``indptr`` (N + 1,) the bounds of each
destination's group. A *bucket* holds the edges of consecutive destinations, in memory or in a temporary file. A
*record* is one edge in a bucket: its ends, and its columns (weight, time, number in the source). The first pass reads
the source and writes each edge to its bucket. The second pass (`sorted_ranges`) sorts one bucket after another by
counting: degrees, offsets, and a stable scatter of the sources. Both passes stay within the budget for any number of
edges. `build_csc` runs both and writes the result to a `CscSink`. One such sink is `ScratchCsc`, which keeps the result
in temporary files that can be read several times. The converter calls `build_csc` once for each relation.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from gloader.convert.csc.edge_rules import EdgeEnds, chunks_after_rules
from gloader.convert.csc.sorted_ranges import PIECE_BYTES, SortedRanges, cut_ranges
from gloader.convert.csc.spill import EdgeColumns, Spill, TemporaryArray, append_edges, record_dtype
from gloader.convert.progress import NO_PROGRESS, PrepareProgress
from gloader.core.units import format_bytes
from gloader.errors import BudgetError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.convert.options import EdgeRules
    from gloader.convert.source import EdgeChunk, EdgeStream
    from gloader.types import IdArray


# Maximum number of buckets. Each chunk opens and closes every bucket's file, so more buckets would cost more than they
# save.
_MAX_BUCKETS = 256
# Bounds for the edges per chunk of the source. Larger chunks are not read faster; smaller ones take more time in calls.
_MAX_CHUNK_EDGES = 2_000_000
_MIN_CHUNK_EDGES = 4_096
# Nodes per bucket for which the counters fit into an ordinary second-level cache.
_BUCKET_NODES = 2**18
# Assumed edges per node if the source's number of edges is unknown. A wrong guess costs time, not correctness.
_USUAL_DEGREE = 32
# Bytes per node of a bucket for the int64 counters: degrees, their sums, and the cursors of the scatter.
_COUNTER_BYTES = 24


class ChunkWriter(Protocol):
    """Receives an array's rows, chunk by chunk, in order."""

    def append(self, chunk: NDArray[Any], /) -> None:
        """Write the next rows."""
        ...


class CscSink(Protocol):
    """Receives the sorted topology. One implementation is `gloader.dataset.writer.EdgeTableWriter`."""

    def indptr(self) -> AbstractContextManager[ChunkWriter]:
        """Return the writer for the (N + 1,) int64 offsets."""
        ...

    def indices(self, num_edges: int, dtype: str) -> AbstractContextManager[ChunkWriter]:
        """Return the writer for the (E,) sources, ``dtype`` int32 or int64."""
        ...

    def edge_weight(self, num_edges: int) -> AbstractContextManager[ChunkWriter]:
        """Return the writer for the (E,) float32 weights."""
        ...

    def edge_time(self, num_edges: int) -> AbstractContextManager[ChunkWriter]:
        """Return the writer for the (E,) int64 times."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CscPlan:
    """Buckets, and the memory budget's shares for reading, holding and sorting edges."""

    shift: int  # bucket b holds the destinations d with d >> shift == b
    num_buckets: int
    chunk_edges: int  # edges per chunk of the source
    held_bytes: int  # bytes of records that stay in memory before they are written to the buckets' files
    sort_edges: int  # edges that are sorted together
    peak_bytes: int  # peak memory of both passes, with buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class CscReport:
    """Numbers of edges and bytes of a finished sort."""

    edges_read: int
    num_edges: int  # edges written
    spilled_bytes: int  # bytes of records written to temporary files


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeNumbers:
    """Receives each stored edge's number in the source, in stored order. Added self loops have `NO_EDGE` (negative).

    The numbers move the edge features into stored order later: an edge's number is its row in the source's features.
    """

    array: TemporaryArray
    num_rows: int  # feature rows in the source; all numbers are below this

    @classmethod
    def of(cls, path: Path, num_rows: int) -> EdgeNumbers:
        """Return a receiver that writes the file ``path``."""
        dtype = np.dtype(f"i{cls.bytes_of(num_rows)}")
        return cls(array=TemporaryArray(path=path, dtype=dtype), num_rows=num_rows)

    @staticmethod
    def bytes_of(num_rows: int) -> int:
        """Return the bytes per number. Pure."""
        return 4 if num_rows < 2**31 else 8


def edge_columns(edges: EdgeStream, rules: EdgeRules, *, num_rows: int | None) -> EdgeColumns:
    """Return the columns that the sort keeps for every edge besides its ends. Pure.

    Parameters
    ----------
    edges : the source's stream
    rules : changes to the edges
    num_rows : edge feature rows in the source, or None without edge features
    """
    number_bytes = 0 if num_rows is None else EdgeNumbers.bytes_of(num_rows)
    # Merged parallel edges keep the time of the first edge in the source. The merge finds this edge by its number.
    if num_rows is None and edges.has_times and rules.merges:
        number_bytes = 8
    return EdgeColumns(has_weights=edges.has_weights, has_times=edges.has_times, number_bytes=number_bytes)


def plan_csc(
    ends: EdgeEnds, num_edges: int | None, *, columns: EdgeColumns, rules: EdgeRules, budget_bytes: int
) -> CscPlan:
    """Choose the buckets, and divide a memory budget between reading, holding and sorting edges. Pure.

    Parameters
    ----------
    ends : the edges' nodes
    num_edges : the source's number of edges; None means unknown, and is planned as 32 per destination
    columns : the columns that every edge has besides its ends
    rules : changes to the edges
    budget_bytes : memory for both passes

    Raises
    ------
    BudgetError
        Not even the smallest useful buffers fit. The message gives needed and allowed bytes.
    """
    num_nodes = ends.num_nodes
    # Bytes of an edge as a record, in a chunk of the first pass, and in the sort of the second pass.
    record = record_dtype(num_sources=ends.num_sources, columns=columns).itemsize
    per_edge = _chunk_edge_bytes(record, columns, rules)
    sorted_edge = _sorted_edge_bytes(ends.num_sources, columns, rules)
    factor = 2 if rules.symmetrize else 1
    expected = (  # edges after the rules
        _USUAL_DEGREE * num_nodes if num_edges is None else factor * num_edges + rules.self_loops * num_nodes
    )
    # A bucket is planned for half of the edges that fit into one sort, because some buckets get more than the mean. The
    # expression -(-a // b) is a / b, rounded up.
    per_bucket = max(1, budget_bytes // 4 // sorted_edge)
    shift = _bucket_shift(num_nodes, -(-expected // per_bucket))
    counters = _COUNTER_BYTES << shift
    needed = counters + per_edge * _MIN_CHUNK_EDGES + sorted_edge * _MIN_CHUNK_EDGES + PIECE_BYTES
    if needed > budget_bytes:
        raise BudgetError(
            f"sorting edges of {num_nodes} nodes needs at least {format_bytes(needed)}; the memory budget "
            f"leaves {format_bytes(budget_bytes)} for it. Raise --memory-budget"
        )
    # In the first pass, a chunk gets a quarter of the memory, and held records get up to half. If all records fit in
    # memory, they stay there during the second pass. So the sort gets only the rest.
    free = budget_bytes - counters - PIECE_BYTES
    chunk = max(_MIN_CHUNK_EDGES, min(_MAX_CHUNK_EDGES, free // 4 // per_edge))
    held = max(0, free - max(chunk * per_edge, free // 2))
    sort = max(_MIN_CHUNK_EDGES, (free - held) // sorted_edge)
    reading = min(chunk, expected) * per_edge
    holding = held if num_edges is None else min(held, expected * record)
    sorting = min(sort, expected) * sorted_edge
    return CscPlan(
        shift=shift,
        num_buckets=max(1, -(-num_nodes // (1 << shift))),
        chunk_edges=chunk,
        held_bytes=held,
        sort_edges=sort,
        peak_bytes=counters + PIECE_BYTES + holding + max(reading, sorting),
    )


def build_csc(
    edges: EdgeStream,
    sink: CscSink,
    *,
    ends: EdgeEnds,
    rules: EdgeRules,
    budget_bytes: int,
    scratch: Path,
    numbers: EdgeNumbers | None = None,
    progress: PrepareProgress = NO_PROGRESS,
) -> CscReport:
    """Write the edges to ``sink`` as CSC, destination by destination.

    If edges have times, each destination's in-neighbours are in order of time, and of the source for equal times.
    Otherwise, they are in ascending order if ``rules`` merge parallel edges, or else in input order. Merged parallel
    edges keep the first edge's time and number. Indices are int32 for fewer than 2**31 sources, else int64.

    Parameters
    ----------
    edges : the source's stream, read once
    sink : receives offsets, sources, weights and times
    ends : the edges' nodes
    rules : changes to the edges
    budget_bytes : memory for both passes
    scratch : an existing folder for temporary files, which are removed at the end
    numbers : receives each edge's number in the source, unless None
    progress : receives the steps "reading edges" and "sorting edges"

    Raises
    ------
    GraphError
        An id is out of range, a weight is negative or not finite, or a time is out of range.
    BudgetError
        The budget is too small for the smallest useful buffers.
    StoreWriteError
        The disk refuses a temporary file.
    """
    columns = edge_columns(edges, rules, num_rows=None if numbers is None else numbers.num_rows)
    plan = plan_csc(ends, edges.num_edges, columns=columns, rules=rules, budget_bytes=budget_bytes)
    spill = Spill(
        folder=scratch,
        name="edges",
        dtype=record_dtype(num_sources=ends.num_sources, columns=columns),
        num_buckets=plan.num_buckets,
        held_bytes=plan.held_bytes,
    )
    with spill:
        chunks = chunks_after_rules(
            edges,
            ends=ends,
            rules=rules,
            max_edges=plan.chunk_edges,
            is_numbered=columns.number_bytes > 0,
        )
        read = _fill_buckets(chunks, spill, plan.shift, edges.num_edges, progress)
        ranges = SortedRanges(
            spill=spill,
            shift=plan.shift,
            num_nodes=ends.num_nodes,
            num_sources=ends.num_sources,
            max_edges=plan.sort_edges,
            merges=rules.merges,
        )
        written = None if numbers is None else numbers.array
        num_edges = _write(ranges, sink, int(spill.counts.sum()), written, scratch, progress)
        return CscReport(edges_read=read, num_edges=num_edges, spilled_bytes=spill.spilled_bytes)


def _fill_buckets(
    chunks: Iterator[tuple[int, EdgeChunk]],
    spill: Spill,
    shift: int,
    num_edges: int | None,
    progress: PrepareProgress,
) -> int:
    """Distribute all chunks over the buckets, and return the number of edges read.

    Parameters
    ----------
    chunks : pairs of the number of edges read and a chunk, see `chunks_after_rules`
    spill : the buckets
    shift : bucket b gets the destinations d with d >> shift == b
    num_edges : edges in the source, for the progress; None if unknown
    progress : receives the step "reading edges"
    """
    # This is a separate function, so that the last chunk is freed before the second pass begins.
    read = 0
    for count, chunk in chunks:
        append_edges(spill, chunk, shift=shift)
        read += count
        progress.advance("reading edges", read, num_edges, "edges")
    return read


def _bucket_shift(num_nodes: int, wanted_buckets: int) -> int:
    """Return the number of low bits in a node id that are its offset in a bucket. The other bits number the bucket."""
    # More buckets than wanted may be needed to keep a bucket's counters in the processor's cache.
    buckets = min(_MAX_BUCKETS, max(wanted_buckets, -(-num_nodes // _BUCKET_NODES)))
    return max(0, (max(1, num_nodes) - 1).bit_length() - (buckets - 1).bit_length())


def _chunk_edge_bytes(record: int, columns: EdgeColumns, rules: EdgeRules) -> int:
    """Return the bytes per edge of a chunk: its copies as read, as ids, after the rules, and as records.

    ``record`` is the bytes of one record.
    """
    # Two int64 ids are 16 bytes. A number is 8 bytes until it is in a record.
    ids = 16 + columns.num_bytes + (8 - columns.number_bytes if columns.number_bytes else 0)
    ruled = (2 * ids if rules.symmetrize else 0) + (ids if rules.self_loops else 0)
    return 2 * ids + ruled + record * (2 if rules.symmetrize else 1)


def _sorted_edge_bytes(num_sources: int, columns: EdgeColumns, rules: EdgeRules) -> int:
    """Return the bytes per edge while a bucket's edges are sorted, with the copies of one node's edges."""
    out = (4 if num_sources < 2**31 else 8) + columns.num_bytes
    # A merge by columns needs an order (8 bytes), a copy of the sources and columns, and 4 bytes of numpy's own.
    merge = 12 + out if rules.merges and (columns.has_weights or columns.number_bytes) else 0
    # A sort by time needs two orders, a copy of the times, and numpy's own memory.
    by_time = 36 + out if columns.has_times else 0
    return out + max(merge, by_time)


def _write(
    ranges: SortedRanges,
    sink: CscSink,
    total: int,
    numbers: TemporaryArray | None,
    scratch: Path,
    progress: PrepareProgress,
) -> int:
    """Write the sorted ranges to ``sink``, and return the number of written edges.

    Parameters
    ----------
    ranges : the sorted ranges of all buckets
    sink : receives offsets and columns
    total : number of edges in the buckets; a merge may write fewer
    numbers : receives each edge's number in the source, unless None
    scratch : folder for temporary files
    progress : receives the step "sorting edges"
    """
    with sink.indptr() as offsets:
        if not ranges.merges:
            with ExitStack() as stack:
                writers: dict[str, ChunkWriter] = {
                    name: stack.enter_context(_writer(sink, ranges, name, total))
                    for name in ranges.fields
                    if name != "number"
                }
                return _write_ranges(ranges, offsets, writers, numbers, total=total, progress=progress)
        # A sink needs the number of edges first, but only the merge finds it. So the merged edges wait in files.
        waiting = {
            name: TemporaryArray(path=scratch / f"{name}.merged", dtype=ranges.dtype[name])
            for name in ranges.fields
            if name != "number"
        }
        written = _write_ranges(ranges, offsets, waiting, numbers, total=total, progress=progress)
    for name, array in waiting.items():
        with _writer(sink, ranges, name, written) as writer:
            for piece in array.pieces(written, PIECE_BYTES // array.dtype.itemsize):
                writer.append(piece)
        array.remove()
    return written


def _writer(
    sink: CscSink, ranges: SortedRanges, name: str, num_edges: int
) -> AbstractContextManager[ChunkWriter]:
    """Return the sink's writer for the records' field ``name``: src, weight or time."""
    if name == "src":
        return sink.indices(num_edges, ranges.index_dtype.name)
    return sink.edge_weight(num_edges) if name == "weight" else sink.edge_time(num_edges)


def _write_ranges(
    ranges: SortedRanges,
    offsets: ChunkWriter,
    writers: Mapping[str, ChunkWriter],
    numbers: ChunkWriter | None,
    *,
    total: int,
    progress: PrepareProgress,
) -> int:
    """Append the offsets, the columns and the edge numbers of all ranges. Return the number of written edges."""
    # Without ``numbers``, records may still have numbers, for the merge. These are not written.
    columns = dict(writers) | ({} if numbers is None else {"number": numbers})
    # Each range continues the offsets, which begin with 0.
    offsets.append(np.zeros(1, np.int64))
    end, written, taken = 0, 0, 0  # the last offset, the written edges, and the edges taken from the buckets
    for part in ranges:
        # If a node's edges come in several parts, only the first part has the degree.
        if part.degrees.shape[0]:
            ends = np.cumsum(part.degrees) + end
            offsets.append(ends)
            end = int(ends[-1])
        if part.num_edges:
            for name, writer in columns.items():
                writer.append(part.columns[name])
        written += part.num_edges
        taken += part.edges_taken
        progress.advance("sorting edges", taken, total, "edges")
    return written


# Offsets per read in `ScratchCsc.pieces`: 2 MiB of int64.
_BLOCK_NODES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class CscPiece:
    """The in-neighbours of consecutive nodes."""

    first: int  # the first node's id
    indptr: IdArray  # (n + 1,) bounds of the nodes' in-neighbours in ``indices``
    indices: NDArray[Any]  # (e,) the in-neighbours


@dataclass(slots=True, kw_only=True)
class ScratchCsc:
    """A `CscSink` for a topology without weights and times. Owns two files in ``folder`` until ``close()``."""

    folder: Path
    ends: EdgeEnds  # the numbers of destinations (N) and sources
    _offsets: TemporaryArray = field(init=False)
    _sources: TemporaryArray = field(init=False)

    def __post_init__(self) -> None:
        dtype = np.dtype(np.int32 if self.ends.num_sources < 2**31 else np.int64)
        self._offsets = TemporaryArray(path=self.folder / "scratch.indptr", dtype=np.dtype(np.int64))
        self._sources = TemporaryArray(path=self.folder / "scratch.indices", dtype=dtype)

    @property
    def num_nodes(self) -> int:
        """N, the number of destinations."""
        return self.ends.num_nodes

    def fill(
        self, edges: EdgeStream, *, rules: EdgeRules, budget_bytes: int, progress: PrepareProgress
    ) -> int:
        """Sort edges into the files, and return the number of edges after the rules. Raises as `build_csc`.

        Parameters
        ----------
        edges : a stream without weights, read once
        rules : changes to the edges
        budget_bytes : memory for the sort
        progress : receives the sort's steps
        """
        report = build_csc(
            edges,
            self,
            ends=self.ends,
            rules=rules,
            budget_bytes=budget_bytes,
            scratch=self.folder,
            progress=progress,
        )
        return report.num_edges

    def indptr(self) -> AbstractContextManager[TemporaryArray]:
        """Return the writer for the (N + 1,) int64 offsets."""
        return nullcontext(self._offsets)

    def indices(self, num_edges: int, dtype: str) -> AbstractContextManager[TemporaryArray]:  # noqa: ARG002 - as CscSink
        """Return the writer for the (E,) sources."""
        return nullcontext(self._sources)

    def edge_weight(self, num_edges: int) -> AbstractContextManager[TemporaryArray]:
        """Raise NotImplementedError, because edges have no weights here."""
        raise NotImplementedError(f"a temporary topology stores no weights, but gets {num_edges}")

    def edge_time(self, num_edges: int) -> AbstractContextManager[TemporaryArray]:
        """Raise NotImplementedError, because edges have no times here."""
        raise NotImplementedError(f"a temporary topology stores no times, but gets {num_edges}")

    def pieces(self, max_edges: int) -> Iterator[CscPiece]:
        """Yield all nodes in order, with at most ``max_edges`` in-neighbours per piece.

        A node with more in-neighbours has its own piece, with only its first ``max_edges`` in-neighbours.
        """
        # A block reads one offset more than nodes, because the last offset bounds the last node.
        for block in range(0, self.num_nodes, _BLOCK_NODES):
            bounds = self._offsets.read(block, min(self.num_nodes, block + _BLOCK_NODES) + 1)
            for start, stop in cut_ranges(np.diff(bounds), max_edges):
                low = int(bounds[start])
                high = min(int(bounds[stop]), low + max_edges)
                yield CscPiece(
                    first=block + start,
                    indptr=np.minimum(bounds[start : stop + 1], high) - low,
                    indices=self._sources.read(low, high),
                )

    def offsets(self, start: int, stop: int) -> IdArray:
        """Return the (stop - start + 1,) int64 offsets for nodes ``start`` ... ``stop - 1``, as bounds in all edges."""
        return self._offsets.read(start, stop + 1)

    def sources(self, start: int, stop: int) -> NDArray[Any]:
        """Return the in-neighbours at positions ``start`` ... ``stop - 1``."""
        return self._sources.read(start, stop)

    def close(self) -> None:
        """Remove the files. Idempotent."""
        self._offsets.remove()
        self._sources.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
