"""Sampling by time: each seed asks at a time of its own, and all of its neighbourhood is from before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gloader.errors import ConfigError
from gloader.samplers.arguments import checked_hops, checked_seed, checked_seeds
from gloader.samplers.exclusion import NOTHING_EXCLUDED, excluded_edges
from gloader.samplers.hops import checked_total
from gloader.samplers.merged import MergedBatch, merge_hops
from gloader.samplers.rng import layer_key
from gloader.samplers.timed_hops import MAX_ENTRY, TimedHops, require_entries, timed_seeds
from gloader.samplers.workspace import WorkspacePool
from gloader.types import SampledBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.config import Layout
    from gloader.samplers.graph import Topology
    from gloader.samplers.timed_hops import TimedSeeds, TimeRule
    from gloader.types import AnySeeds, BatchId, Block, IdArray, LocalArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _TreeNodes:
    """The nodes of a batch, as of `SampledBatch`."""

    nodes: IdArray
    trees: LocalArray
    in_degrees: NDArray[np.float32]


class TemporalSampler:
    """Samples up to ``fanouts[l]`` in-neighbours of each node in hop l, of the edges before the time of its seed.

    The time of a seed holds for all hops: no edge of its tree is from after it, as in PyG and GraphBolt. A batch is
    disjoint: within the tree of a seed each node has one place in ``SampledBatch.nodes``, and no other tree shares it,
    so that ids repeat there. Seeds may repeat, at the same time or at others.

    Every draw is a hash of (seed, epoch, batch index, hop, number of the seed in the batch, node): equal arguments give
    equal batches, for any number of threads and any order of calls, and a seed that repeats draws anew. The tree of the
    first seed is what `NeighborSampler` draws of the edges that it may take. Pure and thread-safe; each concurrent call
    holds a hash table of its largest batch, released with the sampler.

    Parameters
    ----------
    graph : the topology, with times
    fanouts : neighbours per node, hop next to the seeds first; 0 takes none, -1 takes all in order
    rule : which edges a node may take, and which it takes
    seed : any integer; taken modulo 2**64
    layout : "layered" or "merged", see `make_sampler`

    Raises
    ------
    ConfigError
        A fan-out is not an integer >= -1, there is none; the graph has no times, or its edges lead from another type.
    """

    def __init__(
        self,
        graph: Topology,
        fanouts: Sequence[int],
        *,
        rule: TimeRule,
        seed: int = 0,
        layout: Layout = "layered",
    ) -> None:
        if graph.times is None:
            raise ConfigError(
                "sampling by time needs a time for each edge, and this graph has none; prepare the dataset with "
                "--edge-time, or make it by Dataset.from_numpy(..., edge_time=...), or use time_strategy='none'"
            )
        if graph.num_sources != graph.num_nodes:
            raise ConfigError(
                "this graph is a relation between two types, and one of a single type is sampled here"
            )
        self.graph = graph
        self.fanouts = checked_hops(fanouts)
        self.rule = rule
        self.seed = checked_seed(seed)
        self.layout = layout
        self._hops = TimedHops(graph=graph, fanouts=self.fanouts, rule=rule)
        # Entries are beyond any array of labels: the pool makes hash tables.
        self._pool = WorkspacePool(MAX_ENTRY, max(self.fanouts))

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        """Sample blocks in the layout of the sampler. Thread-safe.

        Parameters
        ----------
        batch_id : the address of the batch, part of the random key
        seeds : `BatchSeeds` with ``times``; nodes may repeat, none give an empty batch. No hop takes an excluded edge

        Raises
        ------
        SeedError
            Seeds have no times, or not one each, or these are no integers; seeds are no integers or out of range.
            Excluded positions do not ascend, or are none of the graph.
        ConfigError
            The batch would have 2**31 nodes or edges in a hop, or entries beyond int64.
        GraphError
            Times that were read from the SSD do not ascend in the list of a node, or a graph that was not checked has
            an entry that cannot be; the message names the position.
        """
        if self.layout == "merged":
            return self.sample_merged(batch_id, seeds).to_blocks()
        given = timed_seeds(seeds)
        found, hops, counts = self._sample(batch_id, given, is_merged=False)
        return SampledBatch(
            id=batch_id,
            nodes=found.nodes,
            num_seeds=counts[1],
            blocks=tuple(reversed(hops)),  # a model starts at the hop that lies farthest from the seeds
            links=given.links,
            trees=found.trees,
            in_degrees=found.in_degrees,
        )

    def sample_merged(self, batch_id: BatchId, seeds: AnySeeds, /) -> MergedBatch:
        """Sample merged hops: only the entries found in one hop sample in the next, as in PyG. Thread-safe.

        Parameters and errors are those of `sample`.
        """
        given = timed_seeds(seeds)
        found, hops, counts = self._sample(batch_id, given, is_merged=True)
        return merge_hops(
            batch_id,
            found.nodes,
            hops,
            counts,
            links=given.links,
            trees=found.trees,
            in_degrees=found.in_degrees,
        )

    def _sample(
        self, batch_id: BatchId, seeds: TimedSeeds, *, is_merged: bool
    ) -> tuple[_TreeNodes, list[Block], list[int]]:
        """Return the nodes, the hops, and how many nodes were known: 0, the seeds, those of each hop."""
        num_nodes = self.graph.num_nodes
        roots = checked_seeds(seeds.nodes, num_nodes)
        require_entries(len(roots), num_nodes)
        entries = np.arange(len(roots), dtype=np.int64) * num_nodes + roots
        edges = (excluded_edges(seeds.excluded, self.graph, roots) or NOTHING_EXCLUDED).positions
        hops: list[Block] = []
        num_edges = 0
        with np.errstate(over="ignore"), self._pool.lend() as work:  # interpreted hashes wrap around
            work.sources.begin(entries)  # distinct, as trees are
            work.fetched = 0
            counts = [0, len(roots)]
            for hop in range(len(self.fanouts)):
                # Merged: those that the hop before found. Layered: everyone.
                here = range(counts[-2] if is_merged else 0, counts[-1])
                self._hops.fetch(work, here, seeds.times, edges)
                key = layer_key(self.seed, batch_id.epoch, batch_id.index, hop)
                hops.append(self._hops.sample_hop(work, batch_id, hop, here, key, edges))
                counts.append(hops[-1].num_src)
                num_edges += hops[-1].num_edges
                if is_merged:  # one list of all edges
                    checked_total(num_edges, hop, batch_id, self.fanouts)
            # Of those that draw nothing too: a model may look at the degrees of all.
            self._hops.fetch(work, range(counts[-1]), seeds.times, edges)
            degrees = work.degrees[: counts[-1]].astype(np.float32)
            trees, nodes = np.divmod(work.nodes[: counts[-1]], num_nodes)
        return _TreeNodes(nodes=nodes, trees=trees.astype(np.int32), in_degrees=degrees), hops, counts
