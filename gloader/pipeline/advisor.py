"""Advice for a running loader: the change of its settings or its hardware that would shorten an epoch most.

`gloader.loader.base` calls `Advisor.advise` after an epoch. A recording is the timeline of the last epoch. A replay
(`gloader.replay`) simulates the pipeline's threads on the recorded work, and returns the epoch's time. The advisor
first calibrates the replay, so that it reproduces the measured time. Then it replays the epoch under each candidate
change, with a memory plan for this change, and compares the times.

A superbatch is a group of batches whose missing feature rows are planned together. A step is one batch's part of an
epoch. A miss is a row that is read from the SSD.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gloader.core.units import format_bytes, format_seconds
from gloader.errors import BudgetError, ConfigError, ReplayError
from gloader.pipeline.open.load_plan import plan_tiers
from gloader.pipeline.open.tiers import open_ring
from gloader.replay.calibrate import calibrate
from gloader.replay.changes import Changes, changed_rates, changed_shape, parse_changes
from gloader.replay.demands import measure, work_of
from gloader.replay.planned_work import SampleCosts, StepNeeds, learn_costs, num_steps, steady_work
from gloader.replay.replay import replay
from gloader.replay.work import Machine, PipelineShape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.config import LoaderSettings
    from gloader.pipeline.open.load_plan import MeasuredLoad
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.replay.demands import Measured
    from gloader.replay.recording import Recording
    from gloader.replay.work import RunWork
    from gloader.ssd_store.cost.io_rates import IoRates


# Share of an epoch. A smaller gain is within the noise of a machine, and no reason for a change.
_LEAST_GAIN: Final = 0.05
# Candidate sizes of the superbatch and of the cache, as multiples of the current size.
_FACTORS: Final = (0.25, 0.5, 2.0, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A change that makes an epoch shorter."""

    settings: dict[str, Any]  # keywords of `gloader.Loader`; empty if the change needs new hardware
    words: str  # the change as text for the user
    seconds: float  # predicted seconds of an epoch after the change
    gain: float  # share of an epoch, at least `_LEAST_GAIN`

    @property
    def text(self) -> str:
        """Return a sentence that names the change and its gain."""
        return f"{self.words} would make it {format_seconds(self.seconds)} (-{self.gain:.0%})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A possible change: other settings or other hardware."""

    settings: LoaderSettings  # after the change
    words: str  # the change as text for the user
    keywords: dict[str, Any]  # the changed keywords of `gloader.Loader`
    rates: IoRates  # the disk's rates after the change
    budget_bytes: int  # memory of the loader after the change


