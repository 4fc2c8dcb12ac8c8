"""The hop frame: in each hop, relation by relation, nodes pick edges and the batch grows by the sources."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from gloader.errors import ShapeError
from gloader.samplers import poisson_kernels
from gloader.samplers.arguments import checked_total, require_distinct, split_seeds
from gloader.samplers.exclusion import (
    NOTHING_EXCLUDED,
    excluded_of_relations,
    seeds_of,
    unexcluded_seeds,
)
from gloader.samplers.merged import MergedBatch, MergedHeteroBatch, join_hops
from gloader.samplers.ranges import MAX_ENTRY, AllEdges, EdgesBefore, require_entries, timed_seeds
from gloader.samplers.rng import relation_key
from gloader.samplers.workspace import Picked, Workspace, WorkspacePool
from gloader.types import BatchId, BatchSeeds, Block, HeteroBatch, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.config import Layout
    from gloader.samplers.collective import CollectiveDraws
    from gloader.samplers.graph import EdgeLists, HeteroGraph, Topology
    from gloader.samplers.list_rule import ListRule
    from gloader.samplers.pick_rule import UniformPickRule
    from gloader.samplers.ranges import TimeRule
    from gloader.samplers.workspace import EdgeRanges, RelationSpace
    from gloader.types import AnySeeds, IdArray, Links, LocalArray

HopDraws: TypeAlias = "Sequence[NDArray[Any]]"  # what a pass over the edges brought for a hop, by relation

_NO_SOURCES = np.empty(0, dtype=np.int32)
_NO_EDGES = np.empty(0, dtype=np.int64)
_NO_WEIGHTS = np.empty(0, dtype=np.float32)


class RelationPick(Protocol):
    """Picks the edges of one relation, hop by hop. Samplers of the frame differ only in their picks. Thread-safe."""

    @property
    def graph(self) -> Topology:
        """The edges of the relation."""
        ...

    @property
    def fanouts(self) -> tuple[int, ...]:
        """Fan-outs of the relation, hop next to the seeds first; a hop of fan-out 0 takes no edge."""
        ...

    @property
    def has_edge_weight(self) -> bool:
        """True if the relation's blocks have weights."""
        ...

    @property
    def unable_to_exclude(self) -> str | None:
        """The name of a sampler that cannot exclude edges, for messages; None: it can."""
        ...

    def hop_key(self, batch_id: BatchId, hop: int, /) -> np.uint64:
        """Return the key of the draws of a hop, before the number of the relation is mixed in."""
        ...

    def pick(
        self, space: RelationSpace, batch_id: BatchId, hop: int, destinations: range, key: np.uint64, /
    ) -> Picked:
        """Pick the edges of one hop.

        Parameters
        ----------
        space : the batch so far, with the ranges of ``destinations``
        batch_id, hop : the address
        destinations : positions in ``space.nodes``
        key : of the draws

        Raises
        ------
        ConfigError
            The hop would have 2**31 edges or more, or the batch as many nodes.
        GraphError
            An entry of the graph is damaged.
        """
        ...

    def replay(
        self,
        space: RelationSpace,
        batch_id: BatchId,
        hop: int,
        destinations: range,
        key: np.uint64,
        drawn: NDArray[Any],
        /,
    ) -> Picked:
        """Return the edges of `pick` from ``drawn``, see `HopDraws`, instead of the graph; raises ShapeError too."""
        ...

    def rule_of(self, layout: Layout, *, relation: int = 0) -> UniformPickRule | ListRule:
        """Return the rule of sweeps for hops of ``layout``; ConfigError: the picks cannot be swept."""
        ...


