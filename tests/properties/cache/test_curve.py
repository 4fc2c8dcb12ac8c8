"""Curves against the planner and against policies, one capacity at a time."""

from __future__ import annotations

import numpy as np
import pytest
from cache_traces import arrays, batches, greedy_misses
from hypothesis import given
from hypothesis import strategies as st

from gloader.cache import (
    OnlinePolicy,
    access_counts,
    belady_curve,
    lru_curve,
    next_use_counts,
    plan_belady,
    static_curve,
)
from gloader.cache.curve import add_curves
from gloader.errors import PlanError

NUM_NODES = 25
TRACES = batches(NUM_NODES, max_batches=12, max_rows=NUM_NODES)
CAPACITIES = np.arange(NUM_NODES + 4)


def _whole_curve(trace: list[list[int]]) -> list[int]:
    counts = next_use_counts(arrays(trace), NUM_NODES)
    return belady_curve(counts, sum(map(len, trace))).misses_at(CAPACITIES).tolist()


@given(trace=TRACES)
def test_belady_is_exact_at_every_capacity(trace: list[list[int]]) -> None:
    planned = [plan_belady(arrays(trace), capacity=int(c)).num_misses for c in CAPACITIES]
    assert _whole_curve(trace) == planned
    assert planned == [greedy_misses(trace, int(c)) for c in CAPACITIES]


@given(trace=TRACES)
def test_belady_gains_less_with_every_slot(trace: list[list[int]]) -> None:
    """The convexity that the corners are found by."""
    gains = -np.diff([plan_belady(arrays(trace), capacity=int(c)).num_misses for c in CAPACITIES])
    assert (gains >= 0).all()
    assert (np.diff(gains) <= 0).all()


@given(trace=TRACES)
def test_next_uses_of_a_large_graph_are_counted_without_an_array_of_its_nodes(trace: list[list[int]]) -> None:
    spread = [np.array(batch, dtype=np.int64) * 10**9 for batch in trace]
    few = next_use_counts(arrays(trace), NUM_NODES)
    np.testing.assert_array_equal(next_use_counts(spread, NUM_NODES * 10**9), few)


@pytest.mark.parametrize("num_nodes", [30, 10**12])
@pytest.mark.parametrize("bad", [[-1], [3, 3], [None]])
def test_ids_that_cannot_be_are_refused_however_large_the_graph(
    num_nodes: int, bad: list[int | None]
) -> None:
    ids = np.array([num_nodes if node is None else node for node in bad], dtype=np.int64)
    with pytest.raises(PlanError, match=rf"accesses\[1\] holds node {ids[-1]} at position {len(ids) - 1}"):
        next_use_counts([np.arange(5), ids], num_nodes)


def test_a_long_skewed_trace_is_exact_at_every_capacity() -> None:
    rng = np.random.default_rng(0)
    trace = [np.unique((300 * rng.random(80) ** 3).astype(np.int64)) for _ in range(60)]
    curve = belady_curve(next_use_counts(trace, 300), sum(map(len, trace)))
    capacities = np.arange(0, 301, 7)
    planned = [plan_belady(trace, capacity=int(c)).num_misses for c in capacities]
    assert curve.misses_at(capacities).tolist() == planned
    assert len(curve.capacities) <= 61


@given(trace=TRACES)
def test_lru_is_exact_at_every_capacity(trace: list[list[int]]) -> None:
    ids = arrays(trace)
    simulated = []
    for capacity in CAPACITIES:
        policy = OnlinePolicy("lru", num_nodes=NUM_NODES, capacity=int(capacity))
        simulated.append(sum(len(policy.step(nodes).miss_pos) for nodes in ids))
    assert lru_curve(ids, NUM_NODES).misses_at(CAPACITIES).tolist() == simulated


def test_lru_distances_span_many_blocks_of_bits() -> None:
    rng = np.random.default_rng(1)
    trace = [rng.permutation(400)[: rng.integers(1, 400)] for _ in range(20)]
    for capacity in (1, 50, 255, 256, 257, 399, 400):
        policy = OnlinePolicy("lru", num_nodes=400, capacity=capacity)
        simulated = sum(len(policy.step(nodes).miss_pos) for nodes in trace)
        assert lru_curve(trace, 400).misses_at(np.array([capacity]))[0] == simulated


@given(trace=TRACES, order=st.permutations(range(NUM_NODES)), kept=st.integers(0, NUM_NODES))
def test_static_counts_what_is_outside_the_set(trace: list[list[int]], order: list[int], kept: int) -> None:
    curve = static_curve(np.array(order[:kept], dtype=np.int64), access_counts(arrays(trace), NUM_NODES))
    for capacity in CAPACITIES.tolist():
        outside = sum(node not in order[: min(capacity, kept)] for batch in trace for node in batch)
        assert curve.misses_at(np.array([capacity]))[0] == outside


@given(first=TRACES, second=TRACES)
def test_a_sum_of_curves_is_their_sum_everywhere(first: list[list[int]], second: list[list[int]]) -> None:
    curves = [
        belady_curve(next_use_counts(arrays(trace), NUM_NODES), sum(map(len, trace)))
        for trace in (first, second)
    ]
    total = add_curves(curves).misses_at(CAPACITIES)
    assert total.tolist() == sum(curve.misses_at(CAPACITIES) for curve in curves).tolist()


def test_a_table_of_next_uses_grows_with_the_nodes_that_occur() -> None:
    rng = np.random.default_rng(3)
    trace = [np.unique(rng.integers(0, 5_000, 1_500)) for _ in range(6)]
    np.testing.assert_array_equal(next_use_counts(trace, 10**9), next_use_counts(trace, 5_000))
