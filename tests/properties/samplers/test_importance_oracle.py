"""The compiled importance samplers and plain-Python ones take the same edges with the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.samplers.graphs import use_hash_tables
from unit.samplers.importance_oracle import Hop, ImportanceOracle, weighted_importance
from unit.samplers.oracle import layer_key, node_key

from gloader.samplers import CscGraph, LaborSampler, LayerSampler, NeighborSampler
from gloader.types import BatchId, Block, SampledBatch


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    num_nodes = draw(st.integers(1, 15))
    degrees = draw(st.lists(st.sampled_from([0, 1, 3, 11, 40]), min_size=num_nodes, max_size=num_nodes))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    indices = random.integers(0, num_nodes, sum(degrees))
    return {
        "graph": CscGraph(
            indptr=np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64),
            indices=indices.astype(draw(st.sampled_from([np.int32, np.int64]))),
            edge_weight=random.choice([0.0, 0.25, 1.0, 3.5], len(indices)),
        ),
        "sizes": draw(st.lists(st.sampled_from([-1, 0, 1, 2, 5, 10]), min_size=1, max_size=3)),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "batch_id": BatchId(epoch=draw(st.integers(0, 2**40)), index=draw(st.integers(0, 2**40))),
        "seeds": np.array(draw(st.lists(st.integers(0, num_nodes - 1), unique=True)), dtype=np.int64),
        "iterations": draw(st.sampled_from([0, 1, 2, 3])),
        "is_shared": draw(st.booleans()),
        "is_hashed": draw(st.booleans()),
        "method": draw(st.sampled_from(["ladies", "fastgcn"])),
        "adjacency": draw(st.sampled_from(["mean", "gcn"])),
    }


def assert_hop_equals(graph: CscGraph, batch: SampledBatch, block: Block, expected: Hop) -> None:
    assert block.edge_weight is not None
    assert block.indptr.tolist() == [0, *np.cumsum([len(taken) for taken in expected.taken]).tolist()]
    assert block.edge_ids.tolist() == [edge for taken in expected.taken for edge in sorted(taken)]
    assert batch.nodes[block.indices].tolist() == graph.indices[block.edge_ids].tolist()
    weights = [taken[edge] for taken in expected.taken for edge in sorted(taken)]
    assert block.edge_weight.tolist() == pytest.approx(weights, rel=1e-6)


def check(case: dict[str, Any], sampler: Any, hop_of: Any) -> None:
    if case["is_hashed"]:
        use_hash_tables(sampler)
    batch = sampler.sample(case["batch_id"], case["seeds"])
    assert batch.nodes[: batch.num_seeds].tolist() == case["seeds"].tolist()
    num_nodes = len(case["seeds"])
    for hop, block in enumerate(reversed(batch.blocks)):
        assert block.num_dst == num_nodes
        nodes = batch.nodes[:num_nodes].tolist()
        assert_hop_equals(case["graph"], batch, block, hop_of(hop, nodes))
        found = set(nodes) | set(batch.nodes[block.indices].tolist())
        num_nodes = block.num_src
        assert set(batch.nodes[:num_nodes].tolist()) == found
        assert num_nodes == len(found)


def oracle_of(case: dict[str, Any]) -> ImportanceOracle:
    graph = case["graph"]
    return ImportanceOracle(graph.indptr.tolist(), graph.indices.tolist(), case["seed"])


@given(cases())
def test_labor_equals_the_oracle(case: dict[str, Any]) -> None:
    options = {"iterations": case["iterations"], "share_layers": case["is_shared"]}
    sampler = LaborSampler(case["graph"], case["sizes"], seed=case["seed"], **options)
    oracle, batch_id = oracle_of(case), case["batch_id"]

    def hop_of(hop: int, nodes: list[int]) -> Hop:
        key = oracle.key(batch_id.epoch, batch_id.index, 0 if case["is_shared"] else hop)
        return oracle.labor(key, nodes, case["sizes"][hop], case["iterations"])

    check(case, sampler, hop_of)


@given(cases())
def test_layer_sampling_equals_the_oracle(case: dict[str, Any]) -> None:
    options = {"method": case["method"], "adjacency": case["adjacency"]}
    sampler = LayerSampler(case["graph"], case["sizes"], seed=case["seed"], **options)
    oracle, batch_id = oracle_of(case), case["batch_id"]

    def hop_of(hop: int, nodes: list[int]) -> Hop:
        key = oracle.key(batch_id.epoch, batch_id.index, hop)
        pick = oracle.ladies if case["method"] == "ladies" else oracle.fastgcn
        return pick(key, nodes, case["sizes"][hop], case["adjacency"])

    check(case, sampler, hop_of)


@given(cases())
def test_weights_of_weighted_sampling_equal_the_oracle(case: dict[str, Any]) -> None:
    graph, batch_id = case["graph"], case["batch_id"]
    sampler = NeighborSampler(graph, case["sizes"][:1], seed=case["seed"], weighted=True)
    block = sampler.sample(batch_id, case["seeds"]).blocks[0]
    assert block.edge_weight is not None
    key = layer_key(case["seed"], batch_id.epoch, batch_id.index, 0)
    for i, node in enumerate(case["seeds"].tolist()):
        start, stop = graph.indptr[node], graph.indptr[node + 1]
        weights = graph.edge_weight[start:stop].tolist()
        expected = weighted_importance(node_key(key, node), weights, case["sizes"][0])
        row = slice(block.indptr[i], block.indptr[i + 1])
        found = dict(
            zip((block.edge_ids[row] - start).tolist(), block.edge_weight[row].tolist(), strict=True)
        )
        assert found == pytest.approx(expected, rel=1e-6)
