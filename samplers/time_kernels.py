"""Kernels of lists of edges that are sorted by time: the range of a list that a node may take, and its edges.

Times are int64 and are compared, never subtracted: no difference of two can wrap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.kernels import njit
from gloader.core.numba_ops import prefetch
from gloader.samplers.rng import to_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray

_AHEAD_LIST = 16  # lists between asking for the middle of one and searching it
_AHEAD_ROW = 160  # edges between asking for a cache line of the graph and reading it, as in `relabel_kernels`


@njit(cache=True, nogil=True)
def rank_bounds(
    times: NDArray[Any],
    places: IdArray,
    counts: IdArray,
    bounds: IdArray,
    is_inclusive: bool,
    ranks: IdArray,
) -> None:
    """Write how many of the times of each list are before its bound, or at it where ``is_inclusive``.

    List i is ``times[places[i] : places[i] + counts[i]]``, ascending.
    """
    last = places.shape[0] - 1
    for i in range(places.shape[0]):
        ahead = min(i + _AHEAD_LIST, last)
        prefetch(times, places[ahead] + (counts[ahead] >> 1))
        bound = bounds[i]
        low, high = places[i], places[i] + counts[i]
        while low < high:
            middle = (low + high) >> 1
            if times[middle] < bound or (is_inclusive and times[middle] == bound):
                low = middle + 1
            else:
                high = middle
        ranks[i] = low - places[i]


@njit(cache=True, nogil=True)
def first_unsorted(
    times: NDArray[Any], places: IdArray, counts: IdArray, floors: IdArray, ceilings: IdArray
) -> tuple[int, int]:
    """Return the first list, and the rank in it, of a time that is less than one before it, or (-1, -1).

    ``floors`` and ``ceilings`` are what lies before and behind each list.
    """
    for i in range(places.shape[0]):
        before = floors[i]
        for j in range(counts[i]):
            this = times[places[i] + j]
            if this < before or this > ceilings[i]:
                return i, j
            before = this
    return -1, -1


@njit(cache=True, nogil=True)
def first_descent_in_lists(indptr: IdArray, times: NDArray[Any], first: int, last: int) -> int:
    """Return the first position of a time that is less than the one before it in the list of a node, or -1.

    Of the nodes ``first:last``.
    """
    for node in range(first, last):
        for edge in range(indptr[node] + 1, indptr[node + 1]):
            if times[edge] < times[edge - 1]:
                return edge
    return -1


@njit(cache=True, nogil=True)
def pick_last(
    starts: IdArray, degrees: IdArray, first: int, last: int, indptr: LocalArray, edge_ids: IdArray
) -> None:
    """Write the last of the edges of the destinations ``first:last``, as many as ``indptr`` says, in order."""
    for i in range(first, last):
        out = to_int(indptr[i - first])
        count = to_int(indptr[i - first + 1]) - out
        begin = starts[i] + degrees[i] - count
        for j in range(count):
            edge_ids[out + j] = begin + j


@njit(cache=True, nogil=True)
def enter_trees(
    values: NDArray[Any],
    places: IdArray,
    indptr: LocalArray,
    entries: IdArray,
    first: int,
    num_nodes: int,
    num_sources: int,
    found: IdArray,
) -> int:
    """Write the entry of the source of each edge: that source, in the tree of the edge's destination.

    Parameters
    ----------
    values : the sources of edges
    places : (M,) places in it
    indptr : (D + 1,) where the edges of each destination begin
    entries : those of the batch; destinations are those from ``first`` on
    first : the first destination
    num_nodes, num_sources : nodes of the destinations' and of the sources' type: entries count tree * nodes + node
    found : (M,) written

    Returns
    -------
    int
        -1, or the first edge whose source is not in ``0:num_sources``: the graph is damaged.
    """
    last = places.shape[0] - 1
    for i in range(indptr.shape[0] - 1):
        tree = entries[first + i] // num_nodes * num_sources
        for edge in range(indptr[i], indptr[i + 1]):
            prefetch(values, places[min(edge + _AHEAD_ROW, last)])
            source = to_int(values[places[edge]])
            if source < 0 or source >= num_sources:
                return edge
            found[edge] = tree + source
    return -1


@njit(cache=True, nogil=True)
def lower_degrees(excluded: IdArray, starts: IdArray, degrees: IdArray) -> None:
    """Take off ``degrees`` how many of the positions ``excluded`` (X,), ascending, lie in each range."""
    for i in range(starts.shape[0]):
        first = np.searchsorted(excluded, starts[i])
        degrees[i] -= np.searchsorted(excluded, starts[i] + degrees[i]) - first


@njit(cache=True, nogil=True)
def pass_over(
    excluded: IdArray, starts: IdArray, first: int, last: int, indptr: LocalArray, edge_ids: IdArray
) -> None:
    """Turn ranks into positions in what the destinations ``first:last`` took of their ranges.

    Parameters
    ----------
    excluded : (X,) ascending positions
    starts : where the range of each destination begins
    first, last : destinations
    indptr : (last - first + 1,) where the edges of each begin
    edge_ids : written; as if the first edges of a range were those that are not excluded
    """
    for i in range(first, last):
        begin = np.searchsorted(excluded, starts[i])
        for j in range(indptr[i - first], indptr[i - first + 1]):
            # The first excluded one that lies behind, itself counted without those of the range before it.
            low, high = begin, excluded.shape[0]
            while low < high:
                middle = (low + high) >> 1
                if excluded[middle] - (middle - begin) <= edge_ids[j]:
                    low = middle + 1
                else:
                    high = middle
            edge_ids[j] += low - begin
