"""The hop frame: in each hop, nodes pick edges relation by relation, and the edges' sources join the batch.

All samplers use `HopFrame.sample`, the common loop over hops. A relation is an edge type. A hop's destinations are the
nodes that take edges in this hop. A relation's pick (`RelationPick`) chooses their edges; each sampler has its own kind
of pick. In layered hops every node found so far is a destination, as in DGL. In merged hops only the nodes found in the
previous hop are destinations, as in PyG. The result, `SampledHops`, is turned into a public batch.

Edges on the SSD may be read in edge passes. A pass reads all edges once, in file order, and saves for each hop of many
batches what the hop takes: the hop's draws. A pick's `replay` makes the hop from the draws, without the graph.

If seeds have times, each seed grows its own tree of nodes. The frame then works on entries: an entry is a number for
one node in one tree, see `ranges`.
"""

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
from gloader.samplers.graph import HeteroGraph
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
    from gloader.samplers.graph import EdgeLists, Topology
    from gloader.samplers.list_rule import ListRule
    from gloader.samplers.pick_rule import UniformPickRule
    from gloader.samplers.ranges import TimeRule
    from gloader.samplers.workspace import EdgeRanges, RelationSpace
    from gloader.types import AnySeeds, IdArray, Links, LocalArray

HopDraws: TypeAlias = "Sequence[NDArray[Any]]"  # one hop's draws from edge passes: an array for each relation

# The arrays of a block without edges.
_NO_SOURCES = np.empty(0, dtype=np.int32)
_NO_EDGES = np.empty(0, dtype=np.int64)
_NO_WEIGHTS = np.empty(0, dtype=np.float32)


class RelationPick(Protocol):
    """Picks one relation's edges, hop by hop. Samplers on the frame differ only in their picks. Thread-safe."""

    @property
    def graph(self) -> Topology:
        """The relation's edges."""
        ...

    @property
    def fanouts(self) -> tuple[int, ...]:
        """The relation's fan-outs, with the hop next to the seeds first; 0 takes no edge."""
        ...

    @property
    def has_edge_weight(self) -> bool:
        """True if the relation's blocks have edge weights."""
        ...

    @property
    def unable_to_exclude(self) -> str | None:
        """The sampler's name for error messages if the sampler cannot exclude edges, else None."""
        ...

    def hop_key(self, batch_id: BatchId, hop: int, /) -> np.uint64:
        """Return a hop's random key, into which the frame later mixes the relation's number."""
        ...

    def pick(
        self, space: RelationSpace, batch_id: BatchId, hop: int, destinations: range, key: np.uint64, /
    ) -> Picked:
        """Pick one hop's edges.

        Parameters
        ----------
        space : the batch so far, with the destinations' edge ranges
        batch_id, hop : the batch and the hop; the hop's fan-out and the error messages depend on them
        destinations : indices in ``space.nodes``
        key : the hop's random key, with the relation's number mixed in

        Raises
        ------
        ConfigError
            The hop would have 2**31 or more edges, or the batch as many nodes.
        GraphError
            A graph entry is damaged.
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
        """Return the edges of `pick`, from the relation's array in `HopDraws` instead of the graph.

        Raises the errors of `pick`, and ShapeError if ``drawn`` does not match the hop.
        """
        ...

    def rule_of(self, layout: Layout, *, relation: int = 0) -> UniformPickRule | ListRule:
        """Return the rule by which edge passes make this pick's draws, see `sweeping`.

        Parameters
        ----------
        layout : "layered" or "merged" hops
        relation : the relation's number in the graph

        Raises
        ------
        ConfigError
            Edge passes cannot make these picks.
        """
        ...


class SampledHops(NamedTuple):
    """A mini-batch's topology, with types and relations as numbers. Its methods return public batches."""

    id: BatchId
    graph: HeteroGraph
    nodes: list[IdArray]  # by type, (U_t,) ids in first-seen order, seeds first
    # By type, (L + 2,): 0, the number of seeds, then the number of nodes after each hop.
    counts: list[list[int]]
    hops: list[list[Block]]  # L lists, the hop next to the seeds first; each has a block for every relation
    links: Links | None  # see `BatchSeeds`
    # By type, (U_t,) the seed in whose tree a node is; None if seeds have no times.
    trees: list[LocalArray] | None
    in_degrees: NDArray[np.float32] | None  # see `SampledBatch`; None with several types

    def one_type(self) -> SampledBatch:
        """Return the batch of a one-type graph."""
        return SampledBatch(
            id=self.id,
            nodes=self.nodes[0],
            num_seeds=self.counts[0][1],
            blocks=tuple(blocks[0] for blocks in reversed(self.hops)),  # a model begins far from the seeds
            links=self.links,
            trees=None if self.trees is None else self.trees[0],
            in_degrees=self.in_degrees,
        )

    def one_type_merged(self) -> MergedBatch:
        """Return the merged batch of a one-type graph; the hops must be merged."""
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
        """Return the merged batch of a typed graph; the hops must be merged."""
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
        """Return the batch of a typed graph."""
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
    """A batch's checked seeds."""

    nodes: Sequence[IdArray]  # by type, (B_t,) node ids, or entries if seeds have times
    ranges: Sequence[EdgeRanges]  # by relation: the edges that the batch may take
    links: Links | None  # see `BatchSeeds`


