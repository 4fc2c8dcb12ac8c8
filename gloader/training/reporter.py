"""Reporters: the listeners that are told how a run goes, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gloader.training.metrics import EpochRecord
    from gloader.training.result import RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """What is about to run."""

    run: int  # from 0
    num_runs: int
    first_epoch: int  # larger than 0 where a run is resumed
    num_epochs: int
    num_batches: int  # per epoch
    num_parameters: int
    device: str
    summary: str  # who gets the memory and where the features are, a line or two
    num_ranks: int = 1
    explanation: str  # which tiers hold the features, and why


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """The epoch so far."""

    epoch: int
    index: int  # of the batch that was just computed
    num_batches: int
    loss: float  # means over the epoch so far
    accuracy: float
    rows_per_second: float


class Reporter(Protocol):
    """Renders a run. Called from the thread that trains; an exception ends the run."""

    def on_start(self, start: RunStart, /) -> None:
        """Begin run ``start.run``."""
        ...

    def on_batch(self, report: BatchReport, /) -> None:
        """Take the progress within an epoch, a few times a second and after the last batch."""
        ...

    def on_evaluate(self, fraction: float, /) -> None:
        """Take the progress of an evaluation, 0 to 1."""
        ...

    def on_epoch(self, record: EpochRecord, /) -> None:
        """Take the figures of a finished epoch."""
        ...

    def on_finish(self, result: RunResult, /) -> None:
        """Take the result of the run."""
        ...


class SilentReporter:
    """Renders nothing."""

    def on_start(self, start: RunStart, /) -> None:
        """Do nothing."""

    def on_batch(self, report: BatchReport, /) -> None:
        """Do nothing."""

    def on_evaluate(self, fraction: float, /) -> None:
        """Do nothing."""

    def on_epoch(self, record: EpochRecord, /) -> None:
        """Do nothing."""

    def on_finish(self, result: RunResult, /) -> None:
        """Do nothing."""


class TeeReporter:
    """Passes every call on to several reporters, in order."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters

    def on_start(self, start: RunStart, /) -> None:
        """Pass on."""
        for reporter in self._reporters:
            reporter.on_start(start)

    def on_batch(self, report: BatchReport, /) -> None:
        """Pass on."""
        for reporter in self._reporters:
            reporter.on_batch(report)

    def on_evaluate(self, fraction: float, /) -> None:
        """Pass on."""
        for reporter in self._reporters:
            reporter.on_evaluate(fraction)

    def on_epoch(self, record: EpochRecord, /) -> None:
        """Pass on."""
        for reporter in self._reporters:
            reporter.on_epoch(record)

    def on_finish(self, result: RunResult, /) -> None:
        """Pass on."""
        for reporter in self._reporters:
            reporter.on_finish(result)
