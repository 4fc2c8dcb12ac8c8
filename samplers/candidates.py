"""The nodes that a hop can find: the in-neighbours of all its destinations, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from gloader.samplers import graph_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.samplers.graph import CscGraph
    from gloader.samplers.node_map import NodeMap
    from gloader.samplers.workspace import Workspace
    from gloader.types import IdArray, LocalArray

_NOBODY: IdArray = np.empty(0, dtype=np.int64)


class Candidates:
    """Buffers for the candidates of one hop at a time: 12 bytes for each in-edge and 32 for each candidate.

    They grow to the largest hop seen. Used by one thread at a time.
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

    def find(self, graph: CscGraph, work: Workspace, num_dst: int, num_edges: int) -> None:
        """Find the sources of the ``num_edges`` in-edges of the first ``num_dst`` nodes in ``work``.

        Leaves room for all of these edges in ``work.edges``.
        """
        work.reserve_edges(num_edges)
        self.offsets = _grown(self.offsets, num_dst + 1)
        self.scales = _grown(self.scales, num_dst)
        self.of_edge = _grown(self.of_edge, num_edges)
        self.nodes = _grown(self.nodes, min(num_edges, graph.num_nodes) + 1)
        _list_edges(work.starts, work.degrees, num_dst, self.offsets, work.edges)
        self._map.begin(_NOBODY, self.nodes)
        of_edge = self.of_edge[:num_edges]
        self.count = self._map.relabel(graph.indices, work.edges[:num_edges], self.nodes, 0, of_edge)
        if self.count < 0:
            raise graph_errors.bad_neighbor(
                graph, work.nodes[:num_dst], self.offsets, work.edges, -1 - self.count
            )
        for name in ("chances", "tops", "numbers"):
            setattr(self, name, _grown(getattr(self, name), self.count))


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return ``array``, or where it has less than ``size`` entries a larger one of any content."""
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
