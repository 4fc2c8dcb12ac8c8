"""Neighbour sampling (Hamilton, Ying, Leskovec: "Inductive representation learning on large graphs", NIPS'17).

`NeighborPick` chooses one relation's edges in a hop; the loop over hops calls it (see `hops`). `NeighborSampler` is the
sampler for a graph of one type, and `MergedBlockSampler` is its form for PyG's layout. A position is an edge's index in
the graph. Edges on the SSD may be read in edge passes (sweeps) over the whole file, for many batches together. Then
`replay` makes a batch from the values that the passes read for it, without the graph.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.errors import ConfigError, ShapeError
from gloader.samplers import distinct_kernels, graph_errors, pick_kernels, time_kernels, weighted_kernels
from gloader.samplers.arguments import MAX_LOCAL, checked_hops, checked_seed, checked_total
from gloader.samplers.hops import HopFrame, hops_of_one_type
from gloader.samplers.list_rule import ListRule, picked_of_records
from gloader.samplers.pick_rule import UniformPickRule
from gloader.samplers.rng import layer_key
from gloader.samplers.workspace import Picked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.config import Layout
    from gloader.samplers.graph import EdgeLists, HeteroGraph, Topology
    from gloader.samplers.merged import MergedBatch
    from gloader.samplers.workspace import RelationSpace
    from gloader.types import AnySeeds, BatchId, IdArray, LocalArray, SampledBatch


class NeighborPick:
    """Picks up to ``fanouts[l]`` in-edges of each node in hop l: the `RelationPick` of `NeighborSampler`.

    Parameters
    ----------
    graph : the relation's edges
    fanouts, seed, replace, weighted, importance : as in `NeighborSampler`
    takes_last : take the last edges of each node's allowed range, in order, without draws

    Raises
    ------
    ConfigError
        See `NeighborSampler`.
    """

    def __init__(
        self,
        graph: Topology,
        fanouts: Sequence[int],
        *,
        seed: int = 0,
        replace: bool = False,
        weighted: bool = False,
        importance: bool = True,
        takes_last: bool = False,
    ) -> None:
        if weighted and graph.weights is None:
            raise ConfigError(
                "weighted sampling needs a weight for each edge, and this graph has none; prepare the dataset from a "
                "source that has them, such as `gloader prepare edges:FILE OUT` with the columns src, dst, weight, or "
                "Dataset.from_numpy(..., edge_weight=...); or use the sampler 'neighbor'"
            )
        self.graph = graph
        self.fanouts = checked_hops(fanouts)
        self.seed = checked_seed(seed)
        self.replace = bool(replace)
        self.weighted = bool(weighted)
        self.importance = bool(importance)
        self.takes_last = takes_last

    @property
    def unable_to_exclude(self) -> str | None:
        """The weighted sampler's name for error messages, because it cannot exclude edges; None if unweighted."""
        return "the sampler 'weighted'" if self.weighted else None

    @property
    def has_edge_weight(self) -> bool:
        """True if blocks have edge weights."""
        return self.weighted and self.importance

    def hop_key(self, batch_id: BatchId, hop: int) -> np.uint64:
        """Return a hop's random key. Pure."""
        return layer_key(self.seed, batch_id.epoch, batch_id.index, hop)

    def rule_of(self, layout: Layout, *, relation: int = 0) -> UniformPickRule | ListRule:
        """Return the sweep rule for a ``layout``.

        Parameters
        ----------
        layout : the batches' layout
        relation : the relation's number, see `relation_key`

        Raises
        ------
        ConfigError
            Draws are weighted with replacement.
        """
        if self.weighted:
            return self._list_rule(layout, relation=relation)
        return UniformPickRule(
            self.graph,
            self.fanouts,
            seed=self.seed,
            replace=self.replace,
            layout=layout,
            relation=relation,
        )

    def pick(
        self, space: RelationSpace, batch_id: BatchId, hop: int, destinations: range, key: np.uint64
    ) -> Picked:
        """Pick one hop's edges; for parameters and errors see `RelationPick`."""
        indptr, picked, edge_weight = self._pick(space, batch_id, hop, destinations, key)
        edge_ids = picked[: len(picked) - pick_kernels.SLACK]
        return Picked(indptr, edge_ids, edge_weight=edge_weight if self.has_edge_weight else None)

    def replay(
        self,
        space: RelationSpace,
        batch_id: BatchId,
        hop: int,
        destinations: range,
        key: np.uint64,
        drawn: NDArray[Any],
    ) -> Picked:
        """Return the edges of `pick` from ``drawn``, without the graph.

        ``drawn`` holds the sources at the hop's distinct positions, ascending by position. With weights it holds the
        records of `ListRule`. For other parameters and errors see `RelationPick`.
        """
        if self.weighted:
            return picked_of_records(self._list_rule(), space, batch_id, hop, destinations, drawn)
        indptr, picked, _ = self._pick(space, batch_id, hop, destinations, key)
        places, num_places = _find_places(
            space.ranges.nodes(space, destinations),
            space.degrees[destinations.start : destinations.stop],
            indptr,
            picked,
            fanout=self.fanouts[hop],
            replace=self.replace,
        )
        if num_places != len(drawn):
            raise ShapeError(
                f"hop {hop} of {batch_id} takes {num_places} distinct edges, and {len(drawn)} values were drawn "
                "for it: the values belong to another batch, or to a sampler with another seed or other fan-outs"
            )
        return Picked(indptr, picked[: len(picked) - pick_kernels.SLACK], sources=(drawn, places))

    def _pick(
        self, space: RelationSpace, batch_id: BatchId, hop: int, destinations: range, key: np.uint64
    ) -> tuple[LocalArray, IdArray, NDArray[np.float32] | None]:
        """Return a hop's edges: ``indptr`` (D + 1,), positions with `SLACK` spare entries for vectors, and weights.

        The number of edges is counted first, so that the arrays have the right size; then the edges are drawn.
        """
        fanout = self.fanouts[hop]
        indptr = np.empty(len(destinations) + 1, dtype=np.int32)
        lists = self._weights(space, fanout, destinations)
        num_edges = self._count(space, lists, fanout, destinations, indptr)
        is_too_many = min(space.sources.count + num_edges, space.sources.num_nodes) > MAX_LOCAL
        checked_total(-1 if is_too_many else num_edges, hop, batch_id, self.fanouts)
        # These arrays go into the batch. They cannot be scratch, which another call reuses.
        picked = np.empty(num_edges + pick_kernels.SLACK, dtype=np.int64)
        edge_weight = np.empty(num_edges, dtype=np.float32) if self.weighted else None
        self._draw(space, lists, fanout, destinations, key, indptr, picked, edge_weight)
        edge_ids = picked[:num_edges]
        if lists is None:
            space.ranges.pass_over(space, destinations, indptr, edge_ids)
        else:
            lists.to_positions(edge_ids, indptr, destinations.start)
        return indptr, picked, edge_weight

    def _list_rule(self, layout: Layout = "layered", *, relation: int = 0) -> ListRule:
        """Return the sweep rule of weighted draws; raises ConfigError with replacement."""
        if self.replace:
            raise ConfigError(
                "weighted sampling with replacement needs the sum of a node's weights before its first draw, and a "
                "sweep reads each edge only once; use topology='direct' or 'ram', or the sampler "
                "'weighted:replace=false'"
            )
        return ListRule(
            graph=self.graph,
            fanouts=self.fanouts,
            seed=self.seed,
            is_weighted=True,
            has_importance=self.importance,
            is_merged=layout == "merged",
            relation=relation,
        )

    def _weights(self, space: RelationSpace, fanout: int, destinations: range) -> EdgeLists | None:
        """Return the edge weights of ``destinations``; None for unweighted draws and for fan-out 0."""
        weights = self.graph.weights
        if weights is None or not self.weighted or fanout == 0:
            return None
        return weights.lists(space.starts, space.degrees, destinations.start, destinations.stop)

    def _count(
        self,
        space: RelationSpace,
        lists: EdgeLists | None,
        fanout: int,
        destinations: range,
        indptr: LocalArray,
    ) -> int:
        """Write the hop's local ``indptr`` (D + 1,); return the number of edges, or -1 if this exceeds int32."""
        common = (
            space.degrees,
            destinations.start,
            destinations.stop,
            fanout,
            self.replace,
            MAX_LOCAL,
            indptr,
        )
        if lists is None:
            return int(pick_kernels.count_uniform(*common))
        return int(weighted_kernels.count_weighted(lists.values, lists.starts, *common))

    def _draw(
        self,
        space: RelationSpace,
        lists: EdgeLists | None,
        fanout: int,
        destinations: range,
        key: np.uint64,
        indptr: LocalArray,
        out: IdArray,
        importance: NDArray[np.float32] | None,
    ) -> None:
        """Write the taken edges to ``out``, and their importance weights to ``importance``.

        With ``lists``, an edge is its place in the values of the lists; otherwise it is its position in the graph.
        """
        if fanout == 0:
            return
        starts = space.starts if lists is None else lists.starts
        common = (space.nodes, starts, space.degrees, destinations.start, destinations.stop)
        if lists is None:
            if self.takes_last:
                time_kernels.pick_last(*common[1:], indptr, out)
            elif self.replace:
                pick_kernels.pick_with_replacement(*common, fanout < 0, key, indptr, out)
            else:
                pick_kernels.pick_uniform(*common, key, indptr, out, space.scratch.bits)
            return
        if self.replace:
            # Each draw inverts the running sum of a node's weights, which takes one number per in-edge.
            pick = weighted_kernels.pick_weighted_with_replacement
            space.scratch.reserve_numbers(
                int(space.degrees[destinations.start : destinations.stop].max(initial=0))
            )
        else:
            pick = weighted_kernels.pick_weighted
            space.scratch.reserve_numbers(max(fanout, 0))
        bad = pick(lists.values, *common, fanout, key, indptr, out, space.scratch.numbers, importance)
        if bad >= 0:
            node = int(space.ranges.nodes(space, range(bad, bad + 1))[0])
            raise graph_errors.bad_weights(self.graph, node)


