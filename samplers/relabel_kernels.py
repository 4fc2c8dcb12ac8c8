"""Kernels that give a batch's nodes their local ids, in first-seen order.

`DenseMap` and `HashMap` in `node_map` own the arrays and call these kernels. A map stores a label for each node in the
batch: ``base`` plus the node's local id. A label below ``base`` is left over from an earlier batch and means "not
seen". So a new batch clears nothing: it moves ``base`` above every earlier label. The dense map has a label for each
graph node, the hashed map is an open-addressing hash table.

A `CscGraph` may be unchecked, and a damaged id would make a kernel write outside the map. So the kernels check every id
that they read from the graph, at no measurable cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.hashing import GOLDEN
from gloader.core.kernels import njit
from gloader.core.numba_ops import prefetch
from gloader.samplers.rng import to_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray

_AHEAD_ROW = 160  # edges between the prefetch and the read of a graph's cache line; measured
_AHEAD_MAP = 80  # edges between the prefetch and the read of a map's cache line; measured


@njit(cache=True, nogil=True)
def relabel_dense(
    graph_indices: NDArray[Any],
    edge_ids: IdArray,
    nodes: IdArray,
    num_nodes: int,
    base: int,
    labels: LocalArray,
    indices: LocalArray,
) -> int:
    """Write the local id of each edge's source into ``indices``, and append new nodes to ``nodes``.

    Parameters
    ----------
    graph_indices : sources of edges
    edge_ids : (M,) each edge's index in ``graph_indices``
    nodes : the batch's nodes, with room for all nodes that the edges may add, and for one more
    num_nodes : number of nodes so far
    base : the batch's base
    labels : (N,) the map. N is below 2**31, so that ``indices`` can hold global ids before they are relabelled
    indices : (M,) output

    Returns
    -------
    int
        The number of nodes, or -1 - i if the source of edge i is not in 0..N-1. The graph is then damaged, and the map
        must not be used again.
    """
    num_edges = edge_ids.shape[0]
    end = np.uint64(labels.shape[0])
    # Three loops fill, run and drain a pipeline. A source is prefetched 160 edges ahead. At 80 edges ahead it is read,
    # checked and stored in ``indices``, and its cache line of the map is prefetched. Then it is labelled.
    steady = max(num_edges - _AHEAD_ROW, 0)
    for i in range(min(_AHEAD_MAP, steady)):
        coming = to_int(graph_indices[edge_ids[i]])
        if np.uint64(coming) >= end:
            return -1 - i
        indices[i] = coming
    for i in range(steady):
        prefetch(graph_indices, edge_ids[i + _AHEAD_ROW])
        coming = to_int(graph_indices[edge_ids[i + _AHEAD_MAP]])
        if np.uint64(coming) >= end:
            return -1 - (i + _AHEAD_MAP)
        prefetch(labels, coming)
        indices[i + _AHEAD_MAP] = coming
        num_nodes = _label(to_int(indices[i]), nodes, num_nodes, base, labels, indices, i)
    for i in range(steady, num_edges):
        coming = to_int(graph_indices[edge_ids[i]])
        if np.uint64(coming) >= end:
            return -1 - i
        num_nodes = _label(coming, nodes, num_nodes, base, labels, indices, i)
    return num_nodes


@njit(cache=True, nogil=True, inline="always")
def _label(
    node: int, nodes: IdArray, num_nodes: int, base: int, labels: LocalArray, indices: LocalArray, i: int
) -> int:
    """Label one node; return the number of nodes. Branch-free: about half of a hop's nodes are new, unpredictably."""
    # The node is always written after the last one. It counts only if it is new; otherwise the next node replaces it.
    label = to_int(labels[node]) - base
    is_new = label < 0
    nodes[num_nodes] = node
    label = num_nodes if is_new else label
    labels[node] = base + label
    indices[i] = label
    return num_nodes + is_new


