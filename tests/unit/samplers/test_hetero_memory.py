"""The memory of typed samplers, and the relations that no batch reaches."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from unit.samplers.graphs import random_graph
from unit.samplers.hetero_graphs import CITES, NOBODY, NOTHING, OF, WRITES, WRITTEN, papers, typed_graph

import gloader
from gloader.samplers import (
    CscGraph,
    HeteroGraph,
    call_bytes,
    hetero_call_bytes,
    hetero_map_bytes,
    make_hetero_sampler,
    make_sampler,
    node_map_bytes,
    unreachable_relations,
)
from gloader.samplers.node_map import DenseMap, HashMap
from gloader.samplers.workspace import Workspace
from gloader.testing.sampler_suite import GraphOnDisk
from gloader.types import BatchId

FIRST = BatchId(epoch=0, index=0)
SPECS = ["neighbor", "weighted", "labor", "labor:iterations=1"]


def on_disk(graph: HeteroGraph) -> HeteroGraph:
    return HeteroGraph(
        num_nodes=graph.num_nodes,
        relations={
            name: GraphOnDisk(held) for name, held in graph.relations.items() if isinstance(held, CscGraph)
        },
    )


@pytest.mark.parametrize("spec", SPECS)
def test_one_relation_holds_what_a_graph_of_one_type_does(spec: str) -> None:
    graph: Any = GraphOnDisk(random_graph(300, 40, weighted=True))
    typed = HeteroGraph(num_nodes={"a": 300}, relations={("a", "r", "a"): graph})
    alone = make_sampler(spec, graph, [5, 4]).sample(FIRST, np.arange(50))
    batch = make_hetero_sampler(spec, typed, [5, 4]).sample(FIRST, np.arange(50))
    assert hetero_call_bytes(spec, typed, batch) == call_bytes(spec, graph, alone) > 0
    found = len(alone.nodes)
    assert hetero_map_bytes(spec, typed, {"a": found}) == node_map_bytes(spec, num_nodes=300, found=found)


def test_copies_of_one_relation_are_there_at_a_time_and_collective_draws_of_all() -> None:
    graph = on_disk(papers())
    batch = make_hetero_sampler("neighbor", graph, [5, 4]).sample(FIRST, np.arange(50))
    edges = [block.num_edges for block in batch.blocks[0].values()]
    assert hetero_call_bytes("neighbor", graph, batch) == 12 * max(edges)  # a source and its place
    together = hetero_call_bytes("neighbor", graph, batch, is_collective=True)
    assert together == 12 * max(edges) + 8 * sum(edges)


def test_maps_are_of_every_type() -> None:
    graph = typed_graph({"a": 100, "b": 50}, [("a", "r", "b")])
    assert hetero_map_bytes("neighbor", graph, {"a": 10}) == 4 * 150
    assert hetero_map_bytes("labor", graph, {"a": 10}) == 8 * 150
    huge: Any = HeteroGraph(num_nodes={"a": 10**9, "b": 50}, relations={})
    assert hetero_map_bytes("neighbor", huge, {"a": 1000}) == 12 * 2048 + 4 * 50
    assert hetero_map_bytes("neighbor", huge, {}) == 12 * 1024 + 4 * 50  # the smallest table


@pytest.mark.parametrize("fanouts", [[8, 6], gloader.collective([16, 12])], ids=["each", "together"])
def test_a_call_holds_no_more_than_was_said(fanouts: Any) -> None:
    graph = on_disk(
        typed_graph(
            {"a": 60_000, "b": 40_000},
            [("a", "x", "a"), ("b", "y", "a"), ("a", "z", "b"), ("b", "none", "b")],
            without_edges=[("b", "none", "b")],
        )
    )
    sampler = make_hetero_sampler("neighbor", graph, fanouts)
    sampler.sample(FIRST, np.arange(10))  # compiles
    del sampler
    sampler = make_hetero_sampler("neighbor", graph, fanouts)
    gc.collect()
    tracemalloc.start()
    batch = sampler.sample(FIRST, np.arange(0, 90_000, 30))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    arrays = list(batch.nodes.values())
    arrays += [array for block in batch.all_blocks for array in (block.indptr, block.indices, block.edge_ids)]
    own = sum(array.nbytes for array in arrays)
    found = {name: len(nodes) for name, nodes in batch.nodes.items()}
    together = not isinstance(fanouts, list)
    said = hetero_map_bytes("neighbor", graph, found)
    said += hetero_call_bytes("neighbor", graph, batch, is_collective=together)
    # Of the nodes of each type ids with room to double, and of each relation where their in-edges begin and how many.
    buffers = 2 * 8 * sum(found.values()) + 2 * 16 * sum(found[to] for _, _, to in graph.relations)
    scratch = 12 * max(block.num_edges for block in batch.all_blocks) * (2 if together else 1)
    assert 0.5 * said < peak < 1.05 * (own + said + buffers + scratch)


def test_relations_that_no_seed_leads_to() -> None:
    relations = (CITES, WRITES, WRITTEN, NOTHING, NOBODY, OF)
    assert unreachable_relations(relations, ["paper"], 1) == (WRITTEN, NOTHING)
    assert unreachable_relations(relations, ["paper"], 2) == ()
    assert unreachable_relations(relations, ["author"], 1) == (CITES, WRITES, NOTHING, NOBODY, OF)
    assert unreachable_relations(relations, ["author"], 3) == ()
    assert unreachable_relations(relations, ["field", "author"], 1) == (CITES, WRITES, NOBODY, OF)
    assert unreachable_relations(relations, ["nobody"], 5) == relations
    assert unreachable_relations(relations, [], 5) == relations
    assert unreachable_relations(relations, ["paper"], 0) == relations


def test_what_is_unreachable_has_no_edges_in_any_batch_and_what_is_reachable_has_some() -> None:
    graph = papers()
    with_edges = tuple(relation for relation, topology in graph.relations.items() if topology.num_edges)
    for number, name in enumerate(graph.node_types):
        seeds = graph.type_starts[number] + np.arange(graph.num_nodes[name])
        for num_hops in (1, 2, 3):
            batch = make_hetero_sampler("neighbor", graph, [-1] * num_hops).sample(FIRST, seeds)
            found = {relation for relation, block in batch.blocks[0].items() if block.num_edges}
            expected = set(with_edges) - set(unreachable_relations(with_edges, [name], num_hops))
            assert found == (expected if len(seeds) else set())


def test_relations_without_edges_share_the_offsets_of_a_hop() -> None:
    """So that one more of them costs nothing."""
    batch = make_hetero_sampler("neighbor", papers(), [3, 2]).sample(FIRST, np.arange(40))
    for hop in batch.blocks:
        nothing, nobody = hop[NOTHING].indptr, hop[NOBODY].indptr
        assert len(nobody) == hop[NOBODY].num_dst + 1
        assert not nothing.any()
        assert not nobody.any()
        assert nothing.base is nobody.base is not None


@pytest.mark.parametrize("spec", SPECS)
def test_only_what_is_noted_of_candidates_stays_from_relation_to_relation(spec: str) -> None:
    graph = on_disk(papers(weighted=True))
    batch = make_hetero_sampler(spec, graph, [3, 2]).sample(FIRST, np.arange(40))
    alone = [
        hetero_call_bytes(
            spec,
            HeteroGraph(num_nodes=graph.num_nodes, relations={relation: graph.relations[relation]}),
            replace(batch, blocks=({relation: block},)),
        )
        for relation, block in batch.blocks[0].items()
    ]
    assert min(map(bool, alone)) < max(map(bool, alone))
    held = hetero_call_bytes(spec, graph, batch)
    assert held == (sum(alone) if spec == "labor:iterations=1" else max(alone))


def test_types_of_many_nodes_have_hash_tables_and_others_not() -> None:
    work = Workspace(papers(), 5, dense_limit=150)
    assert [type(found.map) for found in work.found] == [HashMap, DenseMap, DenseMap, DenseMap]
