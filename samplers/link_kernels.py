"""Kernels for link batches: draw ends, find distinct seeds, and find the edges between given ends.

`link_draws` calls the kernels for draws and seeds, and `edge_lookup` calls those for edges. A node's list is the
sources of its in-edges. The kernels take G lists as ``values``, ``starts`` and ``degrees``: list g is
``values[starts[g] : starts[g] + degrees[g]]``. The sources to look up in list g are
``queries[bounds[g] : bounds[g + 1]]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.kernels import njit
from gloader.core.numba_ops import prefetch
from gloader.samplers.rng import bounded, node_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

_AHEAD: Final = 8  # lists between the prefetch of a list's first values and its search


@njit(cache=True, nogil=True)
def draw_ends(
    key: np.uint64,
    rows: IdArray,
    owners: IdArray,
    numbers: IdArray,
    places: IdArray,
    draw: int,
    bound: int,
    out: IdArray,
) -> None:
    """Draw a node id below ``bound`` for each of some negatives: pairs that a batch adds to its edges (positives).

    Parameters
    ----------
    key : random key for the batch's negatives
    rows : (B,) rows of the link table
    owners : (P,) index in ``rows`` of each negative's positive
    numbers : (P,) each negative's number among the negatives of its positive
    places : (M,) indices of the negatives to draw
    draw : the draw's number, as in `bounded`
    bound : at least 1
    out : (P,) written at ``places``
    """
    for place in places:
        negative_key = node_key(node_key(key, rows[owners[place]]), numbers[place])
        out[place] = bounded(negative_key, draw, bound)


@njit(cache=True, nogil=True)
def rank_packed(packed: IdArray, width: int, distinct: IdArray, ranks: IdArray) -> int:
    """Write the distinct ids and each entry's rank among them; return the number of distinct ids.

    Parameters
    ----------
    packed : (n,) ascending; each entry is an id, with its original index in the lowest ``width`` bits
    width : number of bits for the index
    distinct : (n,) output, ascending
    ranks : (n,) output
    """
    count, last, low = 0, np.int64(-1), (np.int64(1) << width) - 1
    for entry in packed:
        value = entry >> width
        if value != last:
            distinct[count] = last = value
            count += 1
        ranks[entry & low] = count - 1
    return count


@njit(cache=True, nogil=True, inline="always")
def _first_at_least(queries: IdArray, low: int, high: int, value: int) -> int:
    """Return the first index in ascending ``queries[low:high]`` whose value is at least ``value``, or ``high``."""
    while low < high:
        middle = (low + high) >> 1
        if queries[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def mark_edges(
    values: NDArray[Any],
    starts: IdArray,
    degrees: IdArray,
    bounds: IdArray,
    queries: IdArray,
    found: NDArray[np.bool_],
) -> None:
    """Mark the queried sources that are in their destination's list.

    Parameters
    ----------
    values, starts, degrees : G lists of sources
    bounds : (G + 1,) index in ``queries`` at which the sources for each list begin
    queries : (M,) sources to look up, ascending for each list
    found : (M,) set to True for sources in the list; only the first of equal sources is marked
    """
    last_list = degrees.shape[0] - 1
    for g in range(degrees.shape[0]):
        prefetch(values, starts[min(g + _AHEAD, last_list)])
        low, high = bounds[g], bounds[g + 1]
        begin, end = starts[g], starts[g] + degrees[g]
        if high - low == 1:  # one source to look up, which is nearly always so
            for place in range(begin, end):
                if values[place] == queries[low]:
                    found[low] = True
                    break
            continue
        for place in range(begin, end):
            value = np.int64(values[place])
            query = _first_at_least(queries, low, high, value)
            if query < high and queries[query] == value:
                found[query] = True


@njit(cache=True, nogil=True)
def list_edges(
    values: NDArray[Any],
    starts: IdArray,
    degrees: IdArray,
    origins: IdArray,
    bounds: IdArray,
    queries: IdArray,
    out: IdArray,
) -> int:
    """Write the positions of all edges with a queried source, list after list; return their number.

    Parameters
    ----------
    values, starts, degrees, bounds, queries : as in `mark_edges`
    origins : (G,) first position of each list in the graph
    out : (n,) output; positions that do not fit are only counted
    """
    count = 0
    for g in range(degrees.shape[0]):
        low, high = bounds[g], bounds[g + 1]
        for i in range(degrees[g]):
            value = np.int64(values[starts[g] + i])
            query = _first_at_least(queries, low, high, value)
            if query < high and queries[query] == value:
                if count < out.shape[0]:
                    out[count] = origins[g] + i
                count += 1
    return count


@njit(cache=True, nogil=True)
def mark_destinations(
    values: NDArray[Any],
    starts: IdArray,
    degrees: IdArray,
    first: int,
    sources: IdArray,
    taken: NDArray[np.bool_],
) -> None:
    """Mark the destinations to which the given sources have edges.

    Parameters
    ----------
    values, starts, degrees : G lists of sources, for the destinations from ``first`` on
    first : first destination
    sources : (S,) ascending and distinct
    taken : (S, N) set to True for each pair of a source and a destination with an edge
    """
    for g in range(degrees.shape[0]):
        for i in range(degrees[g]):
            value = np.int64(values[starts[g] + i])
            row = _first_at_least(sources, 0, sources.shape[0], value)
            if row < sources.shape[0] and sources[row] == value:
                taken[row, first + g] = True


@njit(cache=True, nogil=True)
def count_sources(
    values: NDArray[Any],
    starts: IdArray,
    degrees: IdArray,
    first: int,
    seen: IdArray,
    counts: IdArray,
) -> None:
    """Count the distinct sources of each destination.

    Parameters
    ----------
    values, starts, degrees, first : as in `mark_destinations`; a list may come in consecutive parts
    seen : (sources,) the last destination for which each source was counted; updated
    counts : (N,) increased
    """
    for g in range(degrees.shape[0]):
        node = first + g
        for i in range(degrees[g]):
            value = values[starts[g] + i]
            if seen[value] != node:
                seen[value] = node
                counts[node] += 1
