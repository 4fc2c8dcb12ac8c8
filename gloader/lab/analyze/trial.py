"""Trials: short runs that measure the best found settings and the run's settings in turns.

This is the last step of `gloader autotune`. `gloader.lab.analyze.autotune` has found settings by replays, which
simulate a recorded run. `measure_best` checks these settings by real training: it calls `run_short` for them and for
the run's own settings alternately. A short run trains a few batches without evaluations. Its epochs are measured like
those of a recording.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from gloader.core.units import format_exact_seconds
from gloader.device import open_device
from gloader.errors import BudgetError, ConfigError
from gloader.lab.analyze.autotune import keywords_of
from gloader.training.group import RankGroup
from gloader.training.process import private_randomness
from gloader.training.run_loader import RunLoader
from gloader.training.train import task_of
from gloader.training.train_step import new_step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

    from gloader.config import TrainSettings
    from gloader.dataset import Dataset
    from gloader.lab.analyze.autotune import Tried, Tuned
    from gloader.replay.changes import Changes
    from gloader.replay.demands import Measured
    from gloader.replay.work import RunWork
    from gloader.training.run_budget import RunBudget
    from gloader.training.run_loader import LoaderFactory
    from gloader.training.task import AnyLoader, Task
    from gloader.training.train_step import TrainStep


_WARM_BATCHES: Final = 2  # torch settles and starts its threads in these batches


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExtent:
    """A short run's size, in epochs and batches."""

    num_epochs: int
    num_batches: int  # largest number of batches per epoch
    pause_s: float = 0.0  # pause between two epochs, for an evaluation; the loader continues in it

    @classmethod
    def of_about(cls, num_batches: int, *, epoch_batches: int) -> RunExtent:
        """Return an extent with about ``num_batches`` batches to measure. Pure.

        It is a part of one epoch. If an epoch is shorter, it is one epoch that does not count, and some more.
        """
        if epoch_batches >= num_batches:
            return cls(num_epochs=1, num_batches=num_batches)
        return cls(num_epochs=1 + -(-num_batches // epoch_batches), num_batches=epoch_batches)

    @classmethod
    def of_recording(cls, measured: Measured, work: RunWork) -> RunExtent:
        """Return the extent that measures the same as a recording: one counted epoch, usually the second. Pure."""
        first = measured.counted[0]
        # The pause before an epoch is recorded at the epoch's first batch.
        pauses = [
            batch.pause_s for batch in work.batches if batch.epoch in measured.counted and not batch.index
        ]
        has_others = len(measured.epoch_s) > 1
        return cls(
            num_epochs=2 if has_others else 1,
            num_batches=sum(epoch == first for epoch, _ in measured.position_of),
            pause_s=sum(pauses) / len(pauses) if has_others and pauses else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRun:
    """A short run's times."""

    epoch_s: tuple[float, ...]  # seconds from the first batch's request to the last step's end
    extent: RunExtent  # the trained batches
    epoch_batches: int  # batches per epoch
    budget: RunBudget

    @property
    def seconds(self) -> float:
        """Mean seconds per epoch, over the epochs after the first, if there are any."""
        counted = self.epoch_s[1:] or self.epoch_s
        return sum(counted) / len(counted)


def warm_up(dataset: Dataset, settings: TrainSettings, *, device: torch.device) -> ShortRun:
    """Train a step or two, so that the process's one-time work is done. Raises the errors of `run_short`."""
    return run_short(
        dataset, settings, device=device, extent=RunExtent(num_epochs=1, num_batches=_WARM_BATCHES)
    )


def run_short(
    dataset: Dataset,
    settings: TrainSettings,
    *,
    device: torch.device,
    extent: RunExtent,
    most_s: float = math.inf,
    trace: Path | None = None,
) -> ShortRun:
    """Train a new network on a few batches, in this process only. Nothing is evaluated or saved.

    Parameters
    ----------
    dataset : the training data
    settings : see `gloader.training.train.fit`; ``optim.epochs`` is ignored
    device : the network's device
    extent : the run's size
    most_s : seconds after which the first epoch stops and no other epoch begins
    trace : file for the events of every stage. None records nothing.

    Raises
    ------
    ConfigError, BudgetError
        A setting is not allowed, or memory does not suffice.
    StoreWriteError
        The trace cannot be written.
    """
    task = task_of(settings, dataset)
    of_epochs = replace(settings, optim=replace(settings.optim, epochs=extent.num_epochs))
    budget, opened = open_alone(
        dataset, of_epochs, task, device, factory=task.open_loader, is_traced=trace is not None
    )
    with opened as loader, private_randomness(device):
        step = new_step(task, settings, device, RankGroup.alone(), num_steps=extent.num_epochs * len(loader))
        num_batches = min(extent.num_batches, len(loader))
        epoch_s: list[float] = []
        while len(epoch_s) < extent.num_epochs and sum(epoch_s) < most_s:
            if epoch_s:
                time.sleep(extent.pause_s)
            num_taken, seconds = _train_epoch(
                loader, step, device, num_batches=num_batches, most_s=math.inf if epoch_s else most_s
            )
            epoch_s.append(seconds)
            if num_taken < num_batches:  # the first epoch has used up ``most_s``
                num_batches = num_taken
                break
        if trace is not None:
            loader.write_trace(trace)
        return ShortRun(
            epoch_s=tuple(epoch_s),
            extent=replace(extent, num_epochs=len(epoch_s), num_batches=num_batches),
            epoch_batches=len(loader),
            budget=budget,
        )


def open_alone(
    dataset: Dataset,
    settings: TrainSettings,
    task: Task,
    device: torch.device,
    *,
    factory: LoaderFactory,
    is_traced: bool = False,
) -> tuple[RunBudget, AnyLoader]:
    """Return a single-process run's loader and the division of its budget. Raises the errors of `RunLoader`."""
    opening = RunLoader(
        dataset=dataset,
        settings=settings,
        task=task,
        group=RankGroup.alone(),
        device=device,
        is_traced=is_traced,
        factory=factory,
    )
    return opening.open()


def _train_epoch(
    loader: AnyLoader, step: TrainStep, device: torch.device, *, num_batches: int, most_s: float
) -> tuple[int, float]:
    """Train on an epoch's first batches. Return their number and the seconds."""
    num_taken, began = 0, time.perf_counter()
    for batch in loader:
        num_taken += 1
        step.take(batch, is_last=num_taken == num_batches)
        if num_taken == len(loader):
            continue  # the loader completes its epoch only at one more request
        if num_taken == num_batches or time.perf_counter() - began >= most_s:
            break
    open_device(device).mark_computing().wait()
    return num_taken, time.perf_counter() - began


# Largest relative error of a prediction. A measurement with a larger error contradicts it.
CONTRADICTS: Final = 0.10
# Largest number of found settings to measure. If none of them fits in memory, the initial settings are kept.
_MOST_MISFITS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Settings with their predicted and measured times."""

    change: str  # the changes in words; empty for the initial settings
    settings: TrainSettings
    predicted_s: float  # seconds per epoch
    measured_s: tuple[float, ...]  # seconds per epoch in each repetition

    @property
    def seconds(self) -> float:
        """Median of the measured seconds per epoch."""
        return median(self.measured_s)

    @property
    def error(self) -> float:
        """Measured time over predicted time, less 1."""
        return self.seconds / self.predicted_s - 1

    def to_json(self) -> dict[str, Any]:
        """Return the trial as a JSON object."""
        return {
            "change": self.change,
            "predicted_s": self.predicted_s,
            "measured_s": self.seconds,
            "repetitions_s": list(self.measured_s),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Autotuned:
    """The found settings and the initial ones."""

    start: Trial
    best: Trial | None  # None if no settings are predicted to be faster
    tuned: Tuned  # the search's result
    extent: RunExtent  # the size of each measured run
    misfits: tuple[str, ...] = field(default=())  # settings that could not be measured, with the reasons

    @property
    def kept(self) -> Trial:
        """The faster trial by measurement."""
        return self.best if self.best is not None and self.best.seconds < self.start.seconds else self.start

    @property
    def contradiction(self) -> str:
        """Return a sentence about measurements that contradict the predictions, or ""."""
        trials = [one for one in (self.best, self.start) if one is not None]
        wrong = [
            f"{one.change or 'the start'} took {format_exact_seconds(one.seconds)} instead of "
            f"{format_exact_seconds(one.predicted_s)} ({one.error:+.0%})"
            for one in trials
            if abs(one.error) > CONTRADICTS
        ]
        if not wrong:
            return ""
        text = f"the measurement contradicts the prediction: {', '.join(wrong)}"
        # The initial settings were recorded, so another time now has a cause outside of the settings.
        if abs(self.start.error) > CONTRADICTS:
            text += "; another program ran during the recording, or runs now: record the run again while no other runs"
        return text

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        searched = self.tuned.searched
        return {
            "start": self.start.to_json(),
            "best": None if self.best is None else self.best.to_json(),
            "kept": self.kept.change,
            "contradiction": self.contradiction,
            "floor_s": self.tuned.floor.seconds,
            "floor_of": self.tuned.floor.resource,
            "is_at_floor": searched.is_at_floor,
            "tried": [
                {
                    "change": one.changes.text,
                    "predicted_s": None if one.reason else one.seconds,
                    "reason": one.reason,
                }
                for one in searched.tried
            ],
            "misfits": list(self.misfits),
            "epochs": self.extent.num_epochs,
            "batches": self.extent.num_batches,
        }


def measure_best(
    tuned: Tuned,
    dataset: Dataset,
    settings: TrainSettings,
    *,
    device: torch.device,
    extent: RunExtent,
    rounds: int,
    says: Callable[[str], None],
) -> Autotuned:
    """Train with the best found settings and the initial settings in turns, so that both have the same noise.

    Parameters
    ----------
    tuned : the found settings
    dataset : the training data
    settings : the initial settings, with their memory budget
    device, extent : see `run_short`
    rounds : number of measurements with the best settings, and with the initial ones
    says : receives each measurement's name

    Raises
    ------
    ConfigError, BudgetError
        The initial settings cannot be trained.
    """
    misfits: list[str] = []
    for candidate in (*tuned.candidates[:_MOST_MISFITS], tuned.searched.start):
        is_start = candidate is tuned.searched.start
        tried = settings if is_start else _changed(settings, candidate.changes)
        pair = [settings] if is_start else [settings, tried]
        # The measured seconds per epoch, by the index in ``pair``.
        epoch_s: dict[int, list[float]] = {number: [] for number in range(len(pair))}
        try:
            for turn in range(rounds):
                # Every second turn has the reverse order, because the later run finds a warmer machine.
                for number in sorted(epoch_s, reverse=bool(turn % 2)):
                    says(f"measuring {candidate.changes.text if number else 'the start'}")
                    epoch_s[number].append(
                        run_short(dataset, pair[number], device=device, extent=extent).seconds
                    )
        except (BudgetError, ConfigError) as error:
            if is_start:
                raise
            misfits.append(f"{candidate.changes.text}: {error}")
            continue
        return Autotuned(
            start=_trial("", settings, tuned.searched.start, epoch_s[0]),
            best=None if is_start else _trial(candidate.changes.text, tried, candidate, epoch_s[1]),
            tuned=tuned,
            extent=extent,
            misfits=tuple(misfits),
        )
    raise AssertionError("the initial settings come last, and their errors are raised")


def _trial(change: str, settings: TrainSettings, predicted: Tried, took: list[float]) -> Trial:
    """Return the trial of ``settings``, which measured ``took`` seconds per epoch in each round."""
    return Trial(change=change, settings=settings, predicted_s=predicted.seconds, measured_s=tuple(took))


def _changed(settings: TrainSettings, changes: Changes) -> TrainSettings:
    """Return ``settings`` with the changes of a search. Pure."""
    keywords: Any = keywords_of(changes)
    return replace(settings, loader=settings.loader.changed(**keywords))