class HopFrame:
    """Samples hop after hop and relation after relation; a hop's relations all start from the nodes before the hop.

    A relation's draws are hashed with its number in the graph, not with its name. So a graph with one relation gives
    the same batches as its topology alone, and a relation added at the end leaves the other draws unchanged. Pure and
    thread-safe. Each concurrent call holds 4 bytes per node in every type (a hash table for large types), released
    with the frame.

    Parameters
    ----------
    graph : the topology
    picks : one for each relation, with L hops each; they differ only in graph and fan-outs
    num_hops : L
    has_candidates : True if the picks need `Candidates`
    collective : draws over all relations into a type together, instead of the picks; None draws in each relation
    rule : the rule by which edge times limit the edges; None means that seeds have no times
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
        number = {name: index for index, name in enumerate(graph.node_types)}
        # Each relation's numbers of source type and destination type.
        self._ends = [(number[source], number[destination]) for source, _, destination in graph.relations]
        self._all_edges = [AllEdges(pick.graph, None) for pick in self.picks]
        # A hop skips relations that cannot have an edge in it.
        self.is_drawn = [
            [pick.fanouts[hop] != 0 and pick.graph.num_edges > 0 for pick in self.picks]
            for hop in range(num_hops)
        ]
        self._drawing = [np.flatnonzero(is_drawn).tolist() for is_drawn in self.is_drawn]
        largest = max(chain.from_iterable(pick.fanouts for pick in self.picks), default=0)
        # Entries may be very large numbers. With this upper bound, the workspace maps them to local ids with hash
        # tables; an array with a local id for each number would be too large.
        limits = None if rule is None else dict.fromkeys(graph.node_types, MAX_ENTRY)
        self._make_workspace = partial(
            Workspace, graph, largest, has_candidates=has_candidates, limits=limits
        )
        self._pool = WorkspacePool(self._make_workspace)

    @classmethod
    def of_one_type(
        cls, pick: RelationPick, *, has_candidates: bool = False, rule: TimeRule | None = None
    ) -> HopFrame:
        """Return the frame of a one-type graph whose edges ``pick`` picks."""
        return cls(
            HeteroGraph.of_one_type(pick.graph),
            [pick],
            num_hops=len(pick.fanouts),
            has_candidates=has_candidates,
            rule=rule,
        )

    def sample(
        self,
        batch_id: BatchId,
        seeds: AnySeeds,
        *,
        is_merged: bool = False,
        drawn: Sequence[HopDraws] | None = None,
    ) -> SampledHops:
        """Sample a batch's hops. Thread-safe.

        Parameters
        ----------
        batch_id : the batch's epoch and index, part of the random key
        seeds : (B,) nodes of any types, in one numbering: a node's number is its id plus its type's entry in
            ``graph.type_starts``. The seeds of a type keep their order. Seeds without times are distinct. B = 0 gives
            an empty batch. No hop takes an edge in `BatchSeeds.excluded`; a node draws from its other edges instead,
            all equally likely
        is_merged : True for merged hops, False for layered hops
        drawn : each hop's draws from edge passes; None reads the graph

        Raises
        ------
        SeedError
            Seeds are not integers, out of range, or repeat; the message names the type and lists up to five. Times are
            missing. Excluded positions do not ascend, or are not in their relation.
        ConfigError
            The batch would have 2**31 nodes in a type, or a hop 2**31 edges in a relation. The sampler cannot exclude
            edges, or does not support the seeds' times.
        GraphError
            An unchecked graph has an impossible entry; the message names the node and the position.
        ShapeError
            ``drawn`` belongs to another batch.
        """
        draws: Sequence[HopDraws | None] = [None] * self.num_hops
        if drawn is not None:
            draws = self._checked_drawn(drawn)
        roots = self._roots(seeds)
        hops: list[list[Block]] = []
        with np.errstate(over="ignore"), self._pool.lend() as work:  # interpreted hashes wrap around
            self._begin(work, roots)
            counts = [[0, len(nodes)] for nodes in roots.nodes]
            for hop, hop_draws in enumerate(draws):
                # Nodes are numbered as they are found, so a hop's destinations are a range of each type's nodes.
                destinations = [range(count[-2] if is_merged else 0, count[-1]) for count in counts]
                hops.append(self._sample_hop(work, batch_id, hop, destinations, hop_draws))
                for count, found in zip(counts, work.found, strict=True):
                    count.append(found.count)
                if is_merged:
                    self._require_one_list(hops, batch_id)
            # The nodes are copied, because another call reuses the workspace.
            nodes = [found.nodes[: found.count].copy() for found in work.found]
            in_degrees = None
            if self._is_one_type:
                in_degrees = roots.ranges[0].in_degrees(work.relations[0], nodes[0])
        trees = None
        if self._rule is not None:  # the nodes are entries: tree * number of the type's nodes + node
            split = [np.divmod(entries, size) for entries, size in zip(nodes, self._sizes, strict=True)]
            nodes = [node for _, node in split]
            trees = [tree.astype(np.int32) for tree, _ in split]
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
        """Raise ConfigError if the ``hops`` so far have too many edges in a relation for one list."""
        for number, pick in enumerate(self.picks):
            total = sum(blocks[number].num_edges for blocks in hops)
            checked_total(total, len(hops) - 1, batch_id, pick.fanouts)

    def _checked_drawn(self, drawn: Sequence[HopDraws]) -> list[HopDraws]:
        """Return the draws as read-only views; ShapeError if their number or form is wrong."""
        if len(drawn) != self.num_hops:
            raise ShapeError(
                f"drawn arrays of {len(drawn)} hops for a batch of {self.num_hops}; pass the arrays of every hop"
            )
        return [checked_drawn(hop_draws, len(self.picks), noun="relations") for hop_draws in drawn]

    def _roots(self, seeds: AnySeeds) -> _Roots:
        """Check ``seeds``; return their nodes by type and each relation's edge ranges."""
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
        pairs = zip_longest((pick.graph for pick in self.picks), excluded)  # ``excluded`` may be ()
        if rule is None or times is None:
            ranges: list[EdgeRanges] = [AllEdges(graph, edges) for graph, edges in pairs]
            return _Roots(nodes, ranges, given.links)
        ranges = [
            EdgesBefore(
                graph=graph, rule=rule, seed_times=times, excluded=(edges or NOTHING_EXCLUDED).positions
            )
            for graph, edges in pairs
        ]
        return _Roots(self._entries(given.nodes, nodes), ranges, given.links)

    def _entries(self, seeds: IdArray, nodes: Sequence[IdArray]) -> list[IdArray]:
        """Return the seeds' entries by type: each seed is the first node in its own tree."""
        require_entries(len(seeds), max(self._sizes, default=0))
        types = np.searchsorted(self._type_starts[1:], seeds, side="right")
        return [
            np.flatnonzero(types == number) * size + ids
            for number, (size, ids) in enumerate(zip(self._sizes, nodes, strict=True))
        ]

    def _begin(self, work: Workspace, roots: _Roots) -> None:
        """Make the seeds the batch's first nodes; raise SeedError if a seed repeats."""
        for space, ranges in zip(work.relations, roots.ranges, strict=True):
            space.begin(ranges)
        # The map only counts repeats. `require_distinct` sorts the seeds to name the repeats in the error message.
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
        """Return a block for each relation; ``destinations`` are index ranges among each type's nodes."""
        if not self.picks:
            return []
        hop_key = self.picks[0].hop_key(batch_id, hop)
        collective_picks = None
        if self.collective is not None:
            collective_picks = self.collective.deal(work, batch_id, hop, destinations, hop_key)
        blocks: list[Block | None] = [None] * len(self.picks)
        for number in self._drawing[hop]:
            pick, space = self.picks[number], work.relations[number]
            of_type = destinations[self._ends[number][1]]
            if not of_type:
                continue
            if collective_picks is not None:
                picked = collective_picks[number]
            else:
                space.fetch(of_type)
                key = relation_key(hop_key, number)
                if drawn is None:
                    picked = pick.pick(space, batch_id, hop, of_type, key)
                else:
                    picked = pick.replay(space, batch_id, hop, of_type, key, drawn[number])
            blocks[number] = _block(pick.graph, space, of_type, picked)
        return self._finished(work, blocks, destinations)

    def _finished(
        self, work: Workspace, blocks: Sequence[Block | None], destinations: Sequence[range]
    ) -> list[Block]:
        """Return a hop's blocks, after all its relations found their nodes. None stands for a block without edges.

        Every block gets the source type's final number of nodes.
        """
        if len(blocks) == 1 and blocks[0] is not None:
            return [blocks[0]]
        # All blocks without edges share one array of zeros.
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
            else:  # a later relation found more nodes of the type
                finished.append(replace(block, num_src=num_src))
        return finished


