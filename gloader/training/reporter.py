"""Reporters: listeners for a run's events.

A run trains one network once; a command may make several runs with different seeds. A trainer calls its reporter at the
run's start, during and after each epoch, and at the end. The command line's reporter is `gloader.cli.run_view.RunView`.
This module has the protocol, and the writer of TensorBoard curves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gloader.errors import MissingDependencyError

if TYPE_CHECKING:
    from pathlib import Path

    from torch.utils.tensorboard import SummaryWriter

    from gloader.training.metrics import EpochRecord
    from gloader.training.result import RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """Facts of a run that are known at its start."""

    run: int  # number of the run, from 0
    num_runs: int
    first_epoch: int  # above 0 in a resumed run
    num_epochs: int
    num_batches: int  # batches per epoch
    num_parameters: int  # trained weights
    device: str
    summary: str  # a line or two on the memory plan and the place of the features
    num_ranks: int = 1  # processes that train together
    metric: str = "acc"  # name of the validation metric
    explanation: str  # the memories and disks that hold the features, with reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """Figures of the running epoch, after its last computed batch."""

    epoch: int  # from 0
    index: int  # number of the last computed batch in the epoch, from 0
    num_batches: int  # batches per epoch
    loss: float  # mean over the epoch so far
    accuracy: float | None  # share of correct predictions over the epoch so far; None for predicted values
    rows_per_second: float  # feature rows delivered per second


class Reporter(Protocol):
    """Shows a run. Called from the training thread; an exception ends the run."""

    def on_start(self, start: RunStart, /) -> None:
        """Begin run ``start.run``."""
        ...

    def on_batch(self, report: BatchReport, /) -> None:
        """Receive the progress within an epoch, a few times a second and after the last batch."""
        ...

    def on_evaluate(self, fraction: float, /) -> None:
        """Receive an evaluation's progress, 0 to 1."""
        ...

    def on_epoch(self, record: EpochRecord, /) -> None:
        """Receive a finished epoch's figures."""
        ...

    def on_finish(self, result: RunResult, /) -> None:
        """Receive the run's result."""
        ...


class SilentReporter:
    """Shows nothing."""

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


class TensorBoardReporter:
    """Writes one event file per run below ``folder``. Owns it until `close`; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None
        _import_writer()  # raises now instead of after the first epoch

    def on_start(self, start: RunStart, /) -> None:
        """Open the run's event file."""
        self.close()
        self._writer = _import_writer()(str(self._folder / f"run-{start.run}"))

    def on_batch(self, report: BatchReport, /) -> None:
        """Do nothing: curves have a point per epoch."""

    def on_evaluate(self, fraction: float, /) -> None:
        """Do nothing."""

    def on_epoch(self, record: EpochRecord, /) -> None:
        """Add a point to every curve."""
        if self._writer is None:
            return
        line = record.to_json()
        for name in ("loss", "train_acc", f"valid_{record.metric}", "lr", "seconds", "rows_per_second"):
            if (value := line[name]) is not None:
                self._writer.add_scalar(name, value, record.epoch)

    def on_finish(self, result: RunResult, /) -> None:
        """Close the run's event file."""
        if self._writer is not None and result.test_acc is not None:
            self._writer.add_scalar(f"test_{result.metric}", result.test_acc, result.best_epoch)
        self.close()

    def close(self) -> None:
        """Close the event file. Idempotent."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _import_writer() -> type[SummaryWriter]:
    """Return torch's writer of event files. Raises MissingDependencyError without tensorboard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingDependencyError.of_extra(
            "--tensorboard needs the package tensorboard", "plot"
        ) from error
    return SummaryWriter
