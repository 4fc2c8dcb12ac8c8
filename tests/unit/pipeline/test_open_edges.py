"""The edges that sweeps bring, as measured by the first batches, and the fallback if disk is short."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest

import gloader
from gloader.config import Layout, LoaderSettings, TopologyHome
from gloader.errors import BudgetError, ConfigError
from gloader.pipeline.open.disk import choose_edge_home, open_spill_folder, plan_edges, sweep_demand
from gloader.plan.sweep_plan import SweepDemand
from gloader.plan.topology_home import NO_FOLDER, choose_home
from gloader.samplers import make_sampler, sweep_refusal, swept_words
from gloader.types import BatchId

if TYPE_CHECKING:
    from pathlib import Path

NODES, EDGES = 400, 4_000
SWEPT = choose_home("sweep", topology_bytes=10**9, budget_bytes=10**9, obstacle=None)
DEMAND = SweepDemand(file_bytes=10**9, node_bytes=4, hop_nodes=(10, 50), hop_bytes=(0, 1000), touched_pages=9)


@pytest.fixture
def dataset(tmp_path: Path) -> gloader.Dataset:
    random = np.random.default_rng(5)
    return gloader.Dataset.from_numpy(
        tmp_path / "graph",
        features=np.zeros((NODES, 2), np.float32),
        labels=np.zeros(NODES, np.int64),
        edge_index=random.integers(0, NODES, (2, EDGES)),
        train=np.arange(0, NODES, 2),
        valid=np.arange(1, NODES, 4),
        test=np.arange(3, NODES, 4),
    )


@pytest.mark.parametrize("topology", ["auto", "direct"])
def test_a_graph_whose_offsets_exceed_the_budget_is_refused_unread(
    dataset: gloader.Dataset, topology: TopologyHome
) -> None:
    settings = LoaderSettings.of(fanouts=(3, 3), batch_size=20, topology=topology)
    assert choose_edge_home(dataset, settings, None, budget_bytes=890).home == "direct"
    (dataset.root / "indptr.npy").unlink()
    (dataset.root / "indices.pages").unlink()
    with pytest.raises(BudgetError) as caught:
        choose_edge_home(dataset, settings, None, budget_bytes=889)
    assert str(caught.value) == (
        f"{dataset.root}: the offsets of 400 nodes need 858 B and the page checksums of their edges 32 B, which stay "
        "in memory even if the edges are on the SSD; the memory budget is 889 B. Raise it to 1.78 KB or more, which "
        "leaves room for batches and features"
    )


@pytest.mark.parametrize("layout", ["layered", "merged"])
def test_demand_counts_the_nodes_that_wait_and_the_edges_that_are_drawn(
    dataset: gloader.Dataset, layout: Layout
) -> None:
    settings = LoaderSettings.of(fanouts=(3, 3), batch_size=20, layout=layout)
    sampler = make_sampler("neighbor", dataset.load_graph(), (3, 3), layout=layout)
    batch = sampler.sample(BatchId(epoch=0, index=0), np.arange(20))
    demand = sweep_demand(dataset, settings, [batch], num_batches=7)
    assert demand is not None
    outer, inner = batch.blocks  # the last hop comes first
    # Merged hops: those that draw are new, and those that were seen are kept beside them.
    second = inner.num_src if layout == "layered" else 2 * inner.num_src - 20
    waiting = np.array(demand.hop_nodes)
    least = np.array([20, second] if layout == "layered" else [2 * 20, second])
    assert (waiting >= least).all()
    assert (waiting <= 1.3 * least + 1).all()
    edges = outer.num_edges + (inner.num_edges if layout == "layered" else 0)
    assert 4 * edges < sum(demand.hop_bytes) - 2 * 4096 < 1.3 * 4 * edges + 8
    assert edges <= demand.touched_pages < 1.3 * edges + 2
    assert (demand.file_bytes, demand.node_bytes, demand.num_batches) == (4 * EDGES, 4, 7)
    assert sweep_demand(dataset, settings, [], num_batches=0) is None


def test_too_little_disk_is_an_error_of_who_asked_for_sweeps_and_reads_directly_for_others() -> None:
    def plan(*, is_required: bool, spill_bytes: int = 5_999, demand: SweepDemand | None = DEMAND) -> object:
        found, sweeps = plan_edges(
            SWEPT, demand, is_required=is_required, budget_bytes=10**9, spill_bytes=spill_bytes
        )
        assert (sweeps is None) == (found.home == "direct")
        return found.reason

    with pytest.raises(BudgetError, match=r"need 6 KB on the spill disk for 2 batches, and 6 KB are allowed"):
        plan(is_required=True)
    assert "raise spill_budget" in str(plan(is_required=False))
    assert plan(is_required=False, spill_bytes=6_000) == SWEPT.reason
    assert plan(is_required=True, demand=None) == "there are no batches"


@pytest.mark.parametrize(
    ("sampler", "instead"),
    [
        ("ladies", "neighbor"),
        ("fastgcn", "neighbor"),
        ("labor:iterations=1", "labor:iterations=0"),
        ("labor:iterations=-1", "labor:iterations=0"),
        ("weighted:replace=true", "weighted:replace=false"),
    ],
)
def test_samplers_that_look_at_all_candidates_are_not_swept(
    dataset: gloader.Dataset, sampler: str, instead: str
) -> None:
    settings = LoaderSettings.of(fanouts=(3, 3), batch_size=20, sampler=sampler, topology="sweep")
    with pytest.raises(
        ConfigError, match=rf"sampler '{sampler}' .*; use the sampler '{instead}', or topology="
    ):
        choose_edge_home(dataset, settings, None, budget_bytes=10**6)
    assert sweep_refusal(instead) is None
    assert swept_words(instead) in (1, 2, 3)
    found = choose_edge_home(dataset, settings.changed(topology="auto"), None, budget_bytes=10**3)
    assert found.home == "direct"
    assert sampler in found.reason


def test_edges_of_seeds_that_ask_at_a_time_are_not_swept(dataset: gloader.Dataset, tmp_path: Path) -> None:
    settings = LoaderSettings.of(
        fanouts=(3, 3),
        batch_size=20,
        topology="sweep",
        time_strategy="last",
        features="ram",
        spill_dir=tmp_path,
        spill_budget="10MB",
    )
    with pytest.raises(ConfigError) as caught:
        choose_edge_home(dataset, settings, None, budget_bytes=10**6)
    assert str(caught.value) == (
        "topology='sweep' is not possible, as a node with a time searches the times of all its in-edges before it "
        "takes one; use time_strategy='none', or topology='direct', or 'ram' if the memory budget has room for "
        "19.2 KB of edges"
    )
    found = choose_edge_home(dataset, settings.changed(topology="auto"), None, budget_bytes=10**4)
    assert found.home == "direct"
    assert found.reason.startswith(
        "they do not fit in half of the memory budget, and a node with a time searches the times"
    )
    with ExitStack() as stack:
        assert open_spill_folder(dataset, settings, stack, budget_bytes=10**4) is None


def test_times_count_where_seeds_ask_at_one(dataset: gloader.Dataset, tmp_path: Path) -> None:
    with gloader.Dataset.create(tmp_path / "timed", name="d", num_nodes=NODES, num_classes=2) as writer:
        graph = dataset.load_graph()
        with writer.indptr() as column:
            column.append(graph.indptr)
        with writer.indices(EDGES, "int32") as column:
            column.append(graph.indices)
        with writer.edge_time(EDGES) as column:
            column.append(np.zeros(EDGES, np.int64))
        with writer.features(2, "float32") as column:
            column.append(np.zeros((NODES, 2), np.float32))
        writer.labels(np.zeros(NODES, np.int64))
        writer.splits(train=np.arange(9), valid=np.arange(9, 12), test=np.arange(12, NODES))
    timed = gloader.Dataset.open(tmp_path / "timed")
    settings = LoaderSettings.of(fanouts=(3, 3), batch_size=20)
    size = dataset.topology_bytes
    for strategy, expected in (("none", size), ("uniform", size + 8 * EDGES)):
        asked = settings.changed(time_strategy=strategy)  # type: ignore[typeddict-item]
        assert choose_edge_home(timed, asked, None, budget_bytes=2 * expected).home == "ram"
        found = choose_edge_home(timed, asked, None, budget_bytes=2 * expected - 2)
        assert (found.home, found.topology_bytes) == ("direct", expected)


@pytest.mark.parametrize(
    ("features", "topology", "budget", "has_folder"),
    [
        ("ram", "auto", 10**9, False),  # whose rates would be measured for nothing
        ("ram", "auto", 10**4, True),
        ("ram", "sweep", 10**9, True),
        ("ram", "direct", 10**4, False),
        ("ssd", "ram", 10**9, True),
    ],
)
def test_a_folder_is_made_for_packs_or_sweeps_alone(
    dataset: gloader.Dataset, tmp_path: Path, features: str, topology: str, budget: int, *, has_folder: bool
) -> None:
    (tmp_path / "spill").mkdir()
    settings = LoaderSettings.of(
        features=features, topology=topology, spill_dir=tmp_path / "spill", spill_budget="10MB"
    )  # type: ignore[arg-type]
    with ExitStack() as stack:
        folder = open_spill_folder(dataset, settings, stack, budget_bytes=budget)
        assert (folder is not None) == has_folder == any((tmp_path / "spill").iterdir())
    assert not any((tmp_path / "spill").iterdir())


def test_sweeps_need_a_folder(dataset: gloader.Dataset) -> None:
    settings = LoaderSettings.of(fanouts=(3, 3), batch_size=20, topology="sweep", spill_budget=0)
    with pytest.raises(ConfigError, match=NO_FOLDER.reason), gloader.Loader(dataset, **settings.keywords()):  # type: ignore[misc]
        pass
    settings = settings.changed(topology="auto", memory_budget="50MB")
    with gloader.Loader(dataset, **settings.keywords()) as loader:  # type: ignore[misc]
        assert "kept in memory (they fit in half of the memory budget)" in loader.explain()
