"""Kernels for edges that no hop takes: whose they are, and the positions around them.

A node with d in-edges, x of them excluded, draws among d - x ranks. The rank r stands for the r-th edge that is left:
its position is r plus the excluded ones up to there, which is a search among the excluded ones of that node alone.
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

_AHEAD = 32  # nodes between asking for an offset and reading it, see `pick_kernels`
_NEAR = 8  # places that are looked at one by one, before the others are searched
_FEW = 8  # excluded edges of a node that are passed over one by one
_LOW_IDS = 1 << 16  # a byte for each, in the second level of the caches


class Excluded(NamedTuple):
    """The edges of a relation that no hop of a batch takes, by the nodes that they lead to.

    A tuple, because numba takes only that. Its arrays are read-only, so that every kernel is compiled for one kind.
    """

    nodes: IdArray  # (n,) ascending: those that have excluded in-edges
    begins: IdArray  # (n + 1,) where those of each begin in ``positions``
    positions: IdArray  # (X,) ascending


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
    """Write the nodes that edges lead to, and where those of each begin.

    Parameters
    ----------
    offsets, num_nodes, num_edges : of the graph
    positions : (X,) of the edges, which should ascend
    likely : nodes of the graph that most of them lead to: the rest is searched for
    nodes : (X,) written
    begins : (X + 1,) written

    Returns
    -------
    int
        How many nodes there are, or -1 - i: position i is not above the one before, not in the graph, or, with the node
        in ``nodes[0]``, in no list of it.
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
    """Write to ``ends`` which of ``likely`` the edge at each position leads to, if any."""
    at, count, last = 0, positions.shape[0], likely.shape[0] - 1
    for i in range(likely.shape[0]):
        prefetch_offset(offsets, likely[min(i + _AHEAD, last)])
        start, stop = offset_at(offsets, likely[i]), offset_at(offsets, likely[i] + 1)
        # Of ascending nodes the next positions are never far.
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
    """Return the first place in ``positions[first:last]`` that is not below ``position``."""
    while first < last:
        middle = (first + last) // 2
        if positions[middle] < position:
            first = middle + 1
        else:
            last = middle
    return first


@njit(cache=True, nogil=True)
def _search(offsets: Offsets, num_nodes: int, positions: IdArray, ends: IdArray) -> None:
    """Write to ``ends`` the node that each position leads to that has none yet."""
    left = np.flatnonzero(ends < 0)
    for i in left:
        ends[i] = 0
    # A step of all searches, then the next step: the reads of a step wait for the memory together.
    span = num_nodes if left.shape[0] else 0
    while span > 1:
        half = span // 2
        for i in left:
            middle = ends[i] + half
            ends[i] = middle if offset_at(offsets, middle) <= positions[i] else ends[i]
        span -= half


@njit(cache=True, nogil=True)
def lower_degrees(excluded: Excluded, local: IdArray, first: int, last: int, degrees: IdArray) -> int:
    """Take the excluded edges off the degrees of the destinations ``first:last``; return how many nodes come later.

    Parameters
    ----------
    excluded : the edges
    local : (n,) position in the batch of each of ``excluded.nodes``; -1: it is not in it
    first, last : destinations
    degrees : (>= last,) written
    """
    later = 0
    for at in range(local.shape[0]):
        if first <= local[at] < last:
            degrees[local[at]] -= excluded.begins[at + 1] - excluded.begins[at]
        later += local[at] < 0 or local[at] >= last
    return later


@njit(cache=True, nogil=True)
def pass_over(
    excluded: Excluded, local: IdArray, first: int, last: int, indptr: LocalArray, edge_ids: IdArray
) -> None:
    """Turn ranks into positions in what the destinations ``first:last`` of a hop took.

    Parameters
    ----------
    excluded, local, first, last : as of `lower_degrees`
    indptr : (last - first + 1,) where the edges of each destination begin
    edge_ids : written; as if the first edges of a node were those that are left
    """
    for at in range(local.shape[0]):
        if first <= local[at] < last:
            row = local[at] - first
            pass_over_node(excluded, at, edge_ids, to_int(indptr[row]), to_int(indptr[row + 1]))


@njit(cache=True, nogil=True)
def pass_over_node(excluded: Excluded, at: int, edge_ids: IdArray, first: int, last: int) -> None:
    """Turn ranks into positions in ``edge_ids[first:last]``, which ``excluded.nodes[at]`` took."""
    positions, begin, end = excluded.positions, excluded.begins[at], excluded.begins[at + 1]
    if end - begin <= _FEW:
        # Without branches on values, several positions at a time.
        for i in range(begin, end):
            position = positions[i]
            for j in range(first, last):
                edge_ids[j] += to_int(edge_ids[j] >= position)
        return
    for j in range(first, last):
        # How many are excluded up to there: the first of them that lies behind, itself counted without those before it.
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
    """Return the first place in ``nodes[at:last]``, ascending, that is not below ``node``; ``last``: there is none."""
    while at < last and nodes[at] < node:
        at += 1
    return at


@njit(cache=True, nogil=True)
def lower_counts(nodes: IdArray, owners: IdArray, begins: IdArray, degrees: NDArray[np.float32]) -> None:
    """Take the edges that are excluded of ``owners`` (V,), ascending, off the ``degrees`` (U,) of ``nodes`` (U,)."""
    # A search for each node of a batch would take longer than sampling it: few share the low bits of an owner.
    may_own = np.zeros(_LOW_IDS, dtype=np.bool_)
    for owner in owners:
        may_own[owner & (_LOW_IDS - 1)] = True
    for i in range(nodes.shape[0]):
        if not may_own[nodes[i] & (_LOW_IDS - 1)]:
            continue
        at = np.searchsorted(owners, nodes[i])
        if at < owners.shape[0] and owners[at] == nodes[i]:
            degrees[i] -= begins[at + 1] - begins[at]
