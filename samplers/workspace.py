"""The scratch memory of a sampling call, kept from batch to batch and lent to one call at a time."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from gloader.samplers import graph_errors
from gloader.samplers.exclusion_kernels import lower_degrees
from gloader.samplers.node_map import DenseMap, HashMap, NodeMap
from gloader.samplers.pick_kernels import bit_set

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.samplers.exclusion import Excluded
    from gloader.samplers.graph import EdgeLists, Topology
    from gloader.types import IdArray, LocalArray

DENSE_LIMIT = 50_000_000  # nodes; beyond, 4 bytes a node and thread cost more than a hash table
_NOBODY: IdArray = np.empty(0, dtype=np.int64)


class FoundNodes:
    """The nodes that a batch has found, of one type, and the map that finds them again; the buffer grows.

    Parameters
    ----------
    node_map : from these nodes to their local ids
    num_nodes : N, the most there can be
    """

    __slots__ = ("_num_nodes", "count", "map", "nodes")

    def __init__(self, node_map: NodeMap, num_nodes: int) -> None:
        self._num_nodes = num_nodes
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
        self._reserve(min(self.count + len(places), self._num_nodes))
        self.count = self.map.relabel(values, places, self.nodes, self.count, out)
        return self.count

    def _reserve(self, num_nodes: int) -> None:
        if num_nodes < len(self.nodes):  # one more than there can be: relabelling writes before it counts
            return
        grown = np.empty(max(num_nodes + 1, 2 * len(self.nodes)), dtype=np.int64)
        grown[: self.count] = self.nodes[: self.count]
        self.nodes = grown


class Scratch:
    """Buffers of a call whose content no hop leaves to the next; they grow to the largest hop seen.

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


class Workspace:
    """What the hops of a relation work on; one call uses it at a time.

    Parameters
    ----------
    found : the nodes of the destination type
    sources : the nodes of the source type; of a graph of one type the same
    scratch : of the call
    candidates : of the samplers that choose for all destinations of a hop together; None: the others
    """

    __slots__ = (
        "_found",
        "_num_to_come",
        "candidates",
        "degrees",
        "excluded",
        "excluded_at",
        "fetched",
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
        self.starts: IdArray = np.empty(0, dtype=np.int64)  # where the in-edges of a destination begin
        self.degrees: IdArray = np.empty(0, dtype=np.int64)  # how many it has
        self.fetched = 0  # destinations whose starts and degrees are there
        self.excluded: Excluded | None = None  # edges that are not taken: degrees do not count them
        self.excluded_at: IdArray = np.empty(0, dtype=np.int64)  # local ids of their nodes; -1: not found yet
        self._num_to_come = 0  # of these nodes, whose degrees still count them

    def begin(self, excluded: Excluded | None = None) -> None:
        """Begin a batch in which no hop takes the edges ``excluded``."""
        self.fetched = 0
        self.excluded = excluded
        self._num_to_come = 0
        if excluded is not None:
            self._num_to_come = len(excluded.nodes)
            self.excluded_at = np.full(len(excluded.nodes), -1, dtype=np.int64)

    def leave_out(self, first: int, last: int) -> None:
        """Take what is excluded off the degrees of the destinations ``first:last``, which were just fetched."""
        if self.excluded is not None and self._num_to_come:
            self._found.map.find(self.excluded.nodes, self.excluded_at)
            self._num_to_come = lower_degrees(self.excluded, self.excluded_at, first, last, self.degrees)

    @property
    def nodes(self) -> IdArray:
        """The nodes of the destination type in first-seen order, and more room."""
        return self._found.nodes

    def reserve_degrees(self, num_nodes: int) -> None:
        """Make room for ``num_nodes`` in ``starts`` and ``degrees``, keeping those that were fetched."""
        if num_nodes <= self.starts.shape[0]:
            return
        capacity = max(num_nodes, 2 * self.starts.shape[0])
        for name in ("starts", "degrees"):
            grown = np.empty(capacity, dtype=np.int64)
            grown[: self.fetched] = getattr(self, name)[: self.fetched]
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

    def find(self, graph: Topology, work: Workspace, lists: EdgeLists, num_dst: int, num_edges: int) -> None:
        """Find the sources of all in-edges of the first ``num_dst`` nodes in ``work``.

        Leaves room for all of these edges in ``work.scratch.edges``.

        Parameters
        ----------
        graph : the topology
        work : the batch so far, with the degrees of its nodes
        lists : the sources of these edges
        num_dst : D, destinations of the hop
        num_edges : their in-edges

        Raises
        ------
        GraphError
            The source of an edge is not a node of the graph.
        """
        work.scratch.reserve_edges(num_edges)
        self.offsets = _grown(self.offsets, num_dst + 1)
        self.scales = _grown(self.scales, num_dst)
        self.of_edge = _grown(self.of_edge, num_edges)
        self.nodes = _grown(self.nodes, min(num_edges, graph.num_sources) + 1)
        _list_edges(lists.starts, work.degrees, num_dst, self.offsets, work.scratch.edges)
        # A map of its own: that of ``work`` holds the local ids of the batch, which only sources that are taken join.
        self._map.begin(_NOBODY, self.nodes)
        of_edge = self.of_edge[:num_edges]
        places = work.scratch.edges[:num_edges]
        self.count = self._map.relabel(lists.values, places, self.nodes, 0, of_edge)
        if self.count < 0:
            offsets = self.offsets[: num_dst + 1]
            lists.to_positions(places, offsets)
            raise graph_errors.bad_neighbor(graph, work.nodes[:num_dst], offsets, places, -1 - self.count)
        for name in ("chances", "tops", "numbers"):
            setattr(self, name, _grown(getattr(self, name), self.count))


class WorkspacePool:
    """Lends each concurrent call a workspace of its own; it keeps as many as calls ever ran at once. Thread-safe.

    Parameters
    ----------
    num_nodes : N
    largest_fanout : of all hops
    dense_limit : nodes from which on local ids come from a hash table instead of an array of N
    has_candidates : whether each workspace needs `Candidates`
    """

    def __init__(
        self,
        num_nodes: int,
        largest_fanout: int,
        *,
        dense_limit: int = DENSE_LIMIT,
        has_candidates: bool = False,
    ) -> None:
        self._has_candidates = has_candidates
        self._num_nodes = num_nodes
        self._largest_fanout = largest_fanout
        self._map = DenseMap if num_nodes <= dense_limit else HashMap
        self._free: deque[Workspace] = deque()

    @contextmanager
    def lend(self) -> Iterator[Workspace]:
        """Lend a workspace for the length of a ``with`` block; one whose block raised is dropped."""
        try:
            workspace = self._free.pop()  # a deque's pop and append are atomic: no lock
        except IndexError:
            candidates = Candidates(self._map(self._num_nodes)) if self._has_candidates else None
            found = FoundNodes(self._map(self._num_nodes), self._num_nodes)
            workspace = Workspace(found, found, Scratch(self._largest_fanout), candidates)
        # Not in a `finally`: a map that was interrupted, or met a damaged graph, is not to be used again.
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
