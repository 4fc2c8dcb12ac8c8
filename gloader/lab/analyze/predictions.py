"""Predictions of a recorded run as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gloader.replay.calibrate import doubt_of

if TYPE_CHECKING:
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.replay.replay import Replayed
    from gloader.replay.work import Machine, PipelineShape, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A run with some changes, replayed."""

    change: str  # as requested; empty for the run as it was
    replayed_s: float  # of an epoch, the mean over the counted ones
    replayed: Replayed
    work: Work
    machine: Machine
    shape: PipelineShape
    plan: MemoryPlan | None = None  # if the memory was planned anew
    pack_bytes: int = 0  # of disk at a time, likewise
    # Keywords of `gloader.Loader` for the change.
    settings: dict[str, Any] = field(default_factory=dict)
    note: str = ""  # further remarks for the user


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Misses of a host cache of some size."""

    cache_bytes: int
    miss_rate: float  # of the rows that the host gathers


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The parts of an epoch, and the changes that would help."""

    run: str  # the folder or the trace
    measured_s: float  # of an epoch, the mean over the counted ones
    base: Prediction  # the run as it was
    # Measured over replayed, less 1, for the seconds of a piece of work of each stage; "epoch" of the whole.
    unexplained: dict[str, float]
    lags: float  # the share of an epoch without use of any recorded resource
    parts: dict[str, float]  # seconds of an epoch by cause; they add up to the replayed epoch
    stalls: dict[str, float]  # seconds in DS-Analyzer's and Stash's terms
    floor_s: float  # of an epoch: no order of the same work takes less
    floor_of: str  # the resource that takes so long
    what_if: tuple[Prediction, ...]  # the requested ones, or the most useful ones, the fastest first
    was_asked: bool  # whether ``what_if`` are the user's own requests
    curve: tuple[CurvePoint, ...] = ()
    knee_bytes: int | None = None  # a cache size beyond which a byte saves little
    verified: dict[str, float] = field(default_factory=dict)  # measured stalls, of the differential runs

    @property
    def doubt(self) -> str:
        """Return the reason why nothing is predicted; "" if the replay is trusted."""
        return doubt_of(self.unexplained, self.lags)
