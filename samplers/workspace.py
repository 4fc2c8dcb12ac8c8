"""The scratch memory for sampling calls, reused from batch to batch.

A call of `HopFrame.sample` borrows a `Workspace` from a `WorkspacePool`. The workspace has the batch's nodes of each
type (`FoundNodes`), and for each relation (edge type) a `RelationSpace` with its destinations' edges.

A batch's nodes get local ids 0, 1, ... in the order in which they are found. A destination is a node that takes edges
in a hop. Its range is a consecutive part of its in-edges; it may take these edges, except for excluded ones, which lie
in the range but are not counted (see `EdgeRanges`). A position is an edge's index in the graph; a place is an index in
an array that was read for the hop. A candidate is a node that a hop may find, for samplers that choose for all
destinations of a hop together. If seeds have times, entries replace nodes: an entry is a number for one node in the
tree of one seed, see `ranges`.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from gloader.core.kernels import njit
from gloader.samplers import graph_errors
from gloader.samplers.node_map import DenseMap, HashMap
from gloader.samplers.pick_kernels import bit_set

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from gloader.errors import GraphError
    from gloader.samplers.graph import EdgeLists, HeteroGraph, Topology
    from gloader.samplers.node_map import NodeMap
    from gloader.types import IdArray, LocalArray

DENSE_LIMIT = 50_000_000  # nodes; above this, 4 bytes per node and thread cost more than a hash table
_NO_NODES: IdArray = np.empty(0, dtype=np.int64)


class FoundNodes:
    """The nodes of one type that a batch has found, and their local ids. The buffer grows.

    Parameters
    ----------
    node_map : map from nodes to local ids
    num_nodes : N, the maximum number of found nodes
    """

    __slots__ = ("count", "map", "nodes", "num_nodes")

    def __init__(self, node_map: NodeMap, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        self.map = node_map
        self.nodes: IdArray = np.empty(0, dtype=np.int64)
        self.count = 0

    def begin(self, seeds: IdArray) -> int:
        """Start a batch with ``seeds``, which must be in range; return how many of them are repeats."""
        self.count = 0
        self._reserve(len(seeds))
        repeats = self.map.begin(seeds, self.nodes)
        self.count = len(seeds)
        return repeats

    def append(self, values: NDArray[Any], places: IdArray, out: LocalArray) -> int:
        """Write the local ids of edge sources, and append the new nodes among them.

        Parameters
        ----------
        values : sources of edges
        places : (M,) places in ``values``
        out : (M,) receives the local ids

        Returns
        -------
        int
            The number of nodes, or -1 - i if the source of edge i is not a node. In this case the object must not be
            used again.
        """
        self._reserve(min(self.count + len(places), self.num_nodes))
        self.count = self.map.relabel(values, places, self.nodes, self.count, out)
        return self.count

    def _reserve(self, num_nodes: int) -> None:
        """Make room for ``num_nodes`` nodes and one spare entry, which relabelling needs; found nodes are kept."""
        if num_nodes < len(self.nodes):
            return
        grown = np.empty(max(num_nodes + 1, 2 * len(self.nodes)), dtype=np.int64)
        grown[: self.count] = self.nodes[: self.count]
        self.nodes = grown


class Scratch:
    """Buffers for one hop in a call. They grow to the largest hop.

    ``bits`` is scratch of `pick_kernels.pick_uniform`. ``edges`` and ``weights`` have an entry per edge of the hop.
    ``numbers`` is scratch of the weighted kernels.

    Parameters
    ----------
    largest_fanout : the largest fan-out, from which the size of ``bits`` follows
    """

    __slots__ = ("bits", "edges", "numbers", "weights")

    def __init__(self, largest_fanout: int) -> None:
        self.bits = bit_set(largest_fanout)
        self.edges: IdArray = np.empty(0, dtype=np.int64)
        self.weights: NDArray[np.float32] = np.empty(0, dtype=np.float32)
        self.numbers: NDArray[np.float64] = np.empty(0, dtype=np.float64)

    def reserve_edges(self, num_edges: int) -> None:
        """Make room for ``num_edges`` in ``edges`` and ``weights``; the content is lost."""
        if num_edges > self.edges.shape[0]:
            capacity = max(num_edges, 2 * self.edges.shape[0])
            self.edges = np.empty(capacity, dtype=np.int64)
            self.weights = np.empty(capacity, dtype=np.float32)

    def reserve_numbers(self, size: int) -> None:
        """Make room for ``size`` in ``numbers``; the content is lost."""
        if size > self.numbers.shape[0]:
            self.numbers = np.empty(max(size, 2 * self.numbers.shape[0]), dtype=np.float64)


class Picked(NamedTuple):
    """The edges that a hop's D destinations take from one relation."""

    indptr: LocalArray  # (D + 1,) the index in ``edge_ids`` at which each destination begins
    edge_ids: IdArray  # (M,) positions in the graph; if ``lists`` is given, places in ``lists.values``
    # If the hop is made from an edge pass's results: the array of sources that the pass read, and (M,) places in it.
    sources: tuple[NDArray[Any], IdArray] | None = None
    lists: EdgeLists | None = None  # the sources of all in-edges of the destinations, if they were read
    edge_weight: NDArray[np.float32] | None = None  # (M,) the block's weights; None without weights

    def sources_of(self, graph: Topology) -> tuple[NDArray[Any], IdArray]:
        """Return each edge's source: an array, and (M,) places in it."""
        if self.lists is not None:
            return self.lists.values, self.edge_ids
        return self.sources or graph.sources.at(self.edge_ids)

    def positions(self) -> IdArray:
        """Return the edge positions (M,) in the graph. With ``lists`` they overwrite the places in ``edge_ids``."""
        if self.lists is not None:
            self.lists.to_positions(self.edge_ids, self.indptr)
        return self.edge_ids

    def bad_source(self, graph: Topology, nodes: IdArray, at: int, source: int) -> GraphError:
        """Return the error for edge ``at``, whose ``source`` is no node; ``nodes`` (D,) are the destinations."""
        return graph_errors.bad_neighbor(graph, nodes, self.indptr, self.positions(), at, source=source)