def _empty_block(indptr: LocalArray, num_src: int, edge_weight: NDArray[np.float32] | None) -> Block:
    """Return a block without edges; ``indptr`` (num_dst + 1,) is all zeros."""
    return Block(
        indptr=indptr,
        indices=_NO_SOURCES,
        edge_ids=_NO_EDGES,
        num_src=num_src,
        num_dst=len(indptr) - 1,
        edge_weight=edge_weight,
    )


def _block(graph: Topology, space: RelationSpace, destinations: range, picked: Picked) -> Block:
    """Return the block of the picked edges, and add their sources to the batch's nodes.

    Raises
    ------
    GraphError
        A source is no node.
    """
    values, places = space.ranges.sources(space, destinations, picked)
    indices = np.empty(len(places), dtype=np.int32)
    num_src = space.sources.append(values, places, indices)
    if num_src < 0:
        edge, nodes = -1 - num_src, space.ranges.nodes(space, destinations)
        raise picked.bad_source(graph, nodes, edge, int(values[places[edge]]))
    return Block(
        indptr=picked.indptr,
        indices=indices,
        edge_ids=picked.positions(),  # the last use of ``places``, which this call may overwrite
        num_src=num_src,
        num_dst=len(destinations),
        edge_weight=picked.edge_weight,
    )


