"""Seeds that ask at a time: what of a list each may take, trees of their own, and what is refused."""

from __future__ import annotations

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from unit.samplers.test_neighbor import digest
from unit.samplers.test_uniformity import assert_fits

from gloader.errors import ConfigError, GraphError, SeedError
from gloader.samplers import (
    CscGraph,
    HeteroGraph,
    NeighborSampler,
    TemporalSampler,
    arguments,
    make_hetero_temporal_sampler,
    make_sampler,
    make_temporal_sampler,
    neighbor,
)
from gloader.samplers.ranges import rank_bounds
from gloader.testing.sampler_suite import GraphOnDisk, batch_bytes, require_same
from gloader.types import BatchId, BatchSeeds, Block, Links, SampledBatch

FIRST = BatchId(epoch=0, index=0)
LATEST = 2**63 - 1
NUM_NODES = 300


def timed_graph(num_nodes: int = NUM_NODES, max_degree: int = 60, *, seed: int = 0) -> CscGraph:
    """A graph with parallel edges, self loops, nodes without edges, and many edges of the same second."""
    random = np.random.default_rng(seed)
    degrees = random.integers(0, max_degree + 1, num_nodes)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    rows = np.repeat(np.arange(num_nodes), degrees)
    sources, times = random.integers(0, num_nodes, indptr[-1]), random.integers(0, 1000, indptr[-1])
    order = np.lexsort((sources, times, rows))
    return CscGraph(indptr=indptr, indices=sources[order].astype(np.int32), edge_time=times[order])


def weighted_graph() -> CscGraph:
    """`timed_graph` with weights, some of them 0."""
    graph, random = timed_graph(), np.random.default_rng(5)
    return replace(graph, edge_weight=random.random(graph.num_edges) * (random.random(graph.num_edges) > 0.2))


def star(times: list[int]) -> CscGraph:
    """Node 0 receives from nodes 1, 2, ..., edge i from node i + 1 at ``times[i]``."""
    indptr = np.full(len(times) + 2, len(times), dtype=np.int64)
    indptr[0] = 0
    return CscGraph(
        indptr=indptr,
        indices=np.arange(1, len(times) + 1, dtype=np.int32),
        edge_time=np.array(times, dtype=np.int64),
    )


def ask(nodes: Any, times: Any, **others: Any) -> BatchSeeds:
    return BatchSeeds(nodes=np.asarray(nodes, dtype=np.int64), times=np.asarray(times), **others)


def trees_of(batch: SampledBatch) -> list[int]:
    """The number of the seed in whose tree each node is; no edge leads from one tree to another."""
    tree = dict(enumerate(range(batch.num_seeds)))
    for block in reversed(batch.blocks):
        destinations = np.repeat(np.arange(block.num_dst), np.diff(block.indptr)).tolist()
        for source, destination in zip(block.indices.tolist(), destinations, strict=True):
            assert tree.setdefault(source, tree[destination]) == tree[destination]
    return [tree[node] for node in range(len(batch.nodes))]


def edge_trees(block: Block, trees: list[int]) -> np.ndarray:
    return np.repeat(np.array(trees[: block.num_dst], dtype=np.int64), np.diff(block.indptr))


@pytest.mark.parametrize(
    ("bound", "window", "expected"),
    [
        ("<", None, [0, 1, 2]),
        ("<=", None, [0, 1, 2, 3, 4]),
        ("<", 5, [1, 2]),  # 5 <= time < 10
        ("<=", 5, [2, 3, 4]),  # 5 < time <= 10
        ("<", 1, [2]),
        ("<=", 1, [3, 4]),
        ("<", LATEST, [0, 1, 2]),
    ],
)
@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_bound_and_window_say_which_edges_count(
    bound: Any, window: int | None, expected: list[int], strategy: Any
) -> None:
    graph = star([4, 5, 9, 10, 10, 11])
    sampler = make_temporal_sampler(graph, [-1], strategy=strategy, bound=bound, window=window)
    assert sampler.sample(FIRST, ask([0], [10])).blocks[0].edge_ids.tolist() == expected


