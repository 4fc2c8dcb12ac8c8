"""Each check of the sampler suite passes a toy sampler, and fails one that is broken in that way."""

from __future__ import annotations

import inspect
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest
from unit.testing.broken import must_fail

from gloader.core.offsets import offsets_of
from gloader.errors import SeedError
from gloader.samplers import NeighborSampler
from gloader.samplers.exclusion import excluded_edges, seeds_of
from gloader.testing.sampler_suite import NUM_NODES, SamplerSuite, make_graph
from gloader.types import BatchId, BatchSeeds, Block, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gloader.samplers import Topology
    from gloader.types import AnySeeds, IdArray, Sampler

GRAPH = make_graph()


class ToySampler:
    """Two hops of three edges each, drawn by numpy; every node found so far draws in the next hop."""

    def __init__(self, graph: Topology, seed: int) -> None:
        self.graph = graph
        self.seed = seed

    def sources(self, edges: np.ndarray) -> list[int]:
        values, places = self.graph.sources.at(edges)
        return values[places].tolist()

    def check(self, seeds: IdArray) -> None:
        if seeds.ndim != 1 or seeds.dtype.kind not in "iu":
            raise SeedError(f"seeds have shape {seeds.shape} and dtype {seeds.dtype}")
        if len(np.unique(seeds)) < len(seeds) or not ((seeds >= 0) & (seeds < self.graph.num_nodes)).all():
            raise SeedError(f"{seeds} are not distinct nodes")

    def pick(self, node: int, key: tuple[int, ...]) -> np.ndarray:
        edges = np.arange(*offsets_of(self.graph.offsets, np.array([node, node + 1])))
        return np.random.default_rng((*key, node)).permutation(edges)[:3]

    def sample(self, batch_id: BatchId, seeds: IdArray, /) -> SampledBatch:
        self.check(seeds)
        nodes, blocks = seeds.astype(np.int64), []
        for hop in range(2):
            key = (self.seed, batch_id.epoch, batch_id.index, hop)
            picks = [self.pick(node, key) for node in nodes.tolist()]
            edges = np.concatenate([np.zeros(0, np.int64), *picks])
            found = dict.fromkeys([*nodes.tolist(), *self.sources(edges)])
            local = {node: at for at, node in enumerate(found)}
            blocks.append(
                Block(
                    indptr=np.cumsum([0, *map(len, picks)]).astype(np.int32),
                    indices=np.array([local[node] for node in self.sources(edges)], np.int32),
                    edge_ids=edges,
                    num_src=len(found),
                    num_dst=len(nodes),
                )
            )
            nodes = np.array(list(found), np.int64)
        return SampledBatch(id=batch_id, nodes=nodes, num_seeds=len(seeds), blocks=tuple(reversed(blocks)))


class TestToy(SamplerSuite):
    def make_sampler(self, graph: Topology, *, seed: int) -> Sampler:
        return ToySampler(graph, seed)


class LeavingOut(ToySampler):
    """Takes `BatchSeeds`, and draws among the edges that are not excluded."""

    excluded: IdArray = np.empty(0, np.int64)

    def pick(self, node: int, key: tuple[int, ...]) -> np.ndarray:
        edges = np.arange(*offsets_of(self.graph.offsets, np.array([node, node + 1])))
        left = np.setdiff1d(edges, self.excluded)
        return np.random.default_rng((*key, node)).permutation(left)[:3]

    def given(self, seeds: AnySeeds) -> BatchSeeds:
        given = seeds_of(seeds)
        excluded_edges(given.excluded, self.graph)  # checks them
        return given

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        given = self.given(seeds)
        of_batch = copy(self)
        of_batch.excluded = np.concatenate([self.excluded, *given.excluded])
        return replace(ToySampler.sample(of_batch, batch_id, given.nodes), links=given.links)


class TestToyThatLeavesEdgesOut(SamplerSuite):
    takes_batch_seeds = True

    def make_sampler(self, graph: Topology, *, seed: int) -> Sampler:
        return LeavingOut(graph, seed)


def edited(edit: Callable[[SampledBatch], SampledBatch]) -> type[ToySampler]:
    """Return a sampler whose batches are changed before they are given out."""

    class Edited(ToySampler):
        def sample(self, batch_id: BatchId, seeds: IdArray, /) -> SampledBatch:
            return edit(super().sample(batch_id, seeds))

    return Edited


