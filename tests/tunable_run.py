"""A small run that can be asked: its work follows from a model of a cache, and a replay says what an epoch takes."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from replayed_runs import (
    BATCHES,
    EPOCHS,
    MACHINE,
    SHAPE,
    header,
    recording_of,
    work_of_run,
)

from gloader.errors import BudgetError, ReplayError
from gloader.lab.analyze.predict import Prediction
from gloader.replay.changes import NO_CHANGES, changed_compute, changed_machine, changed_shape, count_of
from gloader.replay.demands import Measured, measure
from gloader.replay.recording import RecordedTable
from gloader.replay.replay import replay
from gloader.replay.work import Demands, RunWork, SuperbatchWork

if TYPE_CHECKING:
    from gloader.replay.changes import Changes
    from gloader.replay.recording import Recording

BUDGET = 500_000_000  # of memory, for superbatches and cache
ROW_BYTES = 512_000_000  # of all rows
LEAST = 100_000_000  # that the loader works with
PER_BATCH = 20_000_000  # of planning it
PACKS = 5_000_000
_START_SIZE = 2
_TABLE = RecordedTable(name="features", num_rows=ROW_BYTES // 512, row_bytes=512, cache_rows=0)


class TunableRun:
    """A run of three epochs of eight batches, or of one of 24. The larger cache and superbatches, the less it reads.

    It had superbatches of two, and no cache.

    Parameters
    ----------
    compute_s, read_s : of a batch, as it was
    is_trusted : whether it predicts anything
    can_plan : whether its batches can be planned again
    is_one_epoch : whether all its batches are of one
    """

    def __init__(
        self,
        *,
        compute_s: float = 0.010,
        read_s: float = 0.030,
        is_trusted: bool = True,
        can_plan: bool = True,
        is_one_epoch: bool = False,
        **facts: Any,
    ) -> None:
        self._compute_s, self._read_s = compute_s, read_s
        self._is_trusted, self._can_plan = is_trusted, can_plan
        self._is_one_epoch = is_one_epoch
        facts |= {"num_batches": EPOCHS * BATCHES} if is_one_epoch else {}
        self.base = self._replayed(NO_CHANGES, size=_START_SIZE, cached=0)
        recorded = recording_of(self.base)
        self.recording: Recording = replace(
            recorded, header=header(budget_bytes=BUDGET, tables=(_TABLE,), **facts)
        )
        self.measured: Measured = measure(self.recording)
        self.asked: list[str] = []

    def predict(self, changes: Changes) -> Prediction:
        """Replay what ``changes`` make of the run."""
        self.asked.append(changes.text)
        if not self._is_trusted:
            raise ReplayError("12% that it cannot explain")
        if changes.needs_plan and not self._can_plan:
            raise ReplayError("its batches cannot be sampled again")
        budget = count_of(changes, "memory", BUDGET)
        size = count_of(changes, "superbatch", _START_SIZE)
        # What is more than the run had goes to the cache.
        cached = count_of(changes, "cache", max(budget - BUDGET, 0))
        if LEAST + PER_BATCH * size + cached > budget:
            raise BudgetError(f"a cache of {cached} bytes does not fit")
        return self._replayed(changes, size=size, cached=cached)

    def memory_bytes(self, prediction: Prediction) -> int:
        """Return the budget."""
        return BUDGET

    def spill_bytes(self, prediction: Prediction) -> int:
        """Return the bytes of packs."""
        return PACKS

    def _replayed(self, changes: Changes, *, size: int, cached: int) -> Prediction:
        machine, shape = changed_machine(MACHINE, changes), changed_shape(SHAPE, changes)
        work = self._work(changes, size=size, cached=cached)
        replayed = replay(work, machine, shape)
        counted = sorted(replayed.epoch_s)[1:] or [0]
        return Prediction(
            change=changes.text,
            replayed_s=fmean(replayed.epoch_s[epoch] for epoch in counted),
            replayed=replayed,
            work=work,
            machine=machine,
            shape=shape,
        )

    def _work(self, changes: Changes, *, size: int, cached: int) -> RunWork:
        missed = max(1 - cached / ROW_BYTES, 0.0) + 0.5 / size
        random = changes.ratio("disk") * changes.ratio("disk.random")
        work = changed_compute(
            work_of_run(compute_s=self._compute_s, read_s=self._read_s * missed / random), changes
        )
        stage = Demands()
        if changes.values.get("strategy") == "staged":  # one pass over all rows for each superbatch
            work = replace(
                work, batches=tuple(replace(one, read=Demands(cpu_s=0.001)) for one in work.batches)
            )
            stage = Demands(disk_s=0.080 / changes.ratio("disk"))
        count = EPOCHS * BATCHES
        if self._is_one_epoch:
            whole = tuple(replace(one, epoch=0, index=n) for n, one in enumerate(work.batches))
            work = replace(work, batches=whole)
        sizes = [size] * (count // size) + ([count % size] if count % size else [])
        return replace(
            work,
            superbatches=tuple(
                SuperbatchWork(num_batches=one, inspect=Demands(cpu_s=0.002), stage=stage) for one in sizes
            ),
        )
