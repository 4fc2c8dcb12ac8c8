"""Edges that no hop takes: what is left is drawn as before, and nothing else of a batch changes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from unit.samplers.graphs import random_graph, star
from unit.samplers.hetero_graphs import CITES, WRITES, papers
from unit.samplers.test_uniformity import assert_fits

import gloader
from gloader.errors import ConfigError, GraphError, SeedError
from gloader.samplers import (
    CscGraph,
    HeteroGraph,
    MergedBlockSampler,
    NeighborSampler,
    make_hetero_sampler,
    make_sampler,
)
from gloader.samplers.exclusion import NOTHING_EXCLUDED, excluded_edges, join_excluded
from gloader.testing.hetero_sampler_suite import draw_hetero_hops, hetero_batch_bytes
from gloader.testing.sampler_suite import GraphOnDisk, batch_bytes, draw_hops, make_graph
from gloader.types import BatchId, BatchSeeds, Links

FIRST = BatchId(epoch=0, index=0)
LINKS = Links(
    pairs=np.array([[0, 1]], dtype=np.int32),
    labels=np.ones(1, dtype=np.float32),
    edge_ids=np.array([4]),
    num_positives=1,
)


def without(nodes: Any, *excluded: Any, links: Links | None = None) -> BatchSeeds:
    ids = np.asarray(nodes, dtype=np.int64)
    return BatchSeeds(nodes=ids, excluded=tuple(np.asarray(part) for part in excluded), links=links)


@pytest.mark.parametrize("left", [0, 1, 5, 6])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanout", [0, 5, -1])
def test_the_fan_out_stays_full_as_far_as_edges_are_left(left: int, replace: bool, fanout: int) -> None:
    graph = star(40)
    kept = np.random.default_rng(left).permutation(40)[:left]
    excluded = np.setdiff1d(np.arange(40), kept)
    sampler = NeighborSampler(graph, [fanout], seed=2, replace=replace)
    edges = sampler.sample(FIRST, without([0], excluded)).blocks[0].edge_ids
    assert set(edges.tolist()) <= set(kept.tolist())
    if replace and fanout > 0:
        assert len(edges) == (fanout if left else 0)
    else:
        expected = left if fanout < 0 else min(fanout, left)
        assert len(np.unique(edges)) == len(edges) == expected
    if fanout < 0 or (left <= fanout and not replace):
        assert edges.tolist() == sorted(kept.tolist())[: len(edges)]


# Degrees around the limits of the picking kernels, as without exclusion.
@pytest.mark.parametrize(
    ("degree", "fanout", "replace"),
    [(17, 5, False), (40, 10, False), (90, 10, False), (300, 40, False), (40, 10, True), (300, 10, True)],
)
@pytest.mark.parametrize("hop", [0, 1])
def test_each_edge_that_is_left_is_equally_likely(degree: int, fanout: int, replace: bool, hop: int) -> None:
    graph = star(degree)
    # The first, the last, neighbours, and some on their own.
    excluded = np.unique([0, 1, 4, degree // 2, degree // 2 + 1, degree - 1])
    sampler = NeighborSampler(graph, [fanout, fanout], seed=5, replace=replace)
    rounds = max(20 * degree // fanout, 2000)
    observed = np.zeros(degree, dtype=np.int64)
    for index in range(rounds):
        batch = sampler.sample(BatchId(epoch=0, index=index), without([0], excluded))
        block = batch.blocks[-1 - hop]
        observed += np.bincount(block.edge_ids[: block.indptr[1]], minlength=degree)
    assert not observed[excluded].any()
    left = degree - len(excluded)
    factor = 1.0 if replace else (left - fanout) / (left - 1)
    assert_fits(np.delete(observed, excluded), np.full(left, rounds * fanout / left), variance_factor=factor)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("layout", ["layered", "merged"])
def test_nodes_without_excluded_edges_draw_what_they_draw_otherwise(layout: Any, replace: bool) -> None:
    graph = random_graph(400, 60)
    sampler = make_sampler("neighbor", graph, [7], 3, layout=layout, replace=replace)
    seeds = np.random.default_rng(0).permutation(400)[:120]
    few = np.sort(seeds[::10])
    edges = np.concatenate(
        [
            np.arange(first, last)[::3]
            for first, last in zip(graph.indptr[few], graph.indptr[few + 1], strict=True)
        ]
    )
    plain, leaving_out = (sampler.sample(FIRST, given).blocks[0] for given in (seeds, without(seeds, edges)))
    has_excluded = np.isin(seeds, few) & (np.diff(graph.indptr)[seeds] > 0)
    changed = 0
    for at in range(len(seeds)):
        ours = leaving_out.edge_ids[leaving_out.indptr[at] : leaving_out.indptr[at + 1]]
        before = plain.edge_ids[plain.indptr[at] : plain.indptr[at + 1]]
        if not has_excluded[at]:
            assert ours.tolist() == before.tolist()
        changed += ours.tolist() != before.tolist()
    assert 0 < changed <= has_excluded.sum()


@pytest.mark.parametrize("layout", ["layered", "merged"])
def test_an_edge_of_a_node_that_a_later_hop_finds_is_left_out_too(layout: Any) -> None:
    # A path: 0 <- 1 <- 2 <- 3, and each of them from node 4 as well.
    graph = CscGraph(indptr=np.array([0, 2, 4, 6, 7, 7]), indices=np.array([1, 4, 2, 4, 3, 4, 4]))
    sampler = make_sampler("neighbor", graph, [-1, -1, -1, -1], 0, layout=layout)
    nodes = {
        edge: sampler.sample(FIRST, without([0], [edge])).nodes.tolist() for edge in range(graph.num_edges)
    }
    assert nodes[0] == [0, 4]
    assert nodes[2] == [0, 1, 4]
    assert nodes[4] == [0, 1, 4, 2]
    assert nodes[6] == sampler.sample(FIRST, np.array([0])).nodes.tolist() == [0, 1, 4, 2, 3]
    everything = sampler.sample(FIRST, without([0], np.arange(graph.num_edges)))
    assert everything.nodes.tolist() == [0]
    assert not any(block.num_edges for block in everything.blocks)


def test_a_batch_leaves_nothing_behind_for_the_next() -> None:
    graph = random_graph(200, 30)
    seeds = np.arange(60)
    sampler = NeighborSampler(graph, [5, 5], seed=1)
    expected = batch_bytes(NeighborSampler(graph, [5, 5], seed=1).sample(FIRST, seeds))
    for _ in range(2):
        sampler.sample(FIRST, without(seeds, np.arange(0, graph.num_edges, 2)))
        sampler.sample_merged(FIRST, without(seeds, np.arange(0, graph.num_edges, 3)))
        assert batch_bytes(sampler.sample(FIRST, seeds)) == expected
    typed = papers()
    excluded = [np.arange(of.num_edges) for of in typed.relations.values()]
    numbers = np.arange(100)
    relationwise = make_hetero_sampler("neighbor", typed, [5, 5], 1)
    before = hetero_batch_bytes(relationwise.sample(FIRST, numbers))
    nothing: Any = relationwise.sample(FIRST, without(numbers, *excluded))  # type: ignore[arg-type]
    assert not any(block.num_edges for block in nothing.all_blocks)
    assert hetero_batch_bytes(relationwise.sample(FIRST, numbers)) == before


@pytest.mark.parametrize("given", [without([3, 9, 5]), without([3, 9, 5], [])])
def test_with_nothing_excluded_the_batch_is_that_of_an_array(given: BatchSeeds) -> None:
    graph = make_graph()
    for spec in ("neighbor", "weighted", "labor", "ladies", "fastgcn"):
        sampler: Any = make_sampler(spec, graph, [4, 4], 3)
        found, expected = (sampler.sample(FIRST, seeds) for seeds in (given, given.nodes))
        assert batch_bytes(found) == batch_bytes(expected)
        assert found.links is None


@pytest.mark.parametrize("layout", ["layered", "merged"])
def test_links_are_passed_on(layout: Any) -> None:
    graph, given = make_graph(), without([3, 9, 5], [1, 4], links=LINKS)
    sampler: Any = make_sampler("neighbor", graph, [4, 4], 3, layout=layout)
    assert sampler.sample(FIRST, given).links is LINKS
    drawn = draw_hops(sampler.rule, graph, FIRST, given)
    assert sampler.replay(FIRST, given, drawn).links is LINKS
    typed = papers()
    no_edges = [np.empty(0, np.int64)] * len(typed.relations)
    for excluded in ([], no_edges):
        seeds = without([3, 9, 5], *excluded, links=LINKS)
        relationwise: Any = make_hetero_sampler("neighbor", typed, [4, 4], 3, layout=layout)
        assert relationwise.sample(FIRST, seeds).links is LINKS
        hops = draw_hetero_hops(relationwise.rule, typed, FIRST, seeds)
        assert relationwise.replay(FIRST, seeds, hops).links is LINKS
    if layout == "layered":
        for spec in ("weighted", "labor", "ladies", "fastgcn"):
            other: Any = make_sampler(spec, graph, [4, 4], 3)
            assert other.sample(FIRST, without([3, 9], links=LINKS)).links is LINKS


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ("weighted", ["sample", "sample_merged", "replay", "replay_merged", "begin"]),
        ("weighted:replace=true", ["sample", "sample_merged"]),
        ("labor", ["sample", "replay", "begin"]),
        ("labor:iterations=1", ["sample"]),
        ("ladies", ["sample"]),
        ("fastgcn", ["sample"]),
    ],
)
def test_samplers_that_cannot_leave_edges_out_say_so(spec: str, asked: list[str]) -> None:
    sampler: Any = make_sampler(spec, make_graph(), [4], 3)
    message = (
        f"3 edges are excluded, and the sampler '{spec.partition(':')[0]}' cannot leave edges out while it picks; "
        "use the sampler 'neighbor', or exclude='none'"
    )
    for name in asked:
        drawn = [[np.empty(0, np.int32)]] if name.startswith("replay") else []
        ask = sampler.rule.begin if name == "begin" else getattr(sampler, name)
        with pytest.raises(ConfigError, match=re.escape(message)):
            ask(FIRST, without([3, 9], [1, 4, 6]), *drawn)


def test_typed_samplers_that_cannot_leave_edges_out_say_so() -> None:
    graph = papers(weighted=True)
    nothing, some = np.empty(0, np.int64), np.array([0, 2])
    for spec in ("weighted", "labor"):
        sampler: Any = make_hetero_sampler(spec, graph, [4], 3)
        given = without([3, 9], some, *[nothing] * 5)
        for ask in (sampler.sample, sampler.rule.begin):
            with pytest.raises(ConfigError, match=f"2 edges are excluded, and the sampler '{spec}' cannot"):
                ask(FIRST, given)
    together: Any = make_hetero_sampler("neighbor", graph, gloader.collective([4]), 3)
    with pytest.raises(
        ConfigError,
        match=r"fan-outs of all relations together cannot .* use fan-outs of each relation, or exclude",
    ):
        together.sample(FIRST, without([3, 9], nothing, some, *[nothing] * 4))
    assert together.sample(FIRST, without([3, 9], *[nothing] * 6)).num_seeds["paper"] == 2


def test_relations_without_weights_leave_edges_out_beside_weighted_ones() -> None:
    weighted, plain = papers(weighted=True), papers()
    graph = HeteroGraph(
        num_nodes=plain.num_nodes,
        relations={**plain.relations, CITES: weighted.relations[CITES]},
    )
    sampler: Any = make_hetero_sampler("weighted", graph, [-1], 3)
    excluded = [np.arange(of.num_edges) * (name == WRITES) for name, of in graph.relations.items()]
    excluded = [
        part if name == WRITES else part[:0] for name, part in zip(graph.relations, excluded, strict=True)
    ]
    batch = sampler.sample(FIRST, without(np.arange(200), *excluded))
    assert batch.blocks[0][WRITES].num_edges == 0
    assert batch.blocks[0][CITES].num_edges > 0


def test_seeds_with_times_need_another_sampler() -> None:
    seeds = BatchSeeds(nodes=np.array([3]), times=np.array([5]))
    graph = make_graph()
    for sampler in (NeighborSampler(graph, [2]), make_sampler("labor", graph, [2], 0)):
        asked: Any = sampler
        with pytest.raises(
            ConfigError, match=r"the seeds have times, .*; use make_temporal_sampler, or leave the"
        ):
            asked.sample(FIRST, seeds)


@pytest.mark.parametrize(
    ("excluded", "message"),
    [
        (([3, 3],), "excluded edges are not ascending: 3 follows 3; pass the sorted distinct positions"),
        (([3, 5, 4],), "excluded edges are not ascending: 4 follows 5"),
        (([-1, 5],), r"1 excluded edges are not in 0\.\.\d+, among them \[-1\]"),
        (
            ([5, 10**9, 10**10],),
            r"2 excluded edges are not in 0\.\.\d+, among them \[1000000000, 10000000000\]",
        ),
        (([0.5],), "excluded edges have dtype float64; they must be integers"),
        (([[1], [2]],), r"excluded edges have shape \(2, 1\); they must have one dimension"),
        (([1], [2]), "excluded edges of 2 relations in a graph of 1; pass an array for each"),
    ],
)
def test_excluded_edges_that_cannot_be(excluded: tuple[Any, ...], message: str) -> None:
    sampler = NeighborSampler(make_graph(), [4], seed=1)
    merged = MergedBlockSampler(sampler)
    given = without([3, 9], *excluded)
    for ask in (sampler.sample, sampler.rule.begin, merged.sample, merged.rule.begin):
        with pytest.raises(SeedError, match=message):
            ask(FIRST, given)


def test_excluded_edges_of_relations_that_cannot_be() -> None:
    graph = papers()
    nothing = [np.empty(0, np.int64)] * 5
    sampler: Any = make_hetero_sampler("neighbor", graph, [4], 1)
    for excluded, message in (
        (nothing, "excluded edges of 5 relations in a graph of 6; pass an array for each"),
        ([[4, 2], *nothing], "excluded edges of relation 'paper:cites:paper' are not ascending: 2 follows 4"),
        ([*nothing, [9**9]], rf"1 excluded edges of relation 'field:of:paper' are not in .*\[{9**9}\]"),
        (
            [*nothing[:3], [0], *nothing[:2]],
            r"1 excluded edges of relation 'author:no:field' are not in 0\.\.-1",
        ),
    ):
        for ask in (sampler.sample, sampler.rule.begin):
            with pytest.raises(SeedError, match=message):
                ask(FIRST, without([3, 9], *excluded))


@pytest.mark.parametrize(
    ("indptr", "likely", "edges", "node"),
    [
        ([0, 2, 0, 2, 3], [], [3], 3),
        # Lists that overlap, and one that goes back: edges do not ascend by the nodes that they lead to.
        ([0, 2, 4, 0, 2, 4], [3], [0, 1, 2], 1),
    ],
)
def test_an_excluded_edge_of_no_node_is_a_damaged_graph(
    indptr: list[int], likely: list[int], edges: list[int], node: int
) -> None:
    sound = np.array([*indptr[:-1], 4])
    graph = CscGraph(indptr=sound, indices=np.zeros(4, np.int32), validate=False)
    sound[-1] = indptr[-1]
    with pytest.raises(GraphError, match=rf"the in-edges of node {node}, is not a range within 0\.\.4"):
        excluded_edges((np.array(edges),), graph, np.array(likely, dtype=np.int64))


@pytest.mark.parametrize("on_disk", [False, True])
def test_the_nodes_that_excluded_edges_lead_to_are_found_in_any_graph(on_disk: bool) -> None:
    random = np.random.default_rng(0)
    for num_nodes in (1, 2, 3, 63, 64, 65, 1000):
        for largest in (1, 3, 200_000 // num_nodes):
            degrees = random.integers(0, largest + 1, num_nodes) * (random.random(num_nodes) < 0.5)
            degrees[random.integers(num_nodes)] += 1
            held = CscGraph(
                indptr=np.concatenate([[0], np.cumsum(degrees)]), indices=np.zeros(degrees.sum(), np.int32)
            )
            positions = np.flatnonzero(random.random(held.num_edges) < 0.3)
            positions = np.union1d(positions, [0, held.num_edges - 1])
            owners = np.repeat(np.arange(num_nodes), degrees)[positions]
            # Nobody, everybody, some in any order, and some in theirs are seeds.
            shuffled = random.permutation(num_nodes)
            few = shuffled[: num_nodes // 2]
            for seeds in (shuffled[:0], np.sort(shuffled), few, np.sort(few)):
                found = excluded_edges((positions,), GraphOnDisk(held) if on_disk else held, seeds)
                assert found is not None
                assert np.repeat(found.nodes, np.diff(found.begins)).tolist() == owners.tolist()
                assert np.unique(owners).tolist() == found.nodes.tolist()
                assert found.positions.tolist() == positions.tolist()


def test_what_batches_exclude_is_joined() -> None:
    graph = random_graph(50, 20)
    sets = [np.arange(0, graph.num_edges, step) for step in (2, 31, 7)]
    parts = [None, *(excluded_edges((part,), graph) for part in sets), None]
    joined, spans = join_excluded(parts)
    assert joined.begins[-1] == len(joined.positions)
    for part, (first, last) in zip(parts, spans.tolist(), strict=True):
        assert joined.nodes[first:last].tolist() == ([] if part is None else part.nodes.tolist())
        inside = slice(joined.begins[first], joined.begins[last])
        assert joined.positions[inside].tolist() == ([] if part is None else part.positions.tolist())
    for none in ([], [None, None]):
        joined, spans = join_excluded(none)
        assert joined is NOTHING_EXCLUDED
        assert spans.tolist() == [[0, 0]] * len(none)
