"""The external sort's second pass: buckets of edges become sorted ranges of destinations.

`external_csc` has the first pass, which writes each edge as a record to the bucket of its destination. A bucket is a
group of consecutive destinations, kept in a `Spill`. In the second pass, each bucket is cut into *ranges*: consecutive
destinations whose edges are sorted together in memory. Iterating over `SortedRanges` yields them. A destination with
too many edges for one sort is a *hub*. Its edges are yielded in several parts. If a hub's edges have times, `TimeRuns`
sorts them on disk: it writes *runs*, which are sorted sequences of records, and merges them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.csc.csc_kernels import (
    count_in_degrees,
    mark_sources,
    merge_columns,
    merge_segments,
    scatter_sources,
    sort_by_time,
)
from gloader.convert.csc.spill import TemporaryArray

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.csc.spill import Spill
    from gloader.types import IdArray


# Maximum number of runs per merge. Each run has a piece in memory, and with more runs the pieces would be too small.
_MAX_RUNS = 64


class TimeRuns:
    """Sorts records by time and source, out of core. Owns files in ``folder`` until ``close()``.

    Records are sorted in memory, and written as runs. Then all runs are merged. Equal records keep their order.

    Parameters
    ----------
    folder : an existing folder for the files
    dtype : the records' dtype, with the fields time and src
    max_records : records per run, and in memory while runs are merged
    """

    def __init__(self, folder: Path, dtype: np.dtype[np.void], *, max_records: int) -> None:
        self._folder = folder
        self._dtype = dtype
        self._max_records = max_records
        self._files: list[TemporaryArray] = []  # every file made so far
        self._runs: list[tuple[TemporaryArray, int]] = []  # each run's file and number of records
        self._held: list[NDArray[np.void]] = []  # appended records that are not yet in a run
        self.num_records = 0  # records appended so far

    def append(self, records: NDArray[np.void]) -> None:
        """Copy the next records. A full run is sorted and written.

        Raises
        ------
        StoreWriteError
            The disk refuses.
        """
        for start in range(0, records.shape[0], self._max_records):
            self._held.append(records[start : start + self._max_records].copy())
            self.num_records += self._held[-1].shape[0]
            if sum(piece.shape[0] for piece in self._held) >= self._max_records:
                self._flush()

    def merged(self) -> Iterator[NDArray[np.void]]:
        """Yield all records in order of time, then source, in pieces. Merged files are removed.

        Raises
        ------
        StoreWriteError
            The disk refuses, or a file was truncated.
        """
        self._flush()
        while len(self._runs) > _MAX_RUNS:
            # Only consecutive runs are joined, so that equal records stay in order.
            groups = [self._runs[start : start + _MAX_RUNS] for start in range(0, len(self._runs), _MAX_RUNS)]
            self._runs = [self._joined(group) for group in groups]
        yield from self._merge(self._runs)

    def close(self) -> None:
        """Remove the files. Idempotent."""
        for file in self._files:
            file.remove()

    def _flush(self) -> None:
        """Sort the records in memory, and write them as a run."""
        if not self._held:
            return
        records = np.concatenate(self._held)
        self._held.clear()
        run = self._new_run()
        run.append(records[_time_order(records)])
        self._runs.append((run, records.shape[0]))

    def _joined(self, group: list[tuple[TemporaryArray, int]]) -> tuple[TemporaryArray, int]:
        """Merge a group of runs into one longer run, and return it with its number of records."""
        longer = self._new_run()
        for piece in self._merge(group):
            longer.append(piece)
        return longer, sum(length for _, length in group)

    def _new_run(self) -> TemporaryArray:
        """Return a new file, which `close` removes."""
        path = self._folder / f"hub-{len(self._files):05d}.edges"
        self._files.append(TemporaryArray(path=path, dtype=self._dtype))
        return self._files[-1]

    def _merge(self, runs: list[tuple[TemporaryArray, int]]) -> Iterator[NDArray[np.void]]:
        """Yield the records of all runs in order, and remove the runs.

        One piece of each run is in memory. Each round finds a limit: all records up to it are in memory. These are
        sorted and yielded, and runs with an empty piece load the next one.
        """
        step = max(1, self._max_records // max(1, len(runs)))  # records per piece
        held = [run.read(0, min(step, length)) for run, length in runs]  # each run's piece
        done = [piece.shape[0] for piece in held]  # each run's number of records read so far
        while any(piece.shape[0] for piece in held):
            # The limit is the smallest last record of a piece whose run continues on disk. No unread record is smaller.
            # It is (time, source, number of the run).
            open_ends = [
                (int(piece[-1]["time"]), int(piece[-1]["src"]), number)
                for number, piece in enumerate(held)
                if done[number] < runs[number][1]
            ]
            limit = min(open_ends, default=None)
            taken = [
                piece.shape[0] if limit is None else _before(piece, limit, number)
                for number, piece in enumerate(held)
            ]
            ready = np.concatenate([piece[:stop] for piece, stop in zip(held, taken, strict=True)])
            yield ready[_time_order(ready)]
            for number, ((run, length), stop) in enumerate(zip(runs, taken, strict=True)):
                held[number] = held[number][stop:]
                if not held[number].shape[0] and done[number] < length:
                    held[number] = run.read(done[number], min(length, done[number] + step))
                    done[number] += held[number].shape[0]
        for run, _ in runs:
            run.remove()


def _time_order(records: NDArray[np.void]) -> NDArray[np.int64]:
    """Return the stable order by time, then source."""
    return np.lexsort((records["src"], records["time"]))


def _before(piece: NDArray[Any], limit: tuple[int, int, int], number: int) -> int:
    """Return the number of records in ``piece``, which belongs to run ``number``, up to ``limit``.

    ``limit`` is (time, source, number of the limit's run).
    """
    time, source, limit_run = limit
    times = piece["time"]
    # The records low..high-1 have the limit's time.
    low, high = np.searchsorted(times, time, side="left"), np.searchsorted(times, time, side="right")
    # Records with equal time and source are yielded in the order of their runs. The limit's run may have more of them
    # on disk, so those of later runs wait.
    same_time = piece["src"][low:high]
    if number <= limit_run:
        return int(low + np.searchsorted(same_time, source, side="right"))
    return int(low + np.searchsorted(same_time, source, side="left"))


PIECE_BYTES = 4 << 20  # bytes of records per read from a bucket's file


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedRange:
    """The in-edges of consecutive nodes, or a part of a hub's in-edges."""

    degrees: IdArray  # (n,) edges per node; empty for a hub's later parts, as its first part has the degree
    columns: Mapping[str, NDArray[Any]]  # src, and optional weight, time and number, one entry per edge
    edges_taken: int  # input records of this range, for the progress; a merge makes fewer edges of them

    @property
    def num_edges(self) -> int:
        """Edges in the range."""
        return int(self.columns["src"].shape[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedRanges:
    """The sorted ranges of all buckets, in order of destinations.

    The iteration sorts each range, merges parallel edges if ``merges`` is set, and removes each bucket's file after
    use. So it works only once.
    """

    spill: Spill  # the buckets
    shift: int  # number of low bits of a destination that are its offset in the bucket
    num_nodes: int  # number of destinations
    num_sources: int
    max_edges: int  # edges that are sorted together
    merges: bool  # True to merge parallel edges

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The records' dtype, with the fields dst and src, and optional weight, time and number."""
        return self.spill.dtype

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns of each edge besides its destination: src, and optional weight, time and number."""
        return tuple(name for name in self.dtype.names or () if name != "dst")

    @property
    def index_dtype(self) -> np.dtype[Any]:
        """The sources' dtype."""
        return self.spill.dtype["src"]

    def __iter__(self) -> Iterator[SortedRange]:
        for bucket in range(self.spill.num_buckets):
            first_node = bucket << self.shift
            # The degrees decide which nodes of the bucket are sorted together.
            degrees = np.zeros(min(self.num_nodes - first_node, 1 << self.shift), np.int64)
            for piece in self._pieces(bucket):
                count_in_degrees(piece, degrees)
            for start, stop in cut_ranges(degrees, self.max_edges):
                if stop == start + 1 and degrees[start] > self.max_edges:
                    yield from self._hub(bucket, start, int(degrees[start]))
                else:
                    yield self._sort(bucket, start, stop, degrees[start:stop])
            self.spill.drop(bucket)

    def _pieces(self, bucket: int) -> Iterator[NDArray[Any]]:
        """Yield the bucket's records in input order, `PIECE_BYTES` at a time."""
        return self.spill.pieces(bucket, PIECE_BYTES // self.spill.dtype.itemsize)

    def _sort(self, bucket: int, start: int, stop: int, degrees: IdArray) -> SortedRange:
        """Return one range: a bucket's edges to the nodes at offsets ``start`` ... ``stop - 1``, sorted by counting."""
        # The counting sort puts each node's sources into a segment in input order, so it is stable.
        indptr = np.concatenate([[0], np.cumsum(degrees)])
        taken = int(indptr[-1])
        columns = {name: np.empty(taken, self.dtype[name]) for name in self.fields}
        indices = columns["src"]
        weights, times, numbers = (columns.get(name) for name in ("weight", "time", "number"))
        # Each node's next slot, by offset in the bucket. Entries below ``start`` are not used.
        cursor = np.zeros(stop, np.int64)
        cursor[start:] = indptr[:-1]
        for piece in self._pieces(bucket):
            scatter_sources(piece, start, stop, cursor, indices, weights, times, numbers)
        left = taken  # number of edges after the merge
        if self.merges:
            merged = np.empty_like(degrees)
            if len(columns) == 1:  # only sources
                left = merge_segments(indptr, indices, merged)
            else:
                left = merge_columns(indptr, indices, weights, times, numbers, merged)
            degrees = merged
        if times is not None:
            sort_by_time(np.concatenate([[0], np.cumsum(degrees)]), indices, times, weights, numbers)
        kept = {name: column[:left] for name, column in columns.items()}
        return SortedRange(degrees=degrees, columns=kept, edges_taken=taken)

    def _hub(self, bucket: int, node: int, degree: int) -> Iterator[SortedRange]:
        """Yield the parts of a hub. The first part has the degree and no edges. The others have the edges."""
        if "time" in self.fields:
            yield from self._timed_hub(bucket, node, degree)
        elif not self.merges:
            # Without a merge, the result has input order, so the edges pass through in pieces.
            yield self._first_part(degree, taken=0)
            for records in self._edges_of(bucket, node):
                yield self._part(records, taken=records.shape[0])
        else:
            # With a merge, the sources are marked, one range of ids after another. Each range reads the bucket twice,
            # because the degree is needed before the first edge is written.
            parts = list(self._source_ranges())
            count = sum(self._merged(bucket, node, first, stop).shape[0] for first, stop in parts)
            yield self._first_part(count, taken=degree)
            for first, stop in parts:
                yield self._part(self._merged(bucket, node, first, stop), taken=0)

    def _timed_hub(self, bucket: int, node: int, degree: int) -> Iterator[SortedRange]:
        """Yield the parts of a hub whose edges have times, in order of time."""
        # Runs are sorted in memory and wait on disk. A merge holds a piece of each run, and its result.
        runs = TimeRuns(self.spill.folder, self.dtype, max_records=max(1, self.max_edges // 4))
        try:
            if self.merges:
                for first, stop in self._source_ranges():
                    runs.append(self._merged(bucket, node, first, stop))
            else:
                for records in self._edges_of(bucket, node):
                    runs.append(records)
            yield self._first_part(runs.num_records, taken=degree)
            for piece in runs.merged():
                yield self._part(piece, taken=0)
        finally:
            runs.close()

    def _edges_of(self, bucket: int, node: int) -> Iterator[NDArray[Any]]:
        """Yield the records of one destination, in input order."""
        for piece in self._pieces(bucket):
            yield piece[piece["dst"] == node]

    def _first_part(self, degree: int, *, taken: int) -> SortedRange:
        """Return a hub's first part: its degree after the merge, and no edges."""
        part = self._part(np.empty(0, self.dtype), taken=taken)
        return replace(part, degrees=np.array([degree], np.int64))

    def _part(self, records: NDArray[Any], *, taken: int) -> SortedRange:
        """Return a hub's part with these edges. ``taken`` is its number of input records, for the progress."""
        columns = {name: np.ascontiguousarray(records[name]) for name in self.fields}
        return SortedRange(degrees=np.empty(0, np.int64), columns=columns, edges_taken=taken)

    def _source_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of source ids. The marks and sums of one range stay within the sort's memory."""
        # A source takes up to 33 bytes: a mark, and 8 bytes each for two sums, a number and a time.
        step = max(1, self.max_edges // 8)
        for first in range(0, self.num_sources, step):
            yield first, min(self.num_sources, first + step)

    def _merged(self, bucket: int, node: int, first: int, stop: int) -> NDArray[Any]:
        """Return a node's edges from sources ``first`` ... ``stop - 1`` as records, one per source, in their order."""
        count = stop - first
        is_source = np.zeros(count, np.bool_)
        has_weights = "weight" in self.fields
        weight_sums = np.zeros(count if has_weights else 0)
        reverse_sums = np.zeros_like(weight_sums)
        numbers, times = (
            np.zeros(count, np.int64) if name in self.fields else None for name in ("number", "time")
        )
        for piece in self._pieces(bucket):
            mark_sources(
                piece,
                node,
                first,
                is_source,
                weight_sums if has_weights else None,
                reverse_sums,
                numbers,
                times,
            )
        records = np.zeros(int(is_source.sum()), self.dtype)
        records["src"] = np.flatnonzero(is_source) + first
        if has_weights:
            records["weight"] = np.maximum(weight_sums, reverse_sums)[is_source]
        for field, values in (("number", numbers), ("time", times)):
            if values is not None:
                records[field] = values[is_source]
        return records


def cut_ranges(degrees: IdArray, max_edges: int) -> Iterator[tuple[int, int]]:
    """Yield consecutive node ranges with at most ``max_edges`` edges. A node with more has its own range. Pure."""
    ends = np.cumsum(degrees)
    start = 0
    while start < degrees.shape[0]:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + max_edges, side="right")))
        yield start, stop
        start = stop
