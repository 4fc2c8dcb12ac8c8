"""Sampling a graph of several types: in each hop relation after relation, each over the nodes known before the hop."""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import TYPE_CHECKING

import numpy as np

from gloader.errors import ConfigError, ShapeError
from gloader.samplers.arguments import split_seeds
from gloader.samplers.drawn import checked_drawn
from gloader.samplers.exclusion import excluded_of_relations, seeds_of, unexcluded_seeds
from gloader.samplers.hetero_blocks import finish_blocks
from gloader.samplers.hetero_merged import MergedHeteroBatch, merge_hetero_hops
from gloader.samplers.hetero_rule import HeteroRule
from gloader.samplers.hetero_workspace import HeteroWorkspace, HeteroWorkspacePool
from gloader.samplers.hops import checked_total, fetch_degrees, require_distinct, taken_block
from gloader.samplers.rng import relation_key
from gloader.types import BatchId, Block, HeteroBatch, IdArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.config import Layout
    from gloader.samplers.collective import CollectiveDraws
    from gloader.samplers.exclusion import Excluded
    from gloader.samplers.hetero_graph import HeteroGraph
    from gloader.samplers.relation_sampler import HopDraws, RelationSampler
    from gloader.types import AnySeeds, BatchSeeds


class RelationwiseSampler:
    """Lets a sampler for each relation work on the nodes of a batch, hop after hop and relation after relation.

    A relation's draws are hashed with its number in the graph, and with nothing of its name. So a graph of one relation
    gives the batches of that relation alone, names do not matter, and a relation that is added behind the others leaves
    their draws alone. Pure and thread-safe; each concurrent call holds 4 bytes per node of every type (a hash table for
    large types), released with the sampler.

    Parameters
    ----------
    graph : the topology
    samplers : one for each relation, of as many hops; alike in everything but graph and fan-outs
    num_hops : L
    has_candidates : whether they need `Candidates`
    collective : draws for all relations into a type together, in place of the samplers; None: each draws for itself
    """

    def __init__(
        self,
        graph: HeteroGraph,
        samplers: Sequence[RelationSampler],
        *,
        num_hops: int,
        has_candidates: bool = False,
        collective: CollectiveDraws | None = None,
    ) -> None:
        self.graph = graph
        self.samplers = tuple(samplers)
        self.num_hops = num_hops
        self._collective = collective
        self._types = graph.node_types
        self._type_starts = graph.type_starts
        number = {name: at for at, name in enumerate(self._types)}
        # Of each relation: the numbers of its types.
        self._sources = [number[source] for source, _, _ in graph.relations]
        self._destinations = [number[destination] for _, _, destination in graph.relations]
        # Whether a relation can have edges in a hop at all: where not, nothing of it is looked at.
        self._is_drawn = [
            [sampler.fanouts[hop] != 0 and sampler.graph.num_edges > 0 for sampler in self.samplers]
            for hop in range(num_hops)
        ]
        largest = max(chain.from_iterable(sampler.fanouts for sampler in self.samplers), default=0)
        self._pool = HeteroWorkspacePool(graph, largest, has_candidates=has_candidates)

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> HeteroBatch:
        """Sample layered blocks: every node found so far samples again in each hop, as in DGL. Thread-safe.

        Parameters
        ----------
        batch_id : the address of the batch, part of the random key
        seeds : (B,) distinct nodes, of any types, numbered through: ``graph.type_starts`` of their type + id; those of
            a type keep their order; B = 0 gives an empty batch. With `BatchSeeds.excluded`, no hop takes one of these
            edges, see `NeighborSampler.sample`

        Raises
        ------
        SeedError
            Seeds are no integers, out of range or repeat; the message names the type and lists up to five. Excluded
            positions are not those of each relation, do not ascend, or are none of theirs.
        ConfigError
            The batch would have 2**31 nodes of a type, or edges of a relation in a hop; seeds have times, or edges are
            excluded that are not drawn alike relation by relation.
        GraphError
            A graph that was not checked has an entry that cannot be; the message names the node and the position.
        """
        return self._sample(batch_id, seeds, None)

    def sample_merged(self, batch_id: BatchId, seeds: AnySeeds, /) -> MergedHeteroBatch:
        """Sample merged hops: only the nodes found in one hop sample in the next, as in PyG. Thread-safe.

        Parameters and errors are those of `sample`.
        """
        return self._sample_merged(batch_id, seeds, None)

    @property
    def rule(self) -> HeteroRule:
        """What its layered hops want.

        Raises
        ------
        ConfigError
            It draws by weights with replacement, by LABOR with iterations, or from all relations together.
        """
        return self.rule_of("layered")

    def rule_of(self, layout: Layout) -> HeteroRule:
        """Return what the hops of ``layout`` want; raises as `rule`."""
        if self._collective is not None:
            raise ConfigError(
                "fan-outs of all relations together are drawn before it is known in which relation an edge lies, and "
                "edges that are swept go by relation after relation; use topology='ram' or 'direct', or fan-outs of "
                "each relation"
            )
        return HeteroRule(
            self.graph,
            [sampler.rule_of(layout, relation=number) for number, sampler in enumerate(self.samplers)],
            is_drawn=self._is_drawn,
            is_merged=layout == "merged",
        )

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[HopDraws]) -> HeteroBatch:
        """Return the batch that `sample` returns, bit for bit, from what its hops drew. Thread-safe.

        Parameters
        ----------
        batch_id : the address of the batch
        seeds : (B,) as of `sample`
        drawn : of each of the L hops, next to the seeds first, what each relation drew, see `HeteroRule`

        Raises
        ------
        ShapeError
            A hop of a relation takes another number of distinct edges, or there are other numbers of hops or relations.
        SeedError, ConfigError, GraphError
            As of `sample`.
        """
        return self._sample(batch_id, seeds, self._checked_drawn(drawn))

    def replay_merged(
        self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[HopDraws]
    ) -> MergedHeteroBatch:
        """Return the batch that `sample_merged` returns; parameters and errors are those of `replay`."""
        return self._sample_merged(batch_id, seeds, self._checked_drawn(drawn))

    def _checked_drawn(self, drawn: Sequence[HopDraws]) -> list[HopDraws]:
        if len(drawn) != self.num_hops:
            raise ShapeError(
                f"drawn arrays of {len(drawn)} hops for a batch of {self.num_hops}; pass those of each hop"
            )
        return [checked_drawn(of_hop, len(self.samplers), noun="relations") for of_hop in drawn]

    def _sample(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[HopDraws] | None) -> HeteroBatch:
        """Sample, or with ``drawn`` replay, layered blocks."""
        given, parts, excluded = self._given(seeds)
        hops: list[list[Block]] = []
        with np.errstate(over="ignore"), self._pool.lend() as work:  # interpreted hashes wrap around
            known = self._begin(work, parts, excluded)
            for hop in range(self.num_hops):
                here = None if drawn is None else drawn[hop]
                hops.append(self._sample_hop(work, batch_id, hop, [range(count) for count in known], here))
                known = [found.count for found in work.found]
            nodes = self._nodes(work)
        relations = self.graph.relations
        return HeteroBatch(
            id=batch_id,
            nodes=nodes,
            num_seeds=dict(zip(self._types, map(len, parts), strict=True)),
            # A model starts at the hop that lies farthest from the seeds.
            blocks=tuple(dict(zip(relations, blocks, strict=True)) for blocks in reversed(hops)),
            links=given.links,
        )

    def _sample_merged(
        self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[HopDraws] | None
    ) -> MergedHeteroBatch:
        """Sample, or with ``drawn`` replay, merged hops."""
        given, parts, excluded = self._given(seeds)
        hops: list[list[Block]] = []
        num_edges = [0] * len(self.samplers)
        with np.errstate(over="ignore"), self._pool.lend() as work:
            known = self._begin(work, parts, excluded)
            counts = [[0, count] for count in known]
            for hop in range(self.num_hops):
                # The nodes that the hop before found; in the first hop, the seeds.
                found_last = [range(*count[-2:]) for count in counts]
                here = None if drawn is None else drawn[hop]
                blocks = self._sample_hop(work, batch_id, hop, found_last, here)
                hops.append(blocks)
                for number, block in enumerate(blocks):
                    num_edges[number] = checked_total(
                        num_edges[number] + block.num_edges, hop, batch_id, self.samplers[number].fanouts
                    )
                for count, found in zip(counts, work.found, strict=True):
                    count.append(found.count)
            nodes = self._nodes(work)
        return merge_hetero_hops(
            batch_id,
            nodes,
            tuple(self.graph.relations),
            hops,
            dict(zip(self._types, counts, strict=True)),
            links=given.links,
        )

    def _sample_hop(
        self,
        work: HeteroWorkspace,
        batch_id: BatchId,
        hop: int,
        destinations: Sequence[range],
        drawn: HopDraws | None,
    ) -> list[Block]:
        """Return a block for each relation; ``destinations`` are positions in the nodes of each type."""
        if not self.samplers:
            return []
        key = self.samplers[0].hop_key(batch_id, hop)
        dealt = None
        if self._collective is not None:
            dealt = self._collective.deal(work, batch_id, hop, destinations, key)
        is_drawn = self._is_drawn[hop]
        blocks: list[Block | None] = []
        for number, sampler in enumerate(self.samplers):
            here = destinations[self._destinations[number]]
            if not (is_drawn[number] and here):
                blocks.append(None)
                continue
            space = work.relations[number]
            if dealt is None:
                fetch_degrees(sampler.graph, space, here)
                values = None if drawn is None else drawn[number]
                blocks.append(
                    sampler.sample_hop(space, batch_id, hop, here, relation_key(key, number), values)
                )
            else:
                indptr, edge_ids = dealt[number]
                sources = sampler.graph.sources.at(edge_ids)
                blocks.append(taken_block(sampler.graph, space, here, indptr, edge_ids, sources=sources))
        return self._finish(work, blocks, destinations)

    def _finish(
        self, work: HeteroWorkspace, blocks: Sequence[Block | None], destinations: Sequence[range]
    ) -> list[Block]:
        """Return the blocks of a hop once all its nodes are known; None: one without edges."""
        return finish_blocks(
            blocks,
            num_src=[work.found[number].count for number in self._sources],
            num_dst=[len(destinations[number]) for number in self._destinations],
            has_weight=[sampler.has_edge_weight for sampler in self.samplers],
        )

    def _given(self, seeds: AnySeeds) -> tuple[BatchSeeds, list[IdArray], Sequence[Excluded | None]]:
        """Return ``seeds``, those of each type, and what is excluded of each relation."""
        if self._collective is None:
            given = seeds_of(seeds)
        else:
            given = unexcluded_seeds(
                seeds, sampler="fan-outs of all relations together", instead="fan-outs of each relation"
            )
        unable = [sampler.unable_to_exclude for sampler in self.samplers]
        parts = split_seeds(given.nodes, self._type_starts)
        return given, parts, excluded_of_relations(given.excluded, self.graph, unable, parts)

    def _begin(
        self, work: HeteroWorkspace, parts: Sequence[IdArray], excluded: Sequence[Excluded | None]
    ) -> list[int]:
        """Make the seeds the first nodes of a batch; return how many there are of each type."""
        for space, of_relation in zip_longest(work.relations, excluded):  # () where nothing is
            space.begin(of_relation)
        for name, found, part in zip(self._types, work.found, parts, strict=True):
            if found.begin(part):
                require_distinct(part, noun=f"seeds of type {name!r}")
        return [len(part) for part in parts]

    def _nodes(self, work: HeteroWorkspace) -> dict[str, IdArray]:
        # Copies, as the workspace goes to another call; the blocks hold arrays of their own.
        return {
            name: found.nodes[: found.count].copy()
            for name, found in zip(self._types, work.found, strict=True)
        }


class MergedHeteroBlockSampler:
    """Samples as `RelationwiseSampler.sample_merged` and delivers blocks, see `MergedHeteroBatch.to_blocks`.

    Pure and thread-safe, as the sampler is.
    """

    def __init__(self, sampler: RelationwiseSampler) -> None:
        self.sampler = sampler

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> HeteroBatch:
        """Sample the neighbourhood of ``seeds`` (B,); parameters and errors as of `RelationwiseSampler.sample`."""
        return self.sampler.sample_merged(batch_id, seeds).to_blocks()

    def sample_merged(self, batch_id: BatchId, seeds: AnySeeds, /) -> MergedHeteroBatch:
        """Sample as `RelationwiseSampler.sample_merged`."""
        return self.sampler.sample_merged(batch_id, seeds)

    @property
    def rule(self) -> HeteroRule:
        """What its hops want; raises as `RelationwiseSampler.rule`."""
        return self.sampler.rule_of("merged")

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[HopDraws]) -> HeteroBatch:
        """Return the batch that `sample` returns; parameters and errors are those of `RelationwiseSampler.replay`."""
        return self.sampler.replay_merged(batch_id, seeds, drawn).to_blocks()
