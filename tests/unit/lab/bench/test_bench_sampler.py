"""The sampler benchmark on a graph of a few thousand edges: its figures' shape, not their size."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gloader.errors import ConfigError
from gloader.lab.bench import sampler
from gloader.lab.bench.graphs import GraphSpec, synthetic_graph
from gloader.lab.bench.sampler import bench_sampler

GRAPH = GraphSpec(num_nodes=500, num_edges=5000)
TINY: dict[str, Any] = {"graph": GRAPH, "batch_size": 20, "batches": 3, "repeats": 2}


def test_the_result_is_json_with_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_dgl", lambda *_: {"dgl": lambda _: 7, "dgl, 1 thread": lambda _: 7})
    monkeypatch.setattr(sampler, "_has_dgl", lambda: True)
    result = json.loads(json.dumps(bench_sampler(fanouts=[3, 2], **TINY)))
    assert min(result["edges_per_second"], result["ratio_to_dgl"], result["ratio_to_dgl_one_thread"]) > 0
    assert result["workload"]["fanouts"] == [3, 2]
    assert all(len(runs) == 2 for runs in result["runs_edges_per_second"].values())
    assert set(result["runs_edges_per_cpu_second"]) == {"gloader, 1 thread", "dgl, 1 thread"}
    assert result["machine"]["cores"] >= 1


def test_the_ratio_is_to_the_best_setting_of_dgl() -> None:
    rates = {
        "gloader": [30.0, 10.0, 20.0],
        "gloader, 1 thread": [12.0, 12.0, 12.0],
        "dgl, a": [1.0, 2.0, 99.0],
        "dgl, b": [5.0, 5.0, 5.0],
        "dgl, b, 1 thread": [4.0, 3.0, 2.0],
    }
    result = sampler._report(rates, rates)
    assert (result["edges_per_second"], result["dgl_setting"], result["ratio_to_dgl"]) == (
        20.0,
        "dgl, b",
        4.0,
    )
    assert (result["dgl_setting_one_thread"], result["ratio_to_dgl_one_thread"]) == ("dgl, b, 1 thread", 4.0)


def test_without_dgl_there_is_no_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_has_dgl", lambda: False)
    result = bench_sampler(fanouts=[3], threads=1, **(TINY | {"graph": replace(GRAPH, kind="powerlaw")}))
    assert result["ratio_to_dgl"] is None
    assert result["dgl_edges_per_second"] is None
    assert result["ratio_to_dgl_one_thread"] is None
    assert result["edges_per_second"] > 0


def test_impossible_workloads_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be at least 1"):
        bench_sampler(threads=0)
    with pytest.raises(ConfigError, match="batch_size 5000 exceeds the"):
        bench_sampler(**(TINY | {"batch_size": 5000}))
    with pytest.raises(ConfigError, match="graph is 'grid'"):
        bench_sampler(replace(GRAPH, kind="grid"))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["rmat", "powerlaw"])
def test_graphs_are_reproducible_and_skewed(kind: Any) -> None:
    graph = synthetic_graph(kind, num_nodes=3000, num_edges=60_000, seed=1)
    again = synthetic_graph(kind, num_nodes=3000, num_edges=60_000, seed=1)
    other = synthetic_graph(kind, num_nodes=3000, num_edges=60_000, seed=2)
    assert graph.num_edges == 60_000
    assert (graph.indptr == again.indptr).all()
    assert (graph.indices == again.indices).all()
    assert (graph.indptr != other.indptr).any()
    assert graph.indices.min() >= 0
    assert graph.indices.max() < 3000
    degrees = np.sort(np.diff(graph.indptr))[::-1]
    assert degrees[:300].sum() > 0.3 * graph.num_edges
    assert np.corrcoef(np.arange(3000), np.diff(graph.indptr))[0, 1] < 0.1


def test_the_smallest_graphs() -> None:
    assert synthetic_graph("rmat", num_nodes=1, num_edges=3).indices.tolist() == [0, 0, 0]
    assert synthetic_graph("powerlaw", num_nodes=2, num_edges=0).num_edges == 0
