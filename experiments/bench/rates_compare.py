"""What predicts the next run better: the table that is remembered, a small linear model, or the probe alone."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy.optimize import nnls

from gloader.ssd_store.cost.device_profile import ACCESSES, LearntRates, Observation, lesson_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

_FADING: Final = 0.8  # of the weight of the run that came after, as in the table
_RIDGE: Final = 0.3  # what the model believes of the probe, as a share of an observation
_MOST_RUNS: Final = 16
_FIRST: Final = 3  # superbatches of a run


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRun:
    """The observations of a run, superbatch by superbatch."""

    superbatches: tuple[tuple[Observation, ...], ...]

    @property
    def observations(self) -> list[Observation]:
        """All of them."""
        return [one for superbatch in self.superbatches for one in superbatch]


def by_probe(_: Sequence[SeenRun]) -> NDArray[np.float64]:
    """Return the ratios of a probe that is believed."""
    return np.ones(len(ACCESSES))


def by_table(runs: Sequence[SeenRun]) -> NDArray[np.float64]:
    """Return the ratios that gloader remembers after ``runs``, the oldest first."""
    learnt = LearntRates()
    for number, run in enumerate(runs):
        learnt = learnt.after(lesson_of(run.observations, when=float(number)))
    return np.array([learnt.ratio(access) for access in ACCESSES])


def by_model(runs: Sequence[SeenRun]) -> NDArray[np.float64]:
    """Return the ratios of least squares of the relative errors, none below 0, drawn to 1 where little is known."""
    rows, right = [], []
    for age, run in enumerate(reversed(runs[-_MOST_RUNS:])):
        weight = _FADING ** (age / 2)
        for one in run.observations:
            if one.ratio > 0:
                rows.append(weight * seconds_of(one) / one.measured_s)
                right.append(weight)
    for row in np.eye(len(ACCESSES)):
        rows.append(_RIDGE * row)
        right.append(_RIDGE)
    found, _ = nnls(np.array(rows), np.array(right))
    return np.asarray(found, np.float64)


WAYS: Final[dict[str, Callable[[Sequence[SeenRun]], NDArray[np.float64]]]] = {
    "probe": by_probe,
    "table": by_table,
    "model": by_model,
}


def seconds_of(one: Observation) -> NDArray[np.float64]:
    """Return the predicted seconds of each kind of access."""
    return np.array([one.predicted.get(access, 0.0) for access in ACCESSES])


def compare(runs: Sequence[SeenRun]) -> dict[str, dict[str, Any]]:
    """Return how wrong each way was, predicting every run but the first from those before it."""
    return {name: _errors(runs, way) for name, way in WAYS.items()}


def _errors(
    runs: Sequence[SeenRun], way: Callable[[Sequence[SeenRun]], NDArray[np.float64]]
) -> dict[str, Any]:
    every: list[float] = []
    first: list[float] = []
    for number in range(1, len(runs)):
        ratios = way(runs[:number])
        for position, superbatch in enumerate(runs[number].superbatches):
            measured = sum(one.measured_s for one in superbatch)
            predicted = float(sum(seconds_of(one) @ ratios for one in superbatch))
            if measured > 0 and predicted > 0:
                every.append(abs(predicted / measured - 1))
                if position < _FIRST:
                    first.append(every[-1])
    return {"all": summary(every), "first": summary(first)}


def summary(errors: Sequence[float]) -> dict[str, Any]:
    """Return how many errors there are, their median, and the one that nine in ten are below."""
    if not errors:
        return {"count": 0}
    return {
        "count": len(errors),
        "median": median(errors),
        "nine_in_ten": float(np.quantile(errors, 0.9)),
    }
