"""The settings that suit a run best, searched on its replay."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.replay.changes import AUTO
from gloader.replay.floor import floor_of_mixture
from gloader.replay.needs import needs_of, without_reads
from gloader.replay.search import SearchedKnob, search

if TYPE_CHECKING:
    from gloader.lab.analyze.predicts import Predicts
    from gloader.lab.analyze.result import Prediction
    from gloader.replay.changes import Changes
    from gloader.replay.floor import Floor
    from gloader.replay.recording import RunHeader
    from gloader.replay.search import Searched, Tried

# Of the budget of memory that a cache is tried with; the rest is for staging, kept batches and buffers.
_CACHE_SHARES: Final = (0, 1 / 16, 1 / 8, *(number / 16 for number in range(4, 14)))
_MOST_SUPERBATCH: Final = 512
_THREADS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_BUFFERS: Final = ("1", "2", "3", "4", "5")
_WAYS: Final = ("auto", "direct", "staged", "packed")
_TOGETHER: Final = ("cache", "strategy")  # rows that are staged need memory that a cache would have
# Of `gloader.Loader`, by knob.
_KEYWORDS: Final = {
    "threads": "threads",
    "superbatch": "superbatch",
    "cache": "cache",
    "strategy": "io_strategy",
    "buffers": "buffers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What the search on the replay came to."""

    searched: Searched
    floor: Floor  # of all mixtures of what was tried

    @property
    def candidates(self) -> tuple[Tried, ...]:
        """What is predicted to be faster than the start, the fastest first."""
        start = self.searched.start
        found = [one for one in self.searched.tried if one.seconds < start.seconds]
        # The best is first, whatever gains too little to replace it.
        found.sort(key=lambda one: (one is not self.searched.best, one.seconds))
        return () if self.searched.best is start else tuple(found)


def knobs_of(header: RunHeader) -> tuple[SearchedKnob, ...]:
    """Return what a run can be tuned by, those that do most first. Pure.

    The size of superbatches comes before the cache, which gets what they leave until it is tried itself.
    """
    threads = sorted({*(one for one in _THREADS if one < header.cores), header.cores})
    found = []
    if header.shape.features == "ssd":
        found.append(SearchedKnob(name="superbatch", values=_superbatches(header)))
        if header.policy != "none":
            found.append(SearchedKnob(name="cache", values=_caches(header)))
        found.append(SearchedKnob(name="strategy", values=_WAYS))
    found.append(SearchedKnob(name="threads", values=tuple(map(str, threads))))
    found.append(SearchedKnob(name="buffers", values=_BUFFERS))
    return tuple(found)


def keywords_of(changes: Changes) -> dict[str, Any]:
    """Return the keywords of `gloader.Loader` that make changes of the knobs of `knobs_of`. Pure."""
    return {_KEYWORDS[name]: value for name, value in changes.values.items()}


def tune(predictor: Predicts) -> Tuned:
    """Search the fastest settings on the replay of a run, within its memory.

    Raises
    ------
    ReplayError
        The replay explains too little of the run to predict anything.
    MissingDependencyError
        scipy is not installed.
    """
    header, base = predictor.recording.header, predictor.base
    knobs = knobs_of(header)
    most_threads = max(int(text) for knob in knobs if knob.name == "threads" for text in knob.values)
    counted = predictor.measured.counted

    def needs(prediction: Prediction) -> dict[str, float]:
        # Threads are a knob: the floor is that of as many as will be tried.
        shape = replace(prediction.shape, sampler_threads=max(prediction.shape.sampler_threads, most_threads))
        took = fmean(prediction.replayed.epoch_s[epoch] for epoch in counted)
        scale = prediction.replayed_s / took if took else 1.0
        found = needs_of(prediction.work, prediction.machine, shape, epochs=counted)
        return {name: scale * seconds for name, seconds in found.items()}

    # What is left of the work however little is read, which no setting gets below.
    ideal = needs(replace(base, work=without_reads(base.work)))
    ways: list[dict[str, float]] = []

    def predict(changes: Changes) -> float:
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
        # What the memory plan chooses where nobody asks.
        also={knob.name: AUTO for knob in knobs if knob.name != "threads"},
    )
    return Tuned(searched=searched, floor=floor_of_mixture(ways))


def _superbatches(header: RunHeader) -> tuple[str, ...]:
    """Return numbers of batches, each twice the one before it. Pure."""
    found, size = [], header.superbatch_unit
    while size <= min(_MOST_SUPERBATCH, max(header.num_batches, header.superbatch)):
        found.append(str(size))
        size *= 2
    return tuple(found)


def _caches(header: RunHeader) -> tuple[str, ...]:
    """Return sizes of a cache that the budget might have room for, and that all rows fill. Pure."""
    rows_bytes = sum(table.num_rows * table.row_bytes for table in header.tables)
    sizes = [int(share * header.budget_bytes) for share in _CACHE_SHARES]
    sizes = [min(size, rows_bytes) for size in sizes]
    return tuple(dict.fromkeys(format_bytes(size).replace(" ", "") for size in sizes))
