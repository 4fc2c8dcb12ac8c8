"""The compiled sampler of typed graphs and a plain-Python one give identical batches on any graph."""

from __future__ import annotations

from itertools import accumulate, chain
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from unit.samplers.graphs import SHARES, seeds_without, some_edges, use_hash_tables
from unit.samplers.hetero_oracle import HeteroOracle
from unit.samplers.oracle import OracleBlock

from gloader.samplers import CscGraph, HeteroGraph, MergedHeteroBatch, make_hetero_sampler
from gloader.types import (
    AnySeeds,
    BatchId,
    Block,
    CollectiveFanouts,
    HeteroBatch,
    IdArray,
    Relation,
    RelationFanouts,
)

TYPES = ("a", "b", "c")
FANOUTS = st.sampled_from([-1, 0, 1, 2, 5, 10, 16, 17, 35])


@st.composite
def graphs(draw: st.DrawFn, *, weighted: bool) -> HeteroGraph:
    num_nodes = {name: draw(st.integers(0, 8)) for name in TYPES[: draw(st.integers(1, 3))]}
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    names = st.sampled_from(list(num_nodes))
    relations: dict[Relation, Any] = {}
    for number in range(draw(st.integers(1, 4))):
        source, destination = draw(names), draw(names)
        degrees = [
            draw(st.sampled_from([0, 1, 3, 11, 70])) if num_nodes[source] else 0
            for _ in range(num_nodes[destination])
        ]
        num_edges = sum(degrees)
        has_weights = weighted and (number == 0 or draw(st.booleans()))
        relations[source, f"r{number}", destination] = CscGraph(
            indptr=np.array([0, *accumulate(degrees)], dtype=np.int64),
            indices=random.integers(0, max(num_nodes[source], 1), num_edges).astype(
                draw(st.sampled_from([np.int32, np.int64]))
            ),
            num_sources=num_nodes[source],
            edge_weight=random.choice([0.0, 0.25, 1.0, 3.5], num_edges) if has_weights else None,
        )
    return HeteroGraph(num_nodes=num_nodes, relations=relations)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    weighted, together = draw(st.sampled_from([(False, False), (False, True), (True, False)]))
    graph = draw(graphs(weighted=weighted))
    num_hops = draw(st.integers(1, 3))
    fanouts = [draw(st.lists(FANOUTS, min_size=num_hops, max_size=num_hops)) for _ in graph.relations]
    total = int(graph.type_starts[-1])
    seeds = draw(st.lists(st.integers(0, total - 1), unique=True)) if total else []
    excluded: tuple[IdArray, ...] = ()
    if not weighted and not together and draw(st.booleans()):
        random, shares = np.random.default_rng(draw(st.integers(0, 2**32))), st.sampled_from(SHARES[1:])
        parts = [some_edges(of.num_edges, draw(shares), random) for of in graph.relations.values()]
        excluded = tuple(chain.from_iterable(parts))
    return {
        "graph": graph,
        "weighted": weighted,
        "together": together,
        "fanouts": fanouts,
        "replace": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "batch_id": BatchId(epoch=draw(st.integers(0, 2**40)), index=draw(st.integers(0, 2**40))),
        "seeds": seeds,
        "excluded": excluded,
        "is_hashed": draw(st.booleans()),
    }


def sampler_of(case: dict[str, Any], layout: Any = "layered") -> Any:
    graph, fanouts = case["graph"], case["fanouts"]
    if case["together"]:
        asked: Any = CollectiveFanouts(tuple(fanouts[0]))
    else:
        asked = RelationFanouts(tuple(zip(graph.relations, map(tuple, fanouts), strict=True)))
    spec = f"{'weighted' if case['weighted'] else 'neighbor'}:replace={str(case['replace']).lower()}"
    made: Any = make_hetero_sampler(spec, graph, asked, case["seed"], layout=layout)
    if case["is_hashed"]:
        use_hash_tables(getattr(made, "sampler", made))
    return made


def oracle_of(case: dict[str, Any]) -> HeteroOracle:
    return HeteroOracle(
        graph=case["graph"],
        fanouts=case["fanouts"],
        seed=case["seed"],
        replace=case["replace"],
        weighted=case["weighted"],
        together=case["together"],
        excluded=case["excluded"],
    )


def seeds_of(case: dict[str, Any]) -> AnySeeds:
    return seeds_without(np.array(case["seeds"], np.int64), case["excluded"])