@njit(cache=True, nogil=True)
def enter_dense(entering: IdArray, nodes: IdArray, base: int, labels: LocalArray) -> int:
    """Give the nodes ``entering`` the ids 0, 1, ... and copy them to ``nodes``; return the number of repeats."""
    repeats = 0
    for i in range(entering.shape[0]):
        repeats += labels[entering[i]] >= base
        nodes[i] = entering[i]
        labels[entering[i]] = base + i
    return repeats


@njit(cache=True, nogil=True)
def find_dense(queries: IdArray, base: int, labels: LocalArray, out: IdArray) -> None:
    """Write to each negative ``out[i]`` the local id of the node ``queries[i]``, or -1 if the batch lacks this node."""
    for i in range(queries.shape[0]):
        if out[i] < 0:
            out[i] = max(to_int(labels[queries[i]]) - base, -1)


@njit(cache=True, nogil=True, inline="always")
def _slot(node: int, shift: np.uint64) -> int:
    """Return the slot at which the search for ``node`` begins."""
    # The upper bits of the product are used, because they depend on every bit of the id.
    return to_int((np.uint64(node) * GOLDEN) >> shift)


@njit(cache=True, nogil=True)
def relabel_hashed(
    graph_indices: NDArray[Any],
    graph_nodes: int,
    edge_ids: IdArray,
    nodes: IdArray,
    num_nodes: int,
    base: int,
    keys: IdArray,
    labels: LocalArray,
    shift: np.uint64,
    indices: LocalArray,
) -> int:
    """Work as `relabel_dense`, with an open-addressing table: ``keys`` and ``labels`` have 2**(64 - shift) slots.

    ``graph_nodes`` is N.
    """
    end = np.uint64(graph_nodes)
    num_edges = edge_ids.shape[0]
    wrap = keys.shape[0] - 1
    for i in range(num_edges):
        prefetch(graph_indices, edge_ids[min(i + _AHEAD_ROW, num_edges - 1)])
        ahead = _slot(graph_indices[edge_ids[min(i + _AHEAD_MAP, num_edges - 1)]], shift)
        prefetch(labels, ahead)
        prefetch(keys, ahead)
        node = to_int(graph_indices[edge_ids[i]])
        if np.uint64(node) >= end:
            return -1 - i
        slot = _slot(node, shift)
        # A slot is occupied if its label belongs to this batch. Its key may be left from an earlier batch.
        while labels[slot] >= base and keys[slot] != node:
            slot = (slot + 1) & wrap
        if labels[slot] < base:
            keys[slot] = node
            labels[slot] = base + num_nodes
            nodes[num_nodes] = node
            num_nodes += 1
        indices[i] = labels[slot] - base
    return num_nodes


@njit(cache=True, nogil=True)
def enter_hashed(
    entering: IdArray, nodes: IdArray, base: int, keys: IdArray, labels: LocalArray, shift: np.uint64
) -> int:
    """Work as `enter_dense`, with a hash table."""
    repeats = 0
    wrap = keys.shape[0] - 1
    for i in range(entering.shape[0]):
        slot = _slot(entering[i], shift)
        while labels[slot] >= base and keys[slot] != entering[i]:
            slot = (slot + 1) & wrap
        repeats += labels[slot] >= base
        nodes[i] = entering[i]
        keys[slot] = entering[i]
        labels[slot] = base + i
    return repeats


@njit(cache=True, nogil=True)
def find_hashed(
    queries: IdArray, base: int, keys: IdArray, labels: LocalArray, shift: np.uint64, out: IdArray
) -> None:
    """Work as `find_dense`, with a hash table."""
    wrap = keys.shape[0] - 1
    for i in range(queries.shape[0]):
        if out[i] >= 0:
            continue
        slot = _slot(queries[i], shift)
        while labels[slot] >= base and keys[slot] != queries[i]:
            slot = (slot + 1) & wrap
        out[i] = max(to_int(labels[slot]) - base, -1)
