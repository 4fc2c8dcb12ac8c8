"""Predictions of a recorded run as values, and the interface of a run that predicts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from gloader.replay.calibrate import doubt_of

if TYPE_CHECKING:
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.replay.changes import Changes
    from gloader.replay.demands import Measured
    from gloader.replay.recording import Recording
    from gloader.replay.replay import Replayed
    from gloader.replay.work import Machine, PipelineShape, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A run with some changes, replayed."""

    change: str  # in words, as asked; empty: the run as it was
    replayed_s: float  # of an epoch, on average over those that count
    replayed: Replayed
    work: Work
    machine: Machine
    shape: PipelineShape
    plan: MemoryPlan | None = None  # where the memory was shared out anew
    pack_bytes: int = 0  # of disk at a time, likewise
    # Keywords of `gloader.Loader` that make the change.
    settings: dict[str, Any] = field(default_factory=dict)
    note: str = ""  # what else has to be known, for people


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Misses of a host cache of some size."""

    cache_bytes: int
    miss_rate: float  # of the rows that are gathered on the host


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Where an epoch goes, and what would help."""

    run: str  # the folder or the trace
    measured_s: float  # of an epoch, on average over those that count
    base: Prediction  # the run as it was
    # Measured over replayed, less 1, of the seconds of a piece of work of each stage; "epoch" of the whole.
    unexplained: dict[str, float]
    lags: float  # the share of an epoch in which nothing that was recorded is used
    parts: dict[str, float]  # seconds of an epoch by what it was spent on; they add up to what was replayed
    stalls: dict[str, float]  # seconds in DS-Analyzer's and Stash's terms
    floor_s: float  # of an epoch: no order of the same work takes less
    floor_of: str  # the resource that it takes
    what_if: tuple[Prediction, ...]  # those that were asked for, or the most useful ones, the fastest first
    was_asked: bool  # whether ``what_if`` is what the user asked for
    curve: tuple[CurvePoint, ...] = ()
    knee_bytes: int | None = None  # the size of a cache beyond which a byte saves little
    verified: dict[str, float] = field(default_factory=dict)  # measured stalls, of the differential runs

    @property
    def doubt(self) -> str:
        """Say why nothing is predicted; empty where the replay is trusted."""
        return doubt_of(self.unexplained, self.lags)


class Predicts(Protocol):
    """Says what an epoch of a recorded run would take; as `gloader.lab.analyze.predict.Predictor`."""

    @property
    def recording(self) -> Recording:
        """The run."""
        ...

    @property
    def measured(self) -> Measured:
        """What it took."""
        ...

    @property
    def base(self) -> Prediction:
        """The run as it was, replayed."""
        ...

    def predict(self, changes: Changes, /) -> Prediction:
        """Return what an epoch takes with ``changes``; ReplayError, ConfigError or BudgetError where it cannot."""
        ...

    def memory_bytes(self, prediction: Prediction, /) -> int:
        """Return the bytes of memory that the loader of a prediction plans for."""
        ...

    def spill_bytes(self, prediction: Prediction, /) -> int:
        """Return the bytes of disk that packs of a prediction take at a time."""
        ...
