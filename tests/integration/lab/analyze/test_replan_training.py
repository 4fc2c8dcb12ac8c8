"""Runs of `gloader train` that were recorded are planned again from their folder."""

from pathlib import Path
from typing import Any

import pytest
from integration.loader.linked import write_linked

import gloader
from gloader.config import LinkConfig, LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.errors import ReplayError
from gloader.lab.analyze.recorded_run import read_config
from gloader.lab.analyze.replan import Replanned, Replanner
from gloader.plan.memory_plan import idle_part
from gloader.replay.changes import parse_changes
from gloader.replay.recording import Recording, read_recording
from gloader.training.train import RunFiles, fit

from .recorded import EPOCHS, ROW, batches, batches_of


def _train(dataset: gloader.Dataset, out: Path, **settings: Any) -> Recording:
    loader = LoaderSettings.of(
        fanouts=[3, 2],
        batch_size=64,
        features="ssd",
        cache=600 * ROW,
        superbatch=3,
        io_strategy="direct",
        memory_budget="300MB",
        threads=2,
    )
    optim = OptimConfig(epochs=EPOCHS, eval_every=EPOCHS)
    fit(
        dataset,
        TrainSettings(model=ModelConfig(hidden=8), optim=optim, loader=loader, **settings),
        device="cpu",
        files=RunFiles(out=out, trace=out / "trace.json"),
    )
    return read_recording(out / "trace.json")


def _replanned(recording: Recording, run: Path | None, changes: str) -> Replanned:
    with Replanner.open(recording.header, run=run) as replanner:
        return replanner.counts(parse_changes(changes), num_batches=10**6)


def test_a_training_run_planned_again_is_the_run(
    dataset: gloader.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Seconds of sampling are never the same twice, and the memory plan depends on them.
    monkeypatch.setattr("gloader.pipeline.open.first_batches.time.thread_time", lambda: 0.0)
    recording = _train(dataset, tmp_path / "run")
    found = _replanned(recording, tmp_path / "run", "strategy=direct")
    assert batches(found.superbatches) == batches_of(recording)
    assert len(found.batches) == EPOCHS * recording.header.num_batches
    assert found.shape == recording.header.shape
    assert idle_part(found.plan.spare_bytes) == recording.header.staging_bytes


def test_a_run_that_predicts_links(tmp_path: Path) -> None:
    dataset = write_linked(tmp_path / "linked", edge_features=False).dataset
    links = LinkConfig(negatives="binary:1.0", metric="auc")
    recording = _train(dataset, tmp_path / "run", task="link", links=links)
    found = _replanned(recording, None, "strategy=direct")
    assert batches(found.superbatches) == batches_of(recording)


def test_a_config_that_cannot_be_read(tmp_path: Path) -> None:
    assert read_config(None) == read_config(tmp_path) == {}
    (tmp_path / "config.yaml").write_text("- 1\n")
    with pytest.raises(ReplayError, match="holds a list, not what gloader train wrote"):
        read_config(tmp_path)
