"""The progress of a run, as a checkpoint holds it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from gloader.observe.epoch_stats import EpochStats
from gloader.training.metrics import EpochRecord
from gloader.training.trainer import _Progress

RECORD = EpochRecord(
    epoch=0, loss=0.5, train_acc=0.9, valid_acc=None, lr=0.1, seconds=2.0, evaluate_seconds=0.5,
    rows_per_second=10.0, bottleneck="the model", stats=EpochStats(epoch=0), memory_bytes=(3, 5),
)  # fmt: skip
PROGRESS = _Progress(epochs=(RECORD,), best_epoch=0, best_valid=None, partial=None)


def test_progress_is_read_back_as_it_was() -> None:
    assert _Progress.from_json(json.loads(json.dumps(asdict(PROGRESS)))) == PROGRESS


def test_progress_of_a_version_that_did_not_watch_memory_is_read() -> None:
    content = json.loads(json.dumps(asdict(PROGRESS)))
    del content["epochs"][0]["memory_bytes"]
    assert _Progress.from_json(content).epochs == (replace(RECORD, memory_bytes=()),)


def test_progress_with_other_entries_is_refused() -> None:
    with pytest.raises(TypeError, match="progress has the entries \\['x'\\]"):
        _Progress.from_json({"x": 1})