class NeighborSampler:
    """Samples up to ``fanouts[l]`` in-neighbours of each node in hop l.

    Every draw is a hash of (seed, epoch, batch index, hop, node). So equal arguments give equal batches, for any number
    of threads and any order of calls. Pure and thread-safe. Each concurrent call holds 4 bytes per node (a hash table
    for large graphs), released with the sampler.

    With fan-out k a hop takes k distinct in-edges of a node, and each k-subset is equally likely. From a node with at
    most k in-edges the hop takes all of them, in order. Each parallel edge counts; self loops are ordinary edges.

    Parameters
    ----------
    graph : the topology
    fanouts : neighbours per node, hop next to the seeds first; 0 takes none, -1 takes all in order
    seed : any integer; taken modulo 2**64
    replace : draw with replacement: k draws for every node that has a neighbour
    weighted : draw in proportion to the graph's edge weights; edges of weight zero are never taken
    importance : with ``weighted``, give blocks importance weights. Weighted sums over the sample are then unbiased
        estimates of plain sums over all in-edges. Without these weights a mean leans to the heavy edges, as in DGL and
        PyG

    Raises
    ------
    ConfigError
        A fan-out is not an integer >= -1, there is no fan-out, or ``weighted`` is set for a graph without weights.
    """

    def __init__(
        self,
        graph: Topology,
        fanouts: Sequence[int],
        *,
        seed: int = 0,
        replace: bool = False,
        weighted: bool = False,
        importance: bool = True,
    ) -> None:
        pick = NeighborPick(
            graph, fanouts, seed=seed, replace=replace, weighted=weighted, importance=importance
        )
        self.graph, self.fanouts, self.seed = graph, pick.fanouts, pick.seed
        self.replace, self.weighted, self.importance = pick.replace, pick.weighted, pick.importance
        self.relation_pick = pick  # for `RelationwiseSampler`

    @cached_property
    def _frame(self) -> HopFrame:
        """The loop over hops, for a graph of one type."""
        # The frame is made on demand, because a sampler for a relation between two types has no frame.
        return HopFrame.of_one_type(self.relation_pick)

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        """Sample layered blocks: every node found so far samples again in each hop, as in DGL. Thread-safe.

        Parameters
        ----------
        batch_id : the batch's epoch and index, part of the random key
        seeds : (B,) distinct node ids, see `HopFrame.sample`

        Raises
        ------
        SeedError, ConfigError, GraphError
            See `HopFrame.sample`.
        """
        return self._frame.sample(batch_id, seeds).one_type()

    def sample_merged(self, batch_id: BatchId, seeds: AnySeeds, /) -> MergedBatch:
        """Sample merged hops: only the nodes found in one hop sample in the next, as in PyG. Thread-safe.

        Parameters and errors as in `sample`.
        """
        return self._frame.sample(batch_id, seeds, is_merged=True).one_type_merged()

    @property
    def rule(self) -> UniformPickRule | ListRule:
        """The sweep rule for layered hops; raises as `NeighborPick.rule_of`."""
        return self.rule_of("layered")

    def rule_of(self, layout: Layout) -> UniformPickRule | ListRule:
        """Return the sweep rule for a ``layout``; raises as `NeighborPick.rule_of`."""
        return self.relation_pick.rule_of(layout)

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[NDArray[Any]]) -> SampledBatch:
        """Return the batch of `sample`, bit for bit, from the draws of edge passes. Thread-safe.

        Parameters
        ----------
        batch_id : the batch's epoch and index
        seeds : as in `sample`
        drawn : L arrays, the hop next to the seeds first. Each holds the sources at the hop's distinct positions,
            ascending by position. With weights each holds the records of `ListRule`

        Raises
        ------
        ShapeError
            ``drawn`` has another number of hops, or a hop has another number of distinct edges.
        SeedError, ConfigError, GraphError
            See `sample`.
        """
        hops = hops_of_one_type(drawn, len(self.fanouts))
        return self._frame.sample(batch_id, seeds, drawn=hops).one_type()

    def replay_merged(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[NDArray[Any]]) -> MergedBatch:
        """Return the batch of `sample_merged`; parameters and errors as in `replay`."""
        hops = hops_of_one_type(drawn, len(self.fanouts))
        return self._frame.sample(batch_id, seeds, is_merged=True, drawn=hops).one_type_merged()


