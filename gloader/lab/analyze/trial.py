"""What a search found, measured beside what there was."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from gloader.core.units import format_exact_seconds
from gloader.errors import BudgetError, ConfigError
from gloader.lab.analyze.autotune import keywords_of
from gloader.lab.analyze.short_run import run_short

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gloader.config import TrainSettings
    from gloader.dataset import Dataset
    from gloader.lab.analyze.autotune import Tuned
    from gloader.lab.analyze.short_run import Extent
    from gloader.replay.changes import Changes
    from gloader.replay.search import Tried

# Beyond this a measurement contradicts what was predicted.
CONTRADICTS: Final = 0.10
# Settings that are measured in vain, as they did not fit, before the start is kept.
_MOST_MISFITS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Settings that were predicted and measured."""

    change: str  # in words; empty: the start
    settings: TrainSettings
    predicted_s: float
    measured_s: tuple[float, ...]  # of each repetition

    @property
    def seconds(self) -> float:
        """Measured seconds of an epoch, the median."""
        return median(self.measured_s)

    @property
    def error(self) -> float:
        """By how much it took longer than predicted, as a share; negative: less long."""
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
    """The settings that were found, beside those that there were."""

    start: Trial
    best: Trial | None  # None: nothing is predicted to be faster
    tuned: Tuned
    extent: Extent
    misfits: tuple[str, ...] = field(default=())  # what was to be measured and did not fit

    @property
    def kept(self) -> Trial:
        """The faster one, as measured."""
        return self.best if self.best is not None and self.best.seconds < self.start.seconds else self.start

    @property
    def contradiction(self) -> str:
        """Say in a sentence what the measurements have against the predictions; empty: nothing."""
        trials = [one for one in (self.best, self.start) if one is not None]
        found = [
            f"{one.change or 'the start'} took {format_exact_seconds(one.seconds)} instead of "
            f"{format_exact_seconds(one.predicted_s)} ({one.error:+.0%})"
            for one in trials
            if abs(one.error) > CONTRADICTS
        ]
        if not found:
            return ""
        text = f"the measurement contradicts the prediction: {', '.join(found)}"
        # The start was recorded: what it takes now is no matter of settings.
        if abs(self.start.error) > CONTRADICTS:
            text += "; something else was at work then, or is now: record the run again while nothing is"
        return text

    def to_json(self) -> dict[str, Any]:
        """Return what was found as a JSON object."""
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
    extent: Extent,
    rounds: int,
    says: Callable[[str], None],
) -> Autotuned:
    """Train with the best of what was found and with the start in turns, so that both meet the same noise.

    Parameters
    ----------
    tuned : what was found
    dataset : what is trained on
    settings : of the start, with its memory budget
    device, extent : as of `run_short`
    rounds : times that each is measured
    says : told what is measured

    Raises
    ------
    ConfigError, BudgetError
        The start itself cannot be trained.
    """
    misfits: list[str] = []
    for candidate in (*tuned.candidates[:_MOST_MISFITS], tuned.searched.start):
        is_start = candidate is tuned.searched.start
        tried = settings if is_start else _changed(settings, candidate.changes)
        pair = [settings] if is_start else [settings, tried]
        took: dict[int, list[float]] = {number: [] for number in range(len(pair))}
        try:
            for turn in range(rounds):
                # The other way round in every second turn: whoever comes later has it warmer.
                for number in sorted(took, reverse=bool(turn % 2)):
                    says(f"measuring {candidate.changes.text if number else 'the start'}")
                    took[number].append(
                        run_short(dataset, pair[number], device=device, extent=extent).seconds
                    )
        except (BudgetError, ConfigError) as error:
            if is_start:
                raise
            misfits.append(f"{candidate.changes.text}: {error}")
            continue
        return Autotuned(
            start=_trial("", settings, tuned.searched.start, took[0]),
            best=None if is_start else _trial(candidate.changes.text, tried, candidate, took[1]),
            tuned=tuned,
            extent=extent,
            misfits=tuple(misfits),
        )
    raise AssertionError("the start is the last of what is measured")


def _trial(change: str, settings: TrainSettings, predicted: Tried, took: list[float]) -> Trial:
    return Trial(change=change, settings=settings, predicted_s=predicted.seconds, measured_s=tuple(took))


def _changed(settings: TrainSettings, changes: Changes) -> TrainSettings:
    keywords: Any = keywords_of(changes)
    return replace(settings, loader=settings.loader.changed(**keywords))
