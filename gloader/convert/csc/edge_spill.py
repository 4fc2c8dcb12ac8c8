"""Edges by ranges of destinations: in memory while they fit, and in one file per range beyond that."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.convert.csc.csc_kernels import count_buckets, scatter_records
from gloader.convert.csc.temporary_array import append_bytes, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.convert.source import EdgeChunk
    from gloader.types import IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeColumns:
    """What is kept of every edge besides its two ends."""

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
