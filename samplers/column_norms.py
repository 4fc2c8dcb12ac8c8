"""Kernels for the squared column norms of a normalised adjacency; its rows are destinations, its columns sources.

The squared entry of an edge is 1 / d_dst**2 for a mean, and 1 / ((d_dst + 1) (d_src + 1)) for GCN; of the latter
these kernels leave the factor of the source to be divided out per column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from gloader.samplers.rng import to_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray


@njit(cache=True, nogil=True, inline="always")
def _squared_entry(degree: int, is_gcn: bool) -> float:
    return 1.0 / (degree + 1.0) if is_gcn else 1.0 / (float(degree) * degree)


@njit(cache=True, nogil=True)
def neighborhood_norms(
    degrees: IdArray,
    offsets: IdArray,
    num_dst: int,
    candidate: LocalArray,
    is_gcn: bool,
    norms: NDArray[np.float64],
) -> None:
    """Write the norms of the candidates over the rows of the destinations."""
    norms[:] = 0.0
    for i in range(num_dst):
        if degrees[i]:
            entry = _squared_entry(degrees[i], is_gcn)
            for at in range(offsets[i], offsets[i + 1]):
                norms[candidate[at]] += entry


@njit(cache=True, nogil=True)
def divide_by_degree(graph_indptr: IdArray, nodes: IdArray, norms: NDArray[np.float64]) -> None:
    """Divide the norm of each of ``nodes`` by its in-degree and one."""
    for t in range(norms.shape[0]):
        norms[t] /= graph_indptr[nodes[t] + 1] - graph_indptr[nodes[t]] + 1.0


@njit(cache=True, nogil=True)
def add_graph_norms(
    graph_indptr: IdArray,
    graph_indices: NDArray[Any],
    first: int,
    last: int,
    is_gcn: bool,
    norms: NDArray[np.float64],
) -> int:
    """Add the rows of the nodes ``first:last`` to the norms of all columns (N,).

    Returns -1, or the first edge that is out of range or whose source is no node: the graph is damaged.
    """
    end_of_nodes = np.uint64(norms.shape[0])
    for node in range(first, last):
        begin, end = graph_indptr[node], graph_indptr[node + 1]
        if begin < 0 or end < begin or end > graph_indices.shape[0]:
            return max(begin, 0)
        if begin < end:
            entry = _squared_entry(end - begin, is_gcn)
            for edge in range(begin, end):
                source = to_int(graph_indices[edge])
                if np.uint64(source) >= end_of_nodes:
                    return edge
                norms[source] += entry
    return -1
