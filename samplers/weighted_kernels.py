"""Kernels for weighted sampling; an edge with weight zero is never taken.

`NeighborPick` counts a hop's edges with `count_weighted`, and then picks them with one of the two kernels for picks.

Without replacement, edge i has the arrival E_i / w_i, with E_i exponential, and a node takes the k edges that arrive
first. This equals drawing edges one after another, with chances proportional to the remaining weights (Efraimidis and
Spirakis, "Weighted random sampling with a reservoir", IPL 2006). With replacement, each draw inverts the running sum of
the node's weights.

Every taken edge gets its importance, the number of in-edges that it stands for, so that weighted sums are unbiased
estimates. Without replacement this is 1 / P(arrival < the smallest arrival not taken) (rank conditioning; Cohen and
Kaplan, "Tighter estimation using bottom-k sketches", VLDB'08). With replacement it is total / (k w_i) (Hansen and
Hurwitz 1943). The taken edges also stand for the edges with weight zero, so that a mean stays a mean.

The kernels that pick return -1, or the first damaged destination. One of its weights is negative, infinite or not a
number, or its weights differ from the counted ones because the file changed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.kernels import njit
from gloader.samplers.rng import node_key, unit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray


@njit(cache=True, nogil=True)
def count_weighted(
    edge_weight: NDArray[Any],
    starts: IdArray,
    degrees: IdArray,
    first: int,
    last: int,
    fanout: int,
    replace: bool,
    limit: int,
    indptr: LocalArray,
) -> int:
    """Write a hop's local ``indptr``; return the number of edges that it takes, or -1 if it exceeds ``limit``.

    The list of destination i is ``edge_weight[starts[i] : starts[i] + degrees[i]]``. Its reading ends as soon as the
    number of its taken edges is known.
    """
    total = 0
    indptr[0] = 0
    for i in range(first, last):
        count = 0
        for edge in range(starts[i], starts[i] + degrees[i]):
            if edge_weight[edge] > 0:
                count += 1
                if fanout >= 0 and (count >= fanout or replace):
                    count = fanout
                    break
        total += count
        if total > limit:
            return -1
        indptr[i - first + 1] = total
    return total


@njit(cache=True, nogil=True)
def pick_weighted(
    edge_weight: NDArray[Any],
    nodes: IdArray,
    starts: IdArray,
    degrees: IdArray,
    first: int,
    last: int,
    fanout: int,
    key: np.uint64,
    indptr: LocalArray,
    edge_ids: IdArray,
    arrivals: NDArray[np.float64],
    importance: NDArray[np.float32],
) -> int:
    """Write the edges that destinations ``first:last`` take without replacement, in the order drawn.

    Each node's list of weights is read once. The kernel keeps the smallest arrivals so far; ``beyond`` is the smallest
    arrival that was not kept. A node with no more positive edges than the fan-out takes all of them, in the graph's
    order.

    Parameters
    ----------
    edge_weight, starts, degrees, first, last, fanout : as in `count_weighted`
    nodes : the destinations' ids, a part of their random keys
    key, indptr : the hop's random key, and its offsets from `count_weighted`
    edge_ids : output, indices in ``edge_weight``
    arrivals : (fan-out,) scratch for the kept arrivals, ascending
    importance : (edges,) output, the number of edges that each taken edge represents
    """
    for i in range(first, last):
        out = indptr[i - first]
        count = indptr[i - first + 1] - out
        kept, positive, beyond = 0, 0, math.inf
        this = node_key(key, nodes[i])
        for rank in range(degrees[i] if count else 0):
            edge = starts[i] + rank
            weight = np.float64(edge_weight[edge])
            if not 0 <= weight < math.inf:
                return i
            if weight == 0:
                continue
            positive += 1
            if fanout < 0:  # all positive edges are taken
                if kept == count:  # more edges than counted: the weights have changed
                    return i
                edge_ids[out + kept] = edge
                kept += 1
                continue
            # The number depends on the edge's rank in the list, not on a counter, so a skipped edge changes no other.
            number = unit(this, rank)
            if 1.0 - number >= beyond * weight:  # 1 - x <= -log(x), which costs ten times as much
                continue
            arrival = -math.log(number) / weight
            if kept == count:
                beyond = min(beyond, max(arrival, arrivals[kept - 1]))
                if arrival >= arrivals[kept - 1]:
                    continue
            kept = insert_arrival(arrivals, edge_ids, out, kept, count, arrival, edge)
        # Fewer edges than counted: the weights have changed since then, as the weights of a mapped file can.
        if kept != count:
            return i
        # With no more edges than the fan-out, the order is the graph's, not the arrivals'.
        if positive <= fanout and not _all_positive(edge_weight, starts[i], degrees[i], out, count, edge_ids):
            return i
        # The smallest arrival not taken is the sample's threshold. If all were taken, it is infinite, and the chance 1.
        for j in range(out, out + count):
            chance = -math.expm1(-np.float64(edge_weight[edge_ids[j]]) * beyond)
            importance[j] = degrees[i] / (positive * chance)
    return -1


@njit(cache=True, nogil=True)
def insert_arrival(
    arrivals: NDArray[np.float64],
    edge_ids: IdArray,
    out: int,
    kept: int,
    count: int,
    arrival: float,
    edge: int,
) -> int:
    """Insert an edge into the list of at most ``count`` edges, sorted by arrival; return the new length.

    A full list loses its last edge. The earlier edge wins a tie.
    """
    j = kept if kept < count else count - 1
    while j > 0 and arrivals[j - 1] > arrival:
        arrivals[j] = arrivals[j - 1]
        edge_ids[out + j] = edge_ids[out + j - 1]
        j -= 1
    arrivals[j] = arrival
    edge_ids[out + j] = edge
    return min(kept + 1, count)


@njit(cache=True, nogil=True)
def _all_positive(
    edge_weight: NDArray[Any], start: int, degree: int, out: int, count: int, edge_ids: IdArray
) -> bool:
    """Write up to ``count`` edges with positive weight; return True if there are exactly ``count``."""
    found = 0
    for edge in range(start, start + degree):
        if edge_weight[edge] > 0:
            if found == count:
                return False
            edge_ids[out + found] = edge
            found += 1
    return found == count


@njit(cache=True, nogil=True)
def pick_weighted_with_replacement(
    edge_weight: NDArray[Any],
    nodes: IdArray,
    starts: IdArray,
    degrees: IdArray,
    first: int,
    last: int,
    fanout: int,
    key: np.uint64,
    indptr: LocalArray,
    edge_ids: IdArray,
    sums: NDArray[np.float64],
    importance: NDArray[np.float32],
) -> int:
    """Write the edges that destinations ``first:last`` draw with replacement; fan-out -1 takes each edge once.

    ``importance`` (edges,) receives the number of edges that each taken edge stands for.
    ``sums`` (these destinations' largest degree,) is scratch.
    """
    for i in range(first, last):
        out = indptr[i - first]
        count = indptr[i - first + 1] - out
        if fanout < 0:
            if not _all_positive(edge_weight, starts[i], degrees[i], out, count, edge_ids):
                return i
            for j in range(out, out + count):
                importance[j] = degrees[i] / count
            continue
        if count == 0:
            continue
        total, positive, last_positive = 0.0, 0, 0
        for rank in range(degrees[i]):
            weight = np.float64(edge_weight[starts[i] + rank])
            if not 0 <= weight < math.inf:
                return i
            # The search below ends at the last positive edge: later edges have weight zero and are never taken.
            if weight > 0:
                last_positive = rank
                positive += 1
            total += weight
            sums[rank] = total
        this = node_key(key, nodes[i])
        for j in range(count):
            rank = _first_reaching(sums, last_positive, unit(this, j) * total)
            edge_ids[out + j] = starts[i] + rank
            share = total / (count * np.float64(edge_weight[starts[i] + rank]))
            importance[out + j] = share * degrees[i] / positive
    return -1


@njit(cache=True, nogil=True)
def _first_reaching(sums: NDArray[np.float64], last: int, goal: float) -> int:
    """Return the first index up to ``last`` whose running sum is at least ``goal`` > 0."""
    low, high = 0, last
    while low < high:
        middle = (low + high) >> 1
        if sums[middle] >= goal:
            high = middle
        else:
            low = middle + 1
    return low
