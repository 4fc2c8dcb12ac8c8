"""Kernels for Poisson sampling: an edge is taken if its source's number in this layer is below the edge's chance.

LABOR, LADIES and FastGCN use these kernels. A layer is a hop. A "number" is a random hash with 53 bits, and means the
fraction number / 2**53. A source has the same number for all its edges, so destinations tend to take the same sources.
A taken edge represents 1 / chance edges of the graph, which is its weight. A candidate is a source of an in-edge in the
hop, see `workspace.Candidates`.

Parameters of all kernels that pick: the in-edges of destination i are the indices ``starts[i]`` to
``starts[i] + degrees[i] - 1``, in ``graph_indices`` if this array of sources is given. A kernel writes the taken
indices to ``edge_ids``, their weights to ``weights``, and to ``indptr`` (num_dst + 1,) the index at which each
destination's edges begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.kernels import njit
from gloader.samplers.rng import node_key, to_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray

# float64 holds every 53-bit number exactly, so a chance times 2**53 is compared without rounding.
_S11 = np.uint64(11)  # shift from 64 to 53 bits
_SCALE = 2.0**53
_STRIP = 1024  # edges between two checks that the output has room
# Results in place of a number of edges: OVERFLOW if the output is too short, DAMAGED - e if edge e's source is no node.
OVERFLOW = -1
DAMAGED = -2


@njit(cache=True, nogil=True, inline="always")
def number_of(key: np.uint64, node: int) -> np.uint64:
    """Return the number of ``node`` in the layer with this ``key``, below 2**53. Pure."""
    return node_key(key, node) >> _S11


@njit(cache=True, nogil=True, inline="always")
def limit_of(chance: float) -> np.uint64:
    """Return how many of the 2**53 numbers are below ``chance``. Pure."""
    return np.uint64(min(chance, 1.0) * _SCALE)


@njit(cache=True, nogil=True)
def pick_by_fanout(
    graph_indices: NDArray[Any],
    starts: IdArray,
    degrees: IdArray,
    num_dst: int,
    fanout: int,
    key: np.uint64,
    indptr: LocalArray,
    edge_ids: IdArray,
    weights: NDArray[np.float32],
) -> int:
    """Take each in-edge of a destination with chance fan-out / degree; return the number of edges, or OVERFLOW.

    OVERFLOW means that ``edge_ids`` is too short; its content is then void.
    """
    out = 0
    indptr[0] = 0
    for i in range(num_dst):
        start, stop = starts[i], starts[i] + degrees[i]
        first = out
        takes_all = fanout < 0 or degrees[i] <= fanout
        chance = 1.0 if takes_all else fanout / degrees[i]
        limit = limit_of(chance)
        for begin in range(start, stop, _STRIP):
            end = min(begin + _STRIP, stop)
            if out + end - begin > edge_ids.shape[0]:
                return OVERFLOW
            # If all edges are taken, their sources are not read here. `relabel_kernels` checks the ids later.
            if takes_all:
                for edge in range(begin, end):
                    edge_ids[out + edge - begin] = edge
                out += end - begin
            else:
                for edge in range(begin, end):  # without a branch, because a hash cannot be predicted
                    edge_ids[out] = edge
                    out += to_int(number_of(key, graph_indices[edge]) < limit)
        for j in range(first, out):
            weights[j] = 1.0 / chance
        indptr[i + 1] = out
    return out


@njit(cache=True, nogil=True)
def pick_by_node(
    graph_indices: NDArray[Any],
    starts: IdArray,
    degrees: IdArray,
    num_dst: int,
    norms: NDArray[np.float32],
    scale: float,
    key: np.uint64,
    indptr: LocalArray,
    edge_ids: IdArray,
    weights: NDArray[np.float32],
) -> int:
    """Take each in-edge with chance ``scale * norms[source]``, at most 1.

    ``norms`` is (N,). Returns the number of edges, OVERFLOW as in `pick_by_fanout`, or DAMAGED - e if edge e's source
    is not a node.
    """
    end_of_nodes = np.uint64(norms.shape[0])
    out = 0
    indptr[0] = 0
    for i in range(num_dst):
        start, stop = starts[i], starts[i] + degrees[i]
        for begin in range(start, stop, _STRIP):
            end = min(begin + _STRIP, stop)
            if out + end - begin > edge_ids.shape[0]:
                return OVERFLOW
            for edge in range(begin, end):
                node = to_int(graph_indices[edge])
                if np.uint64(node) >= end_of_nodes:
                    return DAMAGED - edge
                # The edge is written first and counted afterwards, branch-free as in `pick_by_fanout`.
                chance = min(scale * norms[node], 1.0)
                edge_ids[out] = edge
                weights[out] = 1.0 / chance
                out += to_int(number_of(key, node) < limit_of(chance))
        indptr[i + 1] = out
    return out


@njit(cache=True, nogil=True)
def pick_candidates(
    starts: IdArray,
    offsets: IdArray,
    num_dst: int,
    candidate: LocalArray,
    chances: NDArray[np.float64],
    scales: NDArray[np.float64],
    numbers: NDArray[np.uint64],
    indptr: LocalArray,
    edge_ids: IdArray,
    weights: NDArray[np.float32],
) -> int:
    """Take each in-edge with chance ``scales[destination] * chances[candidate]``, at most 1.

    The in-edges of destination i have the indices ``offsets[i] : offsets[i + 1]`` in ``candidate``. Every in-edge fits
    into ``edge_ids``. Returns the number of edges.
    """
    out = 0
    indptr[0] = 0
    for i in range(num_dst):
        for edge in range(offsets[i], offsets[i + 1]):
            source = candidate[edge]
            chance = min(scales[i] * chances[source], 1.0)
            if numbers[source] < limit_of(chance):
                edge_ids[out] = starts[i] + edge - offsets[i]
                weights[out] = 1.0 / chance
                out += 1
        indptr[i + 1] = out
    return out


@njit(cache=True, nogil=True)
def numbers_of(nodes: IdArray, count: int, key: np.uint64, out: NDArray[np.uint64]) -> None:
    """Write the numbers for ``nodes[:count]``."""
    for i in range(count):
        out[i] = number_of(key, nodes[i])


@njit(cache=True, nogil=True)
def scale_to_degree(degrees: IdArray, num_dst: int, indptr: LocalArray, weights: NDArray[np.float32]) -> None:
    """Scale each destination's weights so that their sum is its in-degree."""
    for i in range(num_dst):
        total = 0.0
        for j in range(indptr[i], indptr[i + 1]):
            total += weights[j]
        for j in range(indptr[i], indptr[i + 1]):
            weights[j] *= degrees[i] / total
