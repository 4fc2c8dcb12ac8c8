"""Kernels on a graph that nobody checked: an error that names the place, never a crash, a hang or a wild write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.samplers.graphs import use_hash_tables

from gloader.errors import GraphError
from gloader.samplers import CscGraph, NeighborSampler
from gloader.samplers.labor import LaborSampler
from gloader.types import BatchId

NUM_NODES, DEGREE = 60, 12
BATCH = BatchId(epoch=0, index=0)
OPTIONS = [{}, {"replace": True}, {"weighted": True}, {"weighted": True, "replace": True}]
BAD_IDS = [-1, NUM_NODES, 2**31 - 1, -(2**31), 2**31, 2**32, 2**32 + 5, 2**62, -(2**62)]


def damaged(dtype: type = np.int64, **changes: tuple[int, Any]) -> CscGraph:
    """A regular graph with ``array=(position, value)`` changed."""
    random = np.random.default_rng(0)
    num_edges = NUM_NODES * DEGREE
    arrays: dict[str, Any] = {
        "indptr": np.arange(NUM_NODES + 1, dtype=np.int64) * DEGREE,
        "indices": random.integers(0, NUM_NODES, num_edges).astype(dtype),
        "edge_weight": random.random(num_edges),
    }
    for name, (position, value) in changes.items():
        arrays[name][position] = value
    return CscGraph(**arrays, validate=False)


def sampler_of(
    graph: CscGraph, fanouts: list[int], *, hashed: bool = False, **options: bool
) -> NeighborSampler:
    sampler = NeighborSampler(graph, fanouts, **options)
    if hashed:
        use_hash_tables(sampler)
    return sampler


@pytest.mark.reliability("C2")
@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("bad", BAD_IDS)
def test_a_neighbour_that_is_no_node(bad: int, hashed: bool) -> None:
    dtypes = [np.int64] if abs(bad) > 2**31 or bad == 2**31 else [np.int32, np.int64]
    for dtype in dtypes:
        for position in (0, 79, 80, 159, 160, 300, NUM_NODES * DEGREE - 1):  # every loop of the kernel
            sampler = sampler_of(damaged(dtype, indices=(position, bad)), [-1], hashed=hashed)
            message = rf"indices\[{position}\] = {bad}, an in-neighbour of node {position // DEGREE}, is not in 0\.\.59"
            with pytest.raises(GraphError, match=message):
                sampler.sample(BATCH, np.arange(NUM_NODES))
            with pytest.raises(GraphError, match=message):
                sampler.sample_merged(BATCH, np.arange(NUM_NODES))


@pytest.mark.parametrize("options", OPTIONS)
def test_a_neighbour_that_is_no_node_in_any_way_of_drawing(options: dict[str, bool]) -> None:
    graph = damaged(np.int32, indices=(slice(24, 36), -7))  # all in-neighbours of node 2
    with pytest.raises(GraphError, match=r"= -7, an in-neighbour of node 2, is not in 0\.\.59"):
        sampler_of(graph, [5], **options).sample(BATCH, np.arange(4))


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("value", [-1, -(2**63), 2**63 - 1, NUM_NODES * DEGREE + 1, 0])
def test_in_edges_outside_the_graph(value: int, options: dict[str, bool]) -> None:
    sampler = sampler_of(damaged(indptr=(7, value)), [3, 3], **options)
    with pytest.raises(
        GraphError, match=rf"indptr\[(6:8|7:9)\] = \[.*{value}.*\], the in-edges of node (6|7),"
    ):
        sampler.sample(BATCH, np.arange(NUM_NODES))


@pytest.mark.parametrize(("place", "value"), [(7, -5), (8, NUM_NODES * DEGREE + 1), (8, 0)])
def test_in_edges_outside_the_graph_of_a_node_by_itself(place: int, value: int) -> None:
    sampler = sampler_of(damaged(indptr=(place, value)), [3])
    with pytest.raises(GraphError, match=rf"indptr\[7:9\] = \[.*{value}.*\], the in-edges of node 7,"):
        sampler.sample(BATCH, np.array([7]))


@pytest.mark.parametrize("fanout", [4, -1, 12])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("bad", [-0.5, np.nan, np.inf, -np.inf])
def test_weights_that_cannot_be(bad: float, replace: bool, fanout: int) -> None:
    if replace and fanout < 0:
        return  # takes every edge of positive weight, once; looks at none of them twice
    graph = damaged(edge_weight=(2 * DEGREE + 5, bad))
    sampler = sampler_of(graph, [fanout], weighted=True, replace=replace)
    with pytest.raises(
        GraphError, match=r"edge_weight\[24:36\], the in-edges of node 2: one is below 0 or not finite"
    ):
        sampler.sample(BATCH, np.arange(4))


@pytest.mark.parametrize(
    ("fanout", "replace", "after"),
    [(4, False, 0.0), (-1, False, 0.0), (-1, True, 0.0), (-1, False, 1.0), (-1, True, 1.0)],
)
def test_weights_that_change_between_counting_and_picking(
    monkeypatch: pytest.MonkeyPatch, fanout: int, replace: bool, after: float
) -> None:
    weights = np.full(NUM_NODES * DEGREE, 1.0 - after)
    weights[::DEGREE] = 1.0  # one positive edge, or all, per node
    graph = CscGraph(
        indptr=np.arange(NUM_NODES + 1, dtype=np.int64) * DEGREE,
        indices=np.zeros(NUM_NODES * DEGREE, dtype=np.int32),
        edge_weight=weights,
        validate=False,
    )
    sampler = NeighborSampler(graph, [fanout], weighted=True, replace=replace)
    pick: Any = sampler._frame.picks[0]
    count = pick._count

    def count_then_change(*arguments: Any) -> int:
        total = count(*arguments)
        weights[:] = after
        weights[::DEGREE] = 1.0
        return total

    monkeypatch.setattr(pick, "_count", count_then_change)
    with pytest.raises(GraphError, match="changed while they were read"):
        sampler.sample(BATCH, np.arange(4))


def test_a_sampler_goes_on_after_damage() -> None:
    bad = damaged(np.int32, indices=(0, -1))
    sampler, sound = NeighborSampler(bad, [3, 3]), NeighborSampler(damaged(np.int32), [3, 3])
    seeds = np.arange(1, 6)
    with pytest.raises(GraphError):
        NeighborSampler(bad, [-1]).sample(BATCH, np.arange(2))
    for index in range(20):
        address = BatchId(epoch=0, index=index)
        try:
            batch = sampler.sample(address, seeds)
        except GraphError:
            continue
        np.testing.assert_array_equal(batch.nodes, sound.sample(address, seeds).nodes)


@given(seed=st.integers(0, 2**32 - 1), weighted=st.booleans(), replace=st.booleans(), hashed=st.booleans())
def test_random_bytes_raise_or_give_a_batch_of_nodes(
    seed: int, weighted: bool, replace: bool, hashed: bool
) -> None:
    random = np.random.default_rng(seed)
    arrays = {
        "indptr": np.arange(NUM_NODES + 1, dtype=np.int64) * DEGREE,
        "indices": random.integers(0, NUM_NODES, NUM_NODES * DEGREE).astype(np.int32),
        "edge_weight": random.random(NUM_NODES * DEGREE),
    }
    for name, array in arrays.items():
        inner = array[1:-1].view(np.uint8)  # the ends of indptr are checked when the graph is made
        where = random.integers(0, inner.size, random.integers(0, 3 if name == "indptr" else 30))
        inner[where] = random.integers(0, 256, where.size)
    graph = CscGraph(**arrays, validate=False)
    sampler = sampler_of(graph, [4, 4], hashed=hashed, weighted=weighted, replace=replace)
    try:
        batch = sampler.sample(BATCH, random.permutation(NUM_NODES)[:20])
    except GraphError:
        return
    assert batch.nodes.min() >= 0
    assert batch.nodes.max() < NUM_NODES
    assert len(np.unique(batch.nodes)) == len(batch.nodes)
    for block in batch.blocks:
        assert 0 <= block.indices.min(initial=0) <= block.indices.max(initial=0) < block.num_src


def test_a_neighbour_that_is_no_node_among_the_candidates_of_a_hop() -> None:
    for node in (0, 3):
        graph = damaged(np.int32, indices=(node * DEGREE + 1, -7))
        with pytest.raises(GraphError, match=rf"= -7, an in-neighbour of node {node}, is not in 0\.\.59"):
            LaborSampler(graph, [5], iterations=1).sample(BATCH, np.arange(4))
