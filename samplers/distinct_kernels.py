"""Kernels over drawn positions: sort the distinct positions, and rank each position among them.

A position is an edge's index in the graph. An edge pass reads the edge file once and returns one value for each
distinct position of a hop, in ascending order. So an edge's value is found by the edge's rank among the hop's distinct
positions. The samplers' `replay` and the sweep rules call these kernels.

Up to sixteen positions are ranked in vectors (see `simd`), more are sorted. ``SLACK`` spare entries must follow the
used entries of an array that vectors read or write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.kernels import njit
from gloader.samplers.pick_kernels import takes_all
from gloader.samplers.simd import LANES, rank_sixteen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray

# Distances of compared entries in `_sort`: Ciura, "Best increments for the average case of Shellsort", 2001.
_GAPS = (701, 301, 132, 57, 23, 10, 4, 1)


@njit(cache=True, nogil=True)
def order_distinct(
    positions: IdArray, first: int, count: int, may_repeat: bool, ranks: IdArray, out: IdArray, at: int
) -> int:
    """Write the distinct values in ``positions[first : first + count]`` to ``out[at:]``, ascending.

    Returns their number.

    Parameters
    ----------
    positions : drawn positions, followed by `SLACK` spare entries
    first, count : the part to sort
    may_repeat : True if a position may occur twice
    ranks : (`SLACK`,) scratch
    out, at : output and its first index; ``count`` entries must fit
    """
    kept = _rank_few(positions, first, count, may_repeat, at, ranks, 0)
    if kept >= 0:
        for j in range(count):
            out[ranks[j]] = positions[first + j]  # ``ranks`` includes ``at``
        return kept
    for j in range(count):
        out[at + j] = positions[first + j]
    _sort(out, at, count)
    kept = 0
    for j in range(count):
        if j == 0 or out[at + j] != out[at + kept - 1]:
            out[at + kept] = out[at + j]
            kept += 1
    return kept


@njit(cache=True, nogil=True)
def _rank_few(
    positions: IdArray, first: int, count: int, may_repeat: bool, base: int, out: IdArray, at: int
) -> int:
    """Write ``base`` + each position's rank among the distinct positions to ``out[at:]``, for up to sixteen positions.

    A vector comparison gives each position its number of smaller positions. Equal positions get equal numbers, so
    some numbers are not used. A bit for each used number then closes these gaps.

    Parameters
    ----------
    positions, first, count, may_repeat : as in `order_distinct`
    base : number that is added to each rank
    out, at : output and its first index, with `SLACK` entries from there on

    Returns
    -------
    int
        The number of distinct positions; -1 if there are too many for vectors, or if they are too far apart.
    """
    if count > LANES or not rank_sixteen(positions, first, count, base, out, at):
        return -1
    if not may_repeat:
        return count
    used = np.int64(0)
    for j in range(at, at + count):
        used |= np.int64(1) << (out[j] - base)
    for j in range(at, at + count):
        out[j] = base + _count_ones(used & ((np.int64(1) << (out[j] - base)) - 1))
    return _count_ones(used)


@njit(cache=True, nogil=True)
def _count_ones(bits: int) -> int:
    """Return the number of set bits among the lower sixteen, by adding neighbouring groups of bits."""
    bits -= (bits >> 1) & 0x5555
    bits = (bits & 0x3333) + ((bits >> 2) & 0x3333)
    bits = (bits + (bits >> 4)) & 0x0F0F
    return (bits + (bits >> 8)) & 0x1F


@njit(cache=True, nogil=True)
def _sort(values: IdArray, first: int, count: int) -> None:
    """Sort ``values[first : first + count]`` with Shell's sort, which is insertion sort for few values."""
    for gap in _GAPS:
        for j in range(first + gap, first + count):
            value, hole = values[j], j
            while hole - gap >= first and values[hole - gap] > value:
                values[hole] = values[hole - gap]
                hole -= gap
            values[hole] = value


@njit(cache=True, nogil=True)
def count_picks(
    edge_ids: IdArray,
    indptr: LocalArray,
    degrees: IdArray,
    fanout: int,
    ranks: IdArray,
    ordered: IdArray,
    counts: IdArray,
) -> None:
    """Count the distinct edges that each of a hop's D destinations drew with replacement.

    Parameters
    ----------
    edge_ids : positions of the hop's edges, followed by `SLACK` spare entries
    indptr : (D + 1,) the index in ``edge_ids`` at which each destination's edges begin
    degrees : (D,) each destination's in-degree
    fanout : the hop's fan-out
    ranks, ordered : (`SLACK`,) and (>= fanout,), scratch
    counts : (D,) output
    """
    for i in range(counts.shape[0]):
        first = np.int64(indptr[i])
        count = np.int64(indptr[i + 1]) - first
        if not takes_all(degrees[i], fanout, True):
            count = order_distinct(edge_ids, first, count, True, ranks, ordered, 0)
        counts[i] = count


@njit(cache=True, nogil=True)
def place_picks(
    edge_ids: IdArray,
    indptr: LocalArray,
    degrees: IdArray,
    fanout: int,
    replace: bool,
    begins: IdArray,
    ranks: IdArray,
    ordered: IdArray,
    places: IdArray,
) -> None:
    """Rank each edge of a hop among the hop's distinct edges, ordered by destination and position.

    Parameters
    ----------
    edge_ids, indptr, degrees, fanout : as in `count_picks`
    replace : True if the hop draws with replacement
    begins : (D,) rank of each destination's first distinct edge
    ranks, ordered : (`SLACK`,) and (>= fanout,), scratch
    places : output, each edge's rank, followed by `SLACK` spare entries
    """
    for i in range(begins.shape[0]):
        first, last, begin = np.int64(indptr[i]), np.int64(indptr[i + 1]), begins[i]
        if takes_all(degrees[i], fanout, replace):
            for j in range(first, last):
                places[j] = begin + j - first
        elif _rank_few(edge_ids, first, last - first, replace, begin, places, first) < 0:
            count = order_distinct(edge_ids, first, last - first, replace, ranks, ordered, 0)
            distinct = ordered[:count]
            for j in range(first, last):
                places[j] = begin + np.searchsorted(distinct, edge_ids[j])


@njit(cache=True, nogil=True)
def merge_into(seen: NDArray[Any], drawn: NDArray[Any], union: NDArray[Any]) -> int:
    """Merge ``drawn`` into ``seen``; return the number of new values.

    Parameters
    ----------
    seen : (U,) ascending and distinct
    drawn : (K,) ascending, may repeat; on return it starts with the new values, ascending and distinct
    union : (U + K,) output: the values of both, ascending and distinct
    """
    # First the repeats in ``drawn`` are removed. Then a merge writes the union, and the new values to the front of
    # ``drawn``. The loops have no branches on values, because the order of two ids is unpredictable.
    distinct = 0
    for j in range(drawn.shape[0]):
        drawn[distinct] = drawn[j]
        distinct += j == drawn.shape[0] - 1 or drawn[j] != drawn[j + 1]
    i, j, count, new = 0, 0, 0, 0
    while i < seen.shape[0] and j < distinct:
        old, found = seen[i], drawn[j]
        union[count] = min(old, found)
        count += 1
        drawn[new] = found
        new += found < old
        i += old <= found
        j += found <= old
    for at in range(i, seen.shape[0]):
        union[count + at - i] = seen[at]
    for at in range(j, distinct):
        union[count + at - j] = drawn[at]
        drawn[new + at - j] = drawn[at]
    return new + distinct - j