class Advisor:
    """Tries other loader settings on a replay of the last epoch, each with its own memory plan. Pure.

    The first batches show after how many other rows a row is used again. From these distances, the plan predicts the
    misses at other cache sizes. The epoch's measured misses correct the prediction. No batch is sampled again.

    Parameters
    ----------
    load : the measured sizes, from which the loader was planned
    plan : the loader's memory plan
    settings : the loader's settings
    """

    def __init__(self, load: MeasuredLoad, plan: MemoryPlan, settings: LoaderSettings) -> None:
        self._load = load
        self._plan = plan
        self._settings = settings

    def advise(self, recording: Recording) -> str:
        """Return a sentence with the best change and its gain; "" if the replay explains too little of the recording.

        Parameters
        ----------
        recording : the recording of one epoch or two consecutive epochs
        """
        try:
            replayed = _ReplayedEpoch(recording, self._load, self._plan)
        except ReplayError:
            return ""  # batches are missing: the loop left an epoch, or another rank did the work
        if replayed.doubt:
            return ""
        within = self._best(replayed, self._within())
        if within is not None:
            return within.text
        beyond = self._best(replayed, self._beyond())
        nothing = "no setting within this budget would help"
        return nothing if beyond is None else f"{nothing}; {beyond.text}"

    def _best(self, replayed: _ReplayedEpoch, candidates: Iterator[_Candidate]) -> Advice | None:
        """Return the candidate with the largest gain; None if no gain is large enough."""
        advice = []
        for candidate in candidates:
            try:
                plan = plan_tiers(
                    replace(self._load.demand, work=replace(self._load.demand.work, rates=candidate.rates)),
                    candidate.settings,
                    self._load.files,
                    self._load.tiers,
                    budget_bytes=candidate.budget_bytes,
                )
            except (BudgetError, ConfigError):  # the change does not fit
                continue
            seconds = replayed.seconds(plan, self._load, candidate)
            gain = 1 - seconds / replayed.measured_s
            if gain >= _LEAST_GAIN:
                advice.append(
                    Advice(settings=candidate.keywords, words=candidate.words, seconds=seconds, gain=gain)
                )
        return max(advice, key=lambda each: each.gain, default=None)

    def _within(self) -> Iterator[_Candidate]:
        """Yield candidates within the same budget."""
        memory, reading = self._settings.memory, self._settings.reading
        size, cached = self._plan.superbatch.num_batches, self._cache_bytes()
        if memory.cache is not None:
            yield self._candidate("no cache=", cache=None)
        if memory.superbatch is not None:
            yield self._candidate("no superbatch=", superbatch=None)
        if reading.io_strategy != "auto":
            yield self._candidate('io_strategy="auto"', io_strategy="auto")
        if memory.features == "ssd":
            yield self._candidate('features="auto"', features="auto")
        for factor in _FACTORS:
            batches = max(int(size * factor), 1)
            if batches != size and self._plan.features == "ssd":
                yield self._candidate(f"superbatch={batches}", superbatch=batches)
            if cached:
                num_bytes = int(cached * factor)
                yield self._candidate(f'cache="{format_bytes(num_bytes).replace(" ", "")}"', cache=num_bytes)
        threads = self._settings.stages.sampler_threads
        for count in {max(threads - 1, 1), min(threads + 1, len(os.sched_getaffinity(0)))} - {threads}:
            yield self._candidate(f"threads={count}", threads=count)

    def _beyond(self) -> Iterator[_Candidate]:
        """Yield candidates that need more hardware or memory."""
        rates, budget = self._load.demand.work.rates, self._plan.budget_bytes
        if self._plan.features != "ssd":
            return
        twice = self._candidate(f"twice the memory of the loader ({format_bytes(2 * budget)})")
        yield replace(twice, budget_bytes=2 * budget)
        yield replace(
            self._candidate("a disk twice as fast"), rates=changed_rates(rates, parse_changes("disk=2x"))
        )

    def _candidate(self, words: str, **keywords: Any) -> _Candidate:
        """Return the candidate with the changed ``keywords`` of `gloader.Loader`, on the same hardware."""
        return _Candidate(
            settings=self._settings.changed(**keywords),
            words=words,
            keywords=keywords,
            rates=self._load.demand.work.rates,
            budget_bytes=self._plan.budget_bytes,
        )

    def _cache_bytes(self) -> int:
        """Return the bytes of all rows in the host caches."""
        return sum(
            rows * table.stored_row_bytes
            for rows, table in zip(self._plan.cache_rows, self._load.demand.tables, strict=True)
        )


