"""Short runs: a few batches of training, without evaluations, timed as a recording is."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gloader.device import open_device
from gloader.training.group import RankGroup
from gloader.training.process import private_randomness
from gloader.training.run_loader import RunLoader
from gloader.training.train import task_of
from gloader.training.train_step import new_step

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from gloader.config import TrainSettings
    from gloader.dataset import Dataset
    from gloader.replay.demands import Measured
    from gloader.replay.work import Work
    from gloader.training.run_budget import RunBudget
    from gloader.training.task import AnyLoader
    from gloader.training.train_step import TrainStep

_WARM_BATCHES: Final = 2  # that torch settles in, and its threads start


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is trained."""

    num_epochs: int
    num_batches: int  # of each epoch, at most
    pause_s: float = 0.0  # between two epochs, as an evaluation takes: the loader works on meanwhile

    @classmethod
    def of_about(cls, num_batches: int, *, epoch_batches: int) -> Extent:
        """Return about ``num_batches``: part of an epoch of ``epoch_batches``, or several behind a first one. Pure."""
        if epoch_batches >= num_batches:
            return cls(num_epochs=1, num_batches=num_batches)
        return cls(num_epochs=1 + -(-num_batches // epoch_batches), num_batches=epoch_batches)

    @classmethod
    def of_recording(cls, measured: Measured, work: Work) -> Extent:
        """Return what measures the same as a recording: an epoch that counts, behind a first one. Pure."""
        first = measured.counted[0]
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
    """What a short run took."""

    epoch_s: tuple[float, ...]  # from where the loop asks for the first batch to its last step's end
    extent: Extent  # of what was trained
    epoch_batches: int  # of a whole epoch
    budget: RunBudget

    @property
    def seconds(self) -> float:
        """Seconds of an epoch, on average over those behind the first where there are any."""
        counted = self.epoch_s[1:] or self.epoch_s
        return sum(counted) / len(counted)


def warm_up(dataset: Dataset, settings: TrainSettings, *, device: torch.device) -> ShortRun:
    """Train a step or two, so that what a process does once is behind it; errors as of `run_short`."""
    return run_short(dataset, settings, device=device, extent=Extent(num_epochs=1, num_batches=_WARM_BATCHES))


def run_short(
    dataset: Dataset,
    settings: TrainSettings,
    *,
    device: torch.device,
    extent: Extent,
    most_s: float = math.inf,
    trace: Path | None = None,
) -> ShortRun:
    """Train a new network on a few batches, in this process alone. Nothing is evaluated or saved.

    Parameters
    ----------
    dataset : what is trained on
    settings : as of `gloader.training.train.fit`; ``optim.epochs`` is not looked at
    device : where the network is
    extent : how much is trained
    most_s : seconds after which the first epoch ends where it is, and after which no other begins
    trace : receives what every stage did; None: nothing is recorded

    Raises
    ------
    ConfigError, BudgetError
        A setting is not allowed, or memory does not suffice.
    StoreWriteError
        The trace cannot be written.
    """
    task, group = task_of(settings, dataset), RankGroup.alone()
    opening = RunLoader(
        dataset=dataset,
        settings=replace(settings, optim=replace(settings.optim, epochs=extent.num_epochs)),
        task=task,
        group=group,
        device=device,
        is_traced=trace is not None,
        factory=task.open_loader,
    )
    budget, opened = opening.open()
    with opened as loader, private_randomness(device):
        step = new_step(task, settings, device, group, num_steps=extent.num_epochs * len(loader))
        num_batches = min(extent.num_batches, len(loader))
        epoch_s: list[float] = []
        while len(epoch_s) < extent.num_epochs and sum(epoch_s) < most_s:
            if epoch_s:
                time.sleep(extent.pause_s)
            taken, seconds = _train_epoch(
                loader, step, device, num_batches=num_batches, most_s=math.inf if epoch_s else most_s
            )
            epoch_s.append(seconds)
            if taken < num_batches:
                num_batches = taken
                break
        if trace is not None:
            loader.write_trace(trace)
        return ShortRun(
            epoch_s=tuple(epoch_s),
            extent=replace(extent, num_epochs=len(epoch_s), num_batches=num_batches),
            epoch_batches=len(loader),
            budget=budget,
        )


def _train_epoch(
    loader: AnyLoader, step: TrainStep, device: torch.device, *, num_batches: int, most_s: float
) -> tuple[int, float]:
    """Train on the first batches of an epoch; return how many, and the seconds."""
    taken, began = 0, time.perf_counter()
    for batch in loader:
        taken += 1
        step.take(batch, is_last=taken == num_batches)
        if taken == len(loader):
            continue  # the loop asks once more, and the epoch is complete
        if taken == num_batches or time.perf_counter() - began >= most_s:
            break
    open_device(device).mark_computing().wait()
    return taken, time.perf_counter() - began
