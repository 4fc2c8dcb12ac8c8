"""Axes of a chart: round numbers between the least and the most value. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_MARGIN: Final = 0.05
# Damaged files and runs that diverged have such values: of larger ones differences overflow, and a smaller range has no
# parts, for its step rounds to 0.
_MOST: Final = 1e100
_LEAST_RANGE: Final = 1e-100


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A range of values, laid over a range of pixels."""

    low: float
    high: float
    start: float  # pixel of ``low``
    end: float  # pixel of ``high``
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Return the pixel of ``value``."""
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)


def can_be_drawn(value: float | None) -> bool:
    """Return whether ``value`` has a place on an axis; that of a run that diverged has none."""
    return value is not None and abs(value) < _MOST


def fit_axis(
    values: Iterable[float],
    *,
    start: float,
    end: float,
    from_zero: bool = False,
    is_whole: bool = False,
    most_ticks: int = 5,
) -> Axis:
    """Return the axis that holds ``values``, all of which `can_be_drawn`.

    Parameters
    ----------
    values : that it holds; 0 to 1 where there are none
    start, end : pixels of its ends
    from_zero : it begins at 0
    is_whole : between whole numbers there is nothing, as between epochs
    most_ticks : that have room
    """
    found = list(values) or [0.0, 1.0]
    low, high = min(found), max(found)
    margin = 0.0 if is_whole else _MARGIN * (high - low)
    low, high = (0.0 if from_zero else low - margin), high + margin
    if high - low < _LEAST_RANGE:  # all are alike
        around = max(abs(low), 1.0) * _MARGIN
        low, high = (0.0 if from_zero else low - around), high + around
    step = _step((high - low) / most_ticks)
    if is_whole:
        step = max(step, 1.0)
    first, last = math.ceil(low / step), math.floor(high / step)
    ticks = tuple(number * step for number in range(first, min(last, first + 2 * most_ticks) + 1))
    return Axis(low=low, high=high, start=start, end=end, ticks=ticks)


def _step(least: float) -> float:
    """Return the least of 1, 2, 5, 10, 20, ... that is not below ``least``."""
    magnitude = 10.0 ** math.floor(math.log10(least))
    return next(step * magnitude for step in _STEPS if step * magnitude >= least * (1 - 1e-9))
