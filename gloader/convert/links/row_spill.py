"""Rows of whole numbers by bucket: in memory while they fit, and in one file per bucket beyond that."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import numpy as np

from gloader.convert.csc.temporary_array import append_bytes, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from gloader.types import IdArray


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