class SampledHops(NamedTuple):
    """The topology of a mini-batch, with types and relations by their numbers. Its methods return public batches."""

    id: BatchId
    graph: HeteroGraph
    nodes: list[IdArray]  # (U_t,) ids of each type in first-seen order, seeds first
    counts: list[list[int]]  # (L + 2,) of each type: 0, its seeds, then the nodes known after each hop
    hops: list[list[Block]]  # L, next to the seeds first: a block for each relation
    links: Links | None  # as of `BatchSeeds`
    trees: list[LocalArray] | None  # (U_t,) the seed that each node was found for; None: seeds share nodes
    in_degrees: NDArray[np.float32] | None  # as of `SampledBatch`; None: of several types

    def one_type(self) -> SampledBatch:
        """Return the batch of a graph of one type."""
        return SampledBatch(
            id=self.id,
            nodes=self.nodes[0],
            num_seeds=self.counts[0][1],
            blocks=tuple(blocks[0] for blocks in reversed(self.hops)),  # a model starts far from the seeds
            links=self.links,
            trees=None if self.trees is None else self.trees[0],
            in_degrees=self.in_degrees,
        )

    def one_type_merged(self) -> MergedBatch:
        """Return the merged batch of a graph of one type; the hops must be merged ones."""
        (counts,) = self.counts
        edges = join_hops([blocks[0] for blocks in self.hops], counts)
        return MergedBatch(
            id=self.id,
            nodes=self.nodes[0],
            num_seeds=counts[1],
            indptr=edges.indptr,
            indices=edges.indices,
            edge_ids=edges.edge_ids,
            num_sampled_nodes=tuple(np.diff(counts).tolist()),
            num_sampled_edges=edges.num_sampled_edges,
            edge_weight=edges.edge_weight,
            links=self.links,
            trees=None if self.trees is None else self.trees[0],
            in_degrees=self.in_degrees,
        )

    def by_type_merged(self) -> MergedHeteroBatch:
        """Return the merged batch of a graph of several types; the hops must be merged ones."""
        types = self.graph.node_types
        counts = dict(zip(types, self.counts, strict=True))
        return MergedHeteroBatch(
            id=self.id,
            nodes=dict(zip(types, self.nodes, strict=True)),
            num_seeds={name: count[1] for name, count in counts.items()},
            edges={
                relation: join_hops([blocks[number] for blocks in self.hops], counts[relation[2]])
                for number, relation in enumerate(self.graph.relations)
            },
            num_sampled_nodes={name: tuple(np.diff(count).tolist()) for name, count in counts.items()},
            links=self.links,
            trees=None if self.trees is None else dict(zip(types, self.trees, strict=True)),
        )

    def by_type(self) -> HeteroBatch:
        """Return the batch of a graph of several types."""
        types, relations = self.graph.node_types, tuple(self.graph.relations)
        return HeteroBatch(
            id=self.id,
            nodes=dict(zip(types, self.nodes, strict=True)),
            num_seeds={name: count[1] for name, count in zip(types, self.counts, strict=True)},
            blocks=tuple(dict(zip(relations, blocks, strict=True)) for blocks in reversed(self.hops)),
            links=self.links,
            trees=None if self.trees is None else dict(zip(types, self.trees, strict=True)),
        )


class _Roots(NamedTuple):
    """The seeds of a batch, checked."""

    nodes: Sequence[IdArray]  # (B_t,) of each type; entries, where seeds ask at a time
    ranges: Sequence[EdgeRanges]  # of each relation
    links: Links | None


