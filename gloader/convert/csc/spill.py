"""Spills of an out-of-core shuffle: edges by ranges of destinations, and integer rows by bucket.

A spill stays in memory while it fits. Beyond that each range or bucket has a `TemporaryArray`: a temporary file without
a header, which is appended to and read back in pieces.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.convert.csc.csc_kernels import count_buckets, scatter_records
from gloader.errors import StoreWriteError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from gloader.convert.source import EdgeChunk
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporaryArray:
    """An array in a file that exists from the first ``append`` to ``remove()``."""

    path: Path
    dtype: np.dtype[Any]

    def append(self, chunk: NDArray[Any], /) -> None:
        """Write the next elements; raises as `append_bytes`."""
        append_bytes(self.path, np.ascontiguousarray(chunk, self.dtype))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return elements ``start`` ... ``stop - 1``; raises as `read_bytes`."""
        array = np.empty(stop - start, self.dtype)
        # The file of an empty array was never made.
        if stop > start:
            with self.path.open("rb", buffering=0) as file:
                file.seek(start * self.dtype.itemsize)
                read_bytes(file.fileno(), array.view(np.uint8).data, self.path)
        return array

    def pieces(self, num_elements: int, max_elements: int) -> Iterator[NDArray[Any]]:
        """Yield the first ``num_elements`` in order, at most ``max_elements`` at a time."""
        for start in range(0, num_elements, max_elements):
            yield self.read(start, min(num_elements, start + max_elements))

    def remove(self) -> None:
        """Remove the file. Idempotent."""
        self.path.unlink(missing_ok=True)


def append_bytes(path: Path, array: NDArray[Any]) -> None:
    """Append the bytes of a contiguous ``array`` to the file at ``path``.

    Raises
    ------
    StoreWriteError
        The disk refuses.
    """
    try:
        with path.open("ab", buffering=0) as file:
            left = array.view(np.uint8).data
            # A write may take less than it was given, on a full disk above all.
            while left:
                left = left[file.write(left) or 0 :]
    except OSError as error:
        raise StoreWriteError(
            error.errno, f"writing {array.nbytes} bytes of temporary data to {path} failed: {error.strerror}"
        ) from error


def read_bytes(descriptor: int, buffer: memoryview, path: Path) -> None:
    """Fill ``buffer`` from an open temporary file.

    Parameters
    ----------
    descriptor : of the file, at the position to read from
    buffer : writable bytes; all of them are filled
    path : the file, for the message

    Raises
    ------
    StoreWriteError
        The file ends early.
    """
    done = 0
    # A read may return less than was asked for, and 0 means the end of the file.
    while done < len(buffer):
        count = os.readv(descriptor, [buffer[done:]])
        if count == 0:
            raise StoreWriteError(f"temporary file {path} became shorter while it was read")
        done += count


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeColumns:
    """Columns that are kept for each edge, in addition to its two ends."""

    has_weights: bool = False  # float32
    has_times: bool = False  # int64
    number_bytes: int = 0  # of its number in the source, 4 or 8; 0: none is kept

    @property
    def num_bytes(self) -> int:
        """Bytes of all of them."""
        return 4 * self.has_weights + 8 * self.has_times + self.number_bytes


NO_COLUMNS: Final = EdgeColumns()


def record_dtype(*, num_sources: int, columns: EdgeColumns) -> np.dtype[np.void]:
    """Return the layout of a spilled edge: destination within its range, source, weight, time, number. Pure."""
    # 32 bits hold any offset within a bucket, so that the destination takes half of its size.
    fields: list[tuple[str, type]] = [
        ("dst", np.uint32),
        ("src", np.int32 if num_sources < 2**31 else np.int64),
    ]
    fields += [("weight", np.float32)] if columns.has_weights else []
    fields += [("time", np.int64)] if columns.has_times else []
    fields += [("number", np.int32 if columns.number_bytes == 4 else np.int64)] * (columns.number_bytes > 0)
    return np.dtype(fields)


