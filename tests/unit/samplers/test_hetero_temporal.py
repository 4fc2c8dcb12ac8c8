"""Seeds of several types that ask at a time, against plain Python; one relation gives the batches of one type."""

from __future__ import annotations

import tracemalloc
from itertools import product
from typing import Any

import numpy as np
import pytest
from unit.samplers.hetero_graphs import CITES, OF, WRITES, WRITTEN
from unit.samplers.temporal_oracle import TemporalOracle, TypedTemporalOracle
from unit.samplers.test_temporal import ask, timed_graph

import gloader
from gloader.errors import ConfigError, SeedError
from gloader.samplers import (
    CscGraph,
    HeteroGraph,
    hetero_temporal_call_bytes,
    make_hetero_temporal_sampler,
    make_temporal_sampler,
    temporal_call_bytes,
    temporal_map_bytes,
)
from gloader.testing.sampler_suite import GraphOnDisk, batch_bytes, require_same
from gloader.types import BatchId, BatchSeeds, Links, SampledBatch

FIRST = BatchId(epoch=1, index=3)
NUM_NODES = {"paper": 60, "author": 40, "field": 9, "nobody": 0}
TIMELESS = OF


def relation(num_sources: int, num_nodes: int, *, seed: int, has_times: bool) -> CscGraph:
    random = np.random.default_rng(seed)
    degrees = random.integers(0, 25, num_nodes)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    times = random.integers(0, 100, indptr[-1])
    times = times[np.lexsort((times, np.repeat(np.arange(num_nodes), degrees)))]
    return CscGraph(
        indptr=indptr,
        indices=random.integers(0, num_sources, indptr[-1]).astype(np.int32),
        edge_time=times if has_times else None,
        num_sources=num_sources,
    )


@pytest.fixture(scope="module")
def graph() -> HeteroGraph:
    """Papers, authors, fields and a type without nodes; the fields of papers have no times."""
    relations = (CITES, WRITES, WRITTEN, OF)
    return HeteroGraph(
        num_nodes=NUM_NODES,
        relations={
            each: relation(NUM_NODES[each[0]], NUM_NODES[each[2]], seed=number, has_times=each != TIMELESS)
            for number, each in enumerate(relations)
        },
    )


def typed_ask(graph: HeteroGraph, num_seeds: int, *, seed: int, **others: Any) -> BatchSeeds:
    random = np.random.default_rng(seed)
    return ask(
        random.integers(0, graph.type_starts[-1], num_seeds), random.integers(-5, 110, num_seeds), **others
    )


def oracle_of(graph: HeteroGraph, fanouts: dict[Any, list[int]], **rule: Any) -> TypedTemporalOracle:
    oracles = {}
    for each, topology in graph.relations.items():
        assert isinstance(topology, CscGraph)
        times = topology.edge_time
        oracle = TemporalOracle(
            indptr=topology.indptr.tolist(),
            indices=topology.indices.tolist(),
            times=[] if times is None else times.tolist(),
            fanouts=fanouts[each],
            seed=0,
            **rule,
        )
        if times is None:
            oracle.may_take = lambda edge, asked: True  # type: ignore[method-assign]
        oracles[each] = oracle
    return TypedTemporalOracle(dict(graph.num_nodes), oracles, 7)


@pytest.mark.parametrize("layout", ["layered", "merged"])
@pytest.mark.parametrize(("strategy", "replace"), [("uniform", False), ("uniform", True), ("last", False)])
@pytest.mark.parametrize("on_disk", [False, True])
def test_batches_are_those_of_a_walk_from_each_seed(
    graph: HeteroGraph, layout: Any, strategy: Any, replace: bool, on_disk: bool
) -> None:
    fanouts = {CITES: [3, 4], WRITES: [-1, 2], WRITTEN: [5, 0], OF: [2, 1]}
    topology = graph
    if on_disk:
        on_the_ssd = {each: GraphOnDisk(of) for each, of in graph.relations.items()}  # type: ignore[arg-type]
        topology = HeteroGraph(num_nodes=NUM_NODES, relations=on_the_ssd)
    random = np.random.default_rng(5)
    for number, (bound, window) in enumerate(product(("<", "<="), (None, 30))):
        excluded = {
            each: np.flatnonzero(random.random(of.num_edges) < 0.2) for each, of in graph.relations.items()
        }
        seeds = typed_ask(graph, 25, seed=number, excluded=tuple(excluded.values()))
        assert seeds.times is not None
        sampler = make_hetero_temporal_sampler(
            topology,
            {":".join(each): hops for each, hops in fanouts.items()},
            7,
            layout=layout,
            strategy=strategy,
            bound=bound,  # type: ignore[arg-type]
            window=window,
            spec=f"neighbor:replace={str(replace).lower()}",
        )
        types = np.searchsorted(graph.type_starts[1:], seeds.nodes, side="right")
        named = [
            (graph.node_types[of], int(node - graph.type_starts[of]))
            for node, of in zip(seeds.nodes, types, strict=True)
        ]
        oracle = oracle_of(graph, fanouts, strategy=strategy, bound=bound, window=window, replace=replace)
        entries, hops = oracle.sample(
            (FIRST.epoch, FIRST.index),
            named,
            seeds.times.tolist(),
            is_merged=layout == "merged",
            excluded={each: set(of.tolist()) for each, of in excluded.items()},
        )
        batch = sampler.sample(FIRST, seeds)
        assert batch.trees is not None
        for name, expected in entries.items():
            assert batch.nodes[name].tolist() == [node for _, node in expected]
            assert batch.trees[name].tolist() == [tree for tree, _ in expected]
            assert batch.trees[name].dtype == np.int32
            assert batch.num_seeds[name] == sum(of == name for of, _ in named)
        for hop, expected_blocks in enumerate(hops):
            for each, expected_block in zip(graph.relations, expected_blocks, strict=True):
                if layout == "merged":
                    edges = sampler.sample_merged(FIRST, seeds).edges[each]
                    assert edges.num_sampled_edges[hop] == len(expected_block[1])
                    assert edges.edge_ids.tolist() == [
                        edge for blocks in hops for edge in blocks[list(graph.relations).index(each)][2]
                    ]
                    continue
                block = batch.blocks[-1 - hop][each]
                assert block.indptr.tolist() == expected_block[0]
                assert block.indices.tolist() == expected_block[1]
                assert block.edge_ids.tolist() == expected_block[2]


