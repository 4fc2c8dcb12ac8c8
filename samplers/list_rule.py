"""The sweep rule for picks that need entire lists, and the draws while lists stream by.

A sweep (also: an edge pass) reads all edges once, in file order. A node's list is its in-edges. A frontier is the nodes
that take edges in one hop of one batch; each frontier in a sweep has an owner, which gathers its taken edges. Picks by
weight, and the picks of LABOR-0, do not know their positions before the edges are read. So the sweep reads the lists
of all nodes in a frontier, and each node chooses while its list streams by, see `list_kernels`.

The sweep keeps only the taken edges, so a list may have any length. An edge becomes a record of two or three words,
each as large as a node id: its place (its index in the node's list; `NONE` if the node takes no edge), its source, and
with importance its weight. `picked_of_records` later makes a hop from the records.
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

    TakeWords = Callable[[int, NDArray[Any]], None]  # arguments: an owner, and its words

# Bytes per edge that weighted sampling holds and may still drop: arrival, weight, slot, place and source.
KEPT_EDGE_BYTES: Final = 40
_PORTION_NODES: Final = 128  # nodes that are copied for an owner at a time (1 KB)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ListRule:
    """A `HopRule`, one sampler's rule for sweeps, whose draws are records. Pure and thread-safe.

    Picks are weighted without replacement, as in `NeighborSampler`, or have chance fan-out / degree, as in
    `LaborSampler`.
    """

    graph: Topology  # the edges of one relation (edge type)
    fanouts: tuple[int, ...]  # the hop next to the seeds first
    seed: int
    is_weighted: bool  # True for picks by weight, False for LABOR-0
    has_importance: bool = False  # True if records hold importance weights
    is_merged: bool = False  # True if a node draws only in the hop after its discovery
    share_layers: bool = False  # True if LABOR's random numbers are the same in all hops
    relation: int = 0  # the relation's number in the graph, see `relation_key`

    @property
    def num_hops(self) -> int:
        """Number of hops."""
        return len(self.fanouts)

    @property
    def word_dtype(self) -> np.dtype[Any]:
        """The records' dtype: int32, or int64 if node ids need it."""
        return id_dtype(self.graph.num_sources)

    @property
    def record_words(self) -> int:
        """Words in a record."""
        return 3 if self.has_importance else 2

    @property
    def unable_to_exclude(self) -> str:
        """The sampler's name in messages: it cannot exclude edges."""
        return "the sampler 'weighted'" if self.is_weighted else "the sampler 'labor'"

    def begin(self, batch_id: BatchId, seeds: AnySeeds) -> Frontier:
        """Return hop 0's frontier: the seeds (B,) in ascending order; raises as `Sampler.sample`."""
        given = unexcluded_seeds(seeds, sampler=self.unable_to_exclude)
        return first_frontier(batch_id, given.nodes, self.graph.num_nodes)

    def extend(self, frontier: Frontier, drawn: NDArray[Any]) -> Frontier:
        """Return the next hop's frontier. After the last hop its ``seen`` has every node in the batch.

        Parameters
        ----------
        frontier : the current hop's frontier
        drawn : the frontier's records, flat

        Raises
        ------
        GraphError
            A source is not a graph node.
        """
        return next_frontier(frontier, self.sources(frontier, drawn), is_merged=self.is_merged)

    def sources(self, frontier: Frontier, drawn: NDArray[Any]) -> NDArray[Any]:
        """Return the taken edges' sources (K,), from the records; for errors see `extend`."""
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
        """Return the random key of the frontier's hop."""
        batch_id, hop = frontier.batch_id, 0 if self.share_layers else frontier.hop
        return relation_key(layer_key(self.seed, batch_id.epoch, batch_id.index, hop), self.relation)

    def mark(self, frontier: Frontier, pages: NDArray[Any], *, per_page: int) -> int:
        """Set the bits of the pages with in-edges of ``frontier``; return the approximate number of taken edges.

        Parameters
        ----------
        frontier : a hop's frontier
        pages : uint64, a bit for each page; written
        per_page : edges per page

        Raises
        ------
        ConfigError
            A list has 2**31 or more edges.
        """
        fanout = self.fanouts[frontier.hop]
        if fanout == 0:
            return 0
        offsets = self.graph.offsets
        longest, taken = list_kernels.mark_lists(offsets, frontier.nodes, fanout, per_page, pages)
        if longest > list_kernels.MOST_EDGES:
            raise ConfigError(
                f"a node in hop {frontier.hop} of {frontier.batch_id} has {longest} in-edges, and sweeps that read "
                f"whole lists support at most {list_kernels.MOST_EDGES} per list; use topology='direct'"
            )
        return int(taken)


