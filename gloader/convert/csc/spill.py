"""The out-of-core shuffle, which distributes edges, feature rows and link rows over buckets.

The sorts and joins of the conversion first append all rows to a `Spill`, and then read one bucket after another. A
bucket is a numbered group of rows, such as the edges of consecutive destinations. Rows stay in memory while they fit.
If they no longer fit, all rows go to temporary files, one for each bucket. The files have no header. A `TemporaryArray`
is one array in such a file.
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
        """Write the next elements. Raises as `append_bytes`."""
        append_bytes(self.path, np.ascontiguousarray(chunk, self.dtype))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return elements ``start`` ... ``stop - 1``. Raises as `read_bytes`."""
        array = np.empty(stop - start, self.dtype)
        # An empty array has no file.
        if stop > start:
            with self.path.open("rb", buffering=0) as file:
                file.seek(start * self.dtype.itemsize)
                read_bytes(file.fileno(), array.view(np.uint8).data, self.path)
        return array

    def pieces(self, num_elements: int, max_elements: int) -> Iterator[NDArray[Any]]:
        """Yield the first ``num_elements`` in order, in pieces of at most ``max_elements``."""
        for start in range(0, num_elements, max_elements):
            yield self.read(start, min(num_elements, start + max_elements))

    def remove(self) -> None:
        """Remove the file. Idempotent."""
        self.path.unlink(missing_ok=True)


