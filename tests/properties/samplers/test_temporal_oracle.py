"""Batches of seeds that ask at a time, against plain Python: of each seed its own walk with a dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from unit.samplers.temporal_oracle import TemporalOracle

from gloader.samplers import CscGraph, make_temporal_sampler
from gloader.testing.sampler_suite import GraphOnDisk
from gloader.types import BatchId, BatchSeeds

_FEW, _MANY = st.integers(-4, 4), st.integers(-(2**63), 2**63 - 1)


@st.composite
def graphs(draw: st.DrawFn) -> CscGraph:
    """Graphs with parallel edges, self loops, many equal times, and times at the ends of int64."""
    num_nodes = draw(st.integers(1, 6))
    time = draw(st.sampled_from([_FEW, _MANY]))
    lists = draw(
        st.lists(
            st.lists(st.tuples(time, st.integers(0, num_nodes - 1)), max_size=24),
            min_size=num_nodes,
            max_size=num_nodes,
        )
    )
    edges = [edge for each in lists for edge in sorted(each)]
    return CscGraph(
        indptr=np.cumsum([0, *map(len, lists)]),
        indices=np.array([source for _, source in edges], dtype=draw(st.sampled_from([np.int32, np.int64]))),
        edge_time=np.array([time for time, _ in edges], dtype=np.int64),
    )


@given(
    graph=graphs(),
    data=st.data(),
    fanouts=st.lists(st.sampled_from([-1, 0, 1, 2, 5, 17]), min_size=1, max_size=3),
    how=st.sampled_from([("uniform", False), ("uniform", True), ("last", False)]),
    bound=st.sampled_from(["<", "<="]),
    window=st.one_of(st.none(), st.integers(1, 5), st.integers(2**62, 2**63 - 1)),
    is_merged=st.booleans(),
    is_held=st.booleans(),
)
def test_batches_are_those_of_a_walk_from_each_seed(
    graph: CscGraph,
    data: st.DataObject,
    fanouts: list[int],
    how: tuple[Any, bool],
    bound: Any,
    window: int | None,
    is_merged: bool,
    is_held: bool,
) -> None:
    assert graph.edge_time is not None
    times = st.one_of(_FEW, _MANY, st.sampled_from([*graph.edge_time.tolist(), 2**63 - 1, -(2**63)]))
    seeds = data.draw(st.lists(st.tuples(st.integers(0, graph.num_nodes - 1), times), max_size=5))
    excluded = data.draw(st.sets(st.integers(0, graph.num_edges - 1))) if graph.num_edges else set()
    nodes, asked = [node for node, _ in seeds], [time for _, time in seeds]
    strategy, replace = how
    sampler = make_temporal_sampler(
        graph if is_held else GraphOnDisk(graph),
        fanouts,
        7,
        layout="merged" if is_merged else "layered",
        strategy=strategy,
        bound=bound,
        window=window,
        spec=f"neighbor:replace={str(replace).lower()}",
    )
    batch_seeds = BatchSeeds(
        nodes=np.array(nodes, dtype=np.int64),
        times=np.array(asked, dtype=np.int64),
        excluded=(np.array(sorted(excluded), dtype=np.int64),),
    )
    batch_id = BatchId(epoch=3, index=5)
    oracle = TemporalOracle(
        indptr=graph.indptr.tolist(),
        indices=graph.indices.tolist(),
        times=graph.edge_time.tolist(),
        fanouts=fanouts,
        seed=7,
        strategy=strategy,
        bound=bound,
        window=window,
        replace=replace,
    )
    entries, hops = oracle.sample((3, 5), nodes, asked, excluded, is_merged=is_merged)
    batch = sampler.sample(batch_id, batch_seeds)
    assert batch.nodes.tolist() == [node for _, node in entries]
    assert batch.num_seeds == len(nodes)
    if is_merged:
        merged = sampler.sample_merged(batch_id, batch_seeds)
        assert merged.nodes.tolist() == batch.nodes.tolist()
        assert merged.indices.tolist() == [source for hop in hops for source in hop.indices]
        assert merged.edge_ids.tolist() == [edge for hop in hops for edge in hop.edge_ids]
        assert merged.num_sampled_edges == tuple(len(hop.indices) for hop in hops)
        assert batch.blocks[0].edge_ids.tolist() == merged.edge_ids.tolist()
        return
    for block, hop in zip(reversed(batch.blocks), hops, strict=True):
        assert block.indptr.tolist() == hop.indptr
        assert block.indices.tolist() == hop.indices
        assert block.edge_ids.tolist() == hop.edge_ids
        assert (block.num_src, block.num_dst) == (hop.num_src, hop.num_dst)