@pytest.mark.parametrize("fanout", [1, 2, 3, 9, -1, 0])
def test_the_last_are_the_latest_in_order(fanout: int) -> None:
    sampler = make_temporal_sampler(star([1, 2, 3, 4, 5, 6]), [fanout], strategy="last")
    edges = sampler.sample(FIRST, ask([0, 0, 1], [5, 1, 9])).blocks[0].edge_ids.tolist()
    assert edges == {1: [3], 2: [2, 3], 3: [1, 2, 3], 0: []}.get(fanout, [0, 1, 2, 3])


@pytest.mark.parametrize("layout", ["layered", "merged"])
@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize(("bound", "window"), [("<", None), ("<=", None), ("<", 300), ("<=", 300)])
def test_no_edge_of_any_hop_is_from_another_time_than_its_seed_asks_for(
    layout: Any, strategy: Any, bound: Any, window: int | None
) -> None:
    graph = timed_graph()
    assert graph.edge_time is not None
    random = np.random.default_rng(1)
    seeds = ask(random.integers(0, NUM_NODES, 80), random.integers(-5, 1100, 80))
    assert seeds.times is not None
    sampler = make_temporal_sampler(
        graph, [6, -1, 3], layout=layout, strategy=strategy, bound=bound, window=window
    )
    batch = sampler.sample(FIRST, seeds)
    trees = trees_of(batch)
    for block in batch.blocks:
        asked, times = seeds.times[edge_trees(block, trees)], graph.edge_time[block.edge_ids]
        assert len(times)
        assert (times < asked).all() if bound == "<" else (times <= asked).all()
        if window is not None:
            assert (times >= asked - window).all() if bound == "<" else (times > asked - window).all()
        destinations = batch.nodes[np.repeat(np.arange(block.num_dst), np.diff(block.indptr))]
        assert (graph.indices[block.edge_ids] == batch.nodes[block.indices]).all()
        assert (graph.indptr[destinations] <= block.edge_ids).all()
        assert (block.edge_ids < graph.indptr[destinations + 1]).all()


def test_each_seed_has_a_tree_of_its_own_with_each_node_once() -> None:
    seeds = ask([5, 5, 5, 9], [400, 400, 900, 400])
    batch = make_temporal_sampler(timed_graph(), [10, 10]).sample(FIRST, seeds)
    entries = list(zip(trees_of(batch), batch.nodes.tolist(), strict=True))
    assert len(set(entries)) == len(entries)
    assert entries[:4] == [(0, 5), (1, 5), (2, 5), (3, 9)]
    assert batch.may_repeat
    assert batch.trees is not None
    assert batch.trees.dtype == np.int32
    assert batch.trees.tolist() == trees_of(batch)
    assert len(set(batch.nodes.tolist())) < len(entries)


def test_a_seed_that_repeats_draws_anew() -> None:
    block = (
        make_temporal_sampler(star(list(range(1000))), [10]).sample(FIRST, ask([0, 0], [900, 900])).blocks[0]
    )
    assert block.edge_ids[:10].tolist() != block.edge_ids[10:].tolist()


@pytest.mark.parametrize("layout", ["layered", "merged"])
@pytest.mark.parametrize("replace", [False, True])
def test_a_seed_behind_all_times_gets_what_is_drawn_without_times(layout: Any, replace: bool) -> None:
    graph = timed_graph()
    timeless = NeighborSampler(graph, [5, 20, 3], seed=4, replace=replace)
    spec = "neighbor:replace=true" if replace else "neighbor"
    timed = make_temporal_sampler(graph, [5, 20, 3], 4, layout=layout, bound="<=", spec=spec)
    for node in (0, 7, 120):
        alone = np.array([node])
        expected = (
            timeless.sample(FIRST, alone)
            if layout == "layered"
            else timeless.sample_merged(FIRST, alone).to_blocks()
        )
        found = timed.sample(FIRST, ask([node], [LATEST]))
        require_same(batch_bytes(found), batch_bytes(expected), FIRST, "times change what is drawn")


