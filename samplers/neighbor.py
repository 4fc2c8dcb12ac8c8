"""Neighbour sampling (Hamilton, Ying, Leskovec: "Inductive representation learning on large graphs", NIPS'17)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.errors import ConfigError, ShapeError
from gloader.samplers import graph_errors, pick_kernels, weighted_kernels
from gloader.samplers.arguments import MAX_LOCAL, checked_hops, checked_seed, checked_seeds
from gloader.samplers.drawn import checked_drawn, find_places
from gloader.samplers.exclusion import degrees_without, excluded_edges, seeds_of, unexcluded_seeds
from gloader.samplers.exclusion_kernels import pass_over
from gloader.samplers.hops import checked_total, enter_seeds, fetch_degrees, sample_layers, taken_block
from gloader.samplers.list_replay import replay_hop
from gloader.samplers.list_rule import ListRule
from gloader.samplers.merged import MergedBatch, merge_hops
from gloader.samplers.pick_rule import UniformPickRule
from gloader.samplers.rng import layer_key
from gloader.samplers.workspace import Workspace, WorkspacePool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.config import Layout
    from gloader.samplers.graph import EdgeLists, Topology
    from gloader.samplers.sweeping import HopRule
    from gloader.types import AnySeeds, BatchId, BatchSeeds, Block, IdArray, LocalArray, SampledBatch


class NeighborSampler:
    """Samples up to ``fanouts[l]`` in-neighbours of each node in hop l.

    Every draw is a hash of (seed, epoch, batch index, hop, node): equal arguments give equal batches, for any
    number of threads and any order of calls. Pure and thread-safe; each concurrent call holds 4 bytes per node
    (a hash table for large graphs), released with the sampler.

    A hop takes k distinct in-edges of a node, each k-subset equally likely, or all of them in order when there
    are no more than k. Parallel edges count as often as they occur; self loops are edges like any other.

    Parameters
    ----------
    graph : the topology
    fanouts : neighbours per node, hop next to the seeds first; 0 takes none, -1 takes all in order
    seed : any integer; taken modulo 2**64
    replace : draw with replacement: k draws for every node that has a neighbour
    weighted : draw in proportion to the graph's edge weights; edges of weight zero are never taken
    importance : with ``weighted``, give blocks the weights that make sums over the sample estimates without bias of
        those over all in-edges, alike; without them a mean leans to the heavy edges, as in DGL and PyG

    Raises
    ------
    ConfigError
        A fan-out is not an integer >= -1, there is none, or ``weighted`` is set for a graph without weights.
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
        self.graph = graph
        if weighted and graph.weights is None:
            raise ConfigError(
                "weighted sampling needs a weight for each edge, and this graph has none; prepare the dataset from a "
                "source that has them, such as `gloader prepare edges:FILE OUT` with the columns src, dst, weight, or "
                "Dataset.from_numpy(..., edge_weight=...); or use the sampler 'neighbor'"
            )
        self.fanouts = checked_hops(fanouts)
        self.seed = checked_seed(seed)
        self.replace = bool(replace)
        self.weighted = bool(weighted)
        self.importance = bool(importance)
        self._pool = WorkspacePool(graph.num_nodes, max(self.fanouts))

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        """Sample layered blocks: every node found so far samples again in each hop, as in DGL. Thread-safe.

        Parameters
        ----------
        batch_id : the address of the batch, part of the random key
        seeds : (B,) distinct node ids; B = 0 gives an empty batch. With `BatchSeeds.excluded`, no hop takes one of
            these edges: the fan-out stays full where edges are left, and all of these are equally likely

        Raises
        ------
        SeedError
            Seeds are no integers, out of range or repeat; the message lists up to five. Excluded positions do not
            ascend, or are none of the graph.
        ConfigError
            The batch would have 2**31 nodes or edges in a hop; seeds have times, or it draws by weights and edges are
            excluded.
        GraphError
            A graph that was not checked has an entry that cannot be; the message names the node and the position.
        """
        return self._sample(batch_id, seeds, None)

    def sample_merged(self, batch_id: BatchId, seeds: AnySeeds, /) -> MergedBatch:
        """Sample merged hops: only the nodes found in one hop sample in the next, as in PyG. Thread-safe.

        Parameters and errors are those of `sample`.
        """
        return self._sample_merged(batch_id, seeds, None)

    @property
    def rule(self) -> UniformPickRule | ListRule:
        """What its layered hops want.

        Raises
        ------
        ConfigError
            It draws by weights with replacement.
        """
        return self.rule_of("layered")

    def rule_of(self, layout: Layout, *, relation: int = 0) -> UniformPickRule | ListRule:
        """Return what the hops of ``layout`` want; raises as `rule`.

        Parameters
        ----------
        layout : of the batches
        relation : number of the relation that the graph is, see `relation_key`
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

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[NDArray[Any]]) -> SampledBatch:
        """Return the batch that `sample` returns, bit for bit, from what its hops drew. Thread-safe.

        Parameters
        ----------
        batch_id : the address of the batch
        seeds : as of `sample`
        drawn : L arrays, hop next to the seeds first: the sources at the distinct positions that the hop takes,
            ascending by position; by weights the records of `ListRule`

        Raises
        ------
        ShapeError
            A hop takes another number of distinct edges, or there is another number of hops.
        SeedError, ConfigError, GraphError
            As of `sample`.
        """
        return self._sample(batch_id, seeds, checked_drawn(drawn, len(self.fanouts)))

    def replay_merged(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[NDArray[Any]]) -> MergedBatch:
        """Return the batch that `sample_merged` returns; parameters and errors are those of `replay`."""
        return self._sample_merged(batch_id, seeds, checked_drawn(drawn, len(self.fanouts)))

    def _sample(
        self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[NDArray[Any]] | None
    ) -> SampledBatch:
        """Sample, or with ``drawn`` replay, layered blocks."""
        given = self._given(seeds)

        def sample_layer(
            _graph: Topology, work: Workspace, batch_id: BatchId, hop: int, num_dst: int
        ) -> Block:
            here = None if drawn is None else drawn[hop]
            return self.sample_hop(work, batch_id, hop, range(num_dst), self.hop_key(batch_id, hop), here)

        return sample_layers(self.graph, self._pool, batch_id, given, len(self.fanouts), sample_layer)

    def _sample_merged(
        self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[NDArray[Any]] | None
    ) -> MergedBatch:
        """Sample, or with ``drawn`` replay, merged hops."""
        graph, given = self.graph, self._given(seeds)
        checked = checked_seeds(given.nodes, graph.num_nodes)
        excluded = excluded_edges(given.excluded, graph, checked)
        hops: list[Block] = []
        num_edges = 0
        with np.errstate(over="ignore"), self._pool.lend() as work:
            counts = [0, enter_seeds(work.sources, checked)]
            work.begin(excluded)
            for hop in range(len(self.fanouts)):
                # The nodes that the hop before found; in the first hop, the seeds.
                found_last = range(counts[-2], counts[-1])
                fetch_degrees(graph, work, found_last)
                key, here = self.hop_key(batch_id, hop), None if drawn is None else drawn[hop]
                hops.append(self.sample_hop(work, batch_id, hop, found_last, key, here))
                counts.append(hops[-1].num_src)
                num_edges = checked_total(num_edges + hops[-1].num_edges, hop, batch_id, self.fanouts)
            nodes = work.nodes[: counts[-1]].copy()
        degrees = degrees_without(excluded, graph, nodes)
        return merge_hops(batch_id, nodes, hops, counts, links=given.links, in_degrees=degrees)

    def _given(self, seeds: AnySeeds) -> BatchSeeds:
        unable = self.unable_to_exclude
        return seeds_of(seeds) if unable is None else unexcluded_seeds(seeds, sampler=unable)

    @property
    def unable_to_exclude(self) -> str | None:
        """What it is called where it takes no excluded edges; None: it does."""
        return "the sampler 'weighted'" if self.weighted else None

    @property
    def has_edge_weight(self) -> bool:
        """Whether blocks have weights."""
        return self.weighted and self.importance

    def hop_key(self, batch_id: BatchId, hop: int) -> np.uint64:
        """Return the key of all draws of a hop. Pure."""
        return layer_key(self.seed, batch_id.epoch, batch_id.index, hop)

    def sample_hop(
        self,
        work: Workspace,
        batch_id: BatchId,
        hop: int,
        destinations: range,
        key: np.uint64,
        drawn: NDArray[Any] | None = None,
    ) -> Block:
        """Sample, or with ``drawn`` replay, one hop of a batch: what `sample` is made of.

        Parameters
        ----------
        work : the batch so far, with the degrees of ``destinations``; what the hop finds joins ``work.sources``
        batch_id, hop : the address
        destinations : positions in ``work.nodes``
        key : of the draws, see `hop_key`
        drawn : of this hop, see `replay`

        Raises
        ------
        ShapeError, ConfigError, GraphError
            As of `replay`.
        """
        if drawn is not None and self.weighted:
            return replay_hop(self._list_rule(), work, batch_id, hop, destinations, drawn)
        graph, fanout = self.graph, self.fanouts[hop]
        indptr = np.empty(len(destinations) + 1, dtype=np.int32)
        lists = self._weights(work, fanout, destinations)
        num_edges = self._count(work, lists, fanout, destinations, indptr)
        most_nodes = min(work.sources.count + num_edges, graph.num_sources)
        if num_edges < 0 or most_nodes > MAX_LOCAL:
            raise ConfigError(
                f"hop {hop} of {batch_id} would have 2**31 edges or more; "
                f"lower the batch size or fanouts={self.fanouts}"
            )
        # Arrays of the batch's own, written in place: they are handed out, and ``work`` goes to another call.
        picked = np.empty(num_edges + pick_kernels.SLACK, dtype=np.int64)
        edge_weight = np.empty(num_edges, dtype=np.float32) if self.weighted else None
        self._pick(work, lists, fanout, destinations, key, indptr, picked, edge_weight)
        edge_ids = picked[:num_edges]
        if work.excluded is not None:
            # Degrees do not count what is excluded, so that these are ranks among what is left.
            pass_over(
                work.excluded, work.excluded_at, destinations.start, destinations.stop, indptr, edge_ids
            )
        if lists is not None:
            lists.to_positions(edge_ids, indptr, destinations.start)
        if drawn is None:
            sources, places = graph.sources.at(edge_ids)
        else:
            sources = drawn
            here = slice(destinations.start, destinations.stop)
            places, num_places = find_places(
                work.nodes[here], work.degrees[here], indptr, picked, fanout=fanout, replace=self.replace
            )
            if num_places != len(sources):
                raise ShapeError(
                    f"hop {hop} of {batch_id} takes {num_places} distinct edges, and {len(sources)} values were drawn "
                    "for it: they belong to another batch, or to a sampler with another seed or other fan-outs"
                )
        return taken_block(
            graph,
            work,
            destinations,
            indptr,
            edge_ids,
            sources=(sources, places),
            edge_weight=edge_weight if self.has_edge_weight else None,
        )

    def _list_rule(self, layout: Layout = "layered", *, relation: int = 0) -> ListRule:
        if self.replace:
            raise ConfigError(
                "weighted sampling with replacement needs the sum of a node's weights before its first draw, and edges "
                "that are swept go by once; use topology='direct' or 'ram', or the sampler 'weighted:replace=false'"
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

    def _weights(self, work: Workspace, fanout: int, destinations: range) -> EdgeLists | None:
        """Return the weights of the in-edges of ``destinations``; None where all edges are alike or none is taken."""
        weights = self.graph.weights
        if weights is None or not self.weighted or fanout == 0:
            return None
        return weights.lists(work.starts, work.degrees, destinations.start, destinations.stop)

    def _count(
        self, work: Workspace, lists: EdgeLists | None, fanout: int, destinations: range, indptr: LocalArray
    ) -> int:
        """Write the local ``indptr`` (D + 1,) of the hop; return its edges, -1 for more than int32 can count."""
        rows = (work.degrees, destinations.start, destinations.stop, fanout, self.replace, MAX_LOCAL, indptr)
        if lists is None:
            return int(pick_kernels.count_uniform(*rows))
        return int(weighted_kernels.count_weighted(lists.values, lists.starts, *rows))

    def _pick(
        self,
        work: Workspace,
        lists: EdgeLists | None,
        fanout: int,
        destinations: range,
        key: np.uint64,
        indptr: LocalArray,
        out: IdArray,
        importance: NDArray[np.float32] | None,
    ) -> None:
        """Write the edges that ``destinations`` take to ``out``, and what each stands for to ``importance``.

        An edge is a place in ``lists``, or without them a position in the graph.
        """
        if fanout == 0:
            return
        starts = work.starts if lists is None else lists.starts
        rows = (work.nodes, starts, work.degrees, destinations.start, destinations.stop)
        if lists is None:
            if self.replace:
                pick_kernels.pick_with_replacement(*rows, fanout < 0, key, indptr, out)
            else:
                pick_kernels.pick_uniform(*rows, key, indptr, out, work.scratch.bits)
            return
        if self.replace:
            # Inversion searches the running sum of a node's weights, which are as many as its in-edges.
            pick = weighted_kernels.pick_weighted_with_replacement
            work.scratch.reserve_numbers(
                int(work.degrees[destinations.start : destinations.stop].max(initial=0))
            )
        else:
            pick = weighted_kernels.pick_weighted
            work.scratch.reserve_numbers(max(fanout, 0))
        bad = pick(lists.values, *rows, fanout, key, indptr, out, work.scratch.numbers, importance)
        if bad >= 0:
            raise graph_errors.bad_weights(self.graph, int(work.nodes[bad]))


class MergedBlockSampler:
    """Samples as `NeighborSampler.sample_merged` and delivers blocks, see `MergedBatch.to_blocks`.

    Pure and thread-safe, as the sampler is.
    """

    def __init__(self, sampler: NeighborSampler) -> None:
        self.sampler = sampler

    def sample(self, batch_id: BatchId, seeds: AnySeeds, /) -> SampledBatch:
        """Sample the neighbourhood of ``seeds`` (B,); all is as of `NeighborSampler.sample`."""
        return self.sampler.sample_merged(batch_id, seeds).to_blocks()

    @property
    def rule(self) -> HopRule:
        """What its hops want; raises as `NeighborSampler.rule`."""
        return self.sampler.rule_of("merged")

    def replay(self, batch_id: BatchId, seeds: AnySeeds, drawn: Sequence[NDArray[Any]]) -> SampledBatch:
        """Return the batch that `sample` returns; parameters and errors are those of `NeighborSampler.replay`."""
        return self.sampler.replay_merged(batch_id, seeds, drawn).to_blocks()
