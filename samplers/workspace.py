"""The scratch memory of sampling calls, reused from batch to batch."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from gloader.core.kernels import njit
from gloader.samplers import graph_errors
from gloader.samplers.node_map import DenseMap, HashMap, NodeMap
from gloader.samplers.pick_kernels import bit_set

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from gloader.errors import GraphError
    from gloader.samplers.graph import EdgeLists, HeteroGraph, Topology
    from gloader.types import IdArray, LocalArray

DENSE_LIMIT = 50_000_000  # nodes; beyond, 4 bytes a node and thread cost more than a hash table
_NO_NODES: IdArray = np.empty(0, dtype=np.int64)


class FoundNodes:
    """The nodes of one type that a batch has found, and the map from them to local ids; the buffer grows.

    Parameters
    ----------
    node_map : from these nodes to their local ids
    num_nodes : N, the most there can be
    """

    __slots__ = ("count", "map", "nodes", "num_nodes")

    def __init__(self, node_map: NodeMap, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        self.map = node_map
        self.nodes: IdArray = np.empty(0, dtype=np.int64)
        self.count = 0

    def begin(self, seeds: IdArray) -> int:
        """Start a batch with ``seeds``, which are in range; return how many of them repeat an earlier one."""
        self.count = 0
        self._reserve(len(seeds))
        repeats = self.map.begin(seeds, self.nodes)
        self.count = len(seeds)
        return repeats

    def append(self, values: NDArray[Any], places: IdArray, out: LocalArray) -> int:
        """Write the local ids of the sources of edges, append new nodes; return how many nodes there are now.

        Parameters
        ----------
        values : the sources of edges
        places : (M,) places in it
        out : (M,) receives the local ids

        Returns
        -------
        int
            The number of nodes, or -1 - i if the source of edge i is no node of the graph; this is then not to be used
            again.
        """
        self._reserve(min(self.count + len(places), self.num_nodes))
        self.count = self.map.relabel(values, places, self.nodes, self.count, out)
        return self.count

    def _reserve(self, num_nodes: int) -> None:
        if num_nodes < len(self.nodes):  # one more than there can be: relabelling writes before it counts
            return
        grown = np.empty(max(num_nodes + 1, 2 * len(self.nodes)), dtype=np.int64)
        grown[: self.count] = self.nodes[: self.count]
        self.nodes = grown


class Scratch:
    """Buffers of one hop of a call; they grow to the largest hop seen.

    Parameters
    ----------
    largest_fanout : sizes the bit set of `pick_kernels.pick_uniform`
    """

    __slots__ = ("bits", "edges", "numbers", "weights")

    def __init__(self, largest_fanout: int) -> None:
        self.bits = bit_set(largest_fanout)
        self.edges: IdArray = np.empty(0, dtype=np.int64)
        self.weights: NDArray[np.float32] = np.empty(0, dtype=np.float32)
        self.numbers: NDArray[np.float64] = np.empty(0, dtype=np.float64)

    def reserve_edges(self, num_edges: int) -> None:
        """Make room for ``num_edges`` in ``edges`` and ``weights``; their content is lost."""
        if num_edges > self.edges.shape[0]:
            capacity = max(num_edges, 2 * self.edges.shape[0])
            self.edges = np.empty(capacity, dtype=np.int64)
            self.weights = np.empty(capacity, dtype=np.float32)

    def reserve_numbers(self, size: int) -> None:
        """Make room for ``size`` in ``numbers``; their content is lost."""
        if size > self.numbers.shape[0]:
            self.numbers = np.empty(max(size, 2 * self.numbers.shape[0]), dtype=np.float64)


class Picked(NamedTuple):
    """The edges that the D destinations of a hop take of one relation."""

    indptr: LocalArray  # (D + 1,) where the edges of each destination begin
    edge_ids: IdArray  # (M,) positions in the graph, or with ``lists`` places in their values
    sources: tuple[NDArray[Any], IdArray] | None = None  # an array, and (M,) the places of the sources in it
    lists: EdgeLists | None = None  # the sources of the destinations' lists
    edge_weight: NDArray[np.float32] | None = None  # (M,) of the block

    def sources_of(self, graph: Topology) -> tuple[NDArray[Any], IdArray]:
        """Return the source of each edge: an array, and (M,) places in it."""
        if self.lists is not None:
            return self.lists.values, self.edge_ids
        return self.sources or graph.sources.at(self.edge_ids)

    def positions(self) -> IdArray:
        """Return the positions (M,) of the edges in the graph; they overwrite places in lists."""
        if self.lists is not None:
            self.lists.to_positions(self.edge_ids, self.indptr)
        return self.edge_ids

    def bad_source(self, graph: Topology, nodes: IdArray, at: int, source: int) -> GraphError:
        """Return the error for edge ``at``, whose ``source`` is no node; ``nodes`` (D,) are the destinations."""
        return graph_errors.bad_neighbor(graph, nodes, self.indptr, self.positions(), at, source=source)


class EdgeRanges(Protocol):
    """The edges of one relation that the destinations of one batch may take. For one thread."""

    def fetch(self, space: RelationSpace, first: int, last: int, /) -> None:
        """Write the range of each of the destinations ``first:last`` to ``space``.

        Raises
        ------
        GraphError
            The in-edges of a node do not lie within the graph's, or are not sorted by time.
        """
        ...

    def pass_over(
        self, space: RelationSpace, destinations: range, indptr: LocalArray, edge_ids: IdArray, /
    ) -> None:
        """Turn picks among the edges that are not excluded into positions.

        Parameters
        ----------
        space : the batch so far
        destinations : positions in ``space.nodes``
        indptr : (D + 1,) where the edges of each begin
        edge_ids : (M,) written
        """
        ...

    def nodes(self, space: RelationSpace, destinations: range, /) -> IdArray:
        """Return the ids (D,) of ``destinations`` in the graph."""
        ...

    def sources(
        self, space: RelationSpace, destinations: range, picked: Picked, /
    ) -> tuple[NDArray[Any], IdArray]:
        """Return the sources of ``picked`` as the batch has them, nodes or entries: an array, and (M,) places in it.

        Parameters
        ----------
        space, destinations : as of `pass_over`
        picked : what the destinations take

        Raises
        ------
        GraphError
            A source is no node.
        """
        ...

    def in_degrees(self, space: RelationSpace, nodes: IdArray, /) -> NDArray[np.float32] | None:
        """Return the in-edges that hops may take of each of the ``nodes`` (U,) of the batch; None: all of them."""
        ...


class RelationSpace:
    """The scratch memory of one relation of a batch; one call uses it at a time.

    Parameters
    ----------
    found : the nodes of the destination type
    sources : the nodes of the source type, the same in a relation within a type
    scratch : of the call
    candidates : for samplers that choose for all destinations of a hop together, else None
    """

    __slots__ = (
        "_fetched",
        "_found",
        "candidates",
        "degrees",
        "ranges",
        "scratch",
        "sources",
        "starts",
    )

    def __init__(
        self, found: FoundNodes, sources: FoundNodes, scratch: Scratch, candidates: Candidates | None = None
    ) -> None:
        self._found = found
        self.sources = sources
        self.scratch = scratch
        self.candidates = candidates
        self.starts: IdArray = np.empty(0, dtype=np.int64)  # where the range of each destination begins
        self.degrees: IdArray = np.empty(0, dtype=np.int64)  # edges of the range that may be taken
        self._fetched = 0  # destinations whose range is known
        self.ranges: EdgeRanges  # set by `begin`

    def begin(self, ranges: EdgeRanges) -> None:
        """Begin a batch whose hops take edges from ``ranges``."""
        self._fetched = 0
        self.ranges = ranges

    def fetch(self, destinations: range) -> None:
        """Write ``starts`` and ``degrees`` of ``destinations``, unless an earlier hop did; raises as `EdgeRanges`."""
        first, last = max(self._fetched, destinations.start), destinations.stop
        if first < last:
            self._reserve_degrees(last)
            self.ranges.fetch(self, first, last)
            self._fetched = last

    @property
    def nodes(self) -> IdArray:
        """The nodes of the destination type in first-seen order, and free space behind them."""
        return self._found.nodes

    def places_of(self, nodes: IdArray, out: IdArray) -> None:
        """Write the local ids of ``nodes`` (n,) of the destination type to ``out`` (n,) where it is -1."""
        self._found.map.find(nodes, out)

    def _reserve_degrees(self, num_nodes: int) -> None:
        """Make room for ``num_nodes`` in ``starts`` and ``degrees``; fetched ranges are kept."""
        if num_nodes <= self.starts.shape[0]:
            return
        capacity = max(num_nodes, 2 * self.starts.shape[0])
        for name in ("starts", "degrees"):
            grown = np.empty(capacity, dtype=np.int64)
            grown[: self._fetched] = getattr(self, name)[: self._fetched]
            setattr(self, name, grown)


class Candidates:
    """The nodes that a hop can find: the in-neighbours of all its destinations, each once.

    Takes what `candidate_bytes` says, for the largest hop seen. Used by one thread at a time.
    """

    __slots__ = ("_map", "chances", "count", "nodes", "numbers", "of_edge", "offsets", "scales", "tops")

    def __init__(self, node_map: NodeMap) -> None:
        self._map = node_map
        self.count = 0
        self.nodes: IdArray = np.empty(1, dtype=np.int64)  # node of each candidate
        self.of_edge: LocalArray = np.empty(0, dtype=np.int32)  # candidate of each in-edge
        self.offsets: IdArray = np.empty(0, dtype=np.int64)  # where the in-edges of a destination begin in it
        self.scales: NDArray[np.float64] = np.empty(0)  # one per destination
        self.chances: NDArray[np.float64] = np.empty(0)  # these three: one per candidate
        self.tops: NDArray[np.float64] = np.empty(0)
        self.numbers: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)

    def find(
        self, graph: Topology, space: RelationSpace, lists: EdgeLists, num_dst: int, num_edges: int
    ) -> None:
        """Find the sources of all in-edges of the first ``num_dst`` nodes in ``space``.

        Leaves room for all of these edges in ``space.scratch.edges``.

        Parameters
        ----------
        graph : the topology
        space : the batch so far, with the degrees of its nodes
        lists : the sources of these edges
        num_dst : D, destinations of the hop
        num_edges : their in-edges

        Raises
        ------
        GraphError
            The source of an edge is not a node of the graph.
        """
        space.scratch.reserve_edges(num_edges)
        self.offsets = _grown(self.offsets, num_dst + 1)
        self.scales = _grown(self.scales, num_dst)
        self.of_edge = _grown(self.of_edge, num_edges)
        self.nodes = _grown(self.nodes, min(num_edges, graph.num_sources) + 1)
        _list_edges(lists.starts, space.degrees, num_dst, self.offsets, space.scratch.edges)
        # A map of its own: that of ``space`` holds the local ids of the batch, which only sources that are taken join.
        self._map.begin(_NO_NODES, self.nodes)
        of_edge = self.of_edge[:num_edges]
        places = space.scratch.edges[:num_edges]
        self.count = self._map.relabel(lists.values, places, self.nodes, 0, of_edge)
        if self.count < 0:
            offsets = self.offsets[: num_dst + 1]
            lists.to_positions(places, offsets)
            raise graph_errors.bad_neighbor(graph, space.nodes[:num_dst], offsets, places, -1 - self.count)
        for name in ("chances", "tops", "numbers"):
            setattr(self, name, _grown(getattr(self, name), self.count))


class Workspace:
    """The scratch memory of a sampling call: the nodes found of each type, and a space for each relation.

    Parameters
    ----------
    graph : the types and relations
    largest_fanout : of all hops and relations
    dense_limit : largest type whose local ids are in an array; those of larger types are in a hash table
    has_candidates : whether hops choose for all destinations together
    limits : upper bound of the node ids of each type; None: its number of nodes
    """

    __slots__ = ("found", "relations")

    def __init__(
        self,
        graph: HeteroGraph,
        largest_fanout: int,
        *,
        dense_limit: int = DENSE_LIMIT,
        has_candidates: bool = False,
        limits: Mapping[str, int] | None = None,
    ) -> None:
        limits = graph.num_nodes if limits is None else limits
        maps = {name: DenseMap if count <= dense_limit else HashMap for name, count in limits.items()}
        found = {name: FoundNodes(maps[name](count), count) for name, count in limits.items()}
        # One for each source type: the next hop overwrites it.
        candidates: dict[str, Candidates] = {}
        if has_candidates:
            sources = dict.fromkeys(source for source, _, _ in graph.relations)
            candidates = {name: Candidates(maps[name](graph.num_nodes[name])) for name in sources}
        scratch = Scratch(largest_fanout)
        self.found = tuple(found.values())
        self.relations = tuple(
            RelationSpace(found[destination], found[source], scratch, candidates.get(source))
            for source, _, destination in graph.relations
        )


class WorkspacePool:
    """Lends each concurrent call a workspace; keeps as many as calls ever ran at once. Thread-safe.

    Parameters
    ----------
    make : makes a workspace
    """

    def __init__(self, make: Callable[[], Workspace]) -> None:
        self._make = make
        self._free: deque[Workspace] = deque()

    @contextmanager
    def lend(self) -> Iterator[Workspace]:
        """Lend a workspace for the length of a ``with`` block; drop it if the block raises."""
        try:
            workspace = self._free.pop()  # a deque's pop and append are atomic: no lock
        except IndexError:
            workspace = self._make()
        # Not in a `finally`: a map that was interrupted, or met a damaged graph, must not be used again.
        yield workspace
        self._free.append(workspace)


def candidate_bytes(num_edges: int, num_nodes: int) -> int:
    """Return the most bytes of `Candidates` of a hop with ``num_edges`` in-edges, in a graph of ``num_nodes``. Pure."""
    return 4 * num_edges + 32 * min(num_edges, num_nodes)


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return ``array`` if it has ``size`` entries, else a larger one of any content."""
    return array if len(array) >= size else np.empty(max(size, 2 * len(array)), dtype=array.dtype)


@njit(cache=True, nogil=True)
def _list_edges(starts: IdArray, degrees: IdArray, num_dst: int, offsets: IdArray, edge_ids: IdArray) -> None:
    out = 0
    offsets[0] = 0
    for i in range(num_dst):
        for edge in range(starts[i], starts[i] + degrees[i]):
            edge_ids[out] = edge
            out += 1
        offsets[i + 1] = out
