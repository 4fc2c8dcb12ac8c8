"""Kernels over positions that were drawn: the distinct ones in order, and where each stands among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.kernels import njit
from gloader.samplers.pick_kernels import takes_all
from gloader.samplers.simd import LANES, rank_sixteen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray

_GAPS = (701, 301, 132, 57, 23, 10, 4, 1)  # Ciura, "Best increments for the average case of Shellsort", 2001


@njit(cache=True, nogil=True)
def order_distinct(
    positions: IdArray, first: int, count: int, may_repeat: bool, ranks: IdArray, out: IdArray, at: int
) -> int:
    """Write the distinct ones of ``positions[first : first + count]`` to ``out[at:]``, ascending; return their number.

    Parameters
    ----------
    positions : with `SLACK` more
    first, count : which of them
    may_repeat : whether they need not be distinct
    ranks : (`SLACK`,) scratch
    out, at : where to write; there is room for ``count``
    """
    kept = _rank_few(positions, first, count, may_repeat, at, ranks, 0)
    if kept >= 0:
        for j in range(count):
            out[ranks[j]] = positions[first + j]
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
    """Write ``base`` + the rank of each among the distinct ones to ``out[at:]``; parameters as of `order_distinct`.

    Returns
    -------
    int
        How many are distinct, or -1: they are too many for vectors, or too far apart.
    """
    if count > LANES or not rank_sixteen(positions, first, count, base, out, at):
        return -1
    if not may_repeat:
        return count
    # Equal ones have one rank, and behind it ranks are left out.
    used = np.int64(0)
    for j in range(at, at + count):
        used |= np.int64(1) << (out[j] - base)
    for j in range(at, at + count):
        out[j] = base + _count_ones(used & ((np.int64(1) << (out[j] - base)) - 1))
    return _count_ones(used)


@njit(cache=True, nogil=True)
def _count_ones(bits: int) -> int:
    """Return how many of the lower sixteen bits are set."""
    bits -= (bits >> 1) & 0x5555
    bits = (bits & 0x3333) + ((bits >> 2) & 0x3333)
    bits = (bits + (bits >> 4)) & 0x0F0F
    return (bits + (bits >> 8)) & 0x1F


@njit(cache=True, nogil=True)
def _sort(values: IdArray, first: int, count: int) -> None:
    """Sort ``values[first : first + count]``: Shell's sort, an insertion sort where there are few."""
    for gap in _GAPS:
        for j in range(first + gap, first + count):
            this, at = values[j], j
            while at - gap >= first and values[at - gap] > this:
                values[at] = values[at - gap]
                at -= gap
            values[at] = this


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
    """Write how many distinct edges each destination of a hop drew with replacement to ``counts``.

    Parameters
    ----------
    edge_ids, indptr : the edges of the hop, with `SLACK` behind them, and where those of each destination begin
    degrees : (D,) of the destinations
    fanout : of the hop
    ranks, ordered : (`SLACK`,) and (>= fanout,), scratch
    counts : (D,) written
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
    """Write where each edge of a hop stands among its distinct edges by node and position.

    Parameters
    ----------
    edge_ids, indptr : the edges of the hop, with `SLACK` behind them, and where those of each destination begin
    degrees : (D,) of the destinations
    fanout, replace : of the hop
    begins : (D,) where the distinct edges of each destination begin
    ranks, ordered : (`SLACK`,) and (>= fanout,), scratch
    places : (K,) written, with `SLACK` more
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
    """Merge ascending ``drawn``, which may repeat, into ``seen``; return how many were new.

    Parameters
    ----------
    seen : (U,) ascending, none twice
    drawn : (K,) ascending; on return its first entries are those that are not in ``seen``, none twice
    union : (U + K,) written: what is in either, ascending, none twice
    """
    # Without branches on values: which of two ids is smaller, no predictor knows.
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