def with_block(batch: SampledBatch, at: int, **changes: Any) -> SampledBatch:
    blocks = list(batch.blocks)
    blocks[at] = replace(blocks[at], **changes)
    return replace(batch, blocks=tuple(blocks))


class IgnoresTheSeed(ToySampler):
    def __init__(self, graph: Topology, seed: int) -> None:
        super().__init__(graph, 0)


class IgnoresTheEpoch(ToySampler):
    def sample(self, batch_id: BatchId, seeds: IdArray, /) -> SampledBatch:
        return replace(super().sample(BatchId(epoch=0, index=batch_id.index), seeds), id=batch_id)


class IgnoresTheIndex(ToySampler):
    def sample(self, batch_id: BatchId, seeds: IdArray, /) -> SampledBatch:
        return replace(super().sample(BatchId(epoch=batch_id.epoch, index=0), seeds), id=batch_id)


class DrawsFromAStream(ToySampler):
    """The next batch depends on how many there were."""

    def __init__(self, graph: Topology, seed: int) -> None:
        super().__init__(graph, seed)
        self.stream = np.random.default_rng(seed)

    def pick(self, node: int, key: tuple[int, ...]) -> np.ndarray:
        return self.stream.permutation(super().pick(node, (0,)))[:2]


class TakesOnlyArrays(ToySampler):
    def sources(self, edges: np.ndarray) -> list[int]:
        return self.graph.indices[edges].tolist()  # type: ignore[attr-defined]


class TakesPositionsForPlaces(ToySampler):
    def sources(self, edges: np.ndarray) -> list[int]:
        values, _ = self.graph.sources.at(edges)
        return values[edges % max(len(values), 1)].tolist()


class LivesOfChance(ToySampler):
    def pick(self, node: int, key: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng().permutation(super().pick(node, key))


class SharesItsScratch(ToySampler):
    scratch = np.zeros(NUM_NODES, np.int64)

    def sample(self, batch_id: BatchId, seeds: IdArray, /) -> SampledBatch:
        batch = super().sample(batch_id, seeds)
        view = self.scratch[: len(batch.nodes)]
        view[:] = batch.nodes
        return replace(batch, nodes=view)


class SortsTheSeedsInPlace(ToySampler):
    def sample(self, batch_id: BatchId, seeds: IdArray, /) -> SampledBatch:
        batch = super().sample(batch_id, seeds)
        seeds.sort()
        return batch


class ChecksNothing(ToySampler):
    def check(self, seeds: IdArray) -> None:
        pass

    def sample(self, batch_id: BatchId, seeds: IdArray, /) -> SampledBatch:
        return super().sample(batch_id, np.clip(seeds, 0, self.graph.num_nodes - 1).astype(np.int64).ravel())


class InventsEdges(ToySampler):
    """A node without neighbours gets itself."""

    def sample(self, batch_id: BatchId, seeds: IdArray, /) -> SampledBatch:
        batch = super().sample(batch_id, seeds)
        if sum(block.num_edges for block in batch.blocks):
            return batch
        own = np.arange(len(seeds) + 1, dtype=np.int32)
        return with_block(batch, 0, indptr=own, indices=own[:-1], edge_ids=own[:-1].astype(np.int64))


class TakesExcludedEdges(LeavingOut):
    def pick(self, node: int, key: tuple[int, ...]) -> np.ndarray:
        return ToySampler.pick(self, node, key)


class LeavesOutNextToTheSeedsAlone(LeavingOut):
    def pick(self, node: int, key: tuple[int, ...]) -> np.ndarray:
        return (LeavingOut if key[-1] == 0 else ToySampler).pick(self, node, key)


class LeavesOutWhatItDrew(LeavingOut):
    """Fan-outs are not full."""

    def pick(self, node: int, key: tuple[int, ...]) -> np.ndarray:
        drawn = ToySampler.pick(self, node, key)
        return drawn[~np.isin(drawn, self.excluded)]


class DrawsOthersForAll(LeavingOut):
    def pick(self, node: int, key: tuple[int, ...]) -> np.ndarray:
        return super().pick(node, (*key, len(self.excluded)))


class ForgetsLinks(LeavingOut):
    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        return replace(super().sample(batch_id, seeds), links=None)


class LinksAreAnotherAddress(LeavingOut):
    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        shifted = replace(batch_id, index=batch_id.index + (self.given(seeds).links is not None))
        return replace(super().sample(shifted, seeds), id=batch_id)


class TakesAnyExclusion(LeavingOut):
    def given(self, seeds: AnySeeds) -> BatchSeeds:
        return seeds_of(seeds)


class LeavesOutWhatOthersExclude(LeavingOut):
    """Its own exclusion is where other threads see it."""

    shared: ClassVar[list[IdArray]] = []

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        self.shared += self.given(seeds).excluded
        return super().sample(batch_id, seeds)

    def pick(self, node: int, key: tuple[int, ...]) -> np.ndarray:
        picked = super().pick(node, key)
        return picked[~np.isin(picked, np.concatenate([picked[:0], *self.shared[-1:]]))]


class ReplaysInAnotherOrder(NeighborSampler):
    """What a pass brought is looked up where other values are."""

    def __init__(self, graph: Topology, seed: int) -> None:
        super().__init__(graph, [3, 3], seed=seed)

    def replay(self, batch_id: BatchId, seeds: IdArray, drawn: Sequence[np.ndarray]) -> SampledBatch:
        return super().replay(batch_id, seeds, [values[::-1].copy() for values in drawn])


class ReplaysAnotherBatch(ReplaysInAnotherOrder):
    def replay(self, batch_id: BatchId, seeds: IdArray, drawn: Sequence[np.ndarray]) -> SampledBatch:
        return self.sample(replace(batch_id, index=batch_id.index + 1), seeds)


class ReplaysWithoutExclusion(ReplaysInAnotherOrder):
    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[np.ndarray]) -> SampledBatch:
        return self.sample(batch_id, seeds_of(seeds).nodes)