class ListDraws:
    """Draws for the owners of a sweep, while all edges stream by in order. For one thread.

    Holds `list_draws_bytes` bytes.

    Parameters
    ----------
    rule : the owners' rule
    frontiers : the frontiers of the O owners
    capacity : words that an owner gathers before it hands them out
    """

    def __init__(self, rule: ListRule, frontiers: Sequence[Frontier], *, capacity: int) -> None:
        owners = len(frontiers)
        fanouts = np.array([rule.fanouts[frontier.hop] for frontier in frontiers], dtype=np.int64)
        kept = _kept_edges(rule)
        # The last record may begin just below the capacity, so there is room for one more record.
        words = np.zeros((owners, capacity + rule.record_words), dtype=rule.word_dtype)
        self._rule = rule
        self._frontiers = frontiers
        self._begun = np.zeros(owners, dtype=np.int64)  # how many of each owner's nodes were copied
        self._lists = Lists(
            table=np.zeros((list_kernels.NUM_ROWS, owners), dtype=np.int64),
            nodes=np.empty((owners, _PORTION_NODES), dtype=np.int64),
            keys=np.array([rule.key(frontier) for frontier in frontiers], dtype=np.uint64),
            beyond=np.empty(owners),  # the smallest random arrival that is not taken
            numbers=np.empty((owners, 2, kept)),  # each kept edge's arrival and weight
            edges=np.empty((owners, 3, kept), dtype=np.int64),  # each kept edge's slot, place and source
            words=words,
            floats=words.view(np.float32 if words.itemsize == 4 else np.float64),
            capacity=capacity,
            has_importance=rule.has_importance,
        )
        self._lists.table[list_kernels.HAS_MORE] = 1
        self._lists.table[list_kernels.FANOUT] = fanouts
        # The position of each owner's next edge: FAR (none) with fan-out 0, else UNKNOWN until its nodes are copied.
        self._lists.table[list_kernels.EDGE] = np.where(fanouts == 0, list_kernels.FAR, list_kernels.UNKNOWN)

    def offer(self, begin: int, sources: NDArray[Any], weights: NDArray[Any], take: TakeWords) -> None:
        """Let every owner choose among consecutive edges.

        The kernel `list_kernels.offer` offers the edges to the owners in ``waiting``. Owners that stop before the last
        edge move to the front of ``waiting``, and the kernel returns their number. Each of these owners gets more
        nodes, or its words are taken away. Then the kernel is called again for them.

        Parameters
        ----------
        begin : position of the first edge; it grows from call to call
        sources : (M,) the edges' sources
        weights : (M,) the edges' weights; any array for a rule without weights
        take : called with an owner's number and its words, if the owner's memory is full; has to copy the words

        Raises
        ------
        GraphError
            A weight is negative, infinite or not a number, or the calls left out an owner's edges.
        """
        # Node ids fit in this dtype, whatever dtype they are stored in, so the kernel compiles for one dtype only.
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
        """Give the owners' remaining words to ``take``, after the last edge of the sweep.

        Raises
        ------
        GraphError
            The calls left out an owner's edges.
        """
        # After the last edge no owner may still wait for an edge. UNKNOWN is allowed: the graph may have no edges.
        edges = self._lists.table[list_kernels.EDGE]
        waiting = np.flatnonzero((edges != list_kernels.FAR) & (edges != list_kernels.UNKNOWN))
        if len(waiting):
            self._raise_for(list_kernels.PASSED, int(waiting[0]), self._rule.graph.num_edges)
        for owner in range(len(self._frontiers)):
            while self._lists.table[list_kernels.FILL, owner]:  # at most one record above the capacity
                self._hand_out(owner, take)

    def _fill(self, owner: int) -> None:
        """Copy the next portion of the owner's nodes to where the kernel reads them."""
        table, nodes = self._lists.table, self._frontiers[owner].nodes
        begin = int(self._begun[owner])
        portion = nodes[begin : begin + _PORTION_NODES]
        self._lists.nodes[owner, : len(portion)] = portion
        self._begun[owner] = begin + len(portion)
        table[list_kernels.AT, owner] = 0
        table[list_kernels.END, owner] = len(portion)
        table[list_kernels.HAS_MORE, owner] = begin + len(portion) < len(nodes)

    def _hand_out(self, owner: int, take: TakeWords) -> None:
        """Give ``take`` the owner's words, up to its capacity, and keep the rest."""
        lists = self._lists
        fill = int(lists.table[list_kernels.FILL, owner])
        count = min(fill, lists.capacity)
        take(owner, lists.words[owner, :count])  # ``take`` copies them: their memory is used again
        lists.words[owner, : fill - count] = lists.words[owner, count:fill].copy()
        lists.table[list_kernels.FILL, owner] = fill - count

    def _raise_for(self, status: int, owner: int, begin: int) -> None:
        """Raise GraphError for an owner with status BAD_WEIGHT or PASSED."""
        table = self._lists.table
        node = int(self._lists.nodes[owner, table[list_kernels.AT, owner]])
        if status == list_kernels.BAD_WEIGHT:
            raise graph_errors.bad_weights(self._rule.graph, node)
        edge = int(table[list_kernels.EDGE, owner])
        raise GraphError(
            f"edge {edge}, an in-edge of node {node}, was passed over: edges from {begin} on came first"
        )


