"""Training over several node types, from settings to a result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gloader.config import LoaderSettings, ModelConfig, OptimConfig, StepConfig, TrainSettings
from gloader.dataset import Dataset
from gloader.errors import BudgetError, ConfigError
from gloader.loader import HeteroLoader
from gloader.models import HETERO_MODELS
from gloader.training import train
from gloader.training.checkpoint.save import load_checkpoint
from gloader.training.train import FitResult, RunFiles

PAPERS, AUTHORS, FIELDS, CLASSES = 240, 90, 30, 3
MODEL = ModelConfig(name="rgcn", hidden=16, heads=2, dropout=0.3, batch_norm=True)
OPTIM = OptimConfig(epochs=5, lr=0.02)
LOADER = LoaderSettings.of(fanouts=(4, 4), batch_size=32, threads=1, memory_budget=400_000_000)
BATCHES = 5  # of 144 training papers


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Papers whose features tell nothing of their class, but whose fields do, which have none, and whose authors do."""
    random = np.random.default_rng(0)
    labels = random.integers(0, CLASSES, PAPERS)
    order = random.permutation(PAPERS)
    # A field is of one class, as are an author's papers, most of the time.
    topics = np.repeat(np.arange(PAPERS), 3), random.integers(0, FIELDS // CLASSES, 3 * PAPERS) * CLASSES
    fields = topics[1] + np.repeat(labels, 3)
    authors = random.integers(0, AUTHORS // CLASSES, 2 * PAPERS) * CLASSES + np.repeat(labels, 2)
    writes = np.stack([authors, np.repeat(np.arange(PAPERS), 2)])
    about = np.stack([topics[0], fields])
    return Dataset.from_numpy_hetero(
        tmp_path_factory.mktemp("papers") / "dataset",
        name="papers",
        num_nodes={"paper": PAPERS, "author": AUTHORS, "field": FIELDS},
        features={
            "paper": random.normal(size=(PAPERS, 6)).astype(np.float32),
            "author": random.normal(size=(AUTHORS, 4)).astype(np.float32),
        },
        edges={
            ("author", "writes", "paper"): writes,
            ("paper", "rev_writes", "author"): writes[::-1].copy(),
            ("field", "rev_about", "paper"): about[::-1].copy(),
            ("paper", "about", "field"): about,
            ("paper", "cites", "paper"): np.empty((2, 0), np.int64),
        },
        labels={"paper": labels},
        num_classes=CLASSES,
        train=np.sort(order[:144]),
        valid=np.sort(order[144:192]),
        test=np.sort(order[192:]),
    )


class InterruptingLoader(HeteroLoader):
    """Fails instead of handing out batch ``fail_at``, counted over all epochs."""

    fail_at = 0

    def __iter__(self):
        for batch in super().__iter__():
            if batch.id.epoch * BATCHES + batch.id.index == self.fail_at:
                raise RuntimeError("the power went out")
            yield batch


def fit(dataset, model, *, optim=OPTIM, loader=LOADER, step=None, loader_factory=None, **files) -> FitResult:
    """Train with these parts of the settings."""
    settings = TrainSettings(model=model, optim=optim, step=step or StepConfig(), loader=loader)
    return train.fit(dataset, settings, files=RunFiles(**files), loader_factory=loader_factory)


def _losses(result: FitResult) -> list[float]:
    return [record.loss for record in result.runs[0].epochs]


@pytest.mark.parametrize("fanouts", ["8,8", "collective:12,8", "field:rev_about:paper=3,3;*=4,4"])
@pytest.mark.parametrize("name", HETERO_MODELS)
def test_a_network_learns_from_what_only_other_types_know(papers: Dataset, name: str, fanouts: str) -> None:
    hops: object = (8, 8) if fanouts == "8,8" else fanouts
    found = fit(
        papers, replace(MODEL, name=name), optim=replace(OPTIM, epochs=8), loader=LOADER.changed(fanouts=hops)
    )
    assert found.summary["test_acc"] > 0.85
    assert found.runs[0].epochs[-1].loss < found.runs[0].epochs[0].loss / 2


@pytest.mark.parametrize("name", HETERO_MODELS)
def test_losses_are_bit_identical_from_memory_and_from_the_ssd(papers: Dataset, name: str) -> None:
    model = replace(MODEL, name=name)
    ram = fit(papers, model, loader=LOADER.changed(features="ram"))
    ssd = fit(papers, model, loader=LOADER.changed(features="ssd", cache=1500, threads=2))
    assert _losses(ssd) == _losses(ram)
    assert ssd.summary["test_acc"] == ram.summary["test_acc"]
    assert ssd.summary["rows_read"] > 0


@pytest.mark.parametrize("fail_at", [BATCHES + 3, 2 * BATCHES])
def test_a_resumed_run_is_the_uninterrupted_one(papers: Dataset, tmp_path: Path, fail_at: int) -> None:
    """With learned rows and their moments, from the middle of an epoch and from its start."""
    optim = replace(OPTIM, checkpoint_every=2, weight_decay=0.01)
    whole = fit(papers, MODEL, optim=optim)
    InterruptingLoader.fail_at = fail_at
    with pytest.raises(RuntimeError, match="the power went out"):
        fit(papers, MODEL, optim=optim, loader_factory=InterruptingLoader.from_settings, out=tmp_path)
    resumed = fit(papers, MODEL, optim=optim, out=tmp_path, resume=True)
    assert _losses(resumed) == _losses(whole)
    assert resumed.runs[0].test_acc == whole.runs[0].test_acc


def test_the_result_and_the_checkpoint_tell_of_learned_rows(papers: Dataset, tmp_path: Path) -> None:
    result = fit(papers, MODEL, out=tmp_path, loader=LOADER.changed(features="ssd", cache=1500))
    model = load_checkpoint(tmp_path).model()
    assert model.embs["field"].shape == (FIELDS, 16)
    assert result.summary["num_parameters"] == sum(p.numel() for p in model.parameters())
    assert json.loads((tmp_path / "result.json").read_text()) == result.summary


def test_bf16_learns_as_much(papers: Dataset) -> None:
    plain, reduced = (
        fit(papers, replace(MODEL, name="rgat"), step=StepConfig(autocast=autocast))
        for autocast in ("none", "bf16")
    )
    assert _losses(reduced) != _losses(plain)
    assert _losses(reduced)[:3] == pytest.approx(_losses(plain)[:3], rel=0.05)
    assert reduced.summary["test_acc"] > 0.8


def test_a_dataset_of_one_type_trains_as_one_of_several(communities: Dataset) -> None:
    found = fit(communities, replace(MODEL, name="rsage"), optim=replace(OPTIM, epochs=8))
    assert found.summary["test_acc"] > 0.85


def test_models_for_one_type_are_refused(papers: Dataset, tmp_path: Path) -> None:
    for name in ("graphsage", "mlp"):
        with pytest.raises(ConfigError, match="models for several are rsage, rgcn, rgat"):
            fit(papers, ModelConfig(name=name), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_compiling_is_refused_before_anything_is_opened(papers: Dataset, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="--compile is for models of graphs of one node type, and 'rgcn' is for"
    ):
        fit(papers, MODEL, step=StepConfig(compile=True), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_budget_that_the_model_exceeds_is_refused_before_anything_is_opened(papers: Dataset) -> None:
    with pytest.raises(BudgetError, match=r"the model takes .* of the memory budget"):
        fit(papers, replace(MODEL, hidden=4096), loader=LOADER.changed(memory_budget=200_000_000))
