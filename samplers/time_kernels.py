"""Kernels for edge lists sorted by time: find the range in a list that a node may take, and pick its edges.

`ranges` and `NeighborPick` call these kernels. A position is an edge's index in the graph. List i of an array of times
is ``times[places[i] : places[i] + counts[i]]``, ascending. A bound is a time with which the times of a list are
compared. The range of a node is the part of its list between two bounds. Times are int64; kernels compare times and
never subtract them, because a difference could exceed int64.
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

_AHEAD_LIST = 16  # lists between the prefetch of a list's middle and its search
_AHEAD_ROW = 160  # edges between the prefetch and the read of a graph's cache line, as in `relabel_kernels`


@njit(cache=True, nogil=True)
def rank_bounds(
    times: NDArray[Any],
    places: IdArray,
    counts: IdArray,
    bounds: IdArray,
    is_inclusive: bool,
    ranks: IdArray,
) -> None:
    """Write to ``ranks`` how many entries of each list are less than its bound, or equal if ``is_inclusive``.

    Each list is searched by halving; the bound's index stays in ``low..high``.
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
    """Return the list and the index in it of the first time out of order, or (-1, -1).

    ``floors`` and ``ceilings`` are the times just before and just after each list.
    """
    for i in range(places.shape[0]):
        before = floors[i]
        for j in range(counts[i]):
            time = times[places[i] + j]
            if time < before or time > ceilings[i]:
                return i, j
            before = time
    return -1, -1


@njit(cache=True, nogil=True)
def first_descent_in_lists(indptr: IdArray, times: NDArray[Any], first: int, last: int) -> int:
    """Return the first position whose time is less than the previous one in its node's list, or -1.

    The kernel reads the lists of nodes ``first:last``.
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
    """Write the last edges of destinations ``first:last``, in order.

    Destination i takes as many edges as ``indptr`` has room for.
    """
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
    """Write the entry of each edge's source: the source in the tree of the edge's destination.

    The entry of node v in tree t is t * N + v, with the number of nodes N of the node's type.

    Parameters
    ----------
    values : sources of the graph's edges
    places : (M,) each edge's index in ``values``
    indptr : (D + 1,) the index in ``places`` at which each destination's edges begin
    entries : the batch's entries; destinations are the entries from ``first`` on
    first : the first destination
    num_nodes, num_sources : number of nodes of the destinations' type, and of the sources' type
    found : (M,) output, the sources' entries

    Returns
    -------
    int
        -1, or in a damaged graph the first edge whose source is not in ``0:num_sources``.
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
    """Subtract from each degree the number of ascending positions ``excluded`` (X,) in its range."""
    for i in range(starts.shape[0]):
        first = np.searchsorted(excluded, starts[i])
        degrees[i] -= np.searchsorted(excluded, starts[i] + degrees[i]) - first


@njit(cache=True, nogil=True)
def pass_over(
    excluded: IdArray, starts: IdArray, first: int, last: int, indptr: LocalArray, edge_ids: IdArray
) -> None:
    """Turn ranks, drawn by destinations ``first:last`` in their ranges, into positions.

    Parameters
    ----------
    excluded : (X,) ascending positions
    starts : first position of each destination's range
    first, last : range of destinations
    indptr : (last - first + 1,) each destination's first edge
    edge_ids : updated; on entry, each is the first position of its destination's range plus a rank
    """
    for i in range(first, last):
        begin = np.searchsorted(excluded, starts[i])
        for j in range(indptr[i - first], indptr[i - first + 1]):
            # Find the number of excluded edges in the range before the edge of this rank, as in `exclusion_kernels`.
            low, high = begin, excluded.shape[0]
            while low < high:
                middle = (low + high) >> 1
                if excluded[middle] - (middle - begin) <= edge_ids[j]:
                    low = middle + 1
                else:
                    high = middle
            edge_ids[j] += low - begin
