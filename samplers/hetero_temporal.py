"""Sampling a graph of several types by time: relation after relation, in a tree for each seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gloader.core.fanouts import checked_fanouts
from gloader.errors import ConfigError
from gloader.samplers.arguments import checked_seed, checked_seeds, resolve_fanouts
from gloader.samplers.exclusion import NOTHING_EXCLUDED, excluded_of_relations
from gloader.samplers.hetero_blocks import finish_blocks
from gloader.samplers.hetero_merged import MergedHeteroBatch, merge_hetero_hops
from gloader.samplers.hetero_workspace import HeteroWorkspacePool
from gloader.samplers.hops import checked_total
from gloader.samplers.rng import layer_key, relation_key
from gloader.samplers.timed_hops import MAX_ENTRY, TimedHops, require_entries, timed_seeds
from gloader.types import CollectiveFanouts, HeteroBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.config import Layout
    from gloader.core.fanouts import FanoutsLike
    from gloader.samplers.hetero_graph import HeteroGraph
    from gloader.samplers.hetero_workspace import HeteroWorkspace
    from gloader.samplers.timed_hops import TimedSeeds, TimeRule
    from gloader.types import AnySeeds, BatchId, Block, IdArray, LocalArray

_T = TypeVar("_T")


class HeteroTemporalSampler:
    """Samples as `TemporalSampler`, in each hop relation after relation over the nodes known before it.

    A tree has nodes of all types, each once. Edges of a relation without times are taken at any time: they have always
    been there. Draws are hashed with the number of the relation, as those of `RelationwiseSampler` are, so that a graph
    of one relation gives the batches of that relation alone. Pure and thread-safe.

    Parameters
    ----------
    graph : the topology, with times of at least one relation
    fanouts : neighbours per node, relation and hop, see `checked_fanouts`
    rule : which edges a node may take, and which it takes
    seed : any integer; taken modulo 2**64
    layout : "layered" or "merged", see `make_sampler`

    Raises
    ------
    ConfigError
        Fan-outs name a relation that is not there, miss one, or are of all relations together; no relation has times.
    """

    def __init__(
        self,
        graph: HeteroGraph,
        fanouts: FanoutsLike,
        *,
        rule: TimeRule,
        seed: int = 0,
        layout: Layout = "layered",
    ) -> None:
        checked = checked_fanouts(fanouts)
        if isinstance(checked, CollectiveFanouts):
            raise ConfigError(
                f"time_strategy={rule.strategy!r} draws relation by relation; use fan-outs of each relation in "
                f"place of {str(checked)!r}"
            )
        if all(topology.times is None for topology in graph.relations.values()):
            raise ConfigError(
                "sampling by time needs times of edges, and no relation of this graph has any; prepare the dataset "
                "with --edge-time, or use time_strategy='none'"
            )
        self.graph = graph
        self.rule = rule
        self.seed = checked_seed(seed)
        self.layout = layout
        self.num_hops = len(checked)
        self._types = graph.node_types
        number = {name: at for at, name in enumerate(self._types)}
        # Of each relation: the numbers of its types.
        self._sources = [number[source] for source, _, _ in graph.relations]
        self._destinations = [number[destination] for _, _, destination in graph.relations]
        resolved = resolve_fanouts(checked, tuple(graph.relations))
        self._hops = [
            TimedHops(graph=topology, fanouts=hops, rule=rule)
            for topology, hops in zip(graph.relations.values(), resolved, strict=True)
        ]
        largest = max((fanout for hops in resolved for fanout in hops), default=0)
        # Entries are beyond any array of labels: the pool makes hash tables.
        self._pool = HeteroWorkspacePool(graph, largest, limits=dict.fromkeys(self._types, MAX_ENTRY))

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> HeteroBatch:
        """Sample blocks in the layout of the sampler. Thread-safe.

        Parameters
        ----------
        batch_id : the address of the batch, part of the random key
        seeds : `BatchSeeds` with ``times``, of any types, numbered through; nodes may repeat, none give an empty batch.
            No hop takes an excluded edge

        Raises
        ------
        SeedError, ConfigError, GraphError
            As of `TemporalSampler.sample`.
        """
        if self.layout == "merged":
            return self.sample_merged(batch_id, seeds).to_blocks()
        given = timed_seeds(seeds)
        nodes, trees, hops, counts = self._sample(batch_id, given, is_merged=False)
        relations = tuple(self.graph.relations)
        return HeteroBatch(
            id=batch_id,
            nodes=_by_type(self.graph, nodes),
            num_seeds=_by_type(self.graph, [count[1] for count in counts]),
            # A model starts at the hop that lies farthest from the seeds.
            blocks=tuple(dict(zip(relations, blocks, strict=True)) for blocks in reversed(hops)),
            links=given.links,
            trees=_by_type(self.graph, trees),
        )

    def sample_merged(self, batch_id: BatchId, seeds: AnySeeds, /) -> MergedHeteroBatch:
        """Sample merged hops: only the entries found in one hop sample in the next, as in PyG. Thread-safe.

        Parameters and errors are those of `sample`.
        """
        given = timed_seeds(seeds)
        nodes, trees, hops, counts = self._sample(batch_id, given, is_merged=True)
        return merge_hetero_hops(
            batch_id,
            _by_type(self.graph, nodes),
            tuple(self.graph.relations),
            hops,
            _by_type(self.graph, counts),
            links=given.links,
            trees=_by_type(self.graph, trees),
        )

    def _sample(
        self, batch_id: BatchId, seeds: TimedSeeds, *, is_merged: bool
    ) -> tuple[list[IdArray], list[LocalArray], list[list[Block]], list[list[int]]]:
        """Return nodes and trees of each type, the hops, next to the seeds first, and what was known of each type.

        The latter are 0, the seeds, and the nodes known after each hop.
        """
        trees_of_types, nodes_of_types = self._roots(seeds)
        nobody = [None] * len(self._hops)
        given = excluded_of_relations(seeds.excluded, self.graph, nobody, nodes_of_types)
        excluded = [(each or NOTHING_EXCLUDED).positions for each in given or nobody]
        sizes = tuple(self.graph.num_nodes.values())
        hops: list[list[Block]] = []
        num_edges = [0] * len(self._hops)
        with np.errstate(over="ignore"), self._pool.lend() as work:  # interpreted hashes wrap around
            for space in work.relations:
                space.fetched = 0
            for found, trees, nodes, size in zip(
                work.found, trees_of_types, nodes_of_types, sizes, strict=True
            ):
                found.begin(trees * size + nodes)  # distinct, as trees are
            counts = [[0, len(nodes)] for nodes in nodes_of_types]
            for hop in range(self.num_hops):
                # Merged: those that the hop before found. Layered: everyone.
                here = [range(count[-2] if is_merged else 0, count[-1]) for count in counts]
                hops.append(self._sample_hop(work, batch_id, hop, here, seeds.times, excluded))
                for count, found in zip(counts, work.found, strict=True):
                    count.append(found.count)
                for number, block in enumerate(hops[-1]):
                    num_edges[number] += block.num_edges
                    if is_merged:  # one list of all edges
                        checked_total(num_edges[number], hop, batch_id, self._hops[number].fanouts)
            split = [
                np.divmod(found.nodes[: found.count], size)
                for found, size in zip(work.found, sizes, strict=True)
            ]
        return [nodes for _, nodes in split], [trees.astype(np.int32) for trees, _ in split], hops, counts

    def _sample_hop(
        self,
        work: HeteroWorkspace,
        batch_id: BatchId,
        hop: int,
        destinations: Sequence[range],
        asked: IdArray,
        excluded: Sequence[IdArray],
    ) -> list[Block]:
        """Return a block for each relation; ``destinations`` are positions in the entries of each type."""
        key = layer_key(self.seed, batch_id.epoch, batch_id.index, hop)
        blocks: list[Block | None] = []
        for number, hops in enumerate(self._hops):
            here, space = destinations[self._destinations[number]], work.relations[number]
            if not (here and hops.fanouts[hop] and hops.graph.num_edges):
                blocks.append(None)
                continue
            hops.fetch(space, here, asked, excluded[number])
            relation = relation_key(key, number)
            blocks.append(hops.sample_hop(space, batch_id, hop, here, relation, excluded[number]))
        return finish_blocks(
            blocks,
            num_src=[work.found[number].count for number in self._sources],
            num_dst=[len(destinations[number]) for number in self._destinations],
            has_weight=[False] * len(blocks),
        )

    def _roots(self, seeds: TimedSeeds) -> tuple[list[IdArray], list[IdArray]]:
        """Return the seeds of each type in their order: their numbers, and their ids within the type."""
        starts = self.graph.type_starts
        nodes = checked_seeds(seeds.nodes, int(starts[-1]))
        require_entries(len(nodes), max(self.graph.num_nodes.values(), default=0))
        types = np.searchsorted(starts[1:], nodes, side="right")
        trees = [np.flatnonzero(types == number) for number in range(len(self._types))]
        return trees, [nodes[of_type] - start for of_type, start in zip(trees, starts, strict=False)]


def _by_type(graph: HeteroGraph, values: Sequence[_T]) -> dict[str, _T]:
    return dict(zip(graph.node_types, values, strict=True))