class MergedBlockSampler:
    """Samples as `NeighborSampler.sample_merged` does, and returns blocks, see `MergedBatch.to_blocks`.

    Pure and thread-safe, as the sampler is.
    """

    def __init__(self, sampler: NeighborSampler) -> None:
        self.sampler = sampler

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        """Sample around ``seeds`` (B,); parameters and errors as in `NeighborSampler.sample`."""
        return self.sampler.sample_merged(batch_id, seeds).to_blocks()

    @property
    def rule(self) -> UniformPickRule | ListRule:
        """The sweep rule for merged hops; raises as `NeighborSampler.rule`."""
        return self.sampler.rule_of("merged")

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[NDArray[Any]]) -> SampledBatch:
        """Return the batch of `sample`; parameters and errors as in `NeighborSampler.replay`."""
        return self.sampler.replay_merged(batch_id, seeds, drawn).to_blocks()


def require_weights(graph: HeteroGraph) -> None:
    """Raise ConfigError if no relation in ``graph`` has weights. Pure."""
    if all(topology.weights is None for topology in graph.relations.values()):
        raise ConfigError(
            "weighted sampling needs a weight for each edge, and no relation of this graph has any; use the sampler "
            "'neighbor', or write edge weights of a relation when the dataset is made"
        )


def _find_places(
    nodes: IdArray,
    degrees: IdArray,
    indptr: LocalArray,
    edge_ids: IdArray,
    *,
    fanout: int,
    replace: bool,
) -> tuple[IdArray, int]:
    """Return each edge's rank among the hop's distinct edges by position, and the number of distinct edges. Pure.

    Parameters
    ----------
    nodes, degrees : (D,) the hop's destinations, in the batch's order, and their in-degrees
    indptr : (D + 1,) the index in ``edge_ids`` at which each destination's edges begin
    edge_ids : (K,) positions in the graph, followed by `SLACK` spare entries
    fanout, replace : the hop's fan-out, and True for draws with replacement

    Returns
    -------
    tuple
        (K,) places, and the number of distinct edges.
    """
    counts = np.diff(indptr).astype(np.int64)
    ranks, ordered = np.empty(pick_kernels.SLACK, dtype=np.int64), np.empty(max(fanout, 0), dtype=np.int64)
    if replace:
        distinct_kernels.count_picks(edge_ids, indptr, degrees, fanout, ranks, ordered, counts)
    # Positions ascend with nodes. So a destination's first rank is the number of distinct edges of all smaller nodes.
    order = np.argsort(nodes)
    ends = np.cumsum(counts[order])
    begins = np.empty_like(counts)
    begins[order] = ends - counts[order]
    places = np.empty(int(indptr[-1]) + pick_kernels.SLACK, dtype=np.int64)
    distinct_kernels.place_picks(edge_ids, indptr, degrees, fanout, replace, begins, ranks, ordered, places)
    return places[: indptr[-1]], int(ends[-1]) if len(ends) else 0
