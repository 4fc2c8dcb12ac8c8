"""Merged hops as blocks: every node draws once, and every block holds all that its destinations drew."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from unit.samplers.graphs import grid, random_graph, star

from gloader.errors import ConfigError, SeedError
from gloader.samplers import CscGraph, MergedBlockSampler, NeighborSampler, arguments
from gloader.types import BatchId, SampledBatch

FIRST = BatchId(epoch=0, index=0)


def sample(graph: CscGraph, fanouts: list[int], seeds: object, **options: bool) -> SampledBatch:
    sampler = MergedBlockSampler(NeighborSampler(graph, fanouts, seed=9, **options))
    return sampler.sample(FIRST, np.asarray(seeds, dtype=np.int64))


@pytest.mark.parametrize("options", [{}, {"replace": True}, {"weighted": True}])
def test_a_block_is_the_beginning_of_the_one_below_it(options: dict[str, bool]) -> None:
    graph = random_graph(500, 40, weighted=True)
    batch = sample(graph, [4, 3, 2], np.arange(25), **options)
    for below, block in pairwise(batch.blocks):
        assert below.num_dst == block.num_src
        assert below.num_edges > block.num_edges
        assert below.indptr[: block.num_dst + 1].tolist() == block.indptr.tolist()
        for ours, theirs in ((below.indices, block.indices), (below.edge_ids, block.edge_ids)):
            assert ours[: block.num_edges].tolist() == theirs.tolist()
            assert np.shares_memory(ours, theirs)
        assert (below.edge_weight is None) == (block.edge_weight is None) == ("weighted" not in options)
        if below.edge_weight is not None and block.edge_weight is not None:
            assert below.edge_weight[: block.num_edges].tolist() == block.edge_weight.tolist()


def test_a_node_draws_as_many_as_the_hop_after_the_one_that_found_it_says() -> None:
    graph = random_graph(500, 40)
    batch = sample(graph, [4, 3, 2], np.arange(25))
    last, middle, first = batch.blocks
    bounds = [0, first.num_dst, middle.num_dst, last.num_dst]
    degrees = np.diff(graph.indptr)[batch.nodes]
    for (start, stop), fanout in zip(pairwise(bounds), [4, 3, 2], strict=True):
        drawn = np.diff(last.indptr)[start:stop]
        assert drawn.tolist() == np.minimum(degrees[start:stop], fanout).tolist()
    assert len(np.unique(last.edge_ids)) == last.num_edges


def test_the_edges_are_those_of_the_merged_batch() -> None:
    graph = random_graph(500, 40)
    merged = NeighborSampler(graph, [4, 3, 2], seed=9).sample_merged(FIRST, np.arange(25))
    batch = sample(graph, [4, 3, 2], np.arange(25))
    assert batch.nodes.tolist() == merged.nodes.tolist()
    assert batch.blocks[0].indices.tolist() == merged.edge_index[0].tolist()
    assert batch.blocks[0].edge_ids.tolist() == merged.edge_ids.tolist()
    assert [b.num_edges for b in reversed(batch.blocks)] == np.cumsum(merged.num_sampled_edges).tolist()


def test_all_neighbours_are_the_same_nodes_in_both_layouts_and_each_node_has_all_its_edges() -> None:
    graph = random_graph(200, 6)
    layered = NeighborSampler(graph, [-1, -1]).sample(FIRST, np.arange(9))
    merged = sample(graph, [-1, -1], np.arange(9))
    assert merged.nodes.tolist() == layered.nodes.tolist()
    for ours, theirs in zip(merged.blocks, layered.blocks, strict=True):
        assert ours.indptr.tolist() == theirs.indptr.tolist()
        assert ours.indices.tolist() == theirs.indices.tolist()


@pytest.mark.reliability("C7")
def test_no_seeds_and_hops_without_edges() -> None:
    empty = sample(random_graph(10, 3), [2, 2], [])
    assert [(b.num_dst, b.num_src, b.indptr.tolist()) for b in empty.blocks] == [(0, 0, [0])] * 2
    nothing = sample(random_graph(30, 9), [0, 4], [5, 6])
    assert [(b.num_dst, b.num_src, b.indptr.tolist()) for b in nothing.blocks] == [(2, 2, [0, 0, 0])] * 2


def test_hops_that_are_too_large_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = CscGraph(indptr=np.array([0, 15, 30]), indices=np.array([1] * 15 + [0] * 15))
    assert sample(graph, [-1, -1], [0]).blocks[0].num_edges == 30
    monkeypatch.setattr(arguments, "MAX_LOCAL", 20)
    with pytest.raises(
        ConfigError, match=r"hop 1 of .* would have 2\*\*31 edges or more; lower the batch size"
    ):
        sample(graph, [-1, -1], [0])


@pytest.mark.reliability("C8")
def test_errors_are_those_of_the_sampler() -> None:
    with pytest.raises(SeedError, match="1 seeds repeat"):
        sample(star(3), [2], [0, 0])


def test_batches_are_the_same_on_every_machine_and_in_every_version() -> None:
    sampler = MergedBlockSampler(NeighborSampler(grid(), [7, 20, 3], seed=11))
    state = hashlib.sha256()
    for epoch, index in [(0, 0), (0, 1), (3, 2)]:
        batch = sampler.sample(BatchId(epoch=epoch, index=index), np.arange(index, 97, 9))
        for array in (batch.nodes, *(a for b in batch.blocks for a in (b.indptr, b.indices, b.edge_ids))):
            state.update(array.tobytes())
    assert state.hexdigest() == "16dfd6dbf26f9b530d57b4c6efc0770021dd410fcae253d8a4ace63b03c5d1fc"