@dataclass(slots=True, kw_only=True)
class EdgeSpill:
    """The edges of a graph by bucket, in input order; destination d lies in bucket ``d >> shift``.

    Owns the files ``bucket-*.edges`` in ``folder`` until ``close()``.
    """

    folder: Path
    dtype: np.dtype[np.void]
    shift: int
    num_buckets: int
    held_bytes: int  # records kept in memory before they go to files
    counts: IdArray = field(init=False)  # (num_buckets,) edges of each bucket
    spilled_bytes: int = field(default=0, init=False)
    _held: list[tuple[NDArray[np.void], IdArray]] = field(default_factory=list, init=False)
    _held_now: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.num_buckets, np.int64)

    def append(self, chunk: EdgeChunk) -> None:
        """Take the edges of ``chunk``, whose ids have been checked.

        Raises
        ------
        StoreWriteError
            The disk refuses the spill.
        """
        counts = np.zeros(self.num_buckets, np.int64)
        count_buckets(chunk.dst, self.shift, counts)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        records = np.empty(chunk.dst.shape[0], self.dtype)
        number = chunk.number if "number" in (self.dtype.names or ()) else None
        scatter_records(
            chunk.src,
            chunk.dst,
            chunk.weight,
            chunk.time,
            number,
            self.shift,
            bounds[:-1].copy(),
            records,
        )
        self.counts += counts
        # Once a record is on disk all later ones go there too: the files are read in input order.
        if not self.spilled_bytes and self._held_now + records.nbytes <= self.held_bytes:
            self._held.append((records, bounds))
            self._held_now += records.nbytes
            return
        self._flush()
        self._write(records, bounds)

    def pieces(self, bucket: int, max_records: int) -> Iterator[NDArray[Any]]:
        """Yield the records of ``bucket`` in input order, at most ``max_records`` at a time."""
        for records, bounds in self._held:
            held = records[bounds[bucket] : bounds[bucket + 1]]
            for start in range(0, held.shape[0], max_records):
                yield held[start : start + max_records]
        path = self._path(bucket)
        if not self.spilled_bytes or not self.counts[bucket]:
            return
        # One buffer for the whole file: a piece is only good until the next.
        buffer = np.empty(min(max_records, int(self.counts[bucket])), self.dtype)
        with path.open("rb", buffering=0) as file:
            left = int(self.counts[bucket])
            while left:
                piece = buffer[: min(left, buffer.shape[0])]
                read_bytes(file.fileno(), piece.view(np.uint8).data, path)
                yield piece
                left -= piece.shape[0]

    def drop(self, bucket: int) -> None:
        """Remove the file of ``bucket``, which will not be read again."""
        self._path(bucket).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the records in memory and remove the files. Idempotent."""
        self._held.clear()
        for bucket in range(self.num_buckets):
            self.drop(bucket)

    def _flush(self) -> None:
        while self._held:
            self._write(*self._held.pop(0))
        self._held_now = 0

    def _write(self, records: NDArray[np.void], bounds: IdArray) -> None:
        for bucket, (start, stop) in enumerate(pairwise(bounds)):
            if start < stop:
                append_bytes(self._path(bucket), records[start:stop])
        self.spilled_bytes += records.nbytes

    def _path(self, bucket: int) -> Path:
        return self.folder / f"bucket-{bucket:05d}.edges"


@dataclass(slots=True, kw_only=True)
class RowSpill:
    """Rows (n, W) of int64 that were dealt out to buckets, those of a bucket in the order in which they came.

    Owns the files ``NAME-*.rows`` in ``folder`` until ``close()``; a context manager.
    """

    folder: Path
    name: str
    width: int
    num_buckets: int
    held_bytes: int  # rows kept in memory before they go to files
    counts: IdArray = field(init=False)  # (num_buckets,) rows of each bucket
    spilled_bytes: int = field(default=0, init=False)
    _held: list[tuple[IdArray, IdArray]] = field(default_factory=list, init=False)
    _held_now: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.num_buckets, np.int64)

    @property
    def num_rows(self) -> int:
        """Rows that were taken so far."""
        return int(self.counts.sum())

    def append(self, rows: IdArray, buckets: IdArray) -> None:
        """Take ``rows`` (n, W), row i into bucket ``buckets[i]``.

        Raises
        ------
        StoreWriteError
            The disk refuses the spill.
        """
        grouped = rows[np.argsort(buckets, kind="stable")]
        counts = np.bincount(buckets, minlength=self.num_buckets)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        self.counts += counts
        # Once a row is on disk all later ones go there too: the files are read in the order of arrival.
        if not self.spilled_bytes and self._held_now + grouped.nbytes <= self.held_bytes:
            self._held.append((grouped, bounds))
            self._held_now += grouped.nbytes
            return
        while self._held:
            self._write(*self._held.pop(0))
        self._held_now = 0
        self._write(grouped, bounds)

    def pieces(self, bucket: int, max_rows: int) -> Iterator[IdArray]:
        """Yield the rows of ``bucket`` in order, at most ``max_rows`` at a time; an array is only good until the next.

        Raises
        ------
        StoreWriteError
            The file ends early.
        """
        left = int(self.counts[bucket])
        if not left:
            return
        buffer = np.empty((min(max_rows, left), self.width), np.int64)
        if not self.spilled_bytes:
            yield from self._held_pieces(bucket, buffer)
            return
        path = self._path(bucket)
        with path.open("rb", buffering=0) as file:
            while left:
                piece = buffer[: min(left, buffer.shape[0])]
                read_bytes(file.fileno(), piece.reshape(-1).view(np.uint8).data, path)
                yield piece
                left -= piece.shape[0]

    def drop(self, bucket: int) -> None:
        """Remove the file of ``bucket``, which will not be read again."""
        self._path(bucket).unlink(missing_ok=True)

    def close(self) -> None:
        """Release the rows in memory and remove the files. Idempotent."""
        self._held.clear()
        for bucket in range(self.num_buckets):
            self.drop(bucket)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _held_pieces(self, bucket: int, buffer: IdArray) -> Iterator[IdArray]:
        # As large as they may be, whatever the chunks were: each costs its reader a pass over what it is held against.
        done = 0
        for rows, bounds in self._held:
            at, stop = int(bounds[bucket]), int(bounds[bucket + 1])
            while at < stop:
                taken = min(stop - at, buffer.shape[0] - done)
                buffer[done : done + taken] = rows[at : at + taken]
                at, done = at + taken, done + taken
                if done == buffer.shape[0]:
                    yield buffer
                    done = 0
        if done:
            yield buffer[:done]

    def _write(self, rows: IdArray, bounds: IdArray) -> None:
        for bucket, (start, stop) in enumerate(pairwise(bounds)):
            if start < stop:
                append_bytes(self._path(bucket), rows[start:stop].reshape(-1))
        self.spilled_bytes += rows.nbytes

    def _path(self, bucket: int) -> Path:
        return self.folder / f"{self.name}-{bucket:05d}.rows"
