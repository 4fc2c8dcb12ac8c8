"""The conformance suite of samplers: a test class inherits it and says how one is made."""

# ruff: noqa: S101 - tests that are shipped, for samplers elsewhere to inherit

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.errors import SeedError
from gloader.samplers import CscGraph
from gloader.types import BatchId, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from gloader.types import IdArray, Sampler

NUM_NODES = 600
_NUM_BATCHES = 12
_BATCH_SIZE = 50
_SWITCH_S = 1e-5  # threads change places often enough to meet inside a call


def make_graph(*, num_nodes: int = NUM_NODES, max_degree: int = 80, seed: int = 0) -> CscGraph:
    """Return a graph with isolated nodes, parallel edges, self loops and weights, some of them 0. Pure.

    Parameters
    ----------
    num_nodes : N
    max_degree : degrees are uniform in 0..max_degree
    seed : equal arguments give equal graphs
    """
    random = np.random.default_rng(seed)
    degrees = random.integers(0, max_degree + 1, num_nodes)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    num_edges = int(indptr[-1])
    return CscGraph(
        indptr=indptr,
        indices=random.integers(0, num_nodes, num_edges).astype(np.int32),
        edge_weight=random.random(num_edges) * (random.random(num_edges) > 0.2),
    )


def batch_bytes(batch: SampledBatch) -> list[bytes]:
    """Return every array of ``batch``, the weights included, as bytes: equal batches, equal lists. Pure."""
    arrays: list[NDArray[Any]] = [batch.nodes]
    for block in batch.blocks:
        arrays += [block.indptr, block.indices, block.edge_ids]
        arrays += [] if block.edge_weight is None else [block.edge_weight]
    return [repr((batch.id, batch.num_seeds)).encode(), *(array.tobytes() for array in arrays)]


