"""Samplers for seeds with times. A seed's neighbourhood has only edges before the seed's time.

`make_temporal_sampler` and `make_hetero_temporal_sampler` make them. Each seed grows its own tree of nodes, because
seeds have different times. While a batch is sampled, it has entries in place of nodes: an entry is a number for one
node in one tree, see `ranges`. `HopFrame` does the sampling.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from gloader.core.fanouts import checked_fanouts
from gloader.errors import ConfigError
from gloader.samplers.arguments import checked_hops, resolve_fanouts
from gloader.samplers.hops import HopFrame
from gloader.samplers.neighbor import NeighborPick, require_weights
from gloader.types import CollectiveFanouts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gloader.config import Layout
    from gloader.core.fanouts import FanoutsLike
    from gloader.samplers.graph import HeteroGraph, Topology
    from gloader.samplers.merged import MergedBatch, MergedHeteroBatch
    from gloader.samplers.ranges import TimeRule
    from gloader.types import AnySeeds, BatchId, HeteroBatch, SampledBatch


class TemporalSampler:
    """Samples up to ``fanouts[l]`` in-neighbours of each node in hop l, along edges before the seed's time.

    A seed's time holds for all hops: the seed's tree has no later edge, as in PyG and GraphBolt. A batch is disjoint:
    each tree has its own entries in ``SampledBatch.nodes``, so a node id repeats there if several trees have the node.
    Seeds may repeat, with equal or different times.

    Every draw is a hash of (seed, epoch, batch index, hop, number of the seed in the batch, node). So equal arguments
    give equal batches, for any number of threads and any order of calls, and a repeated seed has separate draws. The
    first seed's tree has the draws of `NeighborSampler` among the allowed edges. Pure and thread-safe. Each concurrent
    call holds a hash table for its largest batch, which is released with the sampler.

    Parameters
    ----------
    graph : the topology, with times
    fanouts : neighbours per node, hop next to the seeds first; 0 takes none, -1 takes all in order
    rule : the time rule: allowed edges, and the choice among them
    seed : any integer; taken modulo 2**64
    layout : "layered" or "merged", see `make_sampler`
    weighted, importance : draw by weight among the edges before a time, see `NeighborSampler`

    Raises
    ------
    ConfigError
        A fan-out is not an integer >= -1, or there is no fan-out. The graph has no times, or with ``weighted`` no
        weights, or its sources and destinations have different types.
    """

    def __init__(
        self,
        graph: Topology,
        fanouts: Sequence[int],
        *,
        rule: TimeRule,
        seed: int = 0,
        layout: Layout = "layered",
        weighted: bool = False,
        importance: bool = True,
    ) -> None:
        if graph.times is None:
            raise ConfigError(
                "sampling by time needs a time for each edge, and this graph has none; prepare the dataset with "
                "--edge-time, or make it by Dataset.from_numpy(..., edge_time=...), or use time_strategy='none'"
            )
        if graph.num_sources != graph.num_nodes:
            raise ConfigError(
                "this graph is a relation between two types, and TemporalSampler needs a graph of one type; use "
                "HeteroTemporalSampler"
            )
        self.graph = graph
        self.fanouts = checked_hops(fanouts)
        self.rule = rule  # the time rule, not a sweep rule
        self.layout = layout
        pick = _picks(rule, seed, weighted=weighted, importance=importance)
        self._frame = HopFrame.of_one_type(pick(graph, fanouts), rule=rule)

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        """Sample blocks in the sampler's layout. Thread-safe.

        Parameters
        ----------
        batch_id : the batch's epoch and index, part of the random key
        seeds : `BatchSeeds` with ``times``; nodes may repeat, see `HopFrame.sample`

        Raises
        ------
        SeedError, ConfigError, GraphError
            See `HopFrame.sample`. Another cause: the times of a node's in-edges on the SSD do not ascend.
        """
        if self.layout == "merged":
            return self.sample_merged(batch_id, seeds).to_blocks()
        return self._frame.sample(batch_id, seeds).one_type()

    def sample_merged(self, batch_id: BatchId, seeds: AnySeeds, /) -> MergedBatch:
        """Sample merged hops: a hop expands only the entries that the previous hop added, as in PyG. Thread-safe.

        Parameters and errors as in `sample`.
        """
        return self._frame.sample(batch_id, seeds, is_merged=True).one_type_merged()


class HeteroTemporalSampler:
    """Samples as `TemporalSampler`, for several relations: in each hop, all relations extend the nodes before the hop.

    A tree may have nodes with all types, each node once. In a relation without times all edges are allowed. A draw's
    hash includes the relation's number, as in `RelationwiseSampler`. A graph with one relation gives the same batches
    as its topology in a `TemporalSampler`. Pure and thread-safe.

    Parameters
    ----------
    graph : the topology, with times for at least one relation
    fanouts : neighbours per node, relation and hop, see `checked_fanouts`
    rule : the time rule: allowed edges, and the choice among them
    seed : any integer; taken modulo 2**64
    layout : "layered" or "merged", see `make_sampler`
    weighted, importance : draw by weight among the edges before a time, see `NeighborSampler`

    Raises
    ------
    ConfigError
        Fan-outs name an unknown relation, lack a relation, or are collective; no relation has times.
    """

    def __init__(
        self,
        graph: HeteroGraph,
        fanouts: FanoutsLike,
        *,
        rule: TimeRule,
        seed: int = 0,
        layout: Layout = "layered",
        weighted: bool = False,
        importance: bool = True,
    ) -> None:
        checked = checked_fanouts(fanouts)
        if isinstance(checked, CollectiveFanouts):
            raise ConfigError(
                f"time_strategy={rule.strategy!r} draws relation by relation; use a fan-out for each relation instead "
                f"of {str(checked)!r}"
            )
        if weighted:
            require_weights(graph)
        if all(topology.times is None for topology in graph.relations.values()):
            raise ConfigError(
                "sampling by time needs times of edges, and no relation of this graph has any; prepare the dataset "
                "with --edge-time, or use time_strategy='none'"
            )
        self.graph = graph
        self.rule = rule
        self.layout = layout
        pick = _picks(rule, seed, importance=importance)
        resolved = resolve_fanouts(checked, tuple(graph.relations))
        picks = [
            pick(topology, hops, weighted=weighted and topology.weights is not None)
            for topology, hops in zip(graph.relations.values(), resolved, strict=True)
        ]
        self._frame = HopFrame(graph, picks, num_hops=len(checked), rule=rule)

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> HeteroBatch:
        """Sample blocks in the sampler's layout. Thread-safe.

        Parameters
        ----------
        batch_id : the batch's epoch and index, part of the random key
        seeds : `BatchSeeds` with ``times`` and any types, in one numbering; nodes may repeat, see `HopFrame.sample`

        Raises
        ------
        SeedError, ConfigError, GraphError
            See `TemporalSampler.sample`.
        """
        if self.layout == "merged":
            return self.sample_merged(batch_id, seeds).to_blocks()
        return self._frame.sample(batch_id, seeds).by_type()

    def sample_merged(self, batch_id: BatchId, seeds: AnySeeds, /) -> MergedHeteroBatch:
        """Sample merged hops: a hop expands only the entries that the previous hop added, as in PyG. Thread-safe.

        Parameters and errors as in `sample`.
        """
        return self._frame.sample(batch_id, seeds, is_merged=True).by_type_merged()


def _picks(rule: TimeRule, seed: int, **options: Any) -> Callable[..., NeighborPick]:
    """Return a function that makes a relation's `NeighborPick` from its topology and fan-outs."""
    return partial(
        NeighborPick, seed=seed, replace=rule.replace, takes_last=rule.strategy == "last", **options
    )
