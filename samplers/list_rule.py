"""The rule of sweeps of samplers that look at whole lists, and their draws while the lists stream by.

Uniform picks know their positions before an edge is read; picks by weight, and those of LABOR-0, do not. So a pass
reads the lists of all nodes of a frontier, and a node chooses while its list goes by: see `list_kernels`. No more is
kept of a list than what the batch takes of it, however long it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.ids import id_dtype
from gloader.core.value_kernels import first_outside
from gloader.errors import ConfigError, GraphError
from gloader.samplers import graph_errors, list_kernels
from gloader.samplers.arguments import checked_total
from gloader.samplers.exclusion import unexcluded_seeds
from gloader.samplers.list_kernels import Lists
from gloader.samplers.rng import layer_key, relation_key
from gloader.samplers.sweeping import first_frontier, next_frontier
from gloader.samplers.workspace import Picked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from gloader.samplers.graph import Topology
    from gloader.samplers.sweeping import Frontier
    from gloader.samplers.workspace import RelationSpace
    from gloader.types import AnySeeds, BatchId, IdArray, LocalArray

    TakeWords = Callable[[int, NDArray[Any]], None]  # of an owner; they are overwritten afterwards

KEPT_EDGE_BYTES: Final = 40  # of an edge that weighted sampling has taken of a list, and may yet give up
_PORTION_NODES: Final = 128  # of an owner that are copied at a time: 1 KB


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ListRule:
    """A `HopRule` that draws records of W words, one after the other; see `list_kernels`. Pure and thread-safe.

    By weight without replacement, as `NeighborSampler` does, or with chance fan-out / degree, as `LaborSampler`.
    """

    graph: Topology
    fanouts: tuple[int, ...]
    seed: int
    is_weighted: bool  # else LABOR-0
    has_importance: bool = False  # whether records say how many edges they stand for
    is_merged: bool = False
    share_layers: bool = False
    relation: int = 0  # number of the relation that the graph is, see `relation_key`

    @property
    def num_hops(self) -> int:
        """L."""
        return len(self.fanouts)

    @property
    def word_dtype(self) -> np.dtype[Any]:
        """The dtype of records: int32, or int64 where node ids need it."""
        return id_dtype(self.graph.num_sources)

    @property
    def record_words(self) -> int:
        """W."""
        return 3 if self.has_importance else 2

    @property
    def unable_to_exclude(self) -> str:
        """The name of its sampler, which cannot exclude edges."""
        return "the sampler 'weighted'" if self.is_weighted else "the sampler 'labor'"

    def begin(self, batch_id: BatchId, seeds: AnySeeds) -> Frontier:
        """Return the frontier of hop 0: the seeds (B,) in ascending order; raises as `Sampler.sample`."""
        given = unexcluded_seeds(seeds, sampler=self.unable_to_exclude)
        return first_frontier(batch_id, given.nodes, self.graph.num_nodes)

    def extend(self, frontier: Frontier, drawn: NDArray[Any]) -> Frontier:
        """Return the frontier of the next hop; that of hop L has in ``seen`` every node of the batch.

        Parameters
        ----------
        frontier : of a hop
        drawn : flat, its records

        Raises
        ------
        GraphError
            A source is no node of the graph.
        """
        return next_frontier(frontier, self.sources(frontier, drawn), is_merged=self.is_merged)

    def sources(self, frontier: Frontier, drawn: NDArray[Any]) -> NDArray[Any]:
        """Return the sources (K,) of the edges that ``frontier`` takes, from its records; errors as `extend`."""
        records = drawn.reshape(-1, self.record_words)
        sources = records[records[:, 0] != list_kernels.NONE, 1]
        bad = first_outside(sources, 0, self.graph.num_sources - 1)
        if bad >= 0:
            raise GraphError(
                f"{int(sources[bad])}, the source of an edge that hop {frontier.hop} of {frontier.batch_id} took, is "
                f"not in 0..{self.graph.num_sources - 1}"
            )
        return sources

    def key(self, frontier: Frontier) -> np.uint64:
        """Return the key of the hop."""
        batch_id, hop = frontier.batch_id, 0 if self.share_layers else frontier.hop
        return relation_key(layer_key(self.seed, batch_id.epoch, batch_id.index, hop), self.relation)

    def mark(self, frontier: Frontier, pages: NDArray[Any], *, per_page: int) -> int:
        """Set the bits of the pages that hold in-edges of the nodes of ``frontier``; return about how many it takes.

        Parameters
        ----------
        frontier : whose lists
        pages : uint64, a bit for each page; written
        per_page : edges in a page

        Raises
        ------
        ConfigError
            A list has 2**31 edges or more.
        """
        fanout = self.fanouts[frontier.hop]
        if fanout == 0:
            return 0
        offsets = self.graph.offsets
        longest, taken = list_kernels.mark_lists(offsets, frontier.nodes, fanout, per_page, pages)
        if longest > list_kernels.MOST_EDGES:
            raise ConfigError(
                f"a node in hop {frontier.hop} of {frontier.batch_id} has {longest} in-edges, and sweeps that look at "
                f"whole lists know up to {list_kernels.MOST_EDGES}; use topology='direct'"
            )
        return int(taken)


class ListDraws:
    """The edges that the owners of a pass take while all edges stream by in order. For one thread.

    Takes `list_draws_bytes`.

    Parameters
    ----------
    rule : of all owners
    frontiers : O of them
    capacity : words that an owner gathers before they are handed out
    """

    def __init__(self, rule: ListRule, frontiers: Sequence[Frontier], *, capacity: int) -> None:
        owners = len(frontiers)
        fanouts = np.array([rule.fanouts[frontier.hop] for frontier in frontiers], dtype=np.int64)
        kept = _kept_edges(rule)
        words = np.zeros((owners, capacity + rule.record_words), dtype=rule.word_dtype)
        self._rule = rule
        self._frontiers = frontiers
        self._begun = np.zeros(owners, dtype=np.int64)  # nodes of each owner that were copied
        self._lists = Lists(
            table=np.zeros((list_kernels.NUM_ROWS, owners), dtype=np.int64),
            nodes=np.empty((owners, _PORTION_NODES), dtype=np.int64),
            keys=np.array([rule.key(frontier) for frontier in frontiers], dtype=np.uint64),
            beyond=np.empty(owners),
            numbers=np.empty((owners, 2, kept)),
            edges=np.empty((owners, 3, kept), dtype=np.int64),
            words=words,
            floats=words.view(np.float32 if words.itemsize == 4 else np.float64),
            capacity=capacity,
            has_importance=rule.has_importance,
        )
        self._lists.table[list_kernels.HAS_MORE] = 1
        self._lists.table[list_kernels.FANOUT] = fanouts
        # Of a fan-out of 0 nothing is looked at.
        self._lists.table[list_kernels.EDGE] = np.where(fanouts == 0, list_kernels.FAR, list_kernels.UNKNOWN)

    def offer(self, begin: int, sources: NDArray[Any], weights: NDArray[Any], take: TakeWords) -> None:
        """Let every owner choose among edges that follow one another.

        Parameters
        ----------
        begin : position of the first; no call goes back behind the one before
        sources : (M,) of the edges, nodes of the graph
        weights : (M,), or of any length without weights
        take : called with the words of owners that have gathered enough

        Raises
        ------
        GraphError
            A weight is negative, infinite or not a number, or edges that an owner waits for were left out.
        """
        # Ids of the graph's nodes fit, however wide they are stored: the kernel is compiled for one kind.
        sources = sources.astype(self._rule.word_dtype, copy=False)
        lists, waiting = self._lists, np.arange(len(self._frontiers))
        while len(waiting):
            with np.errstate(over="ignore"):  # interpreted hashes wrap around
                count = list_kernels.offer(
                    lists,
                    self._rule.graph.offsets,
                    begin,
                    sources,
                    weights,
                    self._rule.is_weighted,
                    waiting,
                )
            waiting = waiting[:count]
            for owner in waiting.tolist():
                match lists.table[list_kernels.STATUS, owner]:
                    case list_kernels.NODES_WANTED:
                        self._fill(owner)
                    case list_kernels.WORDS_FULL:
                        self._hand_out(owner, take)
                    case status:
                        self._raise_for(int(status), owner, begin)

    def finish(self, take: TakeWords) -> None:
        """Hand out what the owners still have.

        Raises
        ------
        GraphError
            Edges that an owner waits for were left out.
        """
        # An owner that looked for a list after the last edge has none; without an offer no list was wanted.
        edges = self._lists.table[list_kernels.EDGE]
        waiting = np.flatnonzero((edges != list_kernels.FAR) & (edges != list_kernels.UNKNOWN))
        if len(waiting):
            self._raise_for(list_kernels.PASSED, int(waiting[0]), self._rule.graph.num_edges)
        for owner in range(len(self._frontiers)):
            while self._lists.table[list_kernels.FILL, owner]:  # up to a record more than it may gather
                self._hand_out(owner, take)

    def _fill(self, owner: int) -> None:
        """Copy the next nodes of ``owner``."""
        table, nodes = self._lists.table, self._frontiers[owner].nodes
        begin = int(self._begun[owner])
        portion = nodes[begin : begin + _PORTION_NODES]
        self._lists.nodes[owner, : len(portion)] = portion
        self._begun[owner] = begin + len(portion)
        table[list_kernels.AT, owner] = 0
        table[list_kernels.END, owner] = len(portion)
        table[list_kernels.HAS_MORE, owner] = begin + len(portion) < len(nodes)

    def _hand_out(self, owner: int, take: TakeWords) -> None:
        """Give ``take`` the words of ``owner``, no more than it may gather, and keep the rest."""
        lists = self._lists
        fill = int(lists.table[list_kernels.FILL, owner])
        count = min(fill, lists.capacity)
        take(owner, lists.words[owner, :count])
        lists.words[owner, : fill - count] = lists.words[owner, count:fill].copy()
        lists.table[list_kernels.FILL, owner] = fill - count

    def _raise_for(self, status: int, owner: int, begin: int) -> None:
        table = self._lists.table
        node = int(self._lists.nodes[owner, table[list_kernels.AT, owner]])
        if status == list_kernels.BAD_WEIGHT:
            raise graph_errors.bad_weights(self._rule.graph, node)
        edge = int(table[list_kernels.EDGE, owner])
        raise GraphError(
            f"edge {edge}, an in-edge of node {node}, was passed over: edges from {begin} on came first"
        )


def list_draws_bytes(rule: ListRule, num_owners: int, *, capacity: int) -> int:
    """Return the bytes of `ListDraws`. Pure.

    Parameters
    ----------
    rule : of all owners
    num_owners : O
    capacity : words that an owner gathers before they are handed out
    """
    words = rule.word_dtype.itemsize * (capacity + rule.record_words)
    kept = KEPT_EDGE_BYTES * _kept_edges(rule)
    per_owner = 8 * (list_kernels.NUM_ROWS + 3 + _PORTION_NODES) + words + kept
    return num_owners * per_owner


def _kept_edges(rule: ListRule) -> int:
    """Return the most edges of one list that an owner holds."""
    # A node that chooses has more edges than it takes.
    return min(max(0, *rule.fanouts), rule.graph.num_edges) if rule.is_weighted else 0


def picked_of_records(
    rule: ListRule,
    space: RelationSpace,
    batch_id: BatchId,
    hop: int,
    destinations: range,
    drawn: NDArray[Any],
) -> Picked:
    """Return the edges that the sampler in memory picks in a hop, from the records of a sweep; not normalized.

    Parameters
    ----------
    rule : of the sampler
    space : the batch so far, with the degrees of its nodes
    batch_id, hop : the address
    destinations : positions in the nodes of the batch so far, up to their end
    drawn : the records of the hop, flat

    Raises
    ------
    GraphError
        The records are not those of these nodes, or a source is no node.
    ConfigError
        There are 2**31 edges or more.
    """
    here = slice(destinations.start, destinations.stop)
    records = drawn.reshape(-1, rule.record_words)
    places = records[:, 0].copy()
    begins, counts = _find_records(rule, space, batch_id, hop, here, places)
    num_edges = checked_total(int(counts.sum()), hop, batch_id, rule.fanouts)
    indptr = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=indptr[1:])
    taken = np.empty(num_edges, dtype=np.int64)
    edge_ids = np.empty(num_edges, dtype=np.int64)
    list_kernels.place_records(places, begins, space.starts[here], indptr, taken, edge_ids)
    sources = records[:, 1].copy()
    sources.flags.writeable = False  # as those of a graph, so that relabelling is compiled for one kind
    edge_weight = _edge_weight(rule, rule.fanouts[hop], space.degrees[here], indptr, records[taken, -1])
    return Picked(indptr, edge_ids, sources=(sources, taken), edge_weight=edge_weight)


def _find_records(
    rule: ListRule, space: RelationSpace, batch_id: BatchId, hop: int, here: slice, places: NDArray[Any]
) -> tuple[IdArray, IdArray]:
    """Return where the records of each destination begin, and how many edges it takes."""
    num_dst = here.stop - here.start
    begins, counts = np.zeros(num_dst, dtype=np.int64), np.zeros(num_dst, dtype=np.int64)
    if rule.fanouts[hop] == 0:
        return begins, counts
    # Records are of nodes in ascending order, a batch has its nodes in the order in which they were found.
    order = np.argsort(space.nodes[here])
    found = np.empty((2, num_dst), dtype=np.int64)
    if not list_kernels.find_records(places, space.degrees[here][order], found[0], found[1]):
        raise GraphError(
            f"hop {hop} of {batch_id}: {len(places)} records are not those of its {num_dst} nodes: they belong to "
            "another batch, or to a sampler with another seed or other fan-outs"
        )
    begins[order], counts[order] = found
    return begins, counts


def _edge_weight(
    rule: ListRule, fanout: int, degrees: IdArray, indptr: LocalArray, last_words: NDArray[Any]
) -> NDArray[np.float32] | None:
    """Return how many edges of the graph each edge of a hop stands for; ``last_words`` are those of their records."""
    counts = np.diff(indptr)
    takes_all = np.full(len(degrees), True) if fanout < 0 else degrees <= fanout
    if not rule.is_weighted:
        # Of a fan-out of 0 no edge is taken; the chance of any would be 0.
        chances = np.where(takes_all, 1.0, max(fanout, 1) / np.maximum(degrees, 1))
        return np.repeat((1.0 / chances).astype(np.float32), counts)
    if not rule.has_importance:
        return None
    # Nodes that take all edges of positive weight have a chance of 1; how many there are is known only now.
    certain = np.repeat((degrees / np.maximum(counts, 1)).astype(np.float32), counts)
    chosen = last_words.view(np.float32 if last_words.itemsize == 4 else np.float64).astype(np.float32)
    return np.where(np.repeat(takes_all, counts), certain, chosen)
