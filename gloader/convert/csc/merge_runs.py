"""Edges of one destination by time and source, where they are too many to be sorted at once: runs on disk, merged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.csc.temporary_array import TemporaryArray

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

# Runs that are merged at a time: each has a piece in memory, which should not become small.
_MAX_RUNS = 64


class TimeRuns:
    """Sorted runs of records with the fields time and src, in files of ``folder`` until ``close()``.

    Parameters
    ----------
    folder : an existing folder for the files
    dtype : of the records
    max_records : of a run, and held in memory while runs are merged
    """

    def __init__(self, folder: Path, dtype: np.dtype[np.void], *, max_records: int) -> None:
        self._folder = folder
        self._dtype = dtype
        self._max_records = max_records
        self._files: list[TemporaryArray] = []
        self._runs: list[tuple[TemporaryArray, int]] = []
        self._held: list[NDArray[np.void]] = []
        self.num_records = 0

    def append(self, records: NDArray[np.void]) -> None:
        """Take the next records, which are copied; equal ones stay in the order in which they come.

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
        """Yield all records by time and source, a piece at a time; the files are gone behind it.

        Raises
        ------
        StoreWriteError
            The disk refuses, or a file became shorter.
        """
        self._flush()
        while len(self._runs) > _MAX_RUNS:
            # Neighbouring runs become one: equal records stay in order.
            groups = [self._runs[start : start + _MAX_RUNS] for start in range(0, len(self._runs), _MAX_RUNS)]
            self._runs = [self._joined(group) for group in groups]
        yield from self._merge(self._runs)

    def close(self) -> None:
        """Remove the files. Idempotent."""
        for file in self._files:
            file.remove()

    def _flush(self) -> None:
        if not self._held:
            return
        records = np.concatenate(self._held)
        self._held.clear()
        run = self._new_run()
        run.append(records[_time_order(records)])
        self._runs.append((run, records.shape[0]))

    def _joined(self, group: list[tuple[TemporaryArray, int]]) -> tuple[TemporaryArray, int]:
        longer = self._new_run()
        for piece in self._merge(group):
            longer.append(piece)
        return longer, sum(length for _, length in group)

    def _new_run(self) -> TemporaryArray:
        path = self._folder / f"hub-{len(self._files):05d}.edges"
        self._files.append(TemporaryArray(path=path, dtype=self._dtype))
        return self._files[-1]

    def _merge(self, runs: list[tuple[TemporaryArray, int]]) -> Iterator[NDArray[np.void]]:
        step = max(1, self._max_records // max(1, len(runs)))
        held = [run.read(0, min(step, length)) for run, length in runs]
        done = [piece.shape[0] for piece in held]
        while any(piece.shape[0] for piece in held):
            # No further than the first end of a piece that goes on in its file: what follows it is not known yet.
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
    """Return the order by time, then source; stable."""
    return np.lexsort((records["src"], records["time"]))


def _before(piece: NDArray[Any], limit: tuple[int, int, int], number: int) -> int:
    """Return how many records of a piece of run ``number`` come before what follows ``limit``, or are at it."""
    time, source, of_run = limit
    times = piece["time"]
    low, high = np.searchsorted(times, time, side="left"), np.searchsorted(times, time, side="right")
    # Equal records come run by run: those of later runs wait for what the run of the limit still has of them.
    same_time = piece["src"][low:high]
    if number <= of_run:
        return int(low + np.searchsorted(same_time, source, side="right"))
    return int(low + np.searchsorted(same_time, source, side="left"))
