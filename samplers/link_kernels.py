"""Kernels of link batches: ends that are drawn, distinct seeds, and edges between given ends, found in lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.kernels import njit
from gloader.core.numba_ops import prefetch
from gloader.samplers.rng import bounded, node_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

_AHEAD: Final = 8  # lists whose first values are asked for before they are looked through


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
    """Write draw number ``draw`` of some negatives, a node below ``bound`` each.

    Parameters
    ----------
    key : of the negatives of the batch
    rows : (B,) rows of the link table
    owners, numbers : (P,) which of ``rows`` each negative is beside, and its number among those beside it
    places : (M,) the negatives that are drawn
    draw : half of a word, as of `bounded`
    bound : at least 1
    out : (P,) written at ``places``
    """
    for place in places:
        own_key = node_key(node_key(key, rows[owners[place]]), numbers[place])
        out[place] = bounded(own_key, draw, bound)


@njit(cache=True, nogil=True)
def rank_packed(packed: IdArray, width: int, distinct: IdArray, ranks: IdArray) -> int:
    """Write the distinct ids and the rank of each entry among them; return how many there are.

    Parameters
    ----------
    packed : (n,) ascending; each an id, and in the lowest ``width`` bits its position among those that were packed
    width : bits
    distinct : (n,) written, ascending
    ranks : (n,) written
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
def _first_at_least(wanted: IdArray, low: int, high: int, value: int) -> int:
    """Return the first place in ``wanted[low:high]``, ascending, that is not below ``value``; ``high``: none."""
    while low < high:
        middle = (low + high) >> 1
        if wanted[middle] < value:
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
    wanted: IdArray,
    found: NDArray[np.bool_],
) -> None:
    """Mark which sources are in the list of their destination.

    Parameters
    ----------
    values, starts, degrees : G lists of sources: list g is ``values[starts[g] : starts[g] + degrees[g]]``
    bounds : (G + 1,) those that are looked for in list g are ``wanted[bounds[g] : bounds[g + 1]]``
    wanted : (M,) sources, ascending within a list
    found : (M,) set to True; of equal ones the first alone
    """
    last_list = degrees.shape[0] - 1
    for g in range(degrees.shape[0]):
        prefetch(values, starts[min(g + _AHEAD, last_list)])
        low, high = bounds[g], bounds[g + 1]
        begin, end = starts[g], starts[g] + degrees[g]
        if high - low == 1:  # as nearly always
            for place in range(begin, end):
                if values[place] == wanted[low]:
                    found[low] = True
                    break
            continue
        for place in range(begin, end):
            value = np.int64(values[place])
            at = _first_at_least(wanted, low, high, value)
            if at < high and wanted[at] == value:
                found[at] = True


@njit(cache=True, nogil=True)
def list_edges(
    values: NDArray[Any],
    starts: IdArray,
    degrees: IdArray,
    origins: IdArray,
    bounds: IdArray,
    wanted: IdArray,
    out: IdArray,
) -> int:
    """Write the positions of all edges whose source is looked for, list after list; return their number.

    Parameters
    ----------
    values, starts, degrees, bounds, wanted : as of `mark_edges`
    origins : (G,) where each list begins in the graph
    out : (n,) written as far as it reaches
    """
    count = 0
    for g in range(degrees.shape[0]):
        low, high = bounds[g], bounds[g + 1]
        for i in range(degrees[g]):
            value = np.int64(values[starts[g] + i])
            at = _first_at_least(wanted, low, high, value)
            if at < high and wanted[at] == value:
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
    """Mark the destinations that edges lead to from some sources.

    Parameters
    ----------
    values, starts, degrees : G lists of sources, of the destinations from ``first`` on
    first : a node
    sources : (S,) ascending, distinct
    taken : (S, N) set to True
    """
    for g in range(degrees.shape[0]):
        for i in range(degrees[g]):
            value = np.int64(values[starts[g] + i])
            at = _first_at_least(sources, 0, sources.shape[0], value)
            if at < sources.shape[0] and sources[at] == value:
                taken[at, first + g] = True


@njit(cache=True, nogil=True)
def count_sources(
    values: NDArray[Any],
    starts: IdArray,
    degrees: IdArray,
    first: int,
    seen: IdArray,
    counts: IdArray,
) -> None:
    """Add up the distinct sources of some destinations.

    Parameters
    ----------
    values, starts, degrees, first : as of `mark_destinations`; a list may be given in parts, one after the other
    seen : (sources,) the last destination that each source was counted for; written
    counts : (N,) raised
    """
    for g in range(degrees.shape[0]):
        node = first + g
        for i in range(degrees[g]):
            value = values[starts[g] + i]
            if seen[value] != node:
                seen[value] = node
                counts[node] += 1
