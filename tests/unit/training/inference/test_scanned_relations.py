"""Inference of several types over edges on the SSD: one pass over a relation's file a layer, results as in memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from gloader.config import ModelConfig
from gloader.dataset import Dataset
from gloader.dataset.topology import open_hetero_topology
from gloader.models import HeteroNetwork, Schema, build_hetero_model
from gloader.samplers.graph import HeteroGraph
from gloader.ssd_store import RamFeatures
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.testing.faults import FaultyOS
from gloader.training.inference.layer_plan import plan_inference
from gloader.training.inference.layerwise_inference import HeteroInference

SIZES = {"paper": 900, "author": 1200, "institute": 40, "field": 30}
EDGES = {
    ("author", "writes", "paper"): 9_000,
    ("paper", "cites", "paper"): 14_000,
    ("paper", "written_by", "author"): 9_000,
    ("institute", "employs", "author"): 3_000,
    ("paper", "has", "field"): 2_000,
    ("field", "of", "institute"): 0,
}
DIMS = {"paper": 6, "institute": 3, "author": 0, "field": 4}
PLENTY, LITTLE = 1 << 24, 150_000


class CountedBytes(FaultyOS):
    """Counts the bytes of edges that are read of each relation, and how often that begins anew."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes: Counter[str] = Counter()
        self.passes: Counter[str] = Counter()

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        count = super().pread_into(fd, buffer, offset)
        path = Path(self._paths.get(fd, ""))
        if path.name == "indices.npy" and offset >= DATA_OFFSET:
            self.num_bytes[path.parent.name] += count
            self.passes[path.parent.name] += offset == DATA_OFFSET
        return count


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    random = np.random.default_rng(0)
    edges = {
        relation: np.stack(
            [
                random.integers(0, SIZES[relation[0]], count),
                # A hub of several pages, and nodes without edges.
                np.where(random.random(count) < 0.3, 4, random.integers(0, SIZES[relation[2]] - 9, count)),
            ]
        )
        for relation, count in EDGES.items()
    }
    path = tmp_path_factory.mktemp("typed") / "graph"
    Dataset.from_numpy_hetero(
        path, num_nodes=SIZES, edges=edges, features=features(), labels={"paper": np.arange(900) % 3}
    )
    return path


def features() -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        name: random.normal(size=(SIZES[name], dim)).astype(np.float32) for name, dim in DIMS.items() if dim
    }


def network(name: str) -> HeteroNetwork:
    schema = Schema(num_nodes=SIZES, feature_dims=DIMS, relations=tuple(EDGES), targets=("paper",))
    config = ModelConfig(name=name, hidden=8, heads=2)  # type: ignore[arg-type]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_hetero_model(config, schema, out_dim=3, num_layers=3)


def inference(graph: HeteroGraph, budget: int) -> HeteroInference:
    sources = {name: RamFeatures(rows) for name, rows in features().items()}
    return HeteroInference(graph=graph, features=sources, target="paper", memory_budget_bytes=budget)


@pytest.mark.reliability("J2")
@pytest.mark.parametrize("budget", [PLENTY, LITTLE])
@pytest.mark.parametrize("name", ["rsage", "rgcn", "rgat"])
def test_each_file_of_edges_is_read_once_for_each_slab_of_a_layer_it_leads_to(path, name, budget) -> None:
    model, nodes, os_io = network(name), np.arange(900), CountedBytes()
    job = inference(Dataset.open(path).load_hetero_graph(), budget)
    expected = torch.cat([part for _, part in job.logits(model, nodes)])
    plans = plan_inference(model.layers, job.extent(num_outputs=900), budget_bytes=budget)
    slabs = [{kind: len(plan.slabs) for kind, plan in types.items()} for types in plans]
    assert max(count for types in slabs for count in types.values()) > 1 or budget == PLENTY
    with open_hetero_topology(Dataset.open(path, os_io=os_io), max_bytes=0) as graph:
        os_io.num_bytes.clear()
        os_io.passes.clear()
        found = torch.cat([part for _, part in inference(graph, budget).logits(model, nodes)])
    assert torch.equal(found, expected)
    passes = {key: sum(types.get(key[2], 0) for types in slabs) for key, count in EDGES.items() if count}
    if budget == PLENTY:
        assert set(passes.values()) == {3, 2, 0}  # into papers, into authors, into what leads nowhere
    root = path / "relations"
    for relation, times in passes.items():
        folder = "__".join(relation)
        stored = (root / folder / "indices.npy").stat().st_size - DATA_OFFSET
        assert os_io.passes[folder] == times
        assert os_io.num_bytes[folder] == times * -(-stored // 4096) * 4096