@pytest.mark.parametrize("layout", ["layered", "merged"])
@pytest.mark.parametrize("options", ["replace=false", "replace=true", "importance=false"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_weights_count_among_the_edges_before_a_time(layout: Any, options: str, on_disk: bool) -> None:
    """The tree of the first seed is what a weighted sampler draws of a graph that has no other edges."""
    graph = weighted_graph()
    assert graph.edge_time is not None
    topology: Any = GraphOnDisk(graph) if on_disk else graph
    for asked, window in ((600, None), (600, 250), (LATEST, None)):
        begin = -1 if window is None else asked - window
        kept = np.flatnonzero((begin <= graph.edge_time) & (graph.edge_time < asked))
        rows = np.repeat(np.arange(NUM_NODES), np.diff(graph.indptr))[kept]
        weights: Any = graph.edge_weight
        before = CscGraph(
            indptr=np.searchsorted(rows, np.arange(NUM_NODES + 1)).astype(np.int64),
            indices=graph.indices[kept],
            edge_weight=weights[kept],
        )
        spec = f"weighted:{options}"
        alone: Any = make_sampler(spec, before, [5, 20, 3], 4, layout=layout)
        timed = make_temporal_sampler(topology, [5, 20, 3], 4, layout=layout, window=window, spec=spec)
        expected, found = (
            alone.sample(FIRST, np.array([7])),
            timed.sample(FIRST, ask([7], [asked])),
        )
        positions = tuple(replace(block, edge_ids=kept[block.edge_ids]) for block in expected.blocks)
        same = replace(expected, blocks=positions)
        require_same(batch_bytes(found), batch_bytes(same), FIRST, "edges of other times count")
        assert (found.blocks[0].edge_weight is None) == (options == "importance=false")


def test_weights_of_relations_count_where_there_are_times() -> None:
    graph = weighted_graph()
    alike = replace(graph, edge_weight=None)
    first, other = ("node", "to", "node"), ("node", "as", "node")
    typed = HeteroGraph(num_nodes={"node": NUM_NODES}, relations={first: graph, other: alike})
    seeds = ask([7, 9], [600, 900])
    found = make_hetero_temporal_sampler(typed, [5, 4], 4, spec="weighted").sample(FIRST, seeds)
    alone = make_temporal_sampler(graph, [5], 4, spec="weighted").sample(FIRST, seeds)
    plain = make_hetero_temporal_sampler(typed, [5, 4], 4).sample(FIRST, seeds)
    block, expected = found.blocks[-1][first], alone.blocks[-1]
    assert block.edge_ids.tolist() == expected.edge_ids.tolist()
    assert block.edge_weight is not None
    assert expected.edge_weight is not None
    assert block.edge_weight.tolist() == expected.edge_weight.tolist()
    assert found.blocks[-1][other].edge_weight is None
    assert found.blocks[-1][other].edge_ids.tolist() == plain.blocks[-1][other].edge_ids.tolist()
    timed = HeteroGraph(num_nodes={"node": NUM_NODES}, relations={other: alike})
    with pytest.raises(ConfigError, match="no relation of this graph has any; use the sampler 'neighbor'"):
        make_hetero_temporal_sampler(timed, [5], spec="weighted")


@pytest.mark.parametrize("on_disk", [False, True])
def test_batches_are_the_same_on_every_machine_and_in_every_version(on_disk: bool) -> None:
    degrees = np.arange(97) * 5 % 131
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    positions = np.arange(indptr[-1])
    times = (positions - np.repeat(indptr[:-1], degrees)) // 3 * 7
    graph = CscGraph(indptr=indptr, indices=(positions * 31 % 97).astype(np.int32), edge_time=times)
    topology = GraphOnDisk(graph) if on_disk else graph
    state = hashlib.sha256()
    for layout, strategy, bound, window in product(
        ("layered", "merged"), ("uniform", "last"), ("<", "<="), (None, 90)
    ):
        sampler = make_temporal_sampler(
            topology, [7, 20, 3], 11, layout=layout, strategy=strategy, bound=bound, window=window
        )
        for epoch, index in [(0, 0), (3, 2)]:
            nodes = np.arange(index, 97, 9)
            seeds = ask(np.repeat(nodes, 2), np.arange(2 * len(nodes)) * 17, excluded=(positions[::5],))
            state.update(digest(sampler.sample(BatchId(epoch=epoch, index=index), seeds)).encode())
    assert state.hexdigest() == "d6be37f99cd9ca0d92a61c859533b782861ca9b7e8a66e91147044eafa2493de"


@pytest.mark.parametrize(
    ("asked", "window", "excluded"),
    [(300, None, []), (300, 120, []), (300, None, [0, 7, 8, 150, 299, 300]), (300, 120, [180, 250, 299])],
)
def test_each_edge_of_the_range_is_equally_likely(
    asked: int, window: int | None, excluded: list[int]
) -> None:
    degree, fanout, rounds = 500, 12, 4000
    graph = star(list(range(degree)))
    sampler = make_temporal_sampler(graph, [fanout], 5, window=window)
    allowed = np.setdiff1d(np.arange(0 if window is None else asked - window, asked), excluded)
    # Ten seeds of a batch draw independently, though they are the same node at the same time.
    seeds = ask([0] * 10, [asked] * 10, excluded=(np.array(excluded, dtype=np.int64),))
    total = np.zeros(degree, dtype=np.int64)
    for index in range(rounds // 10):
        total += np.bincount(
            sampler.sample(BatchId(epoch=0, index=index), seeds).blocks[0].edge_ids, minlength=degree
        )
    assert total.sum() == total[allowed].sum() == rounds * fanout
    expected = np.full(len(allowed), rounds * fanout / len(allowed))
    assert_fits(total[allowed], expected, variance_factor=(len(allowed) - fanout) / (len(allowed) - 1))


@pytest.mark.parametrize("bound", ["<", "<="])
@pytest.mark.parametrize("window", [None, 1, 5, 2**62, LATEST])
def test_no_time_is_too_early_or_too_late(bound: Any, window: int | None) -> None:
    ends = [-(2**63), -(2**63) + 1, -(2**63) + 5, -1, 0, 1, LATEST - 5, LATEST - 1, LATEST]
    sampler = make_temporal_sampler(star(ends), [-1], bound=bound, window=window)
    block = sampler.sample(FIRST, ask([0] * len(ends), ends)).blocks[0]
    for number, asked in enumerate(ends):
        first = -(2**64) if window is None else asked - window
        expected = [
            at
            for at, time in enumerate(ends)
            if (first <= time < asked if bound == "<" else first < time <= asked)
        ]
        assert block.edge_ids[block.indptr[number] : block.indptr[number + 1]].tolist() == expected


@pytest.mark.parametrize("fanout", [-1, 3])
def test_whatever_is_excluded_is_passed_over(fanout: int) -> None:
    sampler = make_temporal_sampler(star(list(range(8))), [fanout], window=6, strategy="last")
    for code in range(256):
        excluded = [at for at in range(8) if code >> at & 1]
        seeds = ask([0] * 10, np.arange(10), excluded=(np.array(excluded, dtype=np.int64),))
        block = sampler.sample(FIRST, seeds).blocks[0]
        for asked in range(10):
            left = [at for at in range(max(asked - 6, 0), min(asked, 8)) if at not in excluded]
            expected = left if fanout < 0 else left[max(len(left) - fanout, 0) :]
            assert block.edge_ids[block.indptr[asked] : block.indptr[asked + 1]].tolist() == expected


def test_excluded_edges_leave_the_fan_out_full() -> None:
    graph = star(list(range(40)))
    excluded = np.array([0, 3, 18, 19, 20, 39])
    for strategy in ("uniform", "last"):
        sampler = make_temporal_sampler(graph, [5, 20], strategy=strategy)  # type: ignore[arg-type]
        batch = sampler.sample(FIRST, ask([0, 0], [20, 21], excluded=(excluded,)))
        assert not np.isin(excluded, np.concatenate([block.edge_ids for block in batch.blocks])).any()
        assert np.diff(batch.blocks[1].indptr).tolist() == [5, 5]
        assert np.diff(batch.blocks[0].indptr)[:2].tolist() == [16, 16]
    last = sampler.sample(FIRST, ask([0], [20], excluded=(excluded,))).blocks[1]
    assert last.edge_ids.tolist() == [13, 14, 15, 16, 17]


def test_threads_and_order_do_not_matter() -> None:
    sampler = make_temporal_sampler(timed_graph(), [5, 5], layout="merged")
    random = np.random.default_rng(3)
    calls = [
        (BatchId(epoch=0, index=index), ask(random.integers(0, NUM_NODES, 40), random.integers(0, 1000, 40)))
        for index in range(12)
    ]
    expected = {
        batch_id: batch_bytes(
            make_temporal_sampler(timed_graph(), [5, 5], layout="merged").sample(batch_id, seeds)
        )
        for batch_id, seeds in calls
    }
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            for found in pool.map(lambda call: sampler.sample(*call), [*calls, *reversed(calls)]):
                require_same(batch_bytes(found), expected[found.id], found.id, "draws depend on calls beside")
    finally:
        sys.setswitchinterval(interval)


def test_batches_drawn_before_and_refused_ones_do_not_matter() -> None:
    graph = timed_graph()
    sampler, seeds = make_temporal_sampler(graph, [5, 5]), ask(np.arange(40), np.arange(40) * 20)
    assert seeds.times is not None
    given = seeds.nodes.copy(), seeds.times.copy()
    first = sampler.sample(FIRST, seeds)
    before = batch_bytes(first)
    with pytest.raises(SeedError):
        sampler.sample(FIRST, ask([NUM_NODES], [3]))
    sampler.sample(BatchId(epoch=0, index=1), ask(np.arange(90), np.arange(90) * 9))
    require_same(batch_bytes(first), before, FIRST, "the next call overwrites a batch")
    require_same(batch_bytes(sampler.sample(FIRST, seeds)), before, FIRST, "draws depend on calls before")
    assert seeds.nodes.tolist() == given[0].tolist()
    assert seeds.times.tolist() == given[1].tolist()


def test_what_is_predicted_comes_with_the_batch() -> None:
    links = Links(
        pairs=np.zeros((1, 2), np.int32), labels=np.ones(1), edge_ids=np.zeros(1, np.int64), num_positives=1
    )
    for layout in ("layered", "merged"):
        sampler = make_temporal_sampler(timed_graph(), [2], layout=layout)  # type: ignore[arg-type]
        assert sampler.sample(FIRST, ask([1, 2], [9, 9], links=links)).links is links


def test_no_seeds_and_no_edges_give_empty_batches() -> None:
    for layout in ("layered", "merged"):
        sampler = make_temporal_sampler(timed_graph(), [2, 2], layout=layout)  # type: ignore[arg-type]
        assert len(sampler.sample(FIRST, ask([], np.empty(0, np.int64))).nodes) == 0
        early = sampler.sample(FIRST, ask([4, 4], [-(2**63), 0]))
        assert early.nodes.tolist() == [4, 4]
        assert all(block.num_edges == 0 and block.num_src == 2 for block in early.blocks)
    none = CscGraph(
        indptr=np.zeros(1, np.int64), indices=np.empty(0, np.int32), edge_time=np.empty(0, np.int64)
    )
    assert len(make_temporal_sampler(none, [2]).sample(FIRST, ask([], np.empty(0, np.int64))).nodes) == 0


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (None, "have no times"),
        (np.array([1]), "1 times for 2 seeds"),
        (np.array([1.0, 2.0]), "float64; they are int64 seconds, as floats round them"),
        (np.array([[1], [2]]), "must have one dimension"),
        (np.array(["a", "b"]), "must be integers"),
        (np.array([2**63, 1], dtype=np.uint64), "below 2\\*\\*63"),
    ],
)
def test_seeds_without_a_time_each_are_refused(times: Any, message: str) -> None:
    sampler = make_temporal_sampler(timed_graph(), [2])
    with pytest.raises(SeedError, match=message):
        sampler.sample(FIRST, BatchSeeds(nodes=np.array([1, 2]), times=times))
    with pytest.raises(SeedError, match="have no times"):
        sampler.sample(FIRST, np.array([1, 2]))


@pytest.mark.parametrize("nodes", [[0, NUM_NODES], [-1, 3], [2**40, 3]])
def test_seeds_that_are_no_nodes_are_refused(nodes: list[int]) -> None:
    with pytest.raises(SeedError, match=r"not in 0\.\.299"):
        make_temporal_sampler(timed_graph(), [2]).sample(FIRST, ask(nodes, [1, 2]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "newest"}, "allowed: 'uniform', 'last'"),
        ({"strategy": "none"}, "samples edges of all times"),
        ({"bound": ">"}, "allowed: '<', '<='"),
        ({"window": 0}, "at least 1 second"),
        ({"window": -3}, "at least 1 second"),
        ({"window": 2**63}, "below 2"),
        ({"window": 1.5}, "whole number"),
        ({"window": True}, "whole number"),
        ({"spec": "weighted"}, "needs a weight for each edge"),
        ({"spec": "weighted", "strategy": "last"}, "takes the latest edges and ignores weights"),
        ({"spec": "labor"}, "'labor' takes edges of all times; .* the sampler 'neighbor' or 'weighted'"),
        ({"spec": "ladies"}, "'ladies' takes edges of all times"),
        ({"spec": "neighbor:replace=true", "strategy": "last"}, "replace=True has no meaning"),
        ({"layout": "flat"}, "layout='flat'"),
    ],
)
def test_settings_that_are_not_allowed_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_temporal_sampler(timed_graph(), [2], **settings)


