"""The search for a run's best settings, on its replay: the first step of `gloader autotune`.

A replay predicts a recorded run's epoch with other settings. `tune` builds the knobs (`knobs_of`), and calls `search`
with the run's `Predictor`. The search changes one knob after another, until no change helps. A knob is a setting with
candidate values. The floor is a lower bound for the epoch with any settings, so the search ends early when it is close
to the floor. `gloader.lab.analyze.trial` then measures the best found settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError, ReplayError
from gloader.replay.changes import AUTO, KEYWORDS, NO_CHANGES, parse_changes
from gloader.replay.floor import floor_of_mixture, needs_of, without_reads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from gloader.lab.analyze.predict import Prediction, Predictor
    from gloader.replay.changes import Changes
    from gloader.replay.floor import Floor
    from gloader.replay.recording import RunHeader


# Share of the floor. A search ends when the epoch is longer than the floor by at most this share.
CLOSE: Final = 0.03
# Share of an epoch. A smaller gain over the best settings so far would not be seen in a measurement.
_GAIN: Final = 0.002
# The default of `search`: no second starting point.
NOTHING_ELSE: Final[Mapping[str, str]] = MappingProxyType({})
_NOT_POSSIBLE: Final = (BudgetError, ConfigError, ReplayError)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedKnob:
    """A setting and its candidate values."""

    name: str  # a name in `gloader.replay.changes.KNOBS`
    values: tuple[str, ...]  # candidates in a what-if's form; the present value is also tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A combination of settings with its prediction."""

    changes: Changes
    seconds: float  # predicted seconds per epoch; infinite if impossible
    reason: str = ""  # reason why the combination is impossible


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A search's result."""

    start: Tried
    best: Tried
    tried: tuple[Tried, ...]  # each combination once, in the search's order
    is_at_floor: bool  # True if the search ended close to the floor


def search(
    knobs: Sequence[SearchedKnob],
    predict: Callable[[Changes], float],
    *,
    floor: Callable[[], float],
    close: float = CLOSE,
    together: Collection[str] = (),
    also: Mapping[str, str] = NOTHING_ELSE,
) -> Searched:
    """Return the best changes that coordinate search finds. Pure if its arguments are pure.

    The search begins without changes, or at ``also`` if that is faster. For one knob after another, it tries all values
    with the other knobs' best values, and keeps the fastest. A value that gains less than 0.2% is not kept. When no
    single knob helps any more, the knobs in ``together`` are tried in all combinations. The search ends when these do
    not help either, or as soon as the best is within ``close`` of the floor. Each combination is predicted once.

    Parameters
    ----------
    knobs : the knobs in the search's order
    predict : returns the seconds per epoch with some changes, or raises an error if they are impossible
    floor : returns the best lower bound so far for the seconds with any changes
    close : share of the floor, see `CLOSE`
    together : names of knobs that limit each other
    also : knob values for a second starting point

    Raises
    ------
    ReplayError, ConfigError, BudgetError
        ``predict`` raised the error without changes.
    """
    walk = _Walk(knobs, predict)
    seconds = predict(NO_CHANGES)  # of the best combination so far
    walk.known[()] = start = best = Tried(changes=NO_CHANGES, seconds=seconds)
    chosen: dict[str, str] = {}  # the best combination: changed knobs and their values
    if also and seconds > (1 + close) * floor():
        other = walk.try_out(also)
        if other.seconds < (1 - _GAIN) * seconds:
            chosen, best, seconds = dict(also), other, other.seconds

    def found(*, is_at_floor: bool) -> Searched:
        return Searched(start=start, best=best, tried=tuple(walk.known.values()), is_at_floor=is_at_floor)

    joint = tuple(knob for knob in knobs if knob.name in together)
    moves = [*((knob,) for knob in knobs), *((joint,) if len(joint) > 1 else ())]
    is_better = True
    while is_better:
        is_better = False
        for move in moves:  # the knobs that change together: one knob, or all joint knobs
            if len(move) > 1 and is_better:
                continue  # single knobs still help, and are tried first
            if seconds <= (1 + close) * floor():
                return found(is_at_floor=True)
            # None leaves the knob unchanged.
            for values in product(*((None, *knob.values) for knob in move)):
                changed = {knob.name: value for knob, value in zip(move, values, strict=True)}
                combination = {name: value for name, value in (chosen | changed).items() if value is not None}
                tried = walk.try_out(combination)
                if tried.seconds < (1 - _GAIN) * seconds:
                    chosen, best, seconds, is_better = combination, tried, tried.seconds, True
    return found(is_at_floor=False)


class _Walk:
    """The combinations that were tried so far, so that each one is predicted once.

    ``known`` has the results by their words, such as ("cache=2GB", "threads=4"), in the order of the trials.
    """

    def __init__(self, knobs: Sequence[SearchedKnob], predict: Callable[[Changes], float]) -> None:
        self._names = [knob.name for knob in knobs]
        self._predict = predict
        self.known: dict[tuple[str, ...], Tried] = {}

    def try_out(self, combination: Mapping[str, str]) -> Tried:
        """Return the result with these knob values; the other knobs are unchanged."""
        words = tuple(f"{name}={combination[name]}" for name in self._names if name in combination)
        if words not in self.known:
            self.known[words] = self._try(words)
        return self.known[words]

    def _try(self, words: tuple[str, ...]) -> Tried:
        """Predict the combination in ``words``, such as ("cache=2GB",)."""
        changes = parse_changes(",".join(words)) if words else NO_CHANGES
        try:
            return Tried(changes=changes, seconds=self._predict(changes))
        except _NOT_POSSIBLE as error:
            return Tried(changes=changes, seconds=math.inf, reason=str(error))


