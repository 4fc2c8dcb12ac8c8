"""Kernels for excluded edges: find their destinations, and map ranks to the positions around them.

A position is an edge's index in the graph. A node with d in-edges, of which x are excluded, draws among d - x ranks.
Rank r stands for the r-th remaining edge: its index in the node's list is r plus the number of excluded edges before
it. To pass over the excluded edges is to add this number, which a search in the node's excluded edges finds.
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
_FEW = 8  # excluded edges of a node up to which they are passed over one by one, without a search
# Bytes in a table with an entry for each value of the id's low 16 bits; it fits the L2 cache.
_LOW_IDS = 1 << 16


class Excluded(NamedTuple):
    """The edges of a relation that no hop in a batch takes, grouped by destination.

    Numba accepts only a named tuple here. Its arrays are read-only, so that every kernel compiles once.
    """

    nodes: IdArray  # (n,) ascending: nodes with excluded in-edges
    begins: IdArray  # (n + 1,) the index in ``positions`` at which each node's edges begin
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
    """Group edges by destination: write the distinct destinations, and each destination's first edge.

    The destinations of the positions are found first in the lists of the likely nodes, then by binary search in the
    offsets. The last loop checks each result, because the offsets may be damaged.

    Parameters
    ----------
    offsets, num_nodes, num_edges : the graph's offsets and sizes
    positions : (X,) the edges' positions, which should ascend
    likely : probable destinations, tried first; a search finds the others
    nodes : (X,) output
    begins : (X + 1,) output

    Returns
    -------
    int
        The number of destinations. -1 - i is an error at position i: the position does not exceed its predecessor, is
        outside the graph, or is not in the list of the node found for it (``nodes[0]`` then holds that node).
    """
    before = -1
    for i in range(positions.shape[0]):
        if positions[i] <= before or positions[i] >= num_edges:
            return -1 - i
        before = positions[i]
    ends = np.full(positions.shape[0], -1, dtype=np.int64)
    _look_in_lists(offsets, positions, likely, ends)
    _search(offsets, num_nodes, positions, ends)
    count = 0
    for i in range(positions.shape[0]):
        node = ends[i]
        if count and nodes[count - 1] == node:
            continue
        is_behind = count == 0 or nodes[count - 1] < node
        if not (is_behind and offset_at(offsets, node) <= positions[i] < offset_at(offsets, node + 1)):
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

    ``at`` is the index of the first position that is not before the current node's list.
    """
    at, count, last = 0, positions.shape[0], likely.shape[0] - 1
    for i in range(likely.shape[0]):
        prefetch_offset(offsets, likely[min(i + _AHEAD, last)])
        start, stop = offset_at(offsets, likely[i]), offset_at(offsets, likely[i] + 1)
        # Nodes mostly ascend, so that the next node's positions are near.
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
    """Search for the destinations of the positions without an entry in ``ends``."""
    left = np.flatnonzero(ends < 0)
    for i in left:
        ends[i] = 0
    # All searches advance one step together, so that their reads overlap.
    span = num_nodes if left.shape[0] else 0
    while span > 1:
        half = span // 2
        for i in left:
            middle = ends[i] + half
            ends[i] = middle if offset_at(offsets, middle) <= positions[i] else ends[i]
        span -= half


@njit(cache=True, nogil=True)
def lower_degrees(excluded: Excluded, local: IdArray, first: int, last: int, degrees: IdArray) -> int:
    """Subtract the excluded edges from the degrees of destinations ``first:last``.

    Returns the number of nodes with excluded edges that are not among the destinations before ``last``.

    Parameters
    ----------
    excluded : the excluded edges
    local : (n,) local id of each of ``excluded.nodes``; -1 if the batch lacks the node
    first, last : range of destinations
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
    indptr : (last - first + 1,) first edge of each destination
    edge_ids : updated; on entry the destination's first position + a rank
    """
    for k in range(local.shape[0]):
        if first <= local[k] < last:
            row = local[k] - first
            pass_over_node(excluded, k, edge_ids, to_int(indptr[row]), to_int(indptr[row + 1]))


@njit(cache=True, nogil=True)
def pass_over_node(excluded: Excluded, at: int, edge_ids: IdArray, first: int, last: int) -> None:
    """Turn the ranks ``edge_ids[first:last]``, drawn by ``excluded.nodes[at]``, into positions."""
    positions, begin, end = excluded.positions, excluded.begins[at], excluded.begins[at + 1]
    if end - begin <= _FEW:
        # Branch-free, so that the processor handles several positions together.
        for i in range(begin, end):
            position = positions[i]
            for j in range(first, last):
                edge_ids[j] += to_int(edge_ids[j] >= position)
        return
    for j in range(first, last):
        # Find the number of excluded edges before this rank's edge. An excluded edge is before it if the number of
        # remaining edges before the excluded edge is at most the rank.
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