def test_graphs_that_cannot_be_asked_are_refused() -> None:
    timeless = CscGraph(indptr=np.array([0, 1]), indices=np.array([0], np.int32))
    with pytest.raises(ConfigError, match="this graph has none; prepare the dataset with --edge-time"):
        make_temporal_sampler(timeless, [2])
    other = CscGraph(
        indptr=np.array([0, 1]), indices=np.array([3], np.int32), edge_time=np.array([3]), num_sources=4
    )
    with pytest.raises(ConfigError, match="between two types"):
        make_temporal_sampler(other, [2])


def test_more_entries_than_int64_can_number_are_refused() -> None:
    class Huge(GraphOnDisk):
        """As if it had so many nodes."""

    graph = Huge(timed_graph())
    graph.num_nodes = graph.num_sources = 2**61
    with pytest.raises(ConfigError, match="int64 can number; lower the batch size"):
        TemporalSampler(graph, [1], rule=make_temporal_sampler(timed_graph(), [1]).rule).sample(
            FIRST, ask([1, 2, 3, 4], [1, 2, 3, 4])
        )


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (np.array([5, 4, 9]), r"edge_time\[1\] = 4 is less than 5 before it, among the in-edges of node 0"),
        (np.array([5, 6]), "edge_time has 2 entries; it must have one per edge, 3"),
        (np.array([1.0, 2.0, 3.0], np.float32), "float32; times are int64 seconds, as floats round them"),
        (np.array([1, 2, 3], np.int32), "edge_time has dtype int32"),
        ([1, 2, 3], "edge_time is a list"),
    ],
)
def test_times_that_cannot_be_are_refused_with_the_graph(times: Any, message: str) -> None:
    indptr, indices = np.array([0, 2, 3]), np.array([0, 1, 1], np.int32)
    with pytest.raises(GraphError, match=message):
        CscGraph(indptr=indptr, indices=indices, edge_time=times)