@pytest.mark.parametrize("layout", ["layered", "merged"])
def test_one_relation_gives_the_batches_of_the_graph_of_one_type(layout: Any) -> None:
    graph = timed_graph()
    typed = HeteroGraph(num_nodes={"a": graph.num_nodes}, relations={("a", "to", "a"): graph})
    links = Links(
        pairs=np.zeros((1, 2), np.int32), labels=np.ones(1), edge_ids=np.zeros(1, np.int64), num_positives=1
    )
    seeds = ask([4, 4, 90], [500, 900, 300], excluded=(np.arange(0, graph.num_edges, 7),), links=links)
    how: dict[str, Any] = {"layout": layout, "window": 700, "bound": "<="}
    alone = make_temporal_sampler(graph, [5, 4, 2], 9, **how).sample(FIRST, seeds)
    found = make_hetero_temporal_sampler(typed, [5, 4, 2], 9, **how).sample(FIRST, seeds)
    assert found.links is alone.links is links
    blocks = tuple(hop["a", "to", "a"] for hop in found.blocks)
    same = SampledBatch(id=FIRST, nodes=found.nodes["a"], num_seeds=found.num_seeds["a"], blocks=blocks)
    require_same(batch_bytes(same), batch_bytes(alone), FIRST, "the number of types matters")
    assert found.trees is not None
    assert alone.trees is not None
    assert found.trees["a"].tolist() == alone.trees.tolist()
    # Batches of one type have the degrees of all nodes too, which are looked up.
    assert 0 < hetero_temporal_call_bytes(typed, found) <= temporal_call_bytes(graph, alone)


def test_what_a_call_takes_beside_its_batch_is_counted() -> None:
    graph = HeteroGraph(
        num_nodes={"paper": 3000, "author": 2000},
        relations={
            CITES: relation(3000, 3000, seed=0, has_times=True),
            WRITES: relation(2000, 3000, seed=1, has_times=True),
        },
    )
    seeds = typed_ask(graph, 2000, seed=2)
    first, sampler = (make_hetero_temporal_sampler(graph, [8, 8], window=60) for _ in range(2))
    first.sample(FIRST, seeds)  # compiles
    tracemalloc.start()
    try:
        batch = sampler.sample(FIRST, seeds)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    edges = sum(block.num_edges for block in batch.all_blocks)
    rows = {name: len(nodes) for name, nodes in batch.nodes.items()}
    counted = 40 * sum(rows.values()) + 16 * edges + hetero_temporal_call_bytes(graph, batch)
    counted += sum(temporal_map_bytes(count + edges) for count in rows.values())
    assert peak <= 1.05 * counted + 100_000


def test_what_cannot_be_sampled_is_refused(graph: HeteroGraph) -> None:
    with pytest.raises(
        ConfigError, match="relation by relation; use a fan-out for each relation instead of 'coll"
    ):
        make_hetero_temporal_sampler(graph, gloader.collective([2, 2]))
    timeless = HeteroGraph(num_nodes=NUM_NODES, relations={OF: graph.relations[OF]})
    with pytest.raises(
        ConfigError, match="no relation of this graph has any; prepare the dataset with --edge-time"
    ):
        make_hetero_temporal_sampler(timeless, [2])
    with pytest.raises(ConfigError, match="'labor' takes edges of all times"):
        make_hetero_temporal_sampler(graph, [2], spec="labor")
    sampler = make_hetero_temporal_sampler(graph, [2])
    with pytest.raises(SeedError, match="the seeds have no times"):
        sampler.sample(FIRST, np.array([1]))
    with pytest.raises(SeedError, match=r"1 seeds are not in 0\.\.108"):
        sampler.sample(FIRST, ask([109], [5]))
    empty = sampler.sample(FIRST, ask([], np.empty(0, np.int64)))
    assert [len(nodes) for nodes in empty.node_arrays] == [0, 0, 0, 0]
