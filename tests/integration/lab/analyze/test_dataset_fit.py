"""A run accepts the budgets that `gloader fit --dataset` names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from link_datasets import split_communities

import gloader
from gloader.cli.main import main
from gloader.config import LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.lab.analyze.dataset_fit import DatasetQuestion
from gloader.training.train import fit

PAPERS, FIELDS, DIM, HIDDEN = 300, 20_000, 6, 16
SETTINGS = TrainSettings(
    model=ModelConfig(name="rsage", hidden=HIDDEN),
    optim=OptimConfig(epochs=1),
    loader=LoaderSettings.of(fanouts=(4, 4), batch_size=32, threads=1),
)


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> gloader.Dataset:
    """Papers with features, and fields that have none."""
    random = np.random.default_rng(0)
    about = np.stack([random.integers(0, PAPERS, 3 * PAPERS), random.integers(0, FIELDS, 3 * PAPERS)])
    order = random.permutation(PAPERS)
    return gloader.Dataset.from_numpy_hetero(
        tmp_path_factory.mktemp("papers") / "dataset",
        num_nodes={"paper": PAPERS, "field": FIELDS},
        features={"paper": random.normal(size=(PAPERS, DIM)).astype(np.float32)},
        edges={("field", "of", "paper"): about[::-1].copy(), ("paper", "about", "field"): about},
        labels={"paper": random.integers(0, 3, PAPERS)},
        num_classes=3,
        train=np.sort(order[:200]),
        valid=np.sort(order[200:250]),
        test=np.sort(order[250:]),
    )


def _train(dataset: gloader.Dataset, settings: TrainSettings, budget: int) -> None:
    fit(dataset, replace(settings, loader=settings.loader.changed(memory_budget=budget)))


def _check(dataset: gloader.Dataset, settings: TrainSettings) -> None:
    least = DatasetQuestion(dataset, settings).least_to_train()
    _train(dataset, settings, least)
    named = f'Give memory_budget="{format_bytes(least).replace(" ", "")}" or more'
    with pytest.raises(BudgetError, match=named):
        _train(dataset, settings, int(0.96 * least))


@pytest.mark.reliability("S11")
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"model": ModelConfig(name="rgat", hidden=8, heads=2)},
        {"loader": SETTINGS.loader.changed(features="ssd", topology="direct", cache="10%")},
    ],
    ids=["rsage", "rgat", "ssd"],
)
def test_the_least_budget_of_several_types_is_that_of_a_run(
    papers: gloader.Dataset, changed: dict[str, object]
) -> None:
    _check(papers, replace(SETTINGS, **changed))  # type: ignore[arg-type]


@pytest.mark.reliability("S11")
@pytest.mark.parametrize("task", ["node", "link"])
def test_the_least_budget_of_one_type_is_that_of_a_run(tmp_path: Path, task: str) -> None:
    random = np.random.default_rng(1)
    if task == "link":
        dataset = split_communities(tmp_path / "links")
    else:
        dataset = gloader.Dataset.from_numpy(
            tmp_path / "plain",
            indptr=np.arange(0, 2001, 10),
            indices=random.integers(0, 200, 2000),
            features=random.normal(size=(200, 6)).astype(np.float32),
            labels=np.arange(200) % 3,
            train=np.arange(100),
            valid=np.arange(100, 150),
            test=np.arange(150, 200),
        )
    _check(dataset, replace(SETTINGS, model=ModelConfig(hidden=HIDDEN), task=task))  # type: ignore[arg-type]


@pytest.mark.reliability("S11")
def test_the_command_says_what_of_it_is_the_models(
    papers: gloader.Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "fit", "--dataset", str(papers.root), "--model", "rsage", "--hidden", str(HIDDEN), "--fanout", "4,4",
        "--batch-size", "32", "--epochs", "1",
    ]  # fmt: skip
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sum(told["parts"].values()) == told["least_to_train"] == told["budgets"][0]["memory_budget"]
    # Weights, the best so far and two moments of each learned row.
    assert told["learned_rows_bytes"] == pytest.approx(4 * 4 * DIM * FIELDS, rel=0.01)
    assert told["parts"]["model"] > told["learned_rows_bytes"]
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.replace("\xa0", " ").split())
    named = format_bytes(told["least_to_train"]).replace(" ", "")
    assert f"to train --memory-budget {named} or more; of these model " in shown
    assert f"{format_bytes(told['learned_rows_bytes'])} of it learned rows of nodes without features" in shown
    assert main([*words, "--memory-budget", "50MB"]) == 2
    assert f"Give --memory-budget {named} or more" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "needs --dataset, or the size of a graph: --nodes and --edges and --features are missing"),
        (["--nodes", "5", "--edges", "9"], "--features is missing"),
        (
            ["--nodes", "5", "--edges", "9", "--features", "ssd"],
            "--features is ssd; it must be a whole number",
        ),
        (
            ["--nodes", "5", "--edges", "9", "--features", "4", "--model", "rsage"],
            "for others give --dataset",
        ),
        (["--dataset", "nowhere", "--nodes", "5"], "--nodes describes a graph without a dataset"),
        (["--dataset", "nowhere", "--features", "100"], "is not one of 'ram', 'ssd', 'auto'"),
    ],
)
def test_flags_of_a_size_and_of_a_dataset_are_told_apart(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