# Shares of the memory budget for a tried cache. The rest is for rows that a superbatch stages, for traces and buffers.
_CACHE_SHARES: Final = (0, 1 / 16, 1 / 8, *(number / 16 for number in range(4, 14)))
_MOST_SUPERBATCH: Final = 512  # largest tried S, in batches
_THREADS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # sampling threads to try, up to the cores
_BUFFERS: Final = ("1", "2", "3", "4", "5")  # feature buffers to try
# Ways to read the rows that miss the cache: one by one, by a sweep into memory, or by a sweep into packs on the disk.
_STRATEGIES: Final = ("auto", "direct", "staged", "packed")
_TOGETHER: Final = ("cache", "strategy")  # staged rows need memory that a cache would use


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The result of the search on the replay."""

    searched: Searched
    floor: Floor  # floor for all mixtures of the tried settings

    @property
    def candidates(self) -> tuple[Tried, ...]:
        """Settings that are predicted to be faster than the initial ones, fastest first."""
        start = self.searched.start
        faster = [one for one in self.searched.tried if one.seconds < start.seconds]
        # The best settings are first, even if other settings gain too little to replace them.
        faster.sort(key=lambda one: (one is not self.searched.best, one.seconds))
        return () if self.searched.best is start else tuple(faster)


def knobs_of(header: RunHeader) -> tuple[SearchedKnob, ...]:
    """Return a run's knobs, the most effective first. Pure.

    The superbatch size comes before the cache. The cache gets the remaining memory until its own turn.
    """
    threads = sorted({*(one for one in _THREADS if one < header.cores), header.cores})
    knobs = []
    if header.shape.features == "ssd":
        knobs.append(SearchedKnob(name="superbatch", values=_superbatches(header)))
        if header.policy != "none":
            knobs.append(SearchedKnob(name="cache", values=_caches(header)))
        knobs.append(SearchedKnob(name="strategy", values=_STRATEGIES))
    knobs.append(SearchedKnob(name="threads", values=tuple(map(str, threads))))
    knobs.append(SearchedKnob(name="buffers", values=_BUFFERS))
    return tuple(knobs)


def keywords_of(changes: Changes) -> dict[str, Any]:
    """Return the keywords of `gloader.Loader` for changes to the knobs in `knobs_of`. Pure."""
    return {KEYWORDS[name]: value for name, value in changes.values.items()}


def tune(predictor: Predictor) -> Tuned:
    """Search the fastest settings on a run's replay, within the run's memory.

    Raises
    ------
    ReplayError
        The replay explains too little of the run for predictions.
    MissingDependencyError
        scipy is not installed.
    """
    header, base = predictor.recording.header, predictor.base
    knobs = knobs_of(header)
    most_threads = max(int(text) for knob in knobs if knob.name == "threads" for text in knob.values)
    counted = predictor.measured.counted

    def needs(prediction: Prediction) -> dict[str, float]:
        """Return the least seconds per epoch that each resource needs for the predicted work."""
        # The floor is for the most threads that will be tried, because threads are a knob.
        shape = replace(prediction.shape, sampler_threads=max(prediction.shape.sampler_threads, most_threads))
        # The needs get the same correction as the predicted seconds.
        took = fmean(prediction.replayed.epoch_s[epoch] for epoch in counted)
        scale = prediction.replayed_s / took if took else 1.0
        found = needs_of(prediction.work, prediction.machine, shape, epochs=counted)
        return {name: scale * seconds for name, seconds in found.items()}

    # The work that remains without any reads is a lower bound for all settings.
    ideal = needs(replace(base, work=without_reads(base.work)))
    ways: list[dict[str, float]] = []  # the needs of each combination that was predicted

    def predict(changes: Changes) -> float:
        """Return the predicted seconds per epoch; raise BudgetError if the plan exceeds the run's memory."""
        prediction = predictor.predict(changes)
        if prediction.plan is not None and prediction.plan.total_bytes > header.budget_bytes:
            raise BudgetError(
                f"it takes {format_bytes(prediction.plan.total_bytes)} of memory, and the run had "
                f"{format_bytes(header.budget_bytes)}"
            )
        ways.append(needs(prediction))
        return prediction.replayed_s

    searched = search(
        knobs,
        predict,
        floor=lambda: floor_of_mixture([ideal, *ways]).seconds,
        together=_TOGETHER,
        # These values are the memory plan's default choice.
        also={knob.name: AUTO for knob in knobs if knob.name != "threads"},
    )
    return Tuned(searched=searched, floor=floor_of_mixture(ways))


def _superbatches(header: RunHeader) -> tuple[str, ...]:
    """Return the superbatch sizes to try in batches, each twice the previous one. Pure."""
    found, size = [], header.superbatch_unit
    while size <= min(_MOST_SUPERBATCH, max(header.num_batches, header.superbatch)):
        found.append(str(size))
        size *= 2
    return tuple(found)


def _caches(header: RunHeader) -> tuple[str, ...]:
    """Return cache sizes within the budget, at most the size of all rows. Pure."""
    rows_bytes = sum(table.num_rows * table.row_bytes for table in header.tables)
    sizes = [int(share * header.budget_bytes) for share in _CACHE_SHARES]
    sizes = [min(size, rows_bytes) for size in sizes]
    return tuple(dict.fromkeys(format_bytes(size).replace(" ", "") for size in sizes))
