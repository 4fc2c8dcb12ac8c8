from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from unit.samplers.graphs import random_graph, star
from unit.samplers.importance_oracle import ImportanceOracle

from gloader.errors import ConfigError, GraphError, SeedError
from gloader.samplers import CscGraph, LaborSampler, NeighborSampler
from gloader.samplers.labor import scale_for
from gloader.types import BatchId, SampledBatch

FIRST = BatchId(epoch=0, index=0)


def popular_graph(num_nodes: int = 3000, degree: int = 40) -> CscGraph:
    """Every node has ``degree`` in-edges, most of them from few nodes."""
    random = np.random.default_rng(0)
    indices = (num_nodes * random.random(num_nodes * degree) ** 3).astype(np.int32)
    return CscGraph(indptr=np.arange(num_nodes + 1) * degree, indices=indices)


def mean_nodes(sampler: Any, num_seeds: int = 300, batches: int = 20) -> float:
    seeds = np.arange(num_seeds)
    ids = [BatchId(epoch=0, index=i) for i in range(batches)]
    return float(np.mean([len(sampler.sample(batch_id, seeds).nodes) for batch_id in ids]))


def test_every_step_finds_fewer_nodes_for_the_same_variance() -> None:
    graph = popular_graph()
    means = [mean_nodes(NeighborSampler(graph, [10]))]
    means += [mean_nodes(LaborSampler(graph, [10], iterations=steps)) for steps in (0, 1, 2, -1)]
    assert means == sorted(means, reverse=True)
    assert means[1] < 0.95 * means[0]
    assert means[-1] < 0.65 * means[0]


def test_layers_that_share_their_numbers_find_fewer_nodes() -> None:
    graph = popular_graph()
    shared = mean_nodes(LaborSampler(graph, [10, 10], share_layers=True))
    assert shared < 0.9 * mean_nodes(LaborSampler(graph, [10, 10]))


@pytest.mark.parametrize("iterations", [0, 1, 3])
def test_an_estimate_varies_as_one_from_that_many_neighbours(iterations: int) -> None:
    """Section 3: the variance of a mean of d values of 1 or -1 is 1 / k - 1 / d, whatever the chances."""
    fanout, degree, num_dst = 6, 30, 50
    random = np.random.default_rng(1)
    shares = np.arange(1, 201) ** -1.5
    rows = [random.choice(200, degree, replace=False, p=shares / shares.sum()) for _ in range(200)]
    graph = CscGraph(indptr=np.arange(201) * degree, indices=np.concatenate(rows).astype(np.int32))
    values = random.choice([-1.0, 1.0], 200)
    sampler = LaborSampler(graph, [fanout], iterations=iterations)
    estimates = []
    for i in range(3000):
        block = sampler.sample(BatchId(epoch=0, index=i), np.arange(num_dst)).blocks[0]
        assert block.edge_weight is not None
        terms = block.edge_weight * values[graph.indices[block.edge_ids]] / degree
        dst = np.repeat(np.arange(num_dst), np.diff(block.indptr))
        estimates.append(np.bincount(dst, weights=terms, minlength=num_dst))
    measured = np.var(estimates, axis=0)
    assert measured.mean() == pytest.approx(1 / fanout - 1 / degree, rel=0.03)
    assert measured == pytest.approx(1 / fanout - 1 / degree, rel=0.15)


def test_the_scale_solves_its_equation() -> None:
    random = np.random.default_rng(2)
    for degree, fanout in ((11, 10), (40, 3), (500, 10), (500, 450)):
        chances = random.random(degree) ** 4 + 1e-6
        scale = scale_for(chances, np.arange(degree, dtype=np.int32), 0, degree, fanout)
        assert np.sum(1 / np.minimum(1, scale * chances)) == pytest.approx(degree**2 / fanout)
    everything = scale_for(chances, np.arange(500, dtype=np.int32), 0, 500, 500)
    assert everything == np.inf


def test_a_node_with_few_neighbours_takes_all_with_weight_one() -> None:
    for iterations in (0, 2):
        block = LaborSampler(star(7), [7], iterations=iterations).sample(FIRST, np.array([0])).blocks[0]
        assert block.edge_ids.tolist() == list(range(7))
        assert block.edge_weight is not None
        assert block.edge_weight.tolist() == [1.0] * 7