class _ReplayedEpoch:
    """A replay of the last epoch, as it was and under other plans.

    Raises
    ------
    ReplayError
        The recording cannot be replayed: batches are missing, or there are passes over the edges.
    """

    def __init__(self, recording: Recording, load: MeasuredLoad, plan: MemoryPlan) -> None:
        header = recording.header
        measured = measure(recording)
        work = work_of(recording, measured)
        if work.passes:
            raise ReplayError("passes over the edges are planned for a whole run")
        self._machine, self._shape = Machine(cores=header.cores), header.shape
        calibrated = calibrate(
            work,
            measured,
            self._machine,
            header.shape,
            threads=header.torch_threads,
            device=header.device,
        )
        self.doubt = calibrated.doubt  # the reason not to trust the replay, or ""
        self._fit = calibrated.fit  # factors that make the replay as long as the measured epoch
        self.measured_s = measured.epoch_s[measured.counted[-1]]  # seconds of the last counted epoch
        # The recorded work of each batch.
        self._known = [batch for batch in work.batches if batch.epoch in measured.counted]
        self._costs = learn_costs(recording)  # costs of work on rows
        self._sampling = SampleCosts.of(recording)  # costs of sampling
        needs = _needs_of(plan, load)
        self._correction = _correction(needs, recording, work, measured)  # factors for every plan's needs
        # Replayed seconds of a step without a change. Other plans are compared with them.
        self._base_s = self._steady_s(needs, self._shape, plan)

    def seconds(self, plan: MemoryPlan, load: MeasuredLoad, candidate: _Candidate) -> float:
        """Return the epoch's seconds under ``plan``: the measured seconds times the ratio of the replayed steps."""
        ring = open_ring(
            load.demand, plan, candidate.settings, load.files, load.tiers, num_ranks=self._shape.num_ranks
        )
        threads = {name: value for name, value in candidate.keywords.items() if name == "threads"}
        changes = Changes(values=threads | {"buffers": ring.num_buffers}, text=candidate.words)
        shape = replace(changed_shape(self._shape, changes), features=plan.features)
        return self.measured_s * self._steady_s(_needs_of(plan, load), shape, plan) / self._base_s

    def _steady_s(self, needs: StepNeeds, shape: PipelineShape, plan: MemoryPlan) -> float:
        """Return a step's seconds in the run's steady state."""
        steps = num_steps(needs.superbatch) // shape.num_ranks * shape.num_ranks  # equally many on every rank
        work = steady_work(
            self._known,
            needs.corrected(**self._correction),
            self._costs.with_slots(sum(plan.cache_rows)),
            self._sampling,
            steps=steps,
        )
        # Epoch 0 warms up, and epoch 1 is measured.
        return replay(self._fit.apply(work), self._machine, shape).epoch_s[1] / steps


def _correction(
    needs: StepNeeds, recording: Recording, work: RunWork, measured: Measured
) -> dict[str, float]:
    """Return an epoch's ratios of measured to predicted values, by name.

    "misses" compares missing rows per step. "ahead" compares the seconds of reads for whole superbatches, per step, and
    "own" the seconds of reads for single batches.
    """
    counted = [event for event in recording.events if event.epoch in measured.counted]
    missed = [event.notes["misses"] for event in counted if event.stage == "read"]
    # All superbatches are counted, as only few large superbatches begin in one epoch.
    batches = sum(planned.num_batches for planned in work.superbatches if planned.inspect.alone_s) or 1
    swept = sum(staged.stage.disk_s for staged in work.superbatches) / batches
    known = [batch for batch in work.batches if batch.epoch in measured.counted]
    read = sum(batch.read.disk_s for batch in known) / len(known)
    return {
        "misses": _over(sum(missed) / max(len(missed), 1), needs.misses),
        "ahead": _over(swept, needs.ahead_s),
        "own": _over(read, needs.own_s),
    }


def _over(measured: float, predicted: float) -> float:
    """Return ``measured`` over ``predicted``, or 1 if either is 0, which means unknown. Pure."""
    return measured / predicted if measured > 0 and predicted > 0 else 1.0


def _needs_of(plan: MemoryPlan, load: MeasuredLoad) -> StepNeeds:
    """Return the predicted rows, misses and disk seconds of a step under ``plan``."""
    step = plan.step
    rows = load.demand.work.rows
    if plan.features == "ram":
        return StepNeeds(superbatch=1, rows=rows, misses=0.0)
    return StepNeeds(
        superbatch=plan.superbatch.num_batches,
        rows=rows,
        misses=sum(step.misses),
        strategy=step.strategy or "direct",
        ahead_s=step.ahead_s,
        own_s=step.disk_s - step.ahead_s,
        swept_bytes=step.swept_bytes,
        kept_share=plan.kept_share,
    )
