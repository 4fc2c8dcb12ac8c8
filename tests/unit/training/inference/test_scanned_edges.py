"""Inference over a graph whose edges are on the SSD: one pass over the file a layer, results as in memory."""

from __future__ import annotations

import os
import threading
import tracemalloc
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from counted_pages import CountingOS

from gloader.config import ModelConfig
from gloader.dataset import Dataset
from gloader.dataset.topology import PagedTopology, open_topology
from gloader.errors import ChecksumError, StoreReadError, TruncatedStoreError
from gloader.models import build_model
from gloader.samplers import CscGraph
from gloader.ssd_store import RamFeatures
from gloader.testing.faults import FaultyOS
from gloader.training.inference.layer_plan import plan_inference
from gloader.training.inference.layerwise_inference import HeteroInference
from gloader.training.inference.scanned_edges import HostEdges, PieceLimits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gloader.models import GraphNetwork
    from gloader.samplers import Topology
    from gloader.ssd_store.os_io import OsIO
    from gloader.training.inference.layer_plan import LayerPlan

N, E, HUB, F = 1000, 20_000, 6, 5
PAGES = 20  # of 1,024 edges; the last one is not full
EVERYONE, PLENTY, LITTLE = np.arange(N), 1 << 24, 90_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A graph with a hub of five pages, nodes without edges, parallel edges and self loops."""
    random = np.random.default_rng(3)
    degrees = random.multinomial(E - 5000, np.full(N - 40, 1 / (N - 40)))
    degrees = np.append(degrees, np.zeros(40, np.int64))
    degrees[HUB] += 5000
    path = tmp_path / "graph"
    with Dataset.create(path, name="g", num_nodes=N, num_classes=2) as writer:
        with writer.indptr() as column:
            column.append(np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64))
        with writer.indices(E, "int32") as column:
            column.append(random.integers(0, N, E).astype(np.int32))
        with writer.features(2, "float32") as column:
            column.append(np.zeros((N, 2), np.float32))
        writer.labels(np.zeros(N, np.int64))
        writer.splits(train=EVERYONE[:10], valid=EVERYONE[10:20], test=EVERYONE[20:])
    return path


@contextmanager
def scanned(path: Path, os_io: OsIO) -> Iterator[PagedTopology]:
    with open_topology(Dataset.open(path, os_io=os_io), max_bytes=0) as topology:
        assert isinstance(topology, PagedTopology)
        yield topology


def network(name: str, *, num_layers: int = 3) -> GraphNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = ModelConfig(name=name, hidden=8, heads=2)  # type: ignore[arg-type]
        return build_model(config, in_dim=F, out_dim=3, num_layers=num_layers)


def features() -> RamFeatures:
    return RamFeatures(np.random.default_rng(2).normal(size=(N, F)).astype(np.float32))


def logits(graph: Topology, model: GraphNetwork, nodes: np.ndarray, *, budget: int = PLENTY) -> torch.Tensor:
    job = HeteroInference.of_one_type(graph=graph, features=features(), memory_budget_bytes=budget)
    return torch.cat([part for _, part in job.logits(model, nodes)])


def plans_of(path: Path, model: GraphNetwork, budget: int) -> list[LayerPlan]:
    job = HeteroInference.of_one_type(graph=held(path), features=features(), memory_budget_bytes=budget)
    plans = plan_inference(model.layers, job.extent(num_outputs=N), budget_bytes=budget)
    return [plan for types in plans for plan in types.values()]


def held(path: Path) -> CscGraph:
    return Dataset.open(path).load_graph()


@pytest.mark.reliability("J2")
@pytest.mark.parametrize(
    ("name", "budget"), [("graphsage", PLENTY), ("graphsage", LITTLE), ("gcn", LITTLE), ("gat", 140_000)]
)
def test_results_are_those_of_edges_in_memory_and_every_page_is_read_once_a_pass(
    path: Path, name: str, budget: int
) -> None:
    model, os_io = network(name), CountingOS()
    expected = logits(held(path), model, EVERYONE, budget=budget)
    plans = plans_of(path, model, budget)
    if (
        budget != PLENTY
    ):  # many passes, whose pieces end in the middle of a page, and several of them for the hub
        assert sum(len(plan.slabs) for plan in plans) > (2 if name == "gat" else 3)
        assert min(plan.edges_per_piece for plan in plans) < 1024
    with scanned(path, os_io) as topology:
        os_io.pages.clear()
        assert torch.equal(logits(topology, model, EVERYONE, budget=budget), expected)
    assert os_io.pages == list(range(PAGES)) * sum(len(plan.slabs) for plan in plans)


def test_of_few_nodes_in_any_order_only_their_pages_are_read(path: Path) -> None:
    model, os_io, graph = network("graphsage", num_layers=1), CountingOS(), held(path)
    nodes = np.array([900, 3, 901, 3, 999])
    with scanned(path, os_io) as topology:
        os_io.pages.clear()
        assert torch.equal(logits(topology, model, nodes), logits(graph, model, nodes))
    assert os_io.pages == sorted({int(graph.indptr[node]) // 1024 for node in (3, 900)})


@pytest.mark.reliability("J11")
def test_a_piece_that_is_read_and_the_one_ahead_are_all_that_is_held(path: Path) -> None:
    most = 5000
    with scanned(path, FaultyOS()) as topology:
        edges = HostEdges(topology)

        def run() -> int:
            limits = PieceLimits(max_edges=most, max_rows=N)
            with closing(edges.parts(range(N), limits)) as parts:
                return sum(piece.num_edges for part in parts for piece in part.pieces)

        assert run() == E  # compiles
        tracemalloc.start()
        try:
            run()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    # Four bytes an edge of each of them, of the one that is read, and what comes with a node.
    assert peak < 3 * 4 * most + 80 * N + 100_000


def test_a_network_without_edges_reads_none(path: Path) -> None:
    os_io = CountingOS()
    with scanned(path, os_io) as topology:
        os_io.pages.clear()
        logits(topology, network("mlp"), EVERYONE)
    assert os_io.pages == []


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "infer" in thread.name]


@pytest.mark.reliability("J1", "J2")
@pytest.mark.parametrize("damage", ["a bit", "cut", "the device"])
def test_damage_in_the_middle_of_a_pass_is_an_error_that_names_the_page(path: Path, damage: str) -> None:
    model, os_io, file = network("graphsage"), CountingOS(calls={"pread_into"}), path / "indices.npy"
    kind, text = {
        "a bit": (ChecksumError, r"indices\.npy: page 12 at byte 53248, "),
        "cut": (TruncatedStoreError, r"indices\.npy: bytes .* but the file now has 53248"),
        "the device": (StoreReadError, r"reading at byte \d+ failed: Input/output error.*indices\.npy"),
    }[damage]
    with scanned(path, os_io) as topology:
        whole = file.read_bytes()
        expected = logits(topology, model, EVERYONE)
        if damage == "a bit":
            file.write_bytes(whole[:53_300] + bytes([whole[53_300] ^ 8]) + whole[53_301:])
        elif damage == "cut":
            os.truncate(file, 53_248)
        else:
            os_io._fail_from, os_io._fail_until = os_io.num_calls + 1, os_io.num_calls + 2
        with pytest.raises(kind, match=text):
            logits(topology, model, EVERYONE)
        assert readers() == []
        file.write_bytes(whole)
        assert torch.equal(logits(topology, model, EVERYONE), expected)


@pytest.mark.reliability("J2")
def test_ctrl_c_in_the_middle_of_a_pass_leaves_no_thread_and_the_next_run_is_right(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network("graphsage")
    with scanned(path, FaultyOS()) as topology:
        expected = logits(topology, model, EVERYONE)
        seen: list[list[str]] = []

        def interrupted(table: Any, own: Any, part: Any, columns: Any) -> Any:
            next(iter(part.pieces))
            seen.append(readers())
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(type(model.convs[1]), "propagate", staticmethod(interrupted))
            with pytest.raises(KeyboardInterrupt):
                logits(topology, model, EVERYONE, budget=LITTLE)
        assert seen == [["gloader-infer-edges"]]
        assert readers() == []
        assert torch.equal(logits(topology, model, EVERYONE), expected)