class HopFrame:
    """Samples hop after hop and relation after relation, each over the nodes known before the hop.

    A relation's draws are hashed with its number in the graph, and with nothing of its name: a graph of one relation
    gives the batches of that relation alone, and a relation that is added behind the others leaves their draws alone.
    Pure and thread-safe; each concurrent call holds 4 bytes per node of every type (a hash table for large types),
    released with the frame.

    Parameters
    ----------
    graph : the topology
    picks : one for each relation, of as many hops; alike in everything but graph and fan-outs
    num_hops : L
    has_candidates : whether they need `Candidates`
    collective : draws for all relations into a type together, in place of the picks; None: each draws for itself
    rule : of seeds that ask at a time; None: edges of all times are taken
    """

    def __init__(
        self,
        graph: HeteroGraph,
        picks: Sequence[RelationPick],
        *,
        num_hops: int,
        has_candidates: bool = False,
        collective: CollectiveDraws | None = None,
        rule: TimeRule | None = None,
    ) -> None:
        self.graph = graph
        self.picks = tuple(picks)
        self.num_hops = num_hops
        self.collective = collective
        self._rule = rule
        self._is_one_type = graph.is_one_type
        self._sizes = tuple(graph.num_nodes.values())
        self._type_starts = graph.type_starts
        number = {name: at for at, name in enumerate(graph.node_types)}
        self._ends = [(number[source], number[destination]) for source, _, destination in graph.relations]
        self._all_edges = [AllEdges(pick.graph, None) for pick in self.picks]
        # Nothing is looked at of a relation that can have no edge in a hop.
        self.is_drawn = [
            [pick.fanouts[hop] != 0 and pick.graph.num_edges > 0 for pick in self.picks]
            for hop in range(num_hops)
        ]
        self._drawing = [np.flatnonzero(is_drawn).tolist() for is_drawn in self.is_drawn]
        largest = max(chain.from_iterable(pick.fanouts for pick in self.picks), default=0)
        # Entries are beyond any array of labels: the workspace makes hash tables.
        limits = None if rule is None else dict.fromkeys(graph.node_types, MAX_ENTRY)
        self._make_workspace = partial(
            Workspace, graph, largest, has_candidates=has_candidates, limits=limits
        )
        self._pool = WorkspacePool(self._make_workspace)

    def sample(
        self,
        batch_id: BatchId,
        seeds: AnySeeds,
        *,
        is_merged: bool = False,
        drawn: Sequence[HopDraws] | None = None,
    ) -> SampledHops:
        """Sample the hops of a batch. Thread-safe.

        Parameters
        ----------
        batch_id : the address of the batch, part of the random key
        seeds : (B,) nodes of any types, numbered through: ``graph.type_starts`` of their type + id; those of a type
            keep their order. Distinct, unless they ask at a time; B = 0 gives an empty batch. No hop takes an edge of
            `BatchSeeds.excluded`: the fan-out stays full where edges are left, and all of these are equally likely
        is_merged : only the nodes found in one hop sample in the next, as in PyG; else every node found so far samples
            again in each hop, as in DGL
        drawn : what passes over the edges brought for each hop, in place of reading them; None: read

        Raises
        ------
        SeedError
            Seeds are no integers, out of range or repeat; the message names the type and lists up to five. Times are
            missing. Excluded positions do not ascend, or are none of their relation.
        ConfigError
            The batch would have 2**31 nodes of a type, or edges of a relation in a hop. Edges are excluded that the
            sampler cannot exclude, or seeds have times that it does not look at.
        GraphError
            A graph that was not checked has an entry that cannot be; the message names the node and the position.
        ShapeError
            ``drawn`` is of another batch.
        """
        draws: Sequence[HopDraws | None] = [None] * self.num_hops
        if drawn is not None:
            draws = self._checked_drawn(drawn)
        roots = self._roots(seeds)
        hops: list[list[Block]] = []
        with np.errstate(over="ignore"), self._pool.lend() as work:  # interpreted hashes wrap around
            self._begin(work, roots)
            counts = [[0, len(nodes)] for nodes in roots.nodes]
            for hop, of_hop in enumerate(draws):
                here = [range(count[-2] if is_merged else 0, count[-1]) for count in counts]
                hops.append(self._sample_hop(work, batch_id, hop, here, of_hop))
                for count, found in zip(counts, work.found, strict=True):
                    count.append(found.count)
                if is_merged:
                    self._require_one_list(hops, batch_id)
            # Copies, as the workspace goes to another call.
            nodes = [found.nodes[: found.count].copy() for found in work.found]
            in_degrees = None
            if self._is_one_type:
                in_degrees = roots.ranges[0].in_degrees(work.relations[0], nodes[0])
        trees = None
        if self._rule is not None:
            split = [np.divmod(entries, size) for entries, size in zip(nodes, self._sizes, strict=True)]
            nodes, trees = [of for _, of in split], [tree.astype(np.int32) for tree, _ in split]
        return SampledHops(
            id=batch_id,
            graph=self.graph,
            nodes=nodes,
            counts=counts,
            hops=hops,
            links=roots.links,
            trees=trees,
            in_degrees=in_degrees,
        )

    def _require_one_list(self, hops: Sequence[Sequence[Block]], batch_id: BatchId) -> None:
        """Raise ConfigError where the edges of a relation in ``hops``, the hops so far, are too many for one list."""
        for number, pick in enumerate(self.picks):
            total = sum(blocks[number].num_edges for blocks in hops)
            checked_total(total, len(hops) - 1, batch_id, pick.fanouts)

    def _checked_drawn(self, drawn: Sequence[HopDraws]) -> list[HopDraws]:
        if len(drawn) != self.num_hops:
            raise ShapeError(
                f"drawn arrays of {len(drawn)} hops for a batch of {self.num_hops}; pass those of each hop"
            )
        return [checked_drawn(of_hop, len(self.picks), noun="relations") for of_hop in drawn]

    def _roots(self, seeds: AnySeeds) -> _Roots:
        """Check ``seeds``; return their nodes by type and the ranges that each relation offers them."""
        rule, times = self._rule, None
        if rule is None and not isinstance(seeds, BatchSeeds):
            return _Roots(split_seeds(seeds, self._type_starts), self._all_edges, None)
        if rule is not None:
            given, times = timed_seeds(seeds)
        elif self.collective is not None:
            given = unexcluded_seeds(
                seeds, sampler="fan-outs of all relations together", instead="fan-outs of each relation"
            )
        else:
            given = seeds_of(seeds)
        nodes = split_seeds(given.nodes, self._type_starts)
        if rule is None and not given.excluded:
            return _Roots(nodes, self._all_edges, given.links)
        unable = [pick.unable_to_exclude for pick in self.picks]
        excluded = excluded_of_relations(given.excluded, self.graph, unable, nodes)
        pairs = zip_longest((pick.graph for pick in self.picks), excluded)  # () where no edge is excluded
        if rule is None or times is None:
            ranges: list[EdgeRanges] = [AllEdges(graph, some) for graph, some in pairs]
            return _Roots(nodes, ranges, given.links)
        ranges = [
            EdgesBefore(graph=graph, rule=rule, asked=times, excluded=(some or NOTHING_EXCLUDED).positions)
            for graph, some in pairs
        ]
        return _Roots(self._entries(given.nodes, nodes), ranges, given.links)

    def _entries(self, seeds: IdArray, nodes: Sequence[IdArray]) -> list[IdArray]:
        """Return the entries of ``seeds``, by type: each seed is the first node of its own tree."""
        require_entries(len(seeds), max(self._sizes, default=0))
        types = np.searchsorted(self._type_starts[1:], seeds, side="right")
        return [
            np.flatnonzero(types == number) * size + of_type
            for number, (size, of_type) in enumerate(zip(self._sizes, nodes, strict=True))
        ]

    def _begin(self, work: Workspace, roots: _Roots) -> None:
        """Make the seeds the first nodes of a batch."""
        for space, ranges in zip(work.relations, roots.ranges, strict=True):
            space.begin(ranges)
        # The map counts repeats as it goes; which seeds they are is worth a sort for the message only.
        for name, found, nodes in zip(self.graph.num_nodes, work.found, roots.nodes, strict=True):
            if found.begin(nodes):
                require_distinct(nodes, noun=seed_noun(self.graph, name))

    def _sample_hop(
        self,
        work: Workspace,
        batch_id: BatchId,
        hop: int,
        destinations: Sequence[range],
        drawn: HopDraws | None,
    ) -> list[Block]:
        """Return a block for each relation; ``destinations`` are positions in the nodes of each type."""
        if not self.picks:
            return []
        hop_key = self.picks[0].hop_key(batch_id, hop)
        dealt = None
        if self.collective is not None:
            dealt = self.collective.deal(work, batch_id, hop, destinations, hop_key)
        blocks: list[Block | None] = [None] * len(self.picks)
        for number in self._drawing[hop]:
            pick, space, here = (
                self.picks[number],
                work.relations[number],
                destinations[self._ends[number][1]],
            )
            if not here:
                continue
            if dealt is not None:
                picked = dealt[number]
            else:
                space.fetch(here)
                key = relation_key(hop_key, number)
                if drawn is None:
                    picked = pick.pick(space, batch_id, hop, here, key)
                else:
                    picked = pick.replay(space, batch_id, hop, here, key, drawn[number])
            blocks[number] = _block(pick.graph, space, here, picked)
        return self._finished(work, blocks, destinations)

    def _finished(
        self, work: Workspace, blocks: Sequence[Block | None], destinations: Sequence[range]
    ) -> list[Block]:
        """Return the blocks of a hop once all its nodes are known; None stands for a block without edges."""
        if len(blocks) == 1 and blocks[0] is not None:
            return [blocks[0]]
        # One array for all of a hop: relations without edges cost nothing.
        has_empty = any(block is None for block in blocks)
        no_edges = np.zeros(max(map(len, destinations)) + 1, dtype=np.int32) if has_empty else _NO_SOURCES
        finished = []
        for block, pick, (source, destination) in zip(blocks, self.picks, self._ends, strict=True):
            num_src = work.found[source].count
            if block is None:
                num_dst = len(destinations[destination])
                weights = _NO_WEIGHTS if pick.has_edge_weight else None
                finished.append(_empty_block(no_edges[: num_dst + 1], num_src, weights))
            elif block.num_src == num_src:
                finished.append(block)
            else:  # a later relation found more nodes of that type
                finished.append(replace(block, num_src=num_src))
        return finished


