from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from unit.samplers.graphs import random_graph

from gloader.errors import ConfigError, GraphError
from gloader.samplers import CscGraph, LayerSampler
from gloader.samplers.layerwise import _poisson_scale
from gloader.types import BatchId

FIRST = BatchId(epoch=0, index=0)


def found_nodes(graph: CscGraph, sampler: Any, hop: int, index: int = 0) -> set[int]:
    block = sampler.sample(BatchId(epoch=0, index=index), np.arange(40)).blocks[-1 - hop]
    return set(graph.indices[block.edge_ids].tolist())


def test_ladies_takes_exactly_that_many_nodes() -> None:
    graph = random_graph(1000, 60)
    sampler = LayerSampler(graph, [50, 80], seed=3)
    for index in range(5):
        assert len(found_nodes(graph, sampler, 0, index)) == 50
        assert len(found_nodes(graph, sampler, 1, index)) == 80


def test_ladies_takes_all_candidates_where_there_are_no_more() -> None:
    graph = random_graph(100, 5)
    block = LayerSampler(graph, [100]).sample(FIRST, np.arange(10)).blocks[0]
    assert block.num_edges == graph.indptr[10]
    assert block.edge_weight is not None
    assert set(block.edge_weight.tolist()) == {1.0}


def test_fastgcn_takes_that_many_nodes_of_the_graph_on_average() -> None:
    graph = random_graph(1000, 60)
    seeds = np.arange(1000)
    sampler = LayerSampler(graph, [100], method="fastgcn")
    counts = []
    for index in range(200):
        block = sampler.sample(BatchId(epoch=0, index=index), seeds).blocks[0]
        counts.append(len(np.unique(block.indices)))
    error = (np.mean(counts) - 100) / (np.std(counts) / len(counts) ** 0.5)
    assert abs(error) < 4


@pytest.mark.parametrize("method", ["ladies", "fastgcn"])
def test_nodes_with_a_heavy_column_are_taken_more_often(method: Any) -> None:
    """Node 100 is the only neighbour of ten nodes, node 101 one of a hundred of another."""
    lists = [[100]] * 10 + [list(range(101, 201))] + [[] for _ in range(190)]
    graph = CscGraph(
        indptr=np.concatenate([[0], np.cumsum([len(row) for row in lists])]),
        indices=np.concatenate(lists).astype(np.int64),
    )
    sampler = LayerSampler(graph, [10], method=method)
    times = dict.fromkeys(range(100, 201), 0)
    for index in range(300):
        block = sampler.sample(BatchId(epoch=0, index=index), np.arange(11)).blocks[0]
        for node in set(graph.indices[block.edge_ids].tolist()):
            times[node] += 1
    assert times[100] == 300  # with chance 1
    assert np.mean([times[node] for node in range(101, 201)]) == pytest.approx(300 * 9 / 100, rel=0.15)


def test_a_taken_node_keeps_all_its_edges_with_one_weight() -> None:
    graph = random_graph(200, 40)
    for method in ("ladies", "fastgcn"):
        block = LayerSampler(graph, [30], method=method).sample(FIRST, np.arange(50)).blocks[0]
        in_edges = graph.indices[: graph.indptr[50]]
        taken = np.unique(graph.indices[block.edge_ids])
        assert block.num_edges == np.isin(in_edges, taken).sum()
        assert block.edge_weight is not None
        for node in taken:
            assert len(set(block.edge_weight[graph.indices[block.edge_ids] == node].tolist())) == 1


def test_the_scale_of_independent_draws() -> None:
    norms = np.random.default_rng(0).lognormal(sigma=2, size=500)
    for size in (1, 30, 400, 499):
        assert np.minimum(1, _poisson_scale(norms, size) * norms).sum() == pytest.approx(size)
    assert _poisson_scale(norms, 500) == _poisson_scale(norms, -1) == np.inf
    assert _poisson_scale(norms, 0) == 0


def test_no_nodes_and_empty_batches() -> None:
    graph = random_graph(50, 9)
    for method in ("ladies", "fastgcn"):
        sampler = LayerSampler(graph, [0, 5], method=method)
        assert sampler.sample(FIRST, np.arange(5)).blocks[-1].num_edges == 0
        empty = LayerSampler(graph, [5], method=method).sample(FIRST, np.empty(0, dtype=np.int64))
        assert (empty.blocks[0].num_src, empty.blocks[0].num_dst) == (0, 0)
    nobody = CscGraph(indptr=np.zeros(4, dtype=np.int64), indices=np.empty(0, dtype=np.int32))
    for method in ("ladies", "fastgcn"):
        assert LayerSampler(nobody, [2], method=method).sample(FIRST, np.arange(3)).blocks[0].num_edges == 0


def test_refused_options() -> None:
    graph = random_graph(5, 2)
    with pytest.raises(ConfigError, match="method is 'nodes'; allowed: 'ladies', 'fastgcn'"):
        LayerSampler(graph, [3], method="nodes")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="adjacency is 'sum'; allowed: 'mean', 'gcn'"):
        LayerSampler(graph, [3], adjacency="sum")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"layer_sizes\[1\] is -2; it must be at least 0, or -1"):
        LayerSampler(graph, [3, -2])


def test_a_damaged_graph_is_named() -> None:
    damaged = CscGraph(indptr=np.array([0, 3]), indices=np.array([0, 7, 0]), validate=False)
    for method in ("ladies", "fastgcn"):
        with pytest.raises(GraphError, match=r"indices\[1\] = 7"):
            LayerSampler(damaged, [1], method=method).sample(FIRST, np.array([0]))
