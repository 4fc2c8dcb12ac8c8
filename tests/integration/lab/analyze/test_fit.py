"""The memory and disk predicted from a graph's size alone are those of a run of that size."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import gloader
from gloader.cli.main import main
from gloader.config import LoaderSettings, ModelConfig, OptimConfig, TrainSettings
from gloader.errors import BudgetError
from gloader.lab.analyze.fit import FitQuestion, SizedGraph, _without
from gloader.training.train import fit

SIZE = SizedGraph(num_nodes=60_000, num_edges=900_000, feature_dim=256, num_train=2_000, num_classes=8)
MODEL = ModelConfig(hidden=64)
LOADER = LoaderSettings.of(fanouts=[10, 5], batch_size=1024)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gloader.Dataset:
    """A graph of that size whose edges were drawn at random."""
    random = np.random.default_rng(0)
    degrees = np.bincount(random.integers(0, SIZE.num_nodes, SIZE.num_edges), minlength=SIZE.num_nodes)
    ids = random.permutation(SIZE.num_nodes)
    return gloader.Dataset.from_numpy(
        tmp_path_factory.mktemp("sized") / "graph",
        indptr=np.concatenate([[0], np.cumsum(degrees)]),
        indices=random.integers(0, SIZE.num_nodes, SIZE.num_edges),
        features=np.zeros((SIZE.num_nodes, SIZE.feature_dim), np.float32),
        labels=ids % SIZE.num_classes,
        train=ids[: SIZE.num_train],
        valid=ids[SIZE.num_train : SIZE.num_train + 100],
        test=ids[-100:],
    )


def _train(dataset: gloader.Dataset, budget_bytes: int) -> None:
    settings = LOADER.changed(memory_budget=budget_bytes)
    fit(dataset, TrainSettings(model=MODEL, optim=OptimConfig(epochs=1), loader=settings))


def test_a_run_works_within_the_least_budget_and_not_below(dataset: gloader.Dataset) -> None:
    least = FitQuestion(SIZE, LOADER, MODEL).least_to_train()
    _train(dataset, int(1.03 * least))
    with pytest.raises(BudgetError):
        _train(dataset, int(0.87 * least))


@pytest.mark.parametrize("features", ["ram", "ssd"])
def test_the_shares_are_those_of_a_loader(dataset: gloader.Dataset, features: str) -> None:
    settings = LOADER.changed(features=features)
    found = FitQuestion(SIZE, settings, MODEL).train(300_000_000)
    with gloader.Loader(
        dataset,
        fanouts=[10, 5],
        batch_size=1024,
        features=features,
        memory_budget=found.budget.loader_bytes,
    ) as loader:
        measured = dict(loader.memory_plan.parts)
    expected = dict(found.plan.parts)
    for name in ("batches being sampled", "edges", "reads in flight and checksums", "features"):
        assert expected.get(name, 0) == pytest.approx(measured.get(name, 0), rel=0.1)
    each = {
        plan["feature buffers"] / count
        for plan, count in ((expected, found.plan.num_buffers), (measured, loader.memory_plan.num_buffers))
    }
    assert max(each) == pytest.approx(min(each), rel=0.1)


def test_what_does_not_fit_is_refused_in_the_words_of_a_run(dataset: gloader.Dataset) -> None:
    question = FitQuestion(replace(SIZE, feature_dim=4096), LOADER, MODEL)
    with pytest.raises(BudgetError, match=r"loader's share of the memory budget|model takes"):
        question.train(200_000_000)


def test_edges_that_half_of_the_budget_cannot_hold_are_swept() -> None:
    size = SizedGraph(num_nodes=10**6, num_edges=10**9, feature_dim=16)
    question = FitQuestion(size, LOADER, MODEL)
    assert question.train(16 * 10**9).topology.home == "ram"
    assert question.train(4 * 10**9).topology.home == "sweep"
    assert question.least_to_train() < 2 * 10**9


@pytest.mark.reliability("S11")
@given(
    edges=st.integers(15_000_000, 60_000_000),
    disk=st.sampled_from([None, 0, 10**8]),
    topology=st.sampled_from(["auto", "auto", "sweep", "direct"]),
)
@example(edges=20_000_000, disk=None, topology="auto")  # half of it holds them, and the rest has no room then
@settings(max_examples=4, deadline=None)
def test_a_larger_budget_is_never_refused_where_a_smaller_one_is_not(
    edges: int, disk: int | None, topology: str
) -> None:
    assume(topology != "sweep" or disk != 0)
    size = replace(SIZE, num_nodes=2_000_000, num_edges=edges, feature_dim=2048)
    asked = LoaderSettings.of(fanouts=[10, 10], batch_size=64, spill_budget=disk, topology=topology)
    question = FitQuestion(size, asked, ModelConfig(hidden=16))
    accepted = []
    for budget_mb in range(250, 650, 20):
        try:
            accepted.append(question.train(budget_mb * 10**6).plan.spare_bytes >= 0)
        except BudgetError:
            accepted.append(False)
    assert accepted == sorted(accepted)
    assert accepted[-1]


def test_a_budget_that_is_told_of_is_enough_to_prepare() -> None:
    question = FitQuestion(SIZE, LOADER, MODEL)
    least = question.least_to_prepare()
    assert question.prepare(least).memory_bytes <= least
    with pytest.raises(BudgetError, match="Raise --memory-budget"):
        question.prepare(int(0.9 * least))


def test_the_bytes_on_disk_are_those_of_the_dataset(dataset: gloader.Dataset) -> None:
    told = FitQuestion(SIZE, LOADER, MODEL).prepare(10**9).dataset_bytes
    there = sum(path.stat().st_size for path in dataset.root.rglob("*") if path.is_file())
    assert told == pytest.approx(there, rel=0.01)


def test_the_command_says_what_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "--nodes", "60e3", "--edges", "9e5", "--features", "256", "--batch-size", "64", "--json"]
    assert main(words) == 0
    told = json.loads(capsys.readouterr().out)
    least, *larger = told["budgets"]
    assert least["memory_budget"] == told["least_to_train"]
    assert least["features"] == "ssd"
    assert larger[-1]["features"] == "ram"
    assert [one["memory_budget"] for one in larger] == [
        2**n * least["memory_budget"] for n in range(1, 1 + len(larger))
    ]
    assert main([*words[:-1], "--memory-budget", f"{least['memory_budget'] // 2}B"]) == 2
    assert "memory budget" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--nodes", "1.5", "a whole number, such as"),
        ("--edges", "many", "a whole number, such as"),
        ("--edges", "0", "num_edges is 0; it must be 1 or more"),
        ("--train-nodes", "1e9", "num_train is 1000000000; it must be in 1..1000"),
        ("--train-nodes", "0", "num_train is 0; it must be in 1..1000"),
    ],
)
def test_a_size_that_cannot_be_is_refused(
    flag: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {"--nodes": "1000", "--edges": "9000", "--features": "16", flag: value}
    words = ["fit", *(word for pair in sizes.items() for word in pair)]
    assert main(words) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_sources_that_are_no_destinations_are_those_of_numpy() -> None:
    random = np.random.default_rng(3)
    for num_nodes in (1, 5, 1000):
        for count in (0, 1, 7, 5000):
            ids = random.integers(0, 2 * num_nodes, count)
            known = random.choice(2 * num_nodes, num_nodes, replace=False)
            np.testing.assert_array_equal(_without(ids, known), np.setdiff1d(ids, known))