def _empty_block(indptr: LocalArray, num_src: int, edge_weight: NDArray[np.float32] | None) -> Block:
    return Block(
        indptr=indptr,
        indices=_NO_SOURCES,
        edge_ids=_NO_EDGES,
        num_src=num_src,
        num_dst=len(indptr) - 1,
        edge_weight=edge_weight,
    )


def _block(graph: Topology, space: RelationSpace, destinations: range, picked: Picked) -> Block:
    """Return the block of the picked edges; their sources join the nodes of the batch.

    Raises
    ------
    GraphError
        A source is no node.
    """
    values, places = space.ranges.sources(space, destinations, picked)
    indices = np.empty(len(places), dtype=np.int32)
    num_src = space.sources.append(values, places, indices)
    if num_src < 0:
        at, nodes = -1 - num_src, space.ranges.nodes(space, destinations)
        raise picked.bad_source(graph, nodes, at, int(values[places[at]]))
    return Block(
        indptr=picked.indptr,
        indices=indices,
        edge_ids=picked.positions(),  # no sooner, as it may overwrite ``places``
        num_src=num_src,
        num_dst=len(destinations),
        edge_weight=picked.edge_weight,
    )


def checked_drawn(drawn: Sequence[NDArray[Any]], count: int, *, noun: str = "hops") -> list[NDArray[Any]]:
    """Return read-only views of the ``count`` drawn arrays of a batch, or of the relations in one hop of it. Pure.

    Raises
    ------
    ShapeError
        There is not one for each, or one is no contiguous array of int32 or int64.
    """
    if len(drawn) != count:
        raise ShapeError(
            f"{len(drawn)} drawn arrays for a batch of {count} {noun}; pass one for each {noun[:-1]}"
        )
    views = []
    for at, values in enumerate(drawn):
        if values.ndim != 1 or values.dtype not in (np.int32, np.int64) or not values.flags.c_contiguous:
            raise ShapeError(
                f"the drawn array of {noun[:-1]} {at} has shape {values.shape} and dtype {values.dtype}; it must be "
                "contiguous, of one dimension, and int32 or int64"
            )
        # Read-only as the edges of a graph in memory are, so that kernels are compiled for one kind of array.
        view = values.view()
        view.flags.writeable = False
        views.append(view)
    return views


