"""Models over features of edges, from a dataset to predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from gloader.config import LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.dataset import Dataset
from gloader.errors import CheckpointError, ConfigError
from gloader.loader import Loader
from gloader.training import train
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.predict import embed, predict
from gloader.training.reporter import SilentReporter
from gloader.training.train import RunFiles

NODES, DEGREE, DIM, EDGE_DIM = 2000, 6, 3, 2
MODEL = ModelConfig(name="gine", hidden=16, heads=2, dropout=0.0)
LOADER = LoaderSettings.of(fanouts=(-1,), batch_size=128, threads=1, memory_budget=400_000_000)
OPTIM = OptimConfig(epochs=15, lr=0.03)


def write(path: Path, *, edge_dim: int = EDGE_DIM) -> Dataset:
    """A node is of class 1 if the first features of those whose edge says yes add up to more than 0."""
    random = np.random.default_rng(0)
    sources = random.integers(0, NODES, NODES * DEGREE)
    x = random.normal(size=(NODES, DIM)).astype(np.float32)
    told = random.normal(size=(len(sources), edge_dim)).astype(np.float32)
    if edge_dim:
        told[:, 0] = np.where(told[:, 0] > 0, 1, -1)
    says_yes = told[:, 0] > 0 if edge_dim else np.ones(len(sources), bool)
    labels = (x[sources, 0] * says_yes).reshape(NODES, DEGREE).sum(1) > 0
    with Dataset.create(path, name="told", num_nodes=NODES, num_classes=2) as writer:
        with writer.indptr() as column:
            column.append(np.arange(NODES + 1, dtype=np.int64) * DEGREE)
        with writer.indices(len(sources), "int32") as column:
            column.append(sources.astype(np.int32))
        with writer.features(DIM, "float32") as column:
            column.append(x)
        if edge_dim:
            with writer.edge_features(len(sources), edge_dim, "float16") as column:
                column.append(told)
        writer.labels(labels.astype(np.int64))
        nodes = np.arange(NODES)
        writer.splits(train=nodes[:1400], valid=nodes[1400:1600], test=nodes[1600:])
    return Dataset.open(path)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write(tmp_path_factory.mktemp("told") / "data")


class SeenLoader(Loader):
    """Says whether batches had features of edges."""

    seen: bool | None = None

    def __iter__(self):
        for batch in super().__iter__():
            type(self).seen = batch.blocks[0].edge_x is not None
            yield batch


def _fit(dataset: Dataset, model: ModelConfig, loader: LoaderSettings = LOADER, out: Path | None = None):
    settings = TrainSettings(model=model, optim=OPTIM, loader=loader)
    return train.fit(
        dataset, settings, files=RunFiles(out=out), loader_factory=SeenLoader.from_settings
    ).summary


@pytest.mark.parametrize("name", ["gat", "gine"])
def test_what_edges_say_is_learned_and_predicted(name: str, told: Dataset, tmp_path: Path) -> None:
    found = _fit(told, replace(MODEL, name=name), out=tmp_path)
    assert SeenLoader.seen
    assert found["test_acc"] > 0.83
    checkpoint = load_checkpoint(tmp_path)
    predicted = predict(told, checkpoint, memory_budget_bytes=20_000_000)
    assert (predicted == told.labels)[told.test].mean() == pytest.approx(found["test_acc"])
    with embed(told, checkpoint, layer=1, memory_budget_bytes=20_000_000) as rows:
        logits = np.concatenate(list(rows.chunks))
    np.testing.assert_array_equal(logits.argmax(1), predicted)


@pytest.mark.parametrize(
    ("name", "edge_features"), [("graphsage", "auto"), ("gat", "none"), ("rgat", "auto")]
)
def test_who_does_not_look_at_edges_reads_nothing_of_them_and_knows_less(
    name: str, edge_features: str, told: Dataset, tmp_path: Path
) -> None:
    loader = LOADER.changed(edge_features=edge_features)
    if name == "rgat":
        summary = train.fit(
            told,
            TrainSettings(model=replace(MODEL, name=name), optim=OPTIM, loader=loader),
            files=RunFiles(out=tmp_path),
        ).summary
    else:
        summary = _fit(told, replace(MODEL, name=name), loader, tmp_path)
        assert SeenLoader.seen is False
    assert summary["test_acc"] < 0.8
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["loader"]["edge_features"] == "none"


def test_a_model_that_does_not_use_features_of_edges_says_so(
    told: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []
    for name in ("graphsage", "gat"):
        reporter = SilentReporter()
        monkeypatch.setattr(reporter, "on_start", lambda start: said.append(start.summary))
        settings = TrainSettings(
            model=replace(MODEL, name=name), optim=replace(OPTIM, epochs=1), loader=LOADER
        )
        train.fit(told, settings, reporter=reporter)
    assert "graphsage does not use features of edges, and they are not read (gat and gine use them" in said[0]
    assert "features of edges" not in said[1]


def test_a_sum_of_what_edges_say_wants_them_to_say_something(told: Dataset, tmp_path: Path) -> None:
    plain = write(tmp_path / "plain", edge_dim=0)
    with pytest.raises(ConfigError, match="'gine' needs edge features, and dataset told has none"):
        _fit(plain, MODEL)
    with pytest.raises(
        ConfigError, match=r"'gine' needs edge features, and edge_features='none' leaves them out"
    ):
        _fit(told, MODEL, LOADER.changed(edge_features="none"))


def test_a_checkpoint_of_other_features_of_edges_is_refused(told: Dataset, tmp_path: Path) -> None:
    _fit(told, replace(MODEL, name="gat"), out=tmp_path / "run")
    other = write(tmp_path / "other", edge_dim=0)
    with pytest.raises(CheckpointError, match="reads 2 features per edge; dataset told has 0"):
        predict(other, load_checkpoint(tmp_path / "run"))