def half_weights(batch: SampledBatch, value: float) -> SampledBatch:
    weights = np.full(batch.blocks[0].num_edges, value, np.float32)
    return with_block(batch, 0, edge_weight=weights)


CHAIN = SamplerSuite.test_blocks_chain_from_the_features_to_the_seeds
EDGES = SamplerSuite.test_every_edge_is_one_of_the_graph
WEIGHTS = SamplerSuite.test_weights_are_finite_and_positive
ADDRESS = SamplerSuite.test_seed_epoch_and_index_decide_the_batch
ON_DISK = SamplerSuite.test_a_graph_on_the_ssd_gives_the_same_batches
SWEPT = SamplerSuite.test_a_batch_is_made_of_what_passes_over_the_edges_brought
HISTORY = SamplerSuite.test_batches_drawn_before_do_not_matter
SCRATCH = SamplerSuite.test_a_batch_is_not_the_samplers_scratch
READS = SamplerSuite.test_graph_and_seeds_are_left_alone
THREADS = SamplerSuite.test_threads_and_order_do_not_matter
DISTINCT = SamplerSuite.test_seeds_that_are_no_distinct_nodes_are_refused
IDS = SamplerSuite.test_seeds_that_are_no_ids_are_refused
ALONE = SamplerSuite.test_nodes_without_neighbours_are_sampled
WITH_LINKS = SamplerSuite.test_batch_seeds_without_exclusion_give_the_batch_of_their_nodes
LEFT_OUT = SamplerSuite.test_excluded_edges_are_never_taken