def append_bytes(path: Path, array: NDArray[Any]) -> None:
    """Append the bytes of a contiguous array to the file at ``path``.

    Raises
    ------
    StoreWriteError
        The disk refuses.
    """
    try:
        with path.open("ab", buffering=0) as file:
            left = array.reshape(-1).view(np.uint8).data  # a memoryview of the bytes to write
            # One call may write only a part of the bytes, above all on a full disk.
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
    descriptor : the file's descriptor, at the position to read from
    buffer : writable bytes, filled to the end
    path : the file, for the message

    Raises
    ------
    StoreWriteError
        The file ends early.
    """
    done = 0
    # A read may return fewer bytes than requested. 0 means the end of the file.
    while done < len(buffer):
        count = os.readv(descriptor, [buffer[done:]])
        if count == 0:
            raise StoreWriteError(f"temporary file {path} became shorter while it was read")
        done += count


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeColumns:
    """The columns of each edge besides its two ends."""

    has_weights: bool = False  # True if edges have float32 weights
    has_times: bool = False  # True if edges have int64 times
    number_bytes: int = 0  # bytes for each edge's number in the source, 4 or 8; 0 if it is not kept

    @property
    def num_bytes(self) -> int:
        """Bytes for all columns."""
        return 4 * self.has_weights + 8 * self.has_times + self.number_bytes


NO_COLUMNS: Final = EdgeColumns()


def record_dtype(*, num_sources: int, columns: EdgeColumns) -> np.dtype[np.void]:
    """Return the dtype of a record, which is a spilled edge: destination, source, weight, time, number. Pure."""
    # A destination is stored as its offset in the bucket. 32 bits hold any offset, and are half of the size of an id.
    fields: list[tuple[str, type]] = [
        ("dst", np.uint32),
        ("src", np.int32 if num_sources < 2**31 else np.int64),
    ]
    fields += [("weight", np.float32)] if columns.has_weights else []
    fields += [("time", np.int64)] if columns.has_times else []
    fields += [("number", np.int32 if columns.number_bytes == 4 else np.int64)] * (columns.number_bytes > 0)
    return np.dtype(fields)


@dataclass(slots=True, kw_only=True)
class Spill:
    """Rows in buckets. Each bucket keeps its rows in arrival order.

    Rows stay in memory while they fit into ``held_bytes``. Otherwise all rows go to files. A context manager. Owns the
    files ``NAME-*`` in ``folder`` until ``close()``.
    """

    folder: Path
    name: str  # NAME, the beginning of the files' names
    dtype: np.dtype[Any]  # the dtype of an element, which is a number or a record
    num_buckets: int
    held_bytes: int = 0  # limit for the bytes of rows in memory
    row_shape: tuple[int, ...] = ()  # (W,) if a row has W elements; () if a row is one element
    counts: IdArray = field(init=False)  # (num_buckets,) rows per bucket
    spilled_bytes: int = field(default=0, init=False)  # bytes of rows in files
    # Rows in memory as they were added: rows sorted by bucket, and the bounds (num_buckets + 1,) of the buckets.
    _held: list[tuple[NDArray[Any], IdArray]] = field(default_factory=list, init=False)
    _held_now: int = field(default=0, init=False)  # bytes of rows in memory

    def __post_init__(self) -> None:
        self.counts = np.zeros(self.num_buckets, np.int64)

    def deal_out(self, rows: NDArray[Any], buckets: IdArray) -> None:
        """Add ``rows`` (n, ...), row i to bucket ``buckets[i]``. Raises as `append`."""
        # For 16-bit keys, numpy has a radix sort, which is faster.
        keys = buckets.astype(np.uint16) if self.num_buckets <= 1 << 16 else buckets
        grouped = rows[np.argsort(keys, kind="stable")]
        self.append(grouped, np.bincount(buckets, minlength=self.num_buckets))

    def append(self, rows: NDArray[Any], counts: IdArray) -> None:
        """Add ``rows`` (n, ...) sorted by bucket. ``counts`` (num_buckets,) has the number of rows per bucket.

        Raises
        ------
        StoreWriteError
            A file cannot be written, for example because the disk is full.
        """
        bounds = np.concatenate([[0], np.cumsum(counts)])
        self.counts += counts
        # Once a row is on disk, all later rows go there too, so that each bucket keeps its arrival order.
        if not self.spilled_bytes and self._held_now + rows.nbytes <= self.held_bytes:
            self._held.append((rows, bounds))
            self._held_now += rows.nbytes
            return
        while self._held:
            self._write(*self._held.pop(0))
        self._held_now = 0
        self._write(rows, bounds)

    def pieces(self, bucket: int, max_rows: int) -> Iterator[NDArray[Any]]:
        """Yield ``bucket``'s rows in arrival order, in pieces of at most ``max_rows``.

        A piece is valid until the next one, because the same buffer is filled again.

        Raises
        ------
        StoreWriteError
            The file ends early.
        """
        for rows, bounds in self._held:
            held = rows[bounds[bucket] : bounds[bucket + 1]]
            for start in range(0, held.shape[0], max_rows):
                yield held[start : start + max_rows]
        left = int(self.counts[bucket])
        if not self.spilled_bytes or not left:
            return
        buffer, path = self._buffer(bucket, max_rows), self._path(bucket)
        with path.open("rb", buffering=0) as file:
            while left:
                piece = buffer[: min(left, buffer.shape[0])]
                read_bytes(file.fileno(), piece.reshape(-1).view(np.uint8).data, path)
                yield piece
                left -= piece.shape[0]

    def full_pieces(self, bucket: int, max_rows: int) -> Iterator[NDArray[Any]]:
        """Yield the rows as `pieces`, but with exactly ``max_rows`` in each piece except the last."""
        if self.spilled_bytes:
            yield from self.pieces(bucket, max_rows)
            return
        buffer, done = self._buffer(bucket, max_rows), 0
        for held in self.pieces(bucket, max_rows):
            first = 0
            while first < held.shape[0]:
                taken = min(held.shape[0] - first, buffer.shape[0] - done)
                buffer[done : done + taken] = held[first : first + taken]
                first, done = first + taken, done + taken
                if done == buffer.shape[0]:
                    yield buffer
                    done = 0
        if done:
            yield buffer[:done]

    def drop(self, bucket: int) -> None:
        """Remove ``bucket``'s file, which will not be read again."""
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

    def _buffer(self, bucket: int, max_rows: int) -> NDArray[Any]:
        """Return an empty array for up to ``max_rows`` of the bucket's rows."""
        return np.empty((min(max_rows, int(self.counts[bucket])), *self.row_shape), self.dtype)

    def _write(self, rows: NDArray[Any], bounds: IdArray) -> None:
        """Append rows to the buckets' files. ``bounds`` (num_buckets + 1,) are the buckets' parts of ``rows``."""
        for bucket, (start, stop) in enumerate(pairwise(bounds.tolist())):
            if start < stop:
                append_bytes(self._path(bucket), rows[start:stop])
        self.spilled_bytes += rows.nbytes

    def _path(self, bucket: int) -> Path:
        return self.folder / f"{self.name}-{bucket:05d}"


def append_edges(spill: Spill, chunk: EdgeChunk, *, shift: int) -> None:
    """Spill edges with checked ids as records. Destination d goes to bucket ``d >> shift``.

    Parameters
    ----------
    spill : a spill with the dtype of `record_dtype`
    chunk : the edges
    shift : number of low bits of a destination that are its offset in the bucket

    Raises
    ------
    StoreWriteError
        The disk refuses the spill.
    """
    counts = np.zeros(spill.num_buckets, np.int64)
    count_buckets(chunk.dst, shift, counts)
    records = np.empty(chunk.dst.shape[0], spill.dtype)
    number = chunk.number if "number" in (spill.dtype.names or ()) else None
    starts = np.cumsum(counts) - counts  # each bucket's first slot in ``records``
    scatter_records(chunk.src, chunk.dst, chunk.weight, chunk.time, number, shift, starts, records)
    spill.append(records, counts)
