"""The cost of a propagation that `gloader fit` tells from a graph's size is that of a propagation of that size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gloader
from gloader.cli.main import main
from gloader.errors import BudgetError
from gloader.lab.analyze.fit import SizedGraph
from gloader.lab.analyze.propagation_fit import THREADS, least_to_propagate, plan_sized, sized_plans
from gloader.training.propagation.hop_request import HopSettings, checked_request
from gloader.training.propagation.propagate_dataset import make_hops
from gloader.training.propagation.propagation_plan import GraphSizes, plan_propagation

SIZE = SizedGraph(num_nodes=40_000, num_edges=600_000, feature_dim=96, num_train=2_000, num_classes=8)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> gloader.Dataset:
    """A graph of that size, whose labelled nodes are those of the training."""
    random = np.random.default_rng(0)
    degrees = np.bincount(random.integers(0, SIZE.num_nodes, SIZE.num_edges), minlength=SIZE.num_nodes)
    ids = random.permutation(SIZE.num_nodes)
    return gloader.Dataset.from_numpy(
        tmp_path_factory.mktemp("sized") / "graph",
        indptr=np.concatenate([[0], np.cumsum(degrees)]),
        indices=random.integers(0, SIZE.num_nodes, SIZE.num_edges),
        features=random.random((SIZE.num_nodes, SIZE.feature_dim), np.float32),
        labels=ids % SIZE.num_classes,
        train=ids[: SIZE.num_train],
        valid=ids[:0],
        test=ids[:0],
    )


@pytest.mark.parametrize("budget", [90_000_000, 70_000_000, 45_000_000])
def test_the_plan_is_that_of_a_dataset_of_this_size(dataset: gloader.Dataset, budget: int) -> None:
    trees = checked_request(dataset, HopSettings(nodes="labelled"), is_table=False).features
    of_dataset = plan_propagation(
        trees,
        GraphSizes.of_dataset(dataset),
        budget_bytes=budget,
        num_kept=SIZE.num_train,
        threads=THREADS,
    )
    told = plan_sized(SIZE, budget)
    assert list(told.slabs.values()) == list(of_dataset.slabs.values())
    for name in ("rows_read", "rows_written", "edges_read"):
        assert getattr(told.cost, name) == getattr(of_dataset.cost, name), name


@pytest.mark.parametrize("budget", [75_000_000, 60_000_000, 45_000_000])
def test_the_bytes_that_are_told_are_those_of_a_run(
    dataset: gloader.Dataset, tmp_path: Path, budget: int
) -> None:
    settings = HopSettings(nodes="labelled")
    report = make_hops(dataset, tmp_path / "hops", settings, memory_budget_bytes=budget)
    told, found = report.plan.cost, report.cost
    assert told.rows_written == found.rows_written
    # A file is read in whole pages, so that those at the ends of two reads are read twice.
    assert told.rows_read <= found.rows_read <= 1.02 * told.rows_read
    assert found.edges_read <= told.edges_read <= 1.02 * found.edges_read


def test_a_larger_budget_takes_no_longer() -> None:
    size = replace(SIZE, num_nodes=50_000_000, num_edges=10**9)
    plans = list(sized_plans(size, [size * 10**8 for size in range(1, 400, 7)]).values())
    assert plans[0].num_slabs > 10
    assert plans[-1].num_slabs == 1
    seconds = [plan.cost.seconds for plan in plans]
    assert seconds == sorted(seconds, reverse=True)


def test_the_least_budget_is_enough_and_less_is_not() -> None:
    least = least_to_propagate(SIZE)
    assert plan_sized(SIZE, least).held_bytes <= least
    with pytest.raises(BudgetError, match="the narrowest slab of columns needs"):
        plan_sized(SIZE, int(0.98 * least))


def test_the_command_shows_the_cost(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "--nodes", "5e7", "--edges", "1e9", "--features", "64", "--fanout", "2"]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    size = SizedGraph(num_nodes=50_000_000, num_edges=10**9, feature_dim=64)
    assert told["least_to_propagate"] == least_to_propagate(size)
    expected = sized_plans(size, [one["memory_budget"] for one in told["budgets"]])
    for shown, (budget, plan) in zip(told["propagations"], expected.items(), strict=True):
        assert shown == {
            "memory_budget": budget,
            "slabs": plan.num_slabs,
            "bytes_read": plan.cost.rows_read + plan.cost.edges_read,
            "bytes_written": plan.cost.rows_written,
            "disk_bytes": plan.disk_bytes,
            "seconds": plan.cost.seconds,
        }
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.replace("\xa0", " ").split())
    assert (
        "gloader propagate --hops 3 --nodes labelled, on two cores: memory budget slabs read written" in shown
    )


def test_a_budget_that_is_too_small_for_a_propagation_has_no_row(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "fit",
        "--nodes",
        "2e8",
        "--edges",
        "1e6",
        "--features",
        "1",
        "--fanout",
        "1",
        "--batch-size",
        "1",
    ]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    least = told["least_to_propagate"]
    kept = [one["memory_budget"] for one in told["budgets"] if one["memory_budget"] >= least]
    assert [one["memory_budget"] for one in told["propagations"]] == kept
    assert len(kept) < len(told["budgets"])