class EdgeRanges(Protocol):
    """The edges of one relation that the destinations of one batch may take. For one thread.

    A sampler picks among a destination's allowed edges as if they were consecutive from the start of the range. Then
    `pass_over` shifts the picks beyond excluded edges. The two kinds are `AllEdges`, and `EdgesBefore` for times.
    """

    def fetch(self, space: RelationSpace, first: int, last: int, /) -> None:
        """Write the ranges of destinations ``first:last`` to ``space.starts`` and ``space.degrees``.

        Raises
        ------
        GraphError
            A node's in-edges do not lie within the graph's edges, or are not sorted by time.
        """
        ...

    def pass_over(
        self, space: RelationSpace, destinations: range, indptr: LocalArray, edge_ids: IdArray, /
    ) -> None:
        """Turn picks into positions: skip the excluded edges.

        Parameters
        ----------
        space : the batch so far
        destinations : index range in ``space.nodes``
        indptr : (D + 1,) the index in ``edge_ids`` at which each destination begins
        edge_ids : (M,) picks as if no edge of the range were excluded; overwritten by positions
        """
        ...

    def nodes(self, space: RelationSpace, destinations: range, /) -> IdArray:
        """Return the ids (D,) of ``destinations`` in the graph."""
        ...

    def sources(
        self, space: RelationSpace, destinations: range, picked: Picked, /
    ) -> tuple[NDArray[Any], IdArray]:
        """Return the sources of ``picked``: an array of nodes (or of entries), and (M,) places in it.

        Parameters
        ----------
        space, destinations : as in `pass_over`
        picked : the taken edges

        Raises
        ------
        GraphError
            A source is no node.
        """
        ...

    def in_degrees(self, space: RelationSpace, nodes: IdArray, /) -> NDArray[np.float32] | None:
        """Return each node's number of allowed in-edges, for ``nodes`` (U,); None if all in-edges are allowed."""
        ...