@pytest.mark.parametrize(("position", "time", "bound"), [(3750, 50, 150), (1250, 120, 50), (300, 101, 50)])
def test_a_time_of_a_long_list_that_does_not_fit_those_around_it_is_refused(
    position: int, time: int, bound: int
) -> None:
    times = np.full(5000, 100)
    times[position] = time  # 2,500 is looked at first, then 3,750 or 1,250; the rest is read whole
    graph = CscGraph(
        indptr=np.array([0, 5000]), indices=np.zeros(5000, np.int32), edge_time=times, validate=False
    )
    values = GraphOnDisk(graph).times
    assert values is not None
    with pytest.raises(
        GraphError, match=rf"edge_time\[{position}\] = {time} is smaller than an earlier entry in .* later"
    ):
        rank_bounds(values, np.array([0]), np.array([5000]), np.array([bound]), is_inclusive=True)


def test_times_ascend_within_each_list_alone() -> None:
    graph = CscGraph(
        indptr=np.array([0, 2, 2, 4]), indices=np.zeros(4, np.int32), edge_time=np.array([5, 9, -3, -3])
    )
    assert graph.held_bytes == 4 * 8 + 4 * 4 + 4 * 8


def test_a_graph_that_was_not_checked_ends_in_an_error_that_names_the_place() -> None:
    times = np.zeros(3, np.int64)
    for source in (-1, 2):
        wrong = CscGraph(
            indptr=np.array([0, 1, 3]), indices=np.array([1, 0, source]), edge_time=times, validate=False
        )
        with pytest.raises(GraphError, match=rf"indices\[2\] = {source}, an in-neighbour of node 1"):
            make_temporal_sampler(wrong, [-1]).sample(FIRST, ask([0, 1], [5, 5]))
    wild = CscGraph(
        indptr=np.array([0, 7, 3]), indices=np.zeros(3, np.int32), edge_time=times, validate=False
    )
    with pytest.raises(GraphError, match=r"indptr\[0:2\] = \[0, 7\]"):
        make_temporal_sampler(wild, [-1]).sample(FIRST, ask([0, 1], [5, 5]))


@pytest.mark.parametrize("is_typed", [False, True])
@pytest.mark.parametrize("limit", ["edges of all hops", "entries and edges of a hop"])
def test_a_batch_of_more_than_int32_can_count_is_refused(
    is_typed: bool, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, seeds = timed_graph(), ask([3, 4, 5], [10**9] * 3)
    settings: dict[str, Any] = {"layout": "merged"}
    plain = make_temporal_sampler(graph, [5, 5], **settings)
    relation = ("node", "to", "node")
    typed = HeteroGraph(num_nodes={"node": graph.num_nodes}, relations={relation: graph})
    sampler = make_hetero_temporal_sampler(typed, [5, 5], **settings) if is_typed else plain
    first, second = plain.sample_merged(FIRST, seeds).num_sampled_edges
    assert min(first, second) > 1
    if limit == "edges of all hops":
        monkeypatch.setattr(arguments, "MAX_LOCAL", first + second - 1)
    else:
        monkeypatch.setattr(neighbor, "MAX_LOCAL", max(first, second))
    with pytest.raises(ConfigError, match=r"hop 1 of .* 2\*\*31 edges or more; lower the batch size"):
        sampler.sample(FIRST, seeds)
