"""Typed graphs: what a batch is, what its draws depend on, and what is refused."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from unit.samplers.graphs import grid, random_graph, star
from unit.samplers.hetero_graphs import CITES, NOBODY, NOTHING, OF, WRITES, WRITTEN, papers, typed_graph
from unit.samplers.test_neighbor import GOLDEN
from unit.samplers.test_uniformity import assert_fits

import gloader
from gloader.errors import ConfigError, GraphError, SeedError, ShapeError
from gloader.samplers import (
    CscGraph,
    HeteroGraph,
    NeighborSampler,
    RelationwiseSampler,
    hetero_sweep_refusal,
    make_hetero_sampler,
    make_sampler,
)
from gloader.testing.hetero_sampler_suite import HeteroSamplerSuite, draw_hetero_hops, hetero_batch_bytes
from gloader.testing.sampler_suite import GraphOnDisk, batch_bytes
from gloader.types import BatchId, HeteroBatch

FIRST = BatchId(epoch=0, index=0)
SAME = ("node", "to", "node")


class OurHeteroSuite(HeteroSamplerSuite):
    takes_batch_seeds = True
    spec: str
    layout: Any = "layered"
    fanouts: Any = (8, 5)

    def make_sampler(self, graph: HeteroGraph, *, seed: int) -> Any:
        return make_hetero_sampler(self.spec, graph, self.fanouts, seed, layout=self.layout)

    def test_the_table_says_whether_it_can_be_swept(self, graph: HeteroGraph) -> None:
        sampler = self.make_sampler(graph, seed=0)
        refusal = hetero_sweep_refusal(self.spec, self.fanouts)
        if refusal is None:
            assert sampler.rule.num_hops == len(self.fanouts)
        else:
            with pytest.raises(ConfigError, match=r"use .*topology='(ram|direct)'"):
                _ = sampler.rule


class TestNeighbor(OurHeteroSuite):
    spec = "neighbor"


class TestMergedWithReplacement(OurHeteroSuite):
    spec, layout = "neighbor:replace=true", "merged"


class TestWeighted(OurHeteroSuite):
    spec = "weighted"


class TestWeightedMerged(OurHeteroSuite):
    spec, layout = "weighted:importance=false", "merged"


class TestWeightedWithReplacement(OurHeteroSuite):
    spec, fanouts = "weighted:replace=true", {"paper:cites:paper": [4, 0], "*": [-1, 3]}


class TestLabor(OurHeteroSuite):
    spec = "labor"


class TestConvergedLabor(OurHeteroSuite):
    spec = "labor:iterations=-1,normalize=true"


class TestLadies(OurHeteroSuite):
    spec, fanouts = "ladies", {"paper:cites:paper": [60, 0], "*": [-1, 40]}


class TestCollective(OurHeteroSuite):
    spec, fanouts = "neighbor", gloader.collective([9, 6])


class TestCollectiveMerged(OurHeteroSuite):
    spec, layout, fanouts = "neighbor:replace=true", "merged", gloader.collective([9, 6])


def one_relation(graph: CscGraph, names: tuple[str, str] = ("node", "to")) -> HeteroGraph:
    return HeteroGraph(
        num_nodes={names[0]: graph.num_nodes}, relations={(names[0], names[1], names[0]): graph}
    )


def sample(
    graph: HeteroGraph, fanouts: Any, seeds: Any, *, spec: str = "neighbor", **options: Any
) -> HeteroBatch:
    sampler = make_hetero_sampler(spec, graph, fanouts, 7, **options)
    return sampler.sample(FIRST, np.asarray(seeds, dtype=np.int64))


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [[7, 20, 3], gloader.collective([7, 20, 3])], ids=["each", "together"])
def test_one_relation_gives_the_golden_digests_of_the_graph_of_one_type(replace: bool, fanouts: Any) -> None:
    spec = f"neighbor:replace={str(replace).lower()}"
    sampler = make_hetero_sampler(spec, one_relation(grid()), fanouts, 11)
    state = hashlib.sha256()
    for epoch, index in [(0, 0), (0, 1), (3, 2)]:
        batch = sampler.sample(BatchId(epoch=epoch, index=index), np.arange(index, 97, 9))
        one = hashlib.sha256(batch.nodes["node"].tobytes())
        for block in batch.all_blocks:
            for array in (block.indptr, block.indices, block.edge_ids):
                one.update(array.tobytes())
        state.update(one.hexdigest().encode())
    assert state.hexdigest() == GOLDEN[replace]


@pytest.mark.parametrize(
    ("spec", "layout"),
    [
        ("neighbor", "layered"),
        ("neighbor", "merged"),
        ("neighbor:replace=true", "merged"),
        ("weighted", "layered"),
        ("weighted:importance=false", "merged"),
        ("weighted:replace=true", "layered"),
        ("labor", "layered"),
        ("labor:share_layers=true", "layered"),
        ("labor:iterations=2,normalize=true", "layered"),
        ("ladies", "layered"),
        ("ladies:adjacency=gcn,normalize=true", "layered"),
    ],
)
def test_one_relation_gives_the_batches_of_the_graph_of_one_type(spec: str, layout: Any) -> None:
    graph = random_graph(500, 40, weighted=True)
    alone = make_sampler(spec, graph, [5, 0, 9], 7, layout=layout).sample(FIRST, np.arange(30))
    typed = make_hetero_sampler(spec, one_relation(graph), [5, 0, 9], 7, layout=layout).sample(
        FIRST, np.arange(30)
    )
    expected = {
        "num_seeds": repr({"node": 30}).encode(),
        **{name: value for name, value in batch_bytes(alone).items() if name != "num_seeds"},
    }
    found = {
        name.replace("[node:to:node]", "").replace("nodes[node]", "nodes"): value
        for name, value in hetero_batch_bytes(typed).items()
    }
    counts = {
        f"blocks[{at}]": repr((block.num_src, block.num_dst)).encode()
        for at, block in enumerate(alone.blocks)
    }
    assert found == expected | counts


def test_names_change_nothing() -> None:
    def arrays(types: list[str], names: list[str]) -> list[bytes]:
        relations = [
            (types[source], name, types[destination])
            for (source, destination), name in zip([(0, 0), (1, 0), (0, 1)], names, strict=True)
        ]
        graph = typed_graph({types[0]: 90, types[1]: 40}, relations)
        named = hetero_batch_bytes(sample(graph, [6, 4], np.arange(60, 110)))
        return [value for name, value in named.items() if name != "num_seeds"]

    assert arrays(["paper", "author"], ["a", "b", "c"]) == arrays(["z", "a"], ["z", "y", "x"])


@pytest.mark.parametrize("spec", ["neighbor", "weighted", "labor"])
def test_a_relation_behind_the_others_leaves_their_draws_alone(spec: str) -> None:
    before = papers(weighted=True)
    added = ("paper", "like", "paper")
    after = HeteroGraph(
        num_nodes=before.num_nodes,
        relations={**before.relations, added: random_graph(200, 20, weighted=True)},
    )
    ours, theirs = (sample(graph, [5], np.arange(250), spec=spec) for graph in (before, after))
    for relation in before.relations:
        # The same nodes are there before the hop, and sources are new behind those that others found.
        one, other = ours.blocks[0][relation], theirs.blocks[0][relation]
        assert one.edge_ids.tolist() == other.edge_ids.tolist()
        assert one.indices.tolist() == other.indices.tolist()
    assert theirs.blocks[0][added].num_edges


@pytest.mark.parametrize("spec", ["neighbor", "weighted", "labor"])
def test_relations_of_one_topology_draw_apart(spec: str) -> None:
    same = random_graph(300, 60, weighted=True)
    graph = HeteroGraph(num_nodes={"node": 300}, relations={SAME: same, ("node", "as", "node"): same})
    blocks = sample(graph, [8], np.arange(100), spec=spec).blocks[0]
    one, other = (set(block.edge_ids.tolist()) for block in blocks.values())
    assert len(one & other) < 0.5 * len(one)


def test_each_edge_of_each_relation_is_equally_likely() -> None:
    first, second = star(40), star(65)
    graph = HeteroGraph(
        num_nodes={"a": 66, "b": 41},
        relations={
            ("b", "x", "b"): first,
            ("a", "y", "a"): second,
            ("a", "z", "b"): CscGraph(
                indptr=np.r_[0, np.full(41, 60)], indices=np.arange(60, dtype=np.int32), num_sources=66
            ),
        },
    )
    sampler = make_hetero_sampler("neighbor", graph, {"a:z:b": [15], "*": [10]}, 5)
    counts = [np.zeros(topology.num_edges) for topology in graph.relations.values()]
    for index in range(2000):
        batch = sampler.sample(BatchId(epoch=0, index=index), np.array([0, 66]))
        for count, block in zip(counts, batch.blocks[0].values(), strict=True):
            np.add.at(count, block.edge_ids, 1)
    for count, fanout in zip(counts, (10, 10, 15), strict=True):
        degree = len(count)
        expected = np.full(degree, 2000 * fanout / degree)
        assert_fits(count, expected, variance_factor=(degree - fanout) / (degree - 1))


def test_a_collective_draw_takes_each_edge_of_every_relation_alike() -> None:
    graph = typed_graph({"a": 50, "b": 1}, [("a", "x", "b"), ("b", "y", "b"), ("a", "z", "b")], max_degree=60)
    degrees = [topology.num_edges for topology in graph.relations.values()]
    assert min(degrees) > 10
    sampler = make_hetero_sampler("neighbor", graph, gloader.collective([12]), 5)
    count = np.zeros(sum(degrees))
    for index in range(3000):
        blocks = sampler.sample(BatchId(epoch=0, index=index), np.array([50])).blocks[0].values()
        assert sum(block.num_edges for block in blocks) == 12
        for start, block in zip(np.cumsum([0, *degrees]), blocks, strict=False):
            count[start + block.edge_ids] += 1
    expected = np.full(len(count), 3000 * 12 / len(count))
    assert_fits(count, expected, variance_factor=(len(count) - 12) / (len(count) - 1))


def test_fanouts_differ_by_relation_and_hop() -> None:
    graph = papers()
    batch = sample(graph, {CITES: [2, 3], "author:writes:paper": [0, 1], "*": [4, 0]}, np.arange(200))
    outer, inner = batch.blocks
    degrees = {relation: np.diff(topology.indptr) for relation, topology in graph.relations.items()}  # type: ignore[attr-defined]
    for blocks, fanouts in ((inner, {CITES: 2, WRITES: 0, OF: 4}), (outer, {CITES: 3, WRITES: 1, OF: 0})):
        for relation, fanout in fanouts.items():
            block = blocks[relation]
            nodes = batch.nodes[relation[2]][: block.num_dst]
            assert np.diff(block.indptr).tolist() == np.minimum(degrees[relation][nodes], fanout).tolist()


class _Untouchable:
    """A topology without edges that nobody may look at."""

    num_nodes, num_sources, num_edges, weights, held_bytes = 200, 200, 0, None, 0


def test_nothing_of_a_relation_without_edges_is_looked_at() -> None:
    untouchable: Any = _Untouchable()
    graph = HeteroGraph(
        num_nodes={"node": 200}, relations={("node", "no", "node"): untouchable, SAME: random_graph(200, 9)}
    )
    for fanouts in ([3, 3], gloader.collective([3, 3])):
        batch = sample(graph, fanouts, np.arange(20))
        assert [block["node", "no", "node"].num_edges for block in batch.blocks] == [0, 0]
        assert batch.blocks[0][SAME].num_edges


def test_weights_are_used_where_a_relation_has_them() -> None:
    weights = np.array([0, 1, 0, 2, 3, 0.0])
    graph = HeteroGraph(
        num_nodes={"node": 7}, relations={SAME: star(6, weights), ("node", "as", "node"): star(6)}
    )
    heavy, alike = sample(graph, [-1], [0], spec="weighted").blocks[0].values()
    assert heavy.edge_ids.tolist() == [1, 3, 4]
    assert heavy.edge_weight is not None
    assert alike.edge_ids.tolist() == list(range(6))
    assert alike.edge_weight is None


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ([0, 370], r"1 seeds are not in 0\.\.369, among them \[370\]"),
        ([-1], r"1 seeds are not in 0\.\.369, among them \[-1\]"),
        ([3, 205, 4, 205], r"1 seeds of type 'author' repeat within the batch, among them \[5\]"),
        (np.zeros(2), "seeds have dtype float64"),
    ],
    ids=str,
)
def test_seeds_that_are_no_distinct_nodes_are_named(seeds: Any, message: str) -> None:
    sampler = make_hetero_sampler("neighbor", papers(), [2])
    with pytest.raises(SeedError, match=message):
        sampler.sample(FIRST, np.asarray(seeds))


def test_seeds_of_a_type_keep_their_order() -> None:
    batch = sample(papers(), [1], [350, 7, 201, 3, 369, 200])
    assert {name: nodes.tolist()[: batch.num_seeds[name]] for name, nodes in batch.nodes.items()} == {
        "paper": [7, 3],
        "author": [1, 0],
        "nobody": [],
        "field": [0, 19],
    }


def test_an_edge_from_no_node_of_its_type_is_named() -> None:
    bad = CscGraph(
        indptr=np.array([0, 2]), indices=np.array([1, 3], dtype=np.int32), num_sources=3, validate=False
    )
    graph = HeteroGraph(num_nodes={"a": 3, "b": 1}, relations={("a", "to", "b"): bad})
    for fanouts in ([2], gloader.collective([2])):
        with pytest.raises(
            GraphError, match=r"indices\[1\] = 3, an in-neighbour of node 0, is not in 0\.\.2"
        ):
            sample(graph, fanouts, [3])


@pytest.mark.parametrize(
    ("spec", "fanouts", "options", "message"),
    [
        (
            "fastgcn",
            [2],
            {},
            "sampler 'fastgcn' draws nodes of one type; .* 'neighbor', 'weighted', 'labor', 'ladies'",
        ),
        (
            "ladies:adjacency=gcn",
            [2],
            {},
            "divides by the in-degrees of sources, and the sources of 'author:writes:paper' have another type",
        ),
        ("weighted", [2], {}, "no relation of this graph has any; use the sampler 'neighbor'"),
        ("labor", [2], {"layout": "merged"}, "layout='merged' with sampler 'labor'"),
        (
            "labor",
            "collective:3",
            {},
            "fanouts='collective:3': .* use the sampler 'neighbor', or a fan-out for each",
        ),
        (
            "neighbor",
            {"a:b:c": [2], "*": [1]},
            {},
            "fanouts name 'a:b:c', and the graph has 'paper:cites:paper', ",
        ),
        (
            "neighbor",
            {CITES: [2], WRITES: [1]},
            {},
            "fanouts have none for 'paper:by:author', .*; add them, or '\\*'",
        ),
        ("neighbour", [2], {}, "'neighbour' is not known"),
    ],
)
def test_what_a_typed_graph_has_not_is_refused(spec: str, fanouts: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_hetero_sampler(spec, papers(), fanouts, **options)


def test_a_graph_without_relations_gives_the_seeds() -> None:
    graph = HeteroGraph(num_nodes={"node": 5}, relations={})
    for layout in ("layered", "merged"):
        batch = sample(graph, [2, 2], [3, 1], layout=layout)
        assert batch.nodes["node"].tolist() == [3, 1]
        assert batch.blocks == ({}, {})


def test_types_that_nothing_leads_to_stay_empty() -> None:
    batch = sample(papers(), [3], np.arange(200, 230))  # authors alone
    assert batch.num_seeds == {"paper": 0, "author": 30, "nobody": 0, "field": 0}
    assert len(batch.nodes["field"]) == len(batch.nodes["nobody"]) == 0
    assert [batch.blocks[0][relation].num_edges > 0 for relation in (WRITTEN, OF, NOBODY, NOTHING)] == [
        True,
        False,
        False,
        False,
    ]


def test_collective_draws_are_those_of_the_first_relation_into_a_type_also_where_it_has_no_edges() -> None:
    graph = random_graph(200, 40)
    without = CscGraph(indptr=np.zeros(201, dtype=np.int64), indices=np.empty(0, dtype=np.int32))
    typed = HeteroGraph(num_nodes={"node": 200}, relations={("node", "no", "node"): without, SAME: graph})
    batch = sample(typed, gloader.collective([5, 5]), np.arange(20))
    alone = sample(one_relation(graph), [5, 5], np.arange(20))
    for ours, expected in zip(batch.blocks, alone.blocks, strict=True):
        assert ours[SAME].edge_ids.tolist() == expected[SAME].edge_ids.tolist()


@pytest.mark.parametrize("spec", ["neighbor", "labor:iterations=1"])
def test_few_nodes_find_many_of_another_type(spec: str) -> None:
    sources = np.arange(900, dtype=np.int32)
    relation = CscGraph(indptr=np.array([0, 450, 900]), indices=sources, num_sources=900)
    graph = HeteroGraph(num_nodes={"a": 900, "b": 2}, relations={("a", "to", "b"): relation})
    for fanout, least, most in ((-1, 900, 900), (200, 300, 500)):
        batch = sample(graph, [fanout], [900, 901], spec=spec)
        assert least <= len(batch.nodes["a"]) <= most
        block = batch.blocks[0]["a", "to", "b"]
        assert (batch.nodes["a"][block.indices] == sources[block.edge_ids]).all()


class _Unreadable(GraphOnDisk):
    """A topology whose edges cannot be read: a swept batch knows the offsets alone."""

    sources: Any
    weights: Any

    def __init__(self, graph: CscGraph) -> None:
        super().__init__(graph)
        self.sources, self.weights = None, None if graph.edge_weight is None else object()


@pytest.mark.parametrize("spec", ["neighbor", "weighted", "labor"])
def test_a_batch_that_is_replayed_reads_no_edge_of_the_graph(spec: str) -> None:
    graph = papers(weighted=True)
    unreadable = HeteroGraph(
        num_nodes=graph.num_nodes,
        relations={
            name: _Unreadable(held) for name, held in graph.relations.items() if isinstance(held, CscGraph)
        },
    )
    held: Any = make_hetero_sampler(spec, graph, [4, 3], 7)
    blind: Any = make_hetero_sampler(spec, unreadable, [4, 3], 7)
    seeds = np.arange(150, 260)
    drawn = draw_hetero_hops(held.rule, graph, FIRST, seeds)
    found, expected = blind.replay(FIRST, seeds, drawn), held.sample(FIRST, seeds)
    assert hetero_batch_bytes(found) == hetero_batch_bytes(expected)


def test_who_has_nothing_to_draw_has_no_part_in_a_pass() -> None:
    graph = papers()
    sampler: Any = make_hetero_sampler("neighbor", graph, {CITES: [0, 2], "*": [3, 3]})
    frontier = sampler.rule.begin(FIRST, np.arange(30))  # papers alone
    drawing = [part is not None for part in sampler.rule.parts(frontier)]
    assert dict(zip(graph.relations, drawing, strict=True)) == {
        CITES: False,  # takes none in this hop
        WRITES: True,
        WRITTEN: False,  # no author draws
        NOTHING: False,
        NOBODY: False,
        OF: True,
    }


def test_draws_of_another_batch_are_refused() -> None:
    graph = papers()
    sampler: Any = make_hetero_sampler("neighbor", graph, [4, 3], 7)
    seeds = np.arange(40)
    drawn = draw_hetero_hops(sampler.rule, graph, FIRST, seeds)
    with pytest.raises(ShapeError, match="drawn arrays of 1 hops for a batch of 2"):
        sampler.replay(FIRST, seeds, drawn[:1])
    with pytest.raises(
        ShapeError, match="5 drawn arrays for a batch of 6 relations; pass one for each relation"
    ):
        sampler.replay(FIRST, seeds, [of_hop[:5] for of_hop in drawn])
    with pytest.raises(ShapeError, match=r"hop 0 of .* takes .* distinct edges, and .* values were drawn"):
        sampler.replay(FIRST, seeds[:-1], drawn)


def test_samplers_of_one_type_stand_for_their_picks() -> None:
    graph, fanouts, seeds = papers(), [3, 2], np.arange(8)
    samplers = [NeighborSampler(topology, fanouts, seed=5) for topology in graph.relations.values()]
    given = RelationwiseSampler(graph, samplers=samplers, num_hops=2).sample(BatchId(epoch=0, index=3), seeds)
    made = make_hetero_sampler("neighbor", graph, fanouts, 5).sample(BatchId(epoch=0, index=3), seeds)
    assert hetero_batch_bytes(given) == hetero_batch_bytes(made)
