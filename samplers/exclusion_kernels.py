"""Kernels for excluded edges: find their destinations, and map ranks to the positions of the remaining edges.

A position is an edge's index in the graph. A batch's hops must not take its excluded edges. A node with d in-edges, of
which x are excluded, therefore draws among the ranks 0..d - x - 1. Rank r means the r-th remaining edge in the node's
list of in-edges. The index of this edge in the list is r plus the number of excluded edges before it. To "pass over"
the excluded edges is to add this number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gloader.core.kernels import njit
from gloader.core.offsets import Offsets, offset_at, prefetch_offset
from gloader.samplers.rng import to_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray

_AHEAD = 32  # nodes between the prefetch and the read of an offset, see `pick_kernels`
_NEAR = 8  # positions to compare one by one, before a binary search among the others
_FEW = 8  # maximum number of a node's excluded edges that are passed over one by one, without a search
# Entries in a table with one byte for each value of an id's low 16 bits. The table fits the L2 cache.
_LOW_IDS = 1 << 16


class Excluded(NamedTuple):
    """The edges of a relation that no hop in a batch takes, grouped by destination.

    A named tuple, because numba kernels accept no other class as an argument. The arrays are read-only, so that every
    kernel is compiled for one kind of array.
    """

    nodes: IdArray  # (n,) ascending: nodes with excluded in-edges
    begins: IdArray  # (n + 1,) the index in ``positions`` at which each node's excluded edges begin
    positions: IdArray  # (X,) the excluded edges' positions, ascending


@njit(cache=True, nogil=True)
def group_by_node(
    offsets: Offsets,
    num_nodes: int,
    num_edges: int,
    positions: IdArray,
    likely: IdArray,
    nodes: IdArray,
    begins: IdArray,
) -> int:
    """Group edges by destination: write the distinct destinations, and the index of each destination's first edge.

    The destinations of the positions are found first in the lists of the likely nodes, then by binary search in the
    offsets. The last loop checks each result, because the offsets may be damaged.

    Parameters
    ----------
    offsets, num_nodes, num_edges : the graph's offsets and sizes
    positions : (X,) the edges' positions, which should ascend
    likely : probable destinations, tried first; a search finds the others
    nodes : (X,) output, as in `Excluded`; only the first entries are used
    begins : (X + 1,) output, as in `Excluded`

    Returns
    -------
    int
        The number of destinations. -1 - i is an error at ``positions[i]``: it does not exceed its predecessor, is
        outside the graph, or is not in the list of the node found for it. ``nodes[0]`` then holds this node.
    """
    before = -1
    for i in range(positions.shape[0]):
        if positions[i] <= before or positions[i] >= num_edges:
            return -1 - i
        before = positions[i]
    ends = np.full(positions.shape[0], -1, dtype=np.int64)  # each edge's destination; -1 if not found yet
    _look_in_lists(offsets, positions, likely, ends)
    _search(offsets, num_nodes, positions, ends)
    count = 0
    for i in range(positions.shape[0]):
        node = ends[i]
        if count and nodes[count - 1] == node:
            continue
        is_ascending = count == 0 or nodes[count - 1] < node
        if not (is_ascending and offset_at(offsets, node) <= positions[i] < offset_at(offsets, node + 1)):
            nodes[0] = node
            return -1 - i
        nodes[count] = node
        begins[count] = i
        count += 1
    begins[count] = positions.shape[0]
    return count


@njit(cache=True, nogil=True)
def _look_in_lists(offsets: Offsets, positions: IdArray, likely: IdArray, ends: IdArray) -> None:
    """Write the destination of each position to ``ends``, if the destination is in ``likely``.

    In the loop, ``at`` is the index of the first position that is not before the current node's list.
    """
    at, count, last = 0, positions.shape[0], likely.shape[0] - 1
    for i in range(likely.shape[0]):
        prefetch_offset(offsets, likely[min(i + _AHEAD, last)])
        start, stop = offset_at(offsets, likely[i]), offset_at(offsets, likely[i] + 1)
        # The likely nodes mostly ascend, so the next node's positions are near. If not, a binary search finds them.
        near = min(at + _NEAR, count)
        if at and positions[at - 1] >= start:
            at = _lower_bound(positions, 0, at, start)
        else:
            while at < near and positions[at] < start:
                at += 1
            if at == near:
                at = _lower_bound(positions, at, count, start)
        while at < count and positions[at] < stop:
            ends[at] = likely[i]
            at += 1


@njit(cache=True, nogil=True)
def _lower_bound(positions: IdArray, first: int, last: int, position: int) -> int:
    """Return the first index in ``positions[first:last]`` whose value is at least ``position``."""
    while first < last:
        middle = (first + last) // 2
        if positions[middle] < position:
            first = middle + 1
        else:
            last = middle
    return first


@njit(cache=True, nogil=True)
def _search(offsets: Offsets, num_nodes: int, positions: IdArray, ends: IdArray) -> None:
    """Find the destinations of the positions with -1 in ``ends`` by binary search in the offsets, and write them."""
    left = np.flatnonzero(ends < 0)
    for i in left:
        ends[i] = 0
    # The destination of position i is in ends[i]..ends[i] + span - 1. All searches advance one step together, so that
    # their reads of memory overlap.
    span = num_nodes if left.shape[0] else 0
    while span > 1:
        half = span // 2
        for i in left:
            middle = ends[i] + half
            ends[i] = middle if offset_at(offsets, middle) <= positions[i] else ends[i]
        span -= half


@njit(cache=True, nogil=True)
def lower_degrees(excluded: Excluded, local: IdArray, first: int, last: int, degrees: IdArray) -> int:
    """Subtract the number of excluded edges from the degrees of destinations ``first:last``.

    Returns the number of nodes with excluded edges that are not among the destinations before ``last``.

    Parameters
    ----------
    excluded : the excluded edges
    local : (n,) local id of each of ``excluded.nodes``; -1 if the batch lacks the node
    first, last : range of destinations, as local ids
    degrees : (>= last,) updated
    """
    later = 0
    for k in range(local.shape[0]):
        if first <= local[k] < last:
            degrees[local[k]] -= excluded.begins[k + 1] - excluded.begins[k]
        later += local[k] < 0 or local[k] >= last
    return later


@njit(cache=True, nogil=True)
def pass_over(
    excluded: Excluded, local: IdArray, first: int, last: int, indptr: LocalArray, edge_ids: IdArray
) -> None:
    """Turn ranks, drawn by a hop's destinations ``first:last``, into positions.

    Parameters
    ----------
    excluded, local, first, last : as in `lower_degrees`
    indptr : (last - first + 1,) the index in ``edge_ids`` at which each destination's edges begin
    edge_ids : updated; on entry, each is the first position of its destination's list plus a rank
    """
    for k in range(local.shape[0]):
        if first <= local[k] < last:
            row = local[k] - first
            pass_over_node(excluded, k, edge_ids, to_int(indptr[row]), to_int(indptr[row + 1]))


@njit(cache=True, nogil=True)
def pass_over_node(excluded: Excluded, at: int, edge_ids: IdArray, first: int, last: int) -> None:
    """Turn the ranks ``edge_ids[first:last]``, drawn by ``excluded.nodes[at]``, into positions; see `pass_over`."""
    positions, begin, end = excluded.positions, excluded.begins[at], excluded.begins[at + 1]
    if end - begin <= _FEW:
        # Each excluded position at or before the current result moves the result by one. The inner loop has no branch,
        # so that the processor handles several ranks together.
        for i in range(begin, end):
            position = positions[i]
            for j in range(first, last):
                edge_ids[j] += to_int(edge_ids[j] >= position)
        return
    for j in range(first, last):
        # Find the number of excluded edges before the edge of this rank. The k-th excluded edge of the node is before
        # it if at most ``rank`` remaining edges come before the excluded edge: position - k <= edge_ids[j].
        low, high = begin, end
        while low < high:
            middle = (low + high) // 2
            if positions[middle] - (middle - begin) <= edge_ids[j]:
                low = middle + 1
            else:
                high = middle
        edge_ids[j] += low - begin


@njit(cache=True, nogil=True, inline="always")
def advance(nodes: IdArray, at: int, last: int, node: int) -> int:
    """Return the first index in ascending ``nodes[at:last]`` whose value is at least ``node``, or ``last``."""
    while at < last and nodes[at] < node:
        at += 1
    return at


@njit(cache=True, nogil=True)
def lower_counts(nodes: IdArray, owners: IdArray, begins: IdArray, degrees: NDArray[np.float32]) -> None:
    """Subtract the excluded edges of ``owners`` (V,), ascending, from ``degrees`` (U,) of ``nodes`` (U,).

    An owner is a node with excluded in-edges.
    """
    # A table of the owners' low bits rules out most nodes: a search for each node would take longer than sampling.
    may_own = np.zeros(_LOW_IDS, dtype=np.bool_)
    for owner in owners:
        may_own[owner & (_LOW_IDS - 1)] = True
    for i in range(nodes.shape[0]):
        if not may_own[nodes[i] & (_LOW_IDS - 1)]:
            continue
        at = np.searchsorted(owners, nodes[i])
        if at < owners.shape[0] and owners[at] == nodes[i]:
            degrees[i] -= begins[at + 1] - begins[at]
