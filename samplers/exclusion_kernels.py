"""Kernels for edges that no hop takes: whose they are, and the positions around them.

A node with d in-edges, x of them excluded, draws among d - x ranks. The rank r stands for the r-th edge that is left:
its position is r plus the excluded ones up to there, which is a search among the excluded ones of that node alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from numba import njit

from gloader.core.offsets import Offsets, offset_at
from gloader.samplers.rng import to_int

if TYPE_CHECKING:
    from gloader.types import IdArray, LocalArray


class Excluded(NamedTuple):
    """The edges of a relation that no hop of a batch takes, by the nodes that they lead to.

    A tuple, because numba takes only that. Its arrays are read-only, so that every kernel is compiled for one kind.
    """

    nodes: IdArray  # (n,) ascending: those that have excluded in-edges
    begins: IdArray  # (n + 1,) where those of each begin in ``positions``
    positions: IdArray  # (X,) ascending


@njit(cache=True, nogil=True)
def find_destinations(offsets: Offsets, num_nodes: int, positions: IdArray, nodes: IdArray) -> int:
    """Write the node that the edge at each of ``positions`` leads to, which are positions of the graph.

    Returns
    -------
    int
        -1, or the first i whose edge is no node's: the graph is damaged.
    """
    for i in range(positions.shape[0]):
        nodes[i] = 0
    # A step of all searches, then the next step: the reads of a step wait for the memory together.
    left = num_nodes
    while left > 1:
        half = left // 2
        for i in range(positions.shape[0]):
            middle = nodes[i] + half
            nodes[i] = middle if offset_at(offsets, middle) <= positions[i] else nodes[i]
        left -= half
    for i in range(positions.shape[0]):
        if not offset_at(offsets, nodes[i]) <= positions[i] < offset_at(offsets, nodes[i] + 1):
            return i
    return -1


@njit(cache=True, nogil=True)
def lower_degrees(excluded: Excluded, local: IdArray, first: int, last: int, degrees: IdArray) -> None:
    """Take the excluded edges off the degrees of the destinations ``first:last`` that have some.

    Parameters
    ----------
    excluded : the edges
    local : (n,) position in the batch of each of ``excluded.nodes``; -1: it is not in it
    first, last : destinations
    degrees : (>= last,) written
    """
    for at in range(local.shape[0]):
        if first <= local[at] < last:
            degrees[local[at]] -= excluded.begins[at + 1] - excluded.begins[at]


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
            pass_over_node(excluded, at, edge_ids, indptr[row], indptr[row + 1])


@njit(cache=True, nogil=True)
def pass_over_node(excluded: Excluded, at: int, edge_ids: IdArray, first: int, last: int) -> None:
    """Turn ranks into positions in ``edge_ids[first:last]``, which ``excluded.nodes[at]`` took."""
    positions, begin, end = excluded.positions, excluded.begins[at], excluded.begins[at + 1]
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
def advance(excluded: Excluded, at: int, last: int, node: int) -> int:
    """Return the first place from ``at`` on whose node is not below ``node``; ``last`` is the end."""
    while at < last and excluded.nodes[at] < node:
        at += 1
    return at


@njit(cache=True, nogil=True, inline="always")
def place_of(excluded: Excluded, at: int, last: int, node: int) -> int:
    """Return ``at`` if it is the place of ``node``, else -1."""
    return at if at < last and excluded.nodes[at] == node else -1


@njit(cache=True, nogil=True, inline="always")
def num_excluded(excluded: Excluded, at: int) -> int:
    """Return how many edges of the node at place ``at`` are excluded; of -1, none."""
    if at < 0:
        return 0
    return to_int(excluded.begins[at + 1] - excluded.begins[at])
