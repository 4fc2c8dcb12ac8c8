"""Frequencies against their expectation (chi-square). Everything is seeded, so a test passes always or never.

A threshold is the quantile of the chi-square distribution that a correct sampler exceeds once in ten thousand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from unit.samplers.graphs import star

from gloader.samplers import CscGraph, NeighborSampler
from gloader.types import BatchId

ONE_IN_TEN_THOUSAND = 1e-4


def counts(graph: CscGraph, fanouts: list[int], hop: int, rounds: int, **options: Any) -> np.ndarray:
    """How often each edge of node 0 was taken in hop ``hop`` (0 is next to the seeds) over many batches."""
    sampler = NeighborSampler(graph, fanouts, seed=5, **options)
    total = np.zeros(graph.num_edges, dtype=np.int64)
    for i in range(rounds):
        block = sampler.sample(BatchId(epoch=i // 100, index=i % 100), np.array([0])).blocks[-1 - hop]
        total += np.bincount(block.edge_ids[: block.indptr[1]], minlength=graph.num_edges)
    return total


def assert_fits(observed: np.ndarray, expected: np.ndarray, *, variance_factor: float = 1.0) -> None:
    """Compare with the chi-square distribution; draws without replacement scatter less by ``variance_factor``."""
    statistic = float(((observed - expected) ** 2 / expected).sum()) / variance_factor
    freedom = len(observed) - 1
    low, high = stats.chi2.ppf([ONE_IN_TEN_THOUSAND, 1 - ONE_IN_TEN_THOUSAND], freedom)
    assert low < statistic < high, f"chi-square {statistic:.0f}, expected {low:.0f} to {high:.0f}"


# Degrees around the limits of the picking kernels: a 64-bit set, a set in memory, more than 16 draws.
@pytest.mark.parametrize(
    ("degree", "fanout"), [(11, 10), (40, 10), (64, 5), (65, 10), (300, 15), (90, 40), (5000, 25)]
)
@pytest.mark.parametrize("hop", [0, 1])
def test_each_neighbour_is_equally_likely(degree: int, fanout: int, hop: int) -> None:
    rounds = max(20 * degree // fanout, 2000)
    observed = counts(star(degree), [fanout, fanout], hop, rounds)
    expected = np.full(degree, rounds * fanout / degree)
    # Var = n p (1 - p) each and negatively correlated: chi-square / ((d - k) / (d - 1)) has d - 1 degrees of freedom.
    assert_fits(observed, expected, variance_factor=(degree - fanout) / (degree - 1))


@pytest.mark.parametrize(("degree", "fanout"), [(7, 3), (40, 10), (300, 30)])
def test_each_neighbour_is_equally_likely_with_replacement(degree: int, fanout: int) -> None:
    rounds = max(20 * degree // fanout, 2000)
    observed = counts(star(degree), [fanout], 0, rounds, replace=True)
    assert_fits(observed, np.full(degree, rounds * fanout / degree))


def test_each_pair_is_equally_likely() -> None:
    sampler = NeighborSampler(star(8), [2], seed=1)
    rounds = 5600
    pairs = np.zeros((8, 8))
    for i in range(rounds):
        first, second = sorted(sampler.sample(BatchId(epoch=0, index=i), np.array([0])).blocks[0].edge_ids)
        pairs[first, second] += 1
    assert_fits(pairs[np.triu_indices(8, 1)], np.full(28, rounds / 28))


def test_nodes_of_a_batch_draw_independently() -> None:
    # 500 nodes of degree 50, one neighbour each: the positions of one batch are uniform over the nodes too.
    degree, nodes = 50, 500
    graph = CscGraph(
        indptr=np.arange(nodes + 1, dtype=np.int64) * degree,
        indices=np.tile(np.arange(degree, dtype=np.int32), nodes),
    )
    sampler = NeighborSampler(graph, [1], seed=2)
    edges = np.concatenate(
        [sampler.sample(BatchId(epoch=0, index=i), np.arange(nodes)).blocks[0].edge_ids for i in range(10)]
    )
    assert_fits(np.bincount(edges % degree), np.full(degree, len(edges) / degree))
    neighbours_agree = (edges[1:] % degree == edges[:-1] % degree).mean()
    assert abs(neighbours_agree - 1 / degree) < 5 * np.sqrt(1 / degree / len(edges))


@pytest.mark.reliability("C4")
def test_a_parallel_edge_has_its_own_chance() -> None:
    # Node 1 stands at the other end of three of four edges.
    graph = CscGraph(indptr=np.array([0, 4, 4, 4]), indices=np.array([1, 1, 1, 2]))
    observed = counts(graph, [1], 0, 4000)
    assert_fits(observed, np.full(4, 1000.0))


WEIGHTS = np.array([1.0, 2.0, 0.0, 4.0, 0.5, 8.0, 3.0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("replace", [False, True])
def test_one_weighted_draw_is_proportional(replace: bool, dtype: type) -> None:
    rounds = 6000
    observed = counts(star(7, WEIGHTS.astype(dtype)), [1], 0, rounds, weighted=True, replace=replace)
    expected = rounds * WEIGHTS / WEIGHTS.sum()
    assert observed[2] == 0
    assert_fits(np.delete(observed, 2), np.delete(expected, 2))


def test_weighted_draws_with_replacement_are_proportional() -> None:
    observed = counts(star(7, WEIGHTS), [4], 0, 3000, weighted=True, replace=True)
    expected = 12000 * WEIGHTS / WEIGHTS.sum()
    assert_fits(np.delete(observed, 2), np.delete(expected, 2))


def test_weighted_draws_without_replacement_follow_the_remaining_weights() -> None:
    # The ordered pair (i, j) has the chance w_i / W * w_j / (W - w_i).
    sampler = NeighborSampler(star(7, WEIGHTS), [2], seed=3, weighted=True)
    rounds = 8000
    pairs = np.zeros((7, 7))
    for i in range(rounds):
        first, second = sampler.sample(BatchId(epoch=0, index=i), np.array([0])).blocks[0].edge_ids
        pairs[first, second] += 1
    share = WEIGHTS / WEIGHTS.sum()
    expected = rounds * share[:, None] * share[None, :] / (1 - share[:, None])
    np.fill_diagonal(expected, 0)
    assert pairs[expected == 0].sum() == 0
    assert expected[expected > 0].min() > 5
    assert_fits(pairs[expected > 0], expected[expected > 0])
