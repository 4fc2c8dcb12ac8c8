"""Loops that look pairs up among the edges of a graph. Callers check the arrays, kernels do not.

A *group* is the rows of one pair. The rows that are looked up are sorted by destination, source, time and row
number, so that those of a group lie side by side, and ``start[d] : start[d + 1]`` bounds those of destination d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray


@njit(cache=True, nogil=True)
def first_not_below(values: IdArray, low: int, high: int, value: int) -> int:
    """Return the first i in low..high-1 with ``values[i] >= value``, or ``high``; ``values`` ascend there. Pure."""
    while low < high:
        middle = (low + high) // 2
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def count_ahead(
    rows: IdArray,
    destinations: IdArray,
    sources: IdArray,
    times: IdArray,
    first: int,
    start: IdArray,
    group_sources: IdArray,
    group_times: IdArray,
    group_rows: IdArray,
    added: IdArray,
) -> None:
    """Add 1 to ``added[i]`` for every other row that stands ahead of row i, and of no earlier one, of its group.

    The others are ``rows``, ``destinations``, ``sources`` and ``times`` (m,); ``first`` is destination 0 of ``start``.
    """
    for other in range(rows.shape[0]):
        node = destinations[other] - first
        low, high = start[node], start[node + 1]
        low = first_not_below(group_sources, low, high, sources[other])
        if low == high or group_sources[low] != sources[other]:
            continue
        high = first_not_below(group_sources, low, high, sources[other] + 1)
        end = high
        while low < high:
            middle = (low + high) // 2
            is_ahead = group_times[middle] < times[other] or (
                group_times[middle] == times[other] and group_rows[middle] < rows[other]
            )
            if is_ahead:
                low = middle + 1
            else:
                high = middle
        if low < end:
            added[low] += 1


@njit(cache=True, nogil=True)
def match_edges(
    indptr: IdArray,
    node: int,
    first_position: int,
    indices: NDArray[Any],
    start: IdArray,
    group_sources: IdArray,
    heads: IdArray,
    ranks: IdArray,
    seen: IdArray,
    cursor: IdArray,
    last: IdArray,
    positions: IdArray,
) -> int:
    """Give every edge of a piece of the lists to the row of its pair that has its rank; return the piece's last node.

    Parameters
    ----------
    indptr : (n + 1,) bounds of the lists of n destinations, positions in the whole graph
    node : a destination, of the n, at or before that of the first edge
    first_position : of the first edge
    indices : (m,) sources of the edges
    start : (n + 1,) bounds of the rows of each destination
    group_sources : (r,) source of each row
    heads : (r,) first row of each row's group
    ranks : (r,) number of each row within its group, ascending there; rows of other pieces make holes
    seen : (r,) at the head of a group: edges seen so far
    cursor : (r,) at the head of a group: the next row that waits for its edge
    last : (r,) at the head of a group: position of the last edge
    positions : (r,) of the edge of each row; written
    """
    at, end = first_position, first_position + indices.shape[0]
    while at < end:
        while indptr[node + 1] <= at:
            node += 1
        stop = min(end, indptr[node + 1])
        low, high = start[node], start[node + 1]
        if low < high:
            for position in range(at, stop):
                source = indices[position - first_position]
                head = first_not_below(group_sources, low, high, source)
                if head == high or group_sources[head] != source:
                    continue
                number = seen[head]
                seen[head] = number + 1
                last[head] = position
                row = cursor[head]
                if row < high and heads[row] == head and ranks[row] == number:
                    positions[row] = position
                    cursor[head] = row + 1
        at = stop
    return node