class RelationSpace:
    """One relation's scratch memory in a batch; one call uses it at a time.

    Parameters
    ----------
    found : the batch's nodes of the destination type
    sources : the batch's nodes of the source type; the same object as ``found`` in a relation within one type
    scratch : the call's buffers
    candidates : the source type's candidates; None if the sampler needs none
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
        self.starts: IdArray = np.empty(0, dtype=np.int64)  # the beginning of each destination's range
        self.degrees: IdArray = np.empty(0, dtype=np.int64)  # the number of allowed edges in each range
        self._fetched = 0  # number of destinations with a range
        self.ranges: EdgeRanges  # the edges that the batch may take; set by `begin`

    def begin(self, ranges: EdgeRanges) -> None:
        """Begin a batch whose hops take edges from ``ranges``."""
        self._fetched = 0
        self.ranges = ranges

    def fetch(self, destinations: range) -> None:
        """Write ``starts`` and ``degrees`` of all ``destinations`` that have no range yet; raises as `EdgeRanges`."""
        first, last = max(self._fetched, destinations.start), destinations.stop
        if first < last:
            self._reserve_degrees(last)
            self.ranges.fetch(self, first, last)
            self._fetched = last

    @property
    def nodes(self) -> IdArray:
        """The destination type's nodes in first-seen order, followed by free space."""
        return self._found.nodes

    def places_of(self, nodes: IdArray, out: IdArray) -> None:
        """Replace each -1 in ``out`` (n,) by the local id of ``nodes`` (n,) at the same index, if the batch has it."""
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
    """The nodes that a hop can find: the distinct in-neighbours of all its destinations.

    Holds `candidate_bytes` for the largest hop. For one thread at a time.
    """

    __slots__ = ("_map", "chances", "count", "nodes", "numbers", "of_edge", "offsets", "scales", "tops")

    def __init__(self, node_map: NodeMap) -> None:
        self._map = node_map
        self.count = 0
        self.nodes: IdArray = np.empty(1, dtype=np.int64)  # each candidate's node
        self.of_edge: LocalArray = np.empty(0, dtype=np.int32)  # each in-edge's candidate
        self.offsets: IdArray = np.empty(0, dtype=np.int64)  # each destination's beginning in ``of_edge``
        self.scales: NDArray[np.float64] = np.empty(0)  # each destination's factor on the chances
        # Three arrays with one value per candidate: its chance, scratch of the sampler, and its random number.
        self.chances: NDArray[np.float64] = np.empty(0)
        self.tops: NDArray[np.float64] = np.empty(0)
        self.numbers: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)

    def find(
        self, graph: Topology, space: RelationSpace, lists: EdgeLists, num_dst: int, num_edges: int
    ) -> None:
        """Find the sources of all in-edges for the first ``num_dst`` nodes in ``space``.

        The call makes room for these edges in ``space.scratch.edges``.

        Parameters
        ----------
        graph : the topology
        space : the batch so far, with its nodes' degrees
        lists : the in-edges' sources
        num_dst : D, destinations in the hop
        num_edges : number of in-edges into the D destinations

        Raises
        ------
        GraphError
            An edge's source is not a graph node.
        """
        space.scratch.reserve_edges(num_edges)
        self.offsets = _grown(self.offsets, num_dst + 1)
        self.scales = _grown(self.scales, num_dst)
        self.of_edge = _grown(self.of_edge, num_edges)
        self.nodes = _grown(self.nodes, min(num_edges, graph.num_sources) + 1)
        _list_edges(lists.starts, space.degrees, num_dst, self.offsets, space.scratch.edges)
        # This map is separate: only taken sources join the batch's map in ``space``.
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
    """A sampling call's scratch memory: the found nodes by type, and a space for each relation.

    Parameters
    ----------
    graph : the types and relations
    largest_fanout : the largest fan-out over all hops and relations
    dense_limit : largest number of nodes of a type whose local ids are kept in an array; larger types have a hash table
    has_candidates : True if hops choose for all destinations together
    limits : by type, a number above all ids (or all entries); None means the number of nodes
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
        # Each source type has one `Candidates`, which the next hop overwrites.
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
    """Lends each concurrent call a workspace, and keeps all of them for later calls. Thread-safe.

    Parameters
    ----------
    make : makes a workspace
    """

    def __init__(self, make: Callable[[], Workspace]) -> None:
        self._make = make
        self._free: deque[Workspace] = deque()

    @contextmanager
    def lend(self) -> Iterator[Workspace]:
        """Lend a workspace to a ``with`` block; drop it if the block raises."""
        try:
            workspace = self._free.pop()  # a deque's pop and append are atomic: no lock
        except IndexError:
            workspace = self._make()
        # This line is not in a `finally`: after an interrupt or a damaged graph the maps must not be used again.
        yield workspace
        self._free.append(workspace)


def candidate_bytes(num_edges: int, num_nodes: int) -> int:
    """Return the peak bytes of `Candidates` for a hop with ``num_edges`` in-edges and ``num_nodes`` nodes. Pure."""
    return 4 * num_edges + 32 * min(num_edges, num_nodes)


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return ``array`` if it has ``size`` entries, else a larger array with undefined content."""
    return array if len(array) >= size else np.empty(max(size, 2 * len(array)), dtype=array.dtype)


@njit(cache=True, nogil=True)
def _list_edges(starts: IdArray, degrees: IdArray, num_dst: int, offsets: IdArray, edge_ids: IdArray) -> None:
    """Write the places of all in-edges, and ``offsets`` (D + 1,), the index at which each destination begins."""
    out = 0
    offsets[0] = 0
    for i in range(num_dst):
        for edge in range(starts[i], starts[i] + degrees[i]):
            edge_ids[out] = edge
            out += 1
        offsets[i + 1] = out
