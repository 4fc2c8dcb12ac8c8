"""Hot sets by out-degree, presampled counts and inclusion probability."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.cache import (
    SlotMap,
    access_counts,
    hottest_by_degree,
    hottest_first,
    inclusion_probabilities,
)
from gloader.core.offsets import compact_offsets, plain_offsets
from gloader.errors import PlanError
from gloader.samplers import CscGraph, NeighborSampler
from gloader.types import BatchId


@given(st.lists(st.integers(0, 9), max_size=50), st.integers(1, 7), st.sampled_from([np.int32, np.int64]))
def test_degrees_are_counted_piece_by_piece(ids: list[int], chunk: int, dtype: type) -> None:
    pieces = np.array_split(np.array(ids, dtype=dtype), chunk)
    degrees = access_counts(pieces, 10)
    assert degrees.tolist() == [ids.count(node) for node in range(10)]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(-1, 35))
def test_hottest_are_the_largest_degrees(degrees: list[int], num_rows: int) -> None:
    hottest = hottest_by_degree(np.array(degrees, dtype=np.int64), num_rows).tolist()
    ranked = sorted((node for node, d in enumerate(degrees) if d), key=lambda node: (-degrees[node], node))
    assert hottest == sorted(ranked[: max(num_rows, 0)])


@pytest.mark.reliability("C6")
def test_a_graph_without_edges_has_no_hot_rows() -> None:
    assert hottest_by_degree(access_counts([], 5), 3).tolist() == []


def test_the_hottest_come_first_and_cold_nodes_never() -> None:
    scores = np.array([0.0, 3.0, 1.5, 0.0, 3.0])
    assert hottest_first(scores).tolist() == [1, 4, 2]
    assert hottest_first(scores, 2).tolist() == [1, 4]
    assert hottest_first(scores, -1).tolist() == []


def test_accesses_are_counted_over_all_batches() -> None:
    counts = access_counts([np.array([0, 1]), np.array([1, 2]), np.array([1], dtype=np.int32)], 4)
    assert counts.tolist() == [1, 3, 1, 0]


def _path() -> CscGraph:
    """0 <- 1 <- 2 <- 3, and 0 <- 4: a tree, on which in-edges are independent."""
    return CscGraph(indptr=np.array([0, 2, 3, 4, 4, 4]), indices=np.array([1, 4, 2, 3], dtype=np.int32))


def test_inclusion_probabilities_are_exact_on_a_tree() -> None:
    graph = _path()
    p = inclusion_probabilities(
        graph.offsets, graph.sources.pieces, seeds=np.array([0, 3]), batch_size=1, fanouts=[1, -1]
    )
    # Hop 1 takes 1 or 4, each half of the times that 0 is the seed. In hop 2, 0 samples again, both of them.
    assert p.tolist() == pytest.approx([0.5, 1 - 0.75 * 0.5, 0.25, 0.5, 1 - 0.75 * 0.5])


def test_inclusion_probabilities_agree_with_the_sampler() -> None:
    rng = np.random.default_rng(3)
    degrees = rng.integers(0, 9, 300)
    graph = CscGraph(
        indptr=np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64),
        indices=(300 * rng.random(degrees.sum()) ** 2).astype(np.int32),
    )
    seeds, fanouts = np.arange(0, 300, 2), [3, 2]
    sampler = NeighborSampler(graph, fanouts, seed=0)
    batches = [
        sampler.sample(BatchId(epoch=0, index=index), rng.choice(seeds, 10, replace=False)).nodes
        for index in range(3000)
    ]
    measured = access_counts(batches, 300) / 3000
    predicted = inclusion_probabilities(
        graph.offsets, graph.sources.pieces, seeds=seeds, batch_size=10, fanouts=fanouts
    )
    assert (
        np.abs(measured - predicted).mean() < 0.04
    )  # in-edges are not independent, batches not a Poisson draw
    assert np.corrcoef(measured, predicted)[0, 1] > 0.99


def test_probabilities_are_the_same_however_the_edges_are_cut() -> None:
    random = np.random.default_rng(4)
    indptr = np.concatenate([[0], np.cumsum(random.integers(0, 7, 40))]).astype(np.int64)
    indices = random.integers(0, 40, indptr[-1]).astype(np.int32)
    settings = {"seeds": np.arange(30), "batch_size": 5, "fanouts": [2, -1]}
    whole = inclusion_probabilities(plain_offsets(indptr), lambda: [indices], **settings)
    compact = compact_offsets([indptr], 40)
    for count in (2, 5, len(indices)):
        cut = inclusion_probabilities(compact, lambda n=count: np.array_split(indices, n), **settings)
        assert cut.tobytes() == whole.tobytes()


def test_no_fanout_and_no_seeds_reach_nothing() -> None:
    graph = _path()
    settings = {"seeds": np.array([0]), "batch_size": 4}
    assert inclusion_probabilities(graph.offsets, graph.sources.pieces, fanouts=[0], **settings).tolist() == [
        1,
        0,
        0,
        0,
        0,
    ]
    none = inclusion_probabilities(
        graph.offsets, graph.sources.pieces, seeds=np.empty(0, dtype=np.int64), batch_size=4, fanouts=[2]
    )
    assert not none.any()


@given(
    cached=st.sets(st.integers(0, 19)),
    nodes=st.lists(st.integers(0, 19), unique=True),
)
def test_split_agrees_with_a_dict(cached: set[int], nodes: list[int]) -> None:
    rows = sorted(cached)
    slot_of = {row: slot for slot, row in enumerate(rows)}
    step = SlotMap(20, np.array(rows, dtype=np.int64)).split(np.array(nodes, dtype=np.int64))
    hits = [(position, slot_of[node]) for position, node in enumerate(nodes) if node in slot_of]
    misses = [(position, node) for position, node in enumerate(nodes) if node not in slot_of]
    assert list(zip(step.hit_pos.tolist(), step.hit_slot.tolist(), strict=True)) == hits
    assert list(zip(step.miss_pos.tolist(), step.miss_row.tolist(), strict=True)) == misses
    assert len(step.admit_pos) == len(step.admit_slot) == 0


@pytest.mark.parametrize("cached", [[0, 20], [-1], [3, 3]])
def test_impossible_contents_are_refused(cached: list[int]) -> None:
    with pytest.raises(PlanError, match="cached ids"):
        SlotMap(20, np.array(cached, dtype=np.int64))


@pytest.mark.reliability("E5")
def test_a_slot_that_holds_another_node_is_an_error_not_a_wrong_row() -> None:
    cached = np.array([2, 5, 7], dtype=np.int64)
    slots = SlotMap(20, cached)
    cached[1] = 6
    with pytest.raises(PlanError, match="corrupted"):
        slots.split(np.array([5], dtype=np.int64))