def typed_seeds(case: dict[str, Any]) -> dict[str, list[int]]:
    starts = case["graph"].type_starts
    return {
        name: [seed - int(first) for seed in case["seeds"] if first <= seed < last]
        for name, first, last in zip(case["graph"].node_types, starts, starts[1:], strict=False)
    }


def sample(case: dict[str, Any], layout: Any = "layered") -> HeteroBatch:
    batch: HeteroBatch = sampler_of(case, layout).sample(case["batch_id"], seeds_of(case))
    assert dict(batch.num_seeds) == {name: len(seeds) for name, seeds in typed_seeds(case).items()}
    assert list(batch.nodes) == list(case["graph"].num_nodes)
    return batch


@given(cases())
def test_layered_batches_equal_the_oracle(case: dict[str, Any]) -> None:
    batch, batch_id = sample(case), case["batch_id"]
    nodes, blocks = oracle_of(case).sample(batch_id.epoch, batch_id.index, typed_seeds(case))
    assert {name: found.tolist() for name, found in batch.nodes.items()} == nodes
    for ours, expected in zip(batch.blocks, blocks, strict=True):
        assert list(ours) == list(expected) == list(case["graph"].relations)
        for relation, block in ours.items():
            same_block(block, expected[relation])


@given(cases())
def test_merged_batches_equal_the_oracle(case: dict[str, Any]) -> None:
    batch_id = case["batch_id"]
    batch: MergedHeteroBatch = sampler_of(case, "merged").sample_merged(batch_id, seeds_of(case))
    nodes, hops = oracle_of(case).sample_merged(batch_id.epoch, batch_id.index, typed_seeds(case))
    assert {name: found.tolist() for name, found in batch.nodes.items()} == nodes
    for relation, edges in batch.edges.items():
        of_relation = [hop[relation] for hop in hops]
        assert edges.indices.tolist() == [source for hop in of_relation for source in hop.indices]
        assert edges.edge_ids.tolist() == [edge for hop in of_relation for edge in hop.edge_ids]
        assert batch.num_sampled_edges[relation] == tuple(len(hop.indices) for hop in of_relation)
        counts = [count for hop in of_relation for count in np.diff(hop.indptr).tolist()]
        assert np.diff(edges.indptr).tolist() == counts
        sources, destinations = batch.edge_index(relation)
        assert sources.tolist() == edges.indices.tolist()
        assert destinations.tolist() == [node for node, count in enumerate(counts) for _ in range(count)]
    for name, counts in batch.num_sampled_nodes.items():
        assert len(counts) == len(hops) + 1
        assert counts[0] == len(typed_seeds(case)[name])
        assert sum(counts) == len(nodes[name])


@given(cases())
def test_the_blocks_of_merged_batches_hold_what_their_destinations_drew_in_their_one_hop(
    case: dict[str, Any],
) -> None:
    batch, batch_id = sample(case, "merged"), case["batch_id"]
    nodes, hops = oracle_of(case).sample_merged(batch_id.epoch, batch_id.index, typed_seeds(case))
    assert {name: found.tolist() for name, found in batch.nodes.items()} == nodes
    known = {name: len(seeds) for name, seeds in typed_seeds(case).items()}
    for depth, ours in enumerate(reversed(batch.blocks)):
        for relation, block in ours.items():
            drawn = [hop[relation] for hop in hops[: depth + 1]]
            expected = OracleBlock([0], [], [], drawn[-1].num_src, known[relation[2]])
            for hop in drawn:
                expected.indices += hop.indices
                expected.edge_ids += hop.edge_ids
                expected.indptr += [expected.indptr[-1] + end for end in hop.indptr[1:]]
            same_block(block, expected)
        for (source, _, _), hop in hops[depth].items():
            known[source] = hop.num_src


def same_block(block: Block, expected: OracleBlock) -> None:
    assert block.indptr.tolist() == expected.indptr
    assert block.indices.tolist() == expected.indices
    assert block.edge_ids.tolist() == expected.edge_ids
    assert (block.num_src, block.num_dst) == (expected.num_src, expected.num_dst)
    assert block.indptr.dtype == block.indices.dtype == np.int32
    assert block.edge_ids.dtype == np.int64
    assert block.edge_weight is None or block.edge_weight.shape == block.indices.shape