def list_draws_bytes(rule: ListRule, num_owners: int, *, capacity: int) -> int:
    """Return the bytes that `ListDraws` holds. Pure.

    Parameters
    ----------
    rule : the owners' rule
    num_owners : O
    capacity : words that an owner gathers before it hands them out
    """
    words = rule.word_dtype.itemsize * (capacity + rule.record_words)
    kept = KEPT_EDGE_BYTES * _kept_edges(rule)
    per_owner = 8 * (list_kernels.NUM_ROWS + 3 + _PORTION_NODES) + words + kept
    return num_owners * per_owner


def _kept_edges(rule: ListRule) -> int:
    """Return the maximum number of edges that an owner holds for one list; 0 without weights, which holds none."""
    # The fan-out is a bound, and so is the graph: a node that chooses has more edges than its fan-out.
    return min(max(0, *rule.fanouts), rule.graph.num_edges) if rule.is_weighted else 0


def picked_of_records(
    rule: ListRule,
    space: RelationSpace,
    batch_id: BatchId,
    hop: int,
    destinations: range,
    drawn: NDArray[Any],
) -> Picked:
    """Return a hop's edges from a sweep's records, as the sampler picks them. Weights are not normalized.

    Parameters
    ----------
    rule : the sampler's rule
    space : the batch so far, with its nodes' degrees
    batch_id, hop : the batch and the hop of the draws
    destinations : the nodes that take edges, as a range of indices in the batch's nodes; ends with the last node
    drawn : the hop's records, flat

    Raises
    ------
    GraphError
        The records do not match these nodes, or a source is not a node.
    ConfigError
        There are 2**31 or more edges.
    """
    part = slice(destinations.start, destinations.stop)
    records = drawn.reshape(-1, rule.record_words)
    places = records[:, 0].copy()
    begins, counts = _find_records(rule, space, batch_id, hop, part, places)
    num_edges = checked_total(int(counts.sum()), hop, batch_id, rule.fanouts)
    indptr = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=indptr[1:])
    taken = np.empty(num_edges, dtype=np.int64)
    edge_ids = np.empty(num_edges, dtype=np.int64)
    list_kernels.place_records(places, begins, space.starts[part], indptr, taken, edge_ids)
    sources = records[:, 1].copy()
    # Read-only, as a graph's sources are, so that the kernel is compiled for one kind of array only.
    sources.flags.writeable = False
    edge_weight = _edge_weight(rule, rule.fanouts[hop], space.degrees[part], indptr, records[taken, -1])
    return Picked(indptr, edge_ids, sources=(sources, taken), edge_weight=edge_weight)


def _find_records(
    rule: ListRule, space: RelationSpace, batch_id: BatchId, hop: int, part: slice, places: NDArray[Any]
) -> tuple[IdArray, IdArray]:
    """Return for each destination in ``part`` the index of its first record, and its number of taken edges.

    ``places`` (M,) has every record's first word.
    """
    num_dst = part.stop - part.start
    begins, counts = np.zeros(num_dst, dtype=np.int64), np.zeros(num_dst, dtype=np.int64)
    if rule.fanouts[hop] == 0:
        return begins, counts
    # Records are in the nodes' ascending order; a batch has its nodes in the order of discovery.
    order = np.argsort(space.nodes[part])
    ascending = np.empty((2, num_dst), dtype=np.int64)
    if not list_kernels.find_records(places, space.degrees[part][order], ascending[0], ascending[1]):
        raise GraphError(
            f"hop {hop} of {batch_id}: {len(places)} records do not match its {num_dst} nodes: the records belong to "
            "another batch, or to a sampler with another seed or other fan-outs"
        )
    begins[order], counts[order] = ascending
    return begins, counts


def _edge_weight(
    rule: ListRule, fanout: int, degrees: IdArray, indptr: LocalArray, last_words: NDArray[Any]
) -> NDArray[np.float32] | None:
    """Return each edge's weight in a hop (1 / chance for LABOR-0), or None for picks by weight without importance.

    ``last_words`` are the last words of the edges' records: the importance, if the rule has it.
    """
    counts = np.diff(indptr)
    takes_all = np.full(len(degrees), True) if fanout < 0 else degrees <= fanout
    if not rule.is_weighted:
        # A hop with fan-out 0 takes no edge; 1 instead of 0 avoids a division by zero.
        chances = np.where(takes_all, 1.0, max(fanout, 1) / np.maximum(degrees, 1))
        return np.repeat((1.0 / chances).astype(np.float32), counts)
    if not rule.has_importance:
        return None
    # A node with no more in-edges than the fan-out takes all edges with positive weight. Each of these counts
    # degree / count times, so that together they also represent the edges with weight 0.
    certain = np.repeat((degrees / np.maximum(counts, 1)).astype(np.float32), counts)
    chosen = last_words.view(np.float32 if last_words.itemsize == 4 else np.float64).astype(np.float32)
    return np.where(np.repeat(takes_all, counts), certain, chosen)