class SamplerSuite:
    """Checks of every `Sampler`. A test class inherits them and gives `make_sampler`."""

    is_random = True  # False for a sampler that takes all neighbours

    def make_sampler(self, graph: CscGraph, *, seed: int) -> Sampler:
        """Return a sampler of ``graph``, of any number of hops; it must leave out some of 80 neighbours."""
        raise NotImplementedError

    @pytest.fixture
    def graph(self) -> CscGraph:
        """Give the graph that most checks sample."""
        return make_graph()

    @pytest.mark.parametrize("num_seeds", [0, 1, 7, NUM_NODES])
    def test_blocks_chain_from_the_features_to_the_seeds(self, graph: CscGraph, num_seeds: int) -> None:
        """Every batch is well-formed: dtypes, shapes, prefixes, local ids in range."""
        seeds = np.random.default_rng(num_seeds).permutation(NUM_NODES)[:num_seeds]
        batch_id = BatchId(epoch=2, index=5)
        batch = self.make_sampler(graph, seed=3).sample(batch_id, seeds)
        assert batch.id == batch_id
        assert batch.num_seeds == num_seeds
        assert batch.nodes.dtype == np.int64
        assert batch.nodes[:num_seeds].tolist() == seeds.tolist()
        assert len(np.unique(batch.nodes)) == len(batch.nodes)
        assert batch.blocks[0].num_src == len(batch.nodes)
        assert batch.blocks[-1].num_dst == num_seeds
        for outer, inner in pairwise(batch.blocks):
            assert outer.num_dst == inner.num_src
        for block in batch.blocks:
            assert block.num_dst <= block.num_src
            assert block.indptr.dtype == block.indices.dtype == np.int32
            assert block.edge_ids.dtype == np.int64
            assert block.indptr.shape == (block.num_dst + 1,)
            assert block.indptr[0] == 0
            assert block.indptr[-1] == block.num_edges == len(block.edge_ids)
            assert (np.diff(block.indptr) >= 0).all()
            assert ((block.indices >= 0) & (block.indices < block.num_src)).all()

    def test_every_edge_is_one_of_the_graph(self, graph: CscGraph) -> None:
        """An edge id names the edge: its source, and its destination by the range it lies in."""
        batch = self.make_sampler(graph, seed=3).sample(BatchId(epoch=0, index=0), np.arange(60))
        # A sampler without edges would pass everything below.
        assert sum(block.num_edges for block in batch.blocks)
        for block in batch.blocks:
            destination = np.repeat(batch.nodes[: block.num_dst], np.diff(block.indptr))
            assert (graph.indices[block.edge_ids] == batch.nodes[block.indices]).all()
            assert (graph.indptr[destination] <= block.edge_ids).all()
            assert (block.edge_ids < graph.indptr[destination + 1]).all()

    def test_weights_are_finite_and_positive(self, graph: CscGraph) -> None:
        """A sampled edge stands for some edges of the graph: never for none, never for NaN."""
        batch = self.make_sampler(graph, seed=3).sample(BatchId(epoch=0, index=0), np.arange(60))
        for block in batch.blocks:
            if block.edge_weight is not None:
                assert block.edge_weight.dtype == np.float32
                assert block.edge_weight.shape == (block.num_edges,)
                assert (np.isfinite(block.edge_weight) & (block.edge_weight > 0)).all()

    def test_seed_epoch_and_index_decide_the_batch(self, graph: CscGraph) -> None:
        """The address and nothing else: a new sampler draws the same, another address something else."""
        seeds = np.arange(80)
        drawn = {
            address: batch_bytes(
                self.make_sampler(graph, seed=address[0]).sample(
                    BatchId(epoch=address[1], index=address[2]), seeds
                )
            )[1:]
            for address in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
        }
        again = self.make_sampler(graph, seed=0).sample(BatchId(epoch=0, index=0), seeds)
        assert batch_bytes(again)[1:] == drawn[0, 0, 0]
        if self.is_random:
            different = {tuple(content) for content in drawn.values()}
            assert len(different) == len(drawn)

    def test_batches_drawn_before_do_not_matter(self, graph: CscGraph) -> None:
        """No state: not of batches that were sampled, not of one that was refused."""
        sampler, seeds = self.make_sampler(graph, seed=0), np.arange(40)
        fresh = batch_bytes(self.make_sampler(graph, seed=0).sample(BatchId(epoch=0, index=9), seeds))
        for index in range(5):
            sampler.sample(BatchId(epoch=0, index=index), seeds[index:])
            # A repeat is found in the middle of a kernel, when its map of nodes is half filled.
            for refused in ([NUM_NODES], [0, 1, 0]):
                with pytest.raises(SeedError):
                    sampler.sample(BatchId(epoch=0, index=index), np.array(refused))
        assert batch_bytes(sampler.sample(BatchId(epoch=0, index=9), seeds)) == fresh

    def test_a_batch_is_not_the_samplers_scratch(self, graph: CscGraph) -> None:
        """What a call returned stays as it is when the next one samples."""
        sampler = self.make_sampler(graph, seed=0)
        first = sampler.sample(BatchId(epoch=0, index=0), np.arange(40))
        before = batch_bytes(first)
        sampler.sample(BatchId(epoch=0, index=1), np.arange(40, 80))
        assert batch_bytes(first) == before

    def test_graph_and_seeds_are_left_alone(self, graph: CscGraph) -> None:
        """Readers never write."""
        seeds = np.arange(60)[::-1].copy()
        arrays = [graph.indptr, graph.indices, seeds]
        before = [array.tobytes() for array in arrays]
        self.make_sampler(graph, seed=0).sample(BatchId(epoch=0, index=0), seeds)
        assert [array.tobytes() for array in arrays] == before

    def test_threads_and_order_do_not_matter(self, graph: CscGraph) -> None:
        """One sampler serves many threads, in any order, and gives each the batch it would give alone."""
        expected = self._sample(self.make_sampler(graph, seed=0), threads=1, order=range(_NUM_BATCHES))
        # A thread usually keeps the interpreter for 5 ms, longer than a batch takes: nothing would ever meet.
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        try:
            for threads in (2, 8):
                sampler = self.make_sampler(graph, seed=0)
                shuffled = np.random.default_rng(threads).permutation(_NUM_BATCHES).tolist()
                assert self._sample(sampler, threads=threads, order=shuffled) == expected
                assert self._sample(sampler, threads=threads, order=range(_NUM_BATCHES)) == expected
        finally:
            sys.setswitchinterval(interval)

    @pytest.mark.parametrize("seeds", [[0, NUM_NODES], [-1], [2**40], [3, 4, 3]], ids=str)
    def test_seeds_that_are_no_distinct_nodes_are_refused(self, graph: CscGraph, seeds: list[int]) -> None:
        """Seeds out of range or twice are named before a kernel sees them."""
        with pytest.raises(SeedError):
            self.make_sampler(graph, seed=0).sample(BatchId(epoch=0, index=0), np.array(seeds))

    def test_seeds_that_are_no_ids_are_refused(self, graph: CscGraph) -> None:
        """Floats and matrices are no ids."""
        for seeds in (np.zeros(2), np.zeros((2, 1), np.int64)):
            with pytest.raises(SeedError, match="seeds have"):
                self.make_sampler(graph, seed=0).sample(BatchId(epoch=0, index=0), seeds)  # type: ignore[arg-type]

    def test_nodes_without_neighbours_are_sampled(self) -> None:
        """A graph without edges gives blocks without edges, of the seeds alone."""
        empty = CscGraph(indptr=np.zeros(9, np.int64), indices=np.zeros(0, np.int32), edge_weight=np.zeros(0))
        batch = self.make_sampler(empty, seed=0).sample(BatchId(epoch=0, index=0), np.array([4, 1]))
        assert batch.nodes.tolist() == [4, 1]
        assert all(block.num_edges == 0 and block.num_src == block.num_dst == 2 for block in batch.blocks)

    def _sample(self, sampler: Sampler, *, threads: int, order: Iterable[int]) -> list[list[bytes]]:
        """Return the content of the batches by index, whatever the ``order`` they are sampled in."""
        seeds: IdArray = np.random.default_rng(7).permutation(NUM_NODES)

        def one(index: int) -> tuple[int, list[bytes]]:
            part = seeds[index * _BATCH_SIZE : (index + 1) * _BATCH_SIZE]
            return index, batch_bytes(sampler.sample(BatchId(epoch=1, index=index), part))

        with ThreadPoolExecutor(threads) as pool:
            found = dict(pool.map(one, order))
        return [found[index] for index in range(_NUM_BATCHES)]
