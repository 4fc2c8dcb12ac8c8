"""The merge of runs: the choice of runs, and one sequential pass that keeps the newest version of each row.

The choice follows two limits, which bound the disk space and the number of files:

- Together the runs have fewer rows than two tables (`MAX_TABLES`). Else all are merged into one.
- There are at most `MAX_RUNS` runs. Else half of them are merged: adjacent ones, with the fewest rows in total.

So a row is written once when it leaves the buffer, about once per table of appended rows when all runs are merged, and
again by the second rule only if the table is larger than `MAX_RUNS` / `MAX_TABLES` buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.ssd_store.embedding.sorted_run import IDS_PER_PAGE, FormulaRun, RunWriter, SortedRun
from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from gloader.ssd_store.embedding.initial_rows import InitialRows
    from gloader.ssd_store.format.manifest import ArrayRecord
    from gloader.ssd_store.read.lane import ReadLane
    from gloader.types import IdArray, ReadStats


MAX_RUNS: Final = 64  # two descriptors each, of the 1,024 that a process has by default
MAX_TABLES: Final = 2
MERGE_BYTES: Final = 16 * 2**20  # memory for the rows and ids in one step of a merge
_ID_BYTES: Final = 96  # for each row: its id, source and place, before and after they are sorted


def plan_merge(sizes: Sequence[int], num_rows: int) -> tuple[int, int] | None:
    """Return the first run to merge, and the last plus one, or None. Pure.

    Parameters
    ----------
    sizes : number of rows of each run, the newest first
    num_rows : N, of the table
    """
    if len(sizes) > 1 and sum(sizes) >= MAX_TABLES * num_rows:
        return 0, len(sizes)
    if len(sizes) <= MAX_RUNS:
        return None
    count = MAX_RUNS // 2
    totals = np.convolve(sizes, np.ones(count, np.int64), "valid")
    first = int(totals.argmin())
    return first, first + count


class RunMerge:
    """Merges adjacent runs into a new one.

    Parameters
    ----------
    runs : the runs, the newest first
    has_oldest : True if no run is older, so that the formula is below them
    num_rows : N, of the table
    initial : the formula
    lane : the lane to read through
    check : called often; raises to end the merge
    """

    def __init__(
        self,
        runs: Sequence[SortedRun],
        *,
        has_oldest: bool,
        num_rows: int,
        initial: InitialRows,
        lane: ReadLane,
        check: Callable[[], None],
    ) -> None:
        self._runs = tuple(runs)
        self._num_rows = num_rows
        self._initial = initial
        self._lane = lane
        self._check = check
        self._has_oldest = has_oldest
        self._step = max(1, MERGE_BYTES // (4 * initial.width + _ID_BYTES))  # rows
        self.costs: list[ReadStats] = []

    def write(self, folder: Path, name: str, *, os_io: OsIO = REAL_OS) -> tuple[ArrayRecord, ...]:
        """Write the merged run ``name`` into ``folder``; return the records of its arrays.

        Raises
        ------
        StoreWriteError
            The device refuses; the files were removed.
        ChecksumError, StoreReadError, TruncatedStoreError
            A run is damaged or unreadable.
        """
        runs: tuple[SortedRun | FormulaRun, ...] = self._runs
        is_dense = any(run.is_dense for run in self._runs)
        count = self._num_rows
        if not is_dense:
            count = sum(ids.shape[0] for ids, _, _ in self._merged_ids(runs))
            is_dense = count == self._num_rows or (self._has_oldest and 2 * count >= self._num_rows)
            if is_dense and count < self._num_rows:
                runs, count = (*runs, FormulaRun(self._initial, self._num_rows)), self._num_rows
        width = self._initial.width
        out = np.empty((min(self._step, count), width), np.float32)
        with RunWriter(folder, name, num_rows=count, width=width, is_dense=is_dense, os_io=os_io) as writer:
            for ids, sources, places in self._merged_ids(runs):
                for start in range(0, ids.shape[0], self._step):
                    part = slice(start, start + self._step)
                    rows = out[: ids[part].shape[0]]
                    for number in np.unique(sources[part]).tolist():
                        at = np.flatnonzero(sources[part] == number)
                        self.costs.append(runs[number].read_into(self._lane, places[part][at], rows, at))
                    writer.append(ids[part], rows)
                    self._check()
            return writer.finish()

    def _merged_ids(
        self, runs: Sequence[SortedRun | FormulaRun]
    ) -> Iterator[tuple[IdArray, IdArray, IdArray]]:
        """Yield ascending ids, each once, with the newest run that has it, and its place in this run."""
        block = -(-self._step // len(runs) // IDS_PER_PAGE) * IDS_PER_PAGE
        heads = [np.empty(0, np.int64) for _ in runs]  # the next ids of each run
        read = [0] * len(runs)  # ids read so far
        while True:
            self._check()
            for number, run in enumerate(runs):
                past = min(read[number] + block, len(run))
                if heads[number].shape[0] < block // 2 and read[number] < past:
                    ids, cost = run.ids_at(self._lane, read[number], past)
                    heads[number] = np.concatenate([heads[number], ids])
                    read[number] = past
                    self.costs.append(cost)
            # Up to this id, the heads have all ids of all runs.
            unfinished = [
                int(head[-1]) for head, run, done in zip(heads, runs, read, strict=True) if done < len(run)
            ]
            limit = min(unfinished, default=self._num_rows)
            counts = [int(np.searchsorted(head, limit, side="right")) for head in heads]
            if not any(counts):
                return
            # The newest run comes first, and of equal ids the first is taken.
            ids, index = np.unique(
                np.concatenate([head[:count] for head, count in zip(heads, counts, strict=True)]),
                return_index=True,
            )
            bounds = np.cumsum([0, *counts])
            sources = np.searchsorted(bounds, index, side="right") - 1
            firsts = np.array(
                [done - head.shape[0] for done, head in zip(read, heads, strict=True)], np.int64
            )
            yield ids, sources, firsts[sources] + index - bounds[sources]
            heads = [head[count:] for head, count in zip(heads, counts, strict=True)]
