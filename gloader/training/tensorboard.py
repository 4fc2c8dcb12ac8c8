"""Curves for TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.errors import MissingDependencyError

if TYPE_CHECKING:
    from pathlib import Path

    from torch.utils.tensorboard import SummaryWriter

    from gloader.training.metrics import EpochRecord
    from gloader.training.reporter import BatchReport, RunStart
    from gloader.training.result import RunResult


class TensorBoardReporter:
    """Writes one event file per run below ``folder``. Owns it until `close`; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: SummaryWriter | None = None
        _import_writer()  # fail now, not after the first epoch

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
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingDependencyError.of_extra(
            "--tensorboard needs the package tensorboard", "plot"
        ) from error
    return SummaryWriter