def test_normalized_weights_add_up_to_the_degree() -> None:
    graph = random_graph(200, 60)
    sampler = LaborSampler(graph, [5, 5], normalize=True)
    batch = sampler.sample(FIRST, np.arange(30))
    for block in batch.blocks:
        assert block.edge_weight is not None
        sums = np.add.reduceat(np.append(block.edge_weight, 0), block.indptr[:-1])
        counts = np.diff(block.indptr)
        degrees = graph.in_degrees(batch.nodes[: block.num_dst])
        np.testing.assert_allclose(sums[counts > 0], degrees[counts > 0], rtol=1e-5)


def test_a_hop_with_many_more_edges_than_expected_is_sampled_again() -> None:
    """All destinations look at the same ten numbers, so that a hop has 0, 1, 2, ... times the edges expected."""
    num_dst = 20_000
    graph = CscGraph(
        indptr=np.concatenate([np.arange(num_dst + 1) * 10, np.full(10, num_dst * 10)]),
        indices=np.tile(np.arange(num_dst, num_dst + 10, dtype=np.int32), num_dst),
    )
    oracle = ImportanceOracle(list(range(0, 11, 10)), list(range(num_dst, num_dst + 10)), 0)
    counts = set()
    for i in range(8):
        sampler = LaborSampler(graph, [1], seed=0)  # with buffers of its own
        block = sampler.sample(BatchId(epoch=0, index=i), np.arange(num_dst)).blocks[0]
        (taken,) = oracle.labor(oracle.key(0, i, 0), [0], 1, 0).taken
        assert block.num_edges == num_dst * len(taken)
        assert block.edge_ids[: len(taken)].tolist() == list(taken)
        counts.add(len(taken))
    assert max(counts) >= 2


@pytest.mark.parametrize("iterations", [0, 1])
def test_an_empty_batch_and_empty_hops(iterations: int) -> None:
    graph = random_graph(50, 9)
    empty = LaborSampler(graph, [3, 3], iterations=iterations).sample(FIRST, np.empty(0, dtype=np.int64))
    assert [block.num_edges for block in empty.blocks] == [0, 0]
    none = LaborSampler(graph, [0, 3], iterations=iterations).sample(FIRST, np.arange(5))
    assert none.blocks[-1].num_edges == 0
    assert none.blocks[-1].edge_weight is not None


def content(batch: SampledBatch) -> list[bytes]:
    arrays = [batch.nodes]
    for block in batch.blocks:
        assert block.edge_weight is not None
        arrays += [block.indptr, block.indices, block.edge_ids, block.edge_weight]
    return [array.tobytes() for array in arrays]


def test_seed_epoch_batch_and_hop_change_the_numbers() -> None:
    graph = popular_graph(500)
    seeds = np.arange(100)
    same = [content(LaborSampler(graph, [5], seed=1).sample(FIRST, seeds)) for _ in range(2)]
    others = [
        content(LaborSampler(graph, [5], seed=2).sample(FIRST, seeds)),
        content(LaborSampler(graph, [5], seed=1).sample(BatchId(epoch=1, index=0), seeds)),
        content(LaborSampler(graph, [5], seed=1).sample(BatchId(epoch=0, index=1), seeds)),
    ]
    assert same[0] == same[1]
    assert all(other != same[0] for other in others)


@pytest.mark.parametrize("value", [-2, 1.5, True, "2"])
def test_refused_iterations(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"iterations is .*; allowed: 0, 1, \.\.\., or -1 for convergence"):
        LaborSampler(star(3), [1], iterations=value)


def test_refused_seeds_and_graphs() -> None:
    sampler = LaborSampler(star(3), [2])
    with pytest.raises(SeedError, match=r"1 seeds repeat within the batch, among them \[2\]"):
        sampler.sample(FIRST, np.array([2, 2]))
    with pytest.raises(SeedError, match=r"not in 0\.\.3"):
        sampler.sample(FIRST, np.array([4]))
    damaged = CscGraph(indptr=np.array([0, 3]), indices=np.array([0, 7, 0]), validate=False)
    for iterations in (0, 1):
        with pytest.raises(GraphError, match=r"indices\[1\] = 7"):
            LaborSampler(damaged, [-1], iterations=iterations).sample(FIRST, np.array([0]))