def hops_of_one_type(drawn: Sequence[NDArray[Any]], num_hops: int) -> list[HopDraws]:
    """Return the drawn arrays of a graph of one type as `HopDraws`; raises as `checked_drawn`. Pure."""
    return [(of_hop,) for of_hop in checked_drawn(drawn, num_hops)]


def taken_of_scratch(
    space: RelationSpace, lists: EdgeLists, num_dst: int, indptr: LocalArray, *, normalize: bool
) -> Picked:
    """Return the edges and weights that a kernel left in ``space.scratch``.

    Parameters
    ----------
    space : the batch so far; the edges in its scratch are places in ``lists``
    lists : the sources of the in-edges of the destinations
    num_dst : D, destinations of the hop
    indptr : (D + 1,) int32, where the edges of each destination begin
    normalize : make the weights of each destination add up to its in-degree
    """
    num_edges = int(indptr[-1])
    # Copies: the number of edges is known only after the picking, and the scratch goes to another hop.
    edge_ids = space.scratch.edges[:num_edges].copy()
    edge_weight = space.scratch.weights[:num_edges].copy()
    if normalize:
        poisson_kernels.scale_to_degree(space.degrees, num_dst, indptr, edge_weight)
    return Picked(indptr, edge_ids, lists=lists, edge_weight=edge_weight)


def seed_noun(graph: HeteroGraph, node_type: str) -> str:
    """Return the name of seeds of ``node_type`` in messages; a graph of one type names no type. Pure."""
    return "seeds" if graph.is_one_type else f"seeds of type {node_type!r}"