def checked_drawn(drawn: Sequence[NDArray[Any]], count: int, *, noun: str = "hops") -> list[NDArray[Any]]:
    """Return read-only views of ``count`` drawn arrays: one per hop, or one per relation in a hop. Pure.

    Raises
    ------
    ShapeError
        The number of arrays is wrong, or an array is not contiguous int32 or int64.
    """
    if len(drawn) != count:
        raise ShapeError(
            f"{len(drawn)} drawn arrays for a batch of {count} {noun}; pass one for each {noun[:-1]}"
        )
    views = []
    for number, values in enumerate(drawn):
        if values.ndim != 1 or values.dtype not in (np.int32, np.int64) or not values.flags.c_contiguous:
            raise ShapeError(
                f"the drawn array of {noun[:-1]} {number} has shape {values.shape} and dtype {values.dtype}; it must "
                "be contiguous, of one dimension, and int32 or int64"
            )
        # The views are read-only, like a graph's edges in memory, so that kernels compile for one kind of array.
        view = values.view()
        view.flags.writeable = False
        views.append(view)
    return views


def hops_of_one_type(drawn: Sequence[NDArray[Any]], num_hops: int) -> list[HopDraws]:
    """Return a one-type graph's drawn arrays as `HopDraws`; raises as `checked_drawn`. Pure."""
    return [(hop_draws,) for hop_draws in checked_drawn(drawn, num_hops)]


def taken_of_scratch(
    space: RelationSpace, lists: EdgeLists, num_dst: int, indptr: LocalArray, *, normalize: bool
) -> Picked:
    """Return the edges and weights that a kernel wrote to ``space.scratch``.

    Parameters
    ----------
    space : the batch so far; its scratch holds the edges as indices in the values of ``lists``
    lists : the sources of the destinations' in-edges
    num_dst : D, destinations in the hop
    indptr : (D + 1,) int32, the index at which each destination's edges begin
    normalize : True scales each destination's weights so that their sum is its in-degree
    """
    num_edges = int(indptr[-1])
    # The results are copies: the number of edges is known only now, and another hop reuses the scratch.
    edge_ids = space.scratch.edges[:num_edges].copy()
    edge_weight = space.scratch.weights[:num_edges].copy()
    if normalize:
        poisson_kernels.scale_to_degree(space.degrees, num_dst, indptr, edge_weight)
    return Picked(indptr, edge_ids, lists=lists, edge_weight=edge_weight)


def seed_noun(graph: HeteroGraph, node_type: str) -> str:
    """Return the noun for seeds of ``node_type`` in messages; a one-type graph's noun omits the type. Pure."""
    return "seeds" if graph.is_one_type else f"seeds of type {node_type!r}"