MUTANTS = [
    (CHAIN, edited(lambda b: replace(b, id=BatchId(epoch=0, index=0))), [7]),
    (CHAIN, edited(lambda b: replace(b, num_seeds=b.num_seeds + 1)), [7]),
    (CHAIN, edited(lambda b: replace(b, nodes=b.nodes.astype(np.int32))), [7]),
    (CHAIN, edited(lambda b: replace(b, nodes=b.nodes[::-1].copy())), [7]),
    (CHAIN, edited(lambda b: replace(b, nodes=np.append(b.nodes, b.nodes[0]))), [7]),
    (CHAIN, edited(lambda b: replace(b, blocks=b.blocks[::-1])), [7]),
    (CHAIN, edited(lambda b: with_block(b, 0, num_dst=b.blocks[0].num_dst - 1)), [7]),
    (CHAIN, edited(lambda b: with_block(b, 1, indices=b.blocks[1].indices.astype(np.int64))), [7]),
    (CHAIN, edited(lambda b: with_block(b, 1, indices=b.blocks[1].indices + 10_000)), [7]),
    (CHAIN, edited(lambda b: with_block(b, 1, indptr=b.blocks[1].indptr[1:])), [7]),
    (CHAIN, edited(lambda b: with_block(b, 1, indptr=b.blocks[1].indptr[::-1].copy())), [7]),
    (CHAIN, edited(lambda b: with_block(b, 1, edge_ids=b.blocks[1].edge_ids[1:])), [7]),
    (EDGES, edited(lambda b: with_block(b, 0, edge_ids=np.roll(b.blocks[0].edge_ids, 1))), []),
    (EDGES, edited(lambda b: with_block(b, 0, indices=np.roll(b.blocks[0].indices, 1))), []),
    (WEIGHTS, edited(lambda b: half_weights(b, np.nan)), []),
    (WEIGHTS, edited(lambda b: half_weights(b, 0)), []),
    (WEIGHTS, edited(lambda b: with_block(b, 0, edge_weight=np.ones(3, np.float32))), []),
    (ADDRESS, IgnoresTheSeed, []),
    (ADDRESS, IgnoresTheEpoch, []),
    (ADDRESS, IgnoresTheIndex, []),
    (ADDRESS, LivesOfChance, []),
    (ON_DISK, TakesOnlyArrays, []),
    (ON_DISK, TakesPositionsForPlaces, []),
    (SWEPT, ReplaysInAnotherOrder, []),
    (SWEPT, ReplaysAnotherBatch, []),
    (HISTORY, DrawsFromAStream, []),
    (SCRATCH, SharesItsScratch, []),
    (READS, SortsTheSeedsInPlace, []),
    (THREADS, DrawsFromAStream, []),
    (DISTINCT, ChecksNothing, [[0, NUM_NODES]]),
    (DISTINCT, ChecksNothing, [[3, 4, 3]]),
    (IDS, ChecksNothing, []),
    (ALONE, InventsEdges, []),
    (WITH_LINKS, ForgetsLinks, []),
    (WITH_LINKS, LinksAreAnotherAddress, []),
    (LEFT_OUT, TakesExcludedEdges, []),
    (LEFT_OUT, LeavesOutNextToTheSeedsAlone, []),
    (LEFT_OUT, LeavesOutWhatItDrew, []),
    (LEFT_OUT, DrawsOthersForAll, []),
    (LEFT_OUT, ForgetsLinks, []),
    (LEFT_OUT, TakesAnyExclusion, []),
    (LEFT_OUT, LeavesOutWhatOthersExclude, []),
    (LEFT_OUT, ReplaysWithoutExclusion, []),
]


@pytest.mark.parametrize(("check", "kind", "arguments"), MUTANTS)
def test_a_broken_sampler_fails(check: Any, kind: type[ToySampler], arguments: list[Any]) -> None:
    class Broken(SamplerSuite):
        takes_batch_seeds = check in (WITH_LINKS, LEFT_OUT)

        def make_sampler(self, graph: Topology, *, seed: int) -> Sampler:
            return kind(graph, seed)

    takes_graph = "graph" in inspect.signature(check).parameters
    must_fail(check, Broken(), *([GRAPH] if takes_graph else []), *arguments)


def test_every_check_has_a_mutant() -> None:
    checks = {name for name in vars(SamplerSuite) if name.startswith("test_")}
    assert {check.__name__ for check, _, _ in MUTANTS} == checks


def test_a_failure_names_the_batch_and_its_fields() -> None:
    class Stateful(SamplerSuite):
        def make_sampler(self, graph: Topology, *, seed: int) -> Sampler:
            return DrawsFromAStream(graph, seed)

    with pytest.raises(AssertionError) as caught:
        Stateful().test_batches_drawn_before_do_not_matter(GRAPH)
    text = str(caught.value)
    assert "draws depend on calls before: BatchId(epoch=0, index=9) differs in nodes, blocks[0].in" in text
    assert "\\x" not in text  # no bytes
