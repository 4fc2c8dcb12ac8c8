from __future__ import annotations

import sys

import pytest

from gloader.errors import MissingDependencyError
from gloader.observe.epoch_stats import EpochStats
from gloader.training.metrics import EpochRecord
from gloader.training.reporter import BatchReport, RunStart, SilentReporter, TeeReporter, TensorBoardReporter
from gloader.training.result import RunResult

START = RunStart(
    run=0,
    num_runs=1,
    first_epoch=0,
    num_epochs=1,
    num_batches=1,
    num_parameters=1,
    device="cpu",
    summary="",
    explanation="",
)
BATCH = BatchReport(epoch=0, index=0, num_batches=1, loss=1.0, accuracy=0.5, rows_per_second=1.0)
RECORD = EpochRecord(
    epoch=0, loss=1.0, train_acc=0.5, valid_acc=None, lr=0.1, seconds=1.0, evaluate_seconds=0.0,
    rows_per_second=1.0, bottleneck="", stats=EpochStats(epoch=0),
)  # fmt: skip
RESULT = RunResult(
    seed=0, best_epoch=0, valid_acc=None, test_acc=0.5, epochs=(RECORD,), seconds=1.0, num_parameters=1,
    features="ram", policy="none", io_strategy="none", sampler_threads=1, explanation="",
)  # fmt: skip


class Recorder(SilentReporter):
    def __init__(self) -> None:
        self.calls = []

    def on_start(self, start) -> None:
        self.calls.append(start)

    def on_batch(self, report) -> None:
        self.calls.append(report)

    def on_evaluate(self, fraction) -> None:
        self.calls.append(fraction)

    def on_epoch(self, record) -> None:
        self.calls.append(record)

    def on_finish(self, result) -> None:
        self.calls.append(result)


def _tell(reporter) -> None:
    reporter.on_start(START)
    reporter.on_batch(BATCH)
    reporter.on_evaluate(0.5)
    reporter.on_epoch(RECORD)
    reporter.on_finish(RESULT)


def test_a_tee_passes_everything_on_in_order() -> None:
    first, second = Recorder(), Recorder()
    _tell(TeeReporter(first, second, SilentReporter()))
    assert first.calls == second.calls == [START, BATCH, 0.5, RECORD, RESULT]


def test_tensorboard_gets_an_event_file_per_run(tmp_path) -> None:
    pytest.importorskip("tensorboard")
    board = TensorBoardReporter(tmp_path)
    _tell(board)
    board.close()
    assert [path.parent.name for path in tmp_path.glob("*/events*")] == ["run-0"]


def test_a_missing_tensorboard_is_named_with_its_extra(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingDependencyError, match=r"pip install -e '\.\[plot\]' -c constraints\.txt"):
        TensorBoardReporter(tmp_path)
