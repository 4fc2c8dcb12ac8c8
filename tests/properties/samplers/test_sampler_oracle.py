"""The compiled sampler and a plain-Python one give identical batches on any graph."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from unit.samplers.graphs import SHARES, seeds_without, some_edges, use_hash_tables
from unit.samplers.oracle import OracleBlock, OracleSampler

from gloader.samplers import CscGraph, MergedBlockSampler, NeighborSampler
from gloader.types import AnySeeds, BatchId, SampledBatch

SEEDS = st.integers(0, 2**64 - 1)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    num_nodes = draw(st.integers(1, 12))
    degrees = draw(
        st.lists(st.sampled_from([0, 1, 3, 11, 40, 70, 90]), min_size=num_nodes, max_size=num_nodes)
    )
    num_edges = sum(degrees)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    weights = draw(
        st.none() | st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.5]), min_size=num_edges, max_size=num_edges)
    )
    return {
        "indptr": np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64),
        "indices": random.integers(0, num_nodes, num_edges).astype(
            draw(st.sampled_from([np.int32, np.int64]))
        ),
        "weights": weights,
        "excluded": ()
        if weights is not None
        else some_edges(num_edges, draw(st.sampled_from(SHARES)), random),
        "fanouts": draw(st.lists(st.sampled_from([-1, 0, 1, 2, 5, 10, 16, 17, 35]), min_size=1, max_size=3)),
        "seed": draw(SEEDS),
        "replace": draw(st.booleans()),
        "batch_id": BatchId(epoch=draw(st.integers(0, 2**40)), index=draw(st.integers(0, 2**40))),
        "seeds": draw(st.lists(st.integers(0, num_nodes - 1), unique=True)),
        "is_hashed": draw(st.booleans()),
    }


def samplers(case: dict[str, Any]) -> tuple[NeighborSampler, OracleSampler]:
    weights = case["weights"]
    graph = CscGraph(
        indptr=case["indptr"],
        indices=case["indices"],
        edge_weight=None if weights is None else np.array(weights, dtype=np.float64),
    )
    ours = NeighborSampler(
        graph, case["fanouts"], seed=case["seed"], replace=case["replace"], weighted=weights is not None
    )
    if case["is_hashed"]:
        use_hash_tables(ours)
    indptr, indices = case["indptr"].tolist(), case["indices"].tolist()
    excluded = frozenset(edge for of_relation in case["excluded"] for edge in of_relation.tolist())
    return ours, OracleSampler(
        indptr, indices, weights, case["fanouts"], case["seed"], case["replace"], excluded
    )


def seeds_of(case: dict[str, Any]) -> AnySeeds:
    return seeds_without(np.array(case["seeds"], dtype=np.int64), case["excluded"])


@given(cases())
def test_layered_batches_equal_the_oracle(case: dict[str, Any]) -> None:
    ours, oracle = samplers(case)
    batch_id = case["batch_id"]
    batch = ours.sample(batch_id, seeds_of(case))
    nodes, blocks = oracle.sample(batch_id.epoch, batch_id.index, case["seeds"])
    assert batch.nodes.tolist() == nodes
    assert batch.num_seeds == len(case["seeds"])
    same_blocks(batch, blocks)


@given(cases())
def test_merged_batches_equal_the_oracle(case: dict[str, Any]) -> None:
    ours, oracle = samplers(case)
    batch_id = case["batch_id"]
    batch = ours.sample_merged(batch_id, seeds_of(case))
    nodes, hops = oracle.sample_merged(batch_id.epoch, batch_id.index, case["seeds"])
    assert batch.nodes.tolist() == nodes
    assert batch.edge_index[0].tolist() == [source for hop in hops for source in hop.indices]
    assert batch.edge_ids.tolist() == [edge for hop in hops for edge in hop.edge_ids]
    assert batch.num_sampled_edges == tuple(len(hop.indices) for hop in hops)
    assert batch.num_sampled_nodes == (len(case["seeds"]), *new_nodes(hops, len(case["seeds"])))
    counts = [stop - start for hop in hops for start, stop in pairwise(hop.indptr)]
    assert batch.edge_index[1].tolist() == [node for node, count in enumerate(counts) for _ in range(count)]


@given(cases())
def test_the_blocks_of_merged_batches_equal_the_oracle(case: dict[str, Any]) -> None:
    ours, oracle = samplers(case)
    batch_id = case["batch_id"]
    batch = MergedBlockSampler(ours).sample(batch_id, seeds_of(case))
    nodes, blocks = oracle.sample_merged_blocks(batch_id.epoch, batch_id.index, case["seeds"])
    assert batch.nodes.tolist() == nodes
    assert batch.num_seeds == len(case["seeds"])
    same_blocks(batch, blocks)


def same_blocks(batch: SampledBatch, blocks: list[OracleBlock]) -> None:
    for block, expected in zip(batch.blocks, blocks, strict=True):
        assert block.indptr.tolist() == expected.indptr
        assert block.indices.tolist() == expected.indices
        assert block.edge_ids.tolist() == expected.edge_ids
        assert (block.num_src, block.num_dst) == (expected.num_src, expected.num_dst)


def new_nodes(hops: list[Any], num_seeds: int) -> list[int]:
    return np.diff([num_seeds, *(hop.num_src for hop in hops)]).tolist()
