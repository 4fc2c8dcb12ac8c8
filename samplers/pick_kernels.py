"""Kernels for uniform sampling: choose the in-edges that a hop takes.

A hop of `NeighborPick` runs them in this order: `fetch_degrees` finds each destination's list of in-edges,
`count_uniform` counts the edges to take, and `pick_uniform` or `pick_with_replacement` draws them. A position is an
edge's index in the graph.
A destination's in-edges have consecutive positions, from ``starts[i]`` on. A rank is an edge's index in this list. The
taken edges go to ``edge_ids[indptr[i] : indptr[i + 1]]``. A node that takes all its in-edges needs no draws.

Sampling without replacement is Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", CACM 1987). For k of d
edges, draw j is uniform over 0..d-k+j. A draw that is already taken is replaced by d-k+j. Every k-subset is equally
likely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.kernels import njit
from gloader.core.offsets import Offsets, offset_at, prefetch_offset
from gloader.samplers.rng import ONE, bounded, node_key, to_int
from gloader.samplers.simd import LANES, REJECTED, REPEATED, draw_sixteen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray

_ZERO = np.uint64(0)
_SIX, _SIXTY_THREE = np.uint64(6), np.uint64(63)  # shift and mask for a bit in a 64-bit word
# Nodes between the prefetch and the read of an offset. Offsets lie at random addresses: without the prefetch each read
# would wait for the previous one.
_AHEAD = 32
_DEGREE_END = 2**31  # in-degrees from this number on do not fit the vectors, whose ranks have 32 bits
SLACK = LANES  # spare entries of an output array, because a vector store always writes all lanes
# Bounds for the words of Floyd's bit set, 512 bytes to 1 MB. Positions are taken modulo the set's size ("folded"). With
# a 64-bit word per draw, collisions are rare. A collision costs a search among the node's draws.
_MIN_BIT_WORDS, _MAX_BIT_WORDS = 64, 1 << 17


def bit_set(largest_fanout: int) -> NDArray[np.uint64]:
    """Return the scratch that `pick_uniform` needs for fan-outs up to ``largest_fanout``. Pure."""
    words = min(max(_MIN_BIT_WORDS, 1 << max(largest_fanout - 1, 0).bit_length()), _MAX_BIT_WORDS)
    return np.zeros(words, dtype=np.uint64)


@njit(cache=True, nogil=True)
def fetch_degrees(
    offsets: Offsets,
    num_edges: int,
    nodes: IdArray,
    first: int,
    last: int,
    starts: IdArray,
    degrees: IdArray,
) -> int:
    """Write each node's first in-edge and in-degree, for ``nodes[first:last]``.

    Returns
    -------
    int
        -1, or in a damaged graph the first i with edges outside ``0:num_edges``.
    """
    for i in range(first, last):
        prefetch_offset(offsets, nodes[min(i + _AHEAD, last - 1)])
        start, stop = offset_at(offsets, nodes[i]), offset_at(offsets, nodes[i] + 1)
        if start < 0 or stop < start or stop > num_edges:
            return i
        starts[i] = start
        degrees[i] = stop - start
    return -1


@njit(cache=True, nogil=True)
def count_in_edges(offsets: Offsets, nodes: IdArray, counts: NDArray[Any]) -> int:
    """Write each node's in-degree; return -1, or the first i whose entry in ``nodes`` is not a graph node."""
    num_nodes = offsets.low.shape[0] - 1
    last = nodes.shape[0] - 1
    for i in range(nodes.shape[0]):
        prefetch_offset(offsets, nodes[min(i + _AHEAD, last)])
        node = nodes[i]
        if node < 0 or node >= num_nodes:
            return i
        counts[i] = offset_at(offsets, node + 1) - offset_at(offsets, node)
    return -1


@njit(cache=True, nogil=True, inline="always")
def takes_all(degree: int, fanout: int, replace: bool) -> bool:
    """Return True if a node takes each in-edge once, without draws. Pure."""
    return fanout < 0 or (degree <= fanout and not replace) or degree == 0


@njit(cache=True, nogil=True)
def count_uniform(
    degrees: IdArray, first: int, last: int, fanout: int, replace: bool, limit: int, indptr: LocalArray
) -> int:
    """Write the local ``indptr`` for a hop with destinations ``first:last``; return its number of edges.

    The result is -1 if there would be more than ``limit`` edges.

    Parameters
    ----------
    degrees : in-degrees of all destinations so far
    first, last : the hop's destinations
    fanout, replace : the hop's fan-out, and True for draws with replacement
    limit : maximum number of edges, below 2**31
    indptr : (last - first + 1,) output
    """
    total = 0
    indptr[0] = 0
    for i in range(first, last):
        total += degrees[i] if takes_all(degrees[i], fanout, replace) else fanout
        # The check precedes the store: an offset above int32 would wrap silently.
        if total > limit:
            return -1
        indptr[i - first + 1] = total
    return total


@njit(cache=True, nogil=True)
def pick_uniform(
    nodes: IdArray,
    starts: IdArray,
    degrees: IdArray,
    first: int,
    last: int,
    key: np.uint64,
    indptr: LocalArray,
    edge_ids: IdArray,
    bits: NDArray[np.uint64],
) -> None:
    """Write the edges that destinations ``first:last`` take, without replacement, into ``edge_ids``.

    Parameters
    ----------
    nodes, starts, degrees : each destination's id (part of its random key), first in-edge and in-degree
    first, last : the hop's destinations
    key : the hop's random key
    indptr : (last - first + 1,) from `count_uniform`
    edge_ids : output, with `SLACK` more entries than there are edges
    bits : scratch from `bit_set`, all zero before and after the call
    """
    for i in range(first, last):
        out = to_int(indptr[i - first])
        count = to_int(indptr[i - first + 1]) - out
        start, degree = starts[i], degrees[i]
        if count == degree:
            for j in range(count):
                edge_ids[out + j] = start + j
            continue
        this = node_key(key, nodes[i])
        # Sixteen draws in vectors take a third of the scalar loop's time. Both use the same random words, so the
        # batches are identical.
        outcome = REJECTED
        if count <= LANES and degree < _DEGREE_END:
            outcome = draw_sixteen(this, start, degree, count, edge_ids, out)
        # The vector path was not tried, or it rejected a biased draw. So all draws are repeated, one by one.
        if outcome >= REJECTED:
            if degree <= 64:
                _floyd_64(this, start, degree, out, count, edge_ids)
            else:
                _floyd(this, start, degree, out, count, edge_ids, bits)
        elif degree <= 64:  # no test for repeats: they are likely, and a mispredicted branch costs more
            _settle_64(start, degree, out, count, edge_ids)
        elif outcome == REPEATED:
            _settle_few(start, degree, out, count, edge_ids)


@njit(cache=True, nogil=True, inline="always")
def _settle_64(start: int, degree: int, out: int, count: int, edge_ids: IdArray) -> None:
    """Replace repeats among the draws in ``edge_ids`` by Floyd's rule, with a 64-bit set; branch-free."""
    taken = _ZERO
    for j in range(count):
        rank = edge_ids[out + j] - start
        rank = degree - count + j if (taken >> np.uint64(rank)) & ONE else rank
        taken |= ONE << np.uint64(rank)
        edge_ids[out + j] = start + rank


@njit(cache=True, nogil=True, inline="always")
def _settle_few(start: int, degree: int, out: int, count: int, edge_ids: IdArray) -> None:
    """Replace repeats among at most sixteen draws in ``edge_ids`` by Floyd's rule."""
    for j in range(1, count):
        if _has(edge_ids, out, out + j, edge_ids[out + j]):
            edge_ids[out + j] = start + degree - count + j


@njit(cache=True, nogil=True, inline="always")
def _floyd_64(key: np.uint64, start: int, degree: int, out: int, count: int, edge_ids: IdArray) -> None:
    """Run Floyd's algorithm for at most 64 in-edges, with a bit for each."""
    taken = _ZERO
    for j in range(count):
        top = degree - count + j
        rank = bounded(key, j, top + 1)
        if (taken >> np.uint64(rank)) & ONE:
            rank = top
        taken |= ONE << np.uint64(rank)
        edge_ids[out + j] = start + rank


@njit(cache=True, nogil=True, inline="always")
def _floyd(
    key: np.uint64, start: int, degree: int, out: int, count: int, edge_ids: IdArray, bits: NDArray[np.uint64]
) -> None:
    """Run Floyd's algorithm with a bit set of folded ranks. If a bit is set, search the draws for a repeat.

    The bit is exact if the set has a bit for each in-edge; the search is then not needed.
    """
    fold = np.uint64(bits.shape[0] - 1)
    is_exact = degree <= 64 * bits.shape[0]
    for j in range(count):
        top = degree - count + j
        rank = bounded(key, j, top + 1)
        if (bits[(np.uint64(rank) >> _SIX) & fold] >> (np.uint64(rank) & _SIXTY_THREE)) & ONE and (
            is_exact or _has(edge_ids, out, out + j, start + rank)
        ):
            rank = top
        bits[(np.uint64(rank) >> _SIX) & fold] |= ONE << (np.uint64(rank) & _SIXTY_THREE)
        edge_ids[out + j] = start + rank
    # Clear only the used words: the set has the size for the largest fan-out.
    for j in range(count):
        bits[(np.uint64(edge_ids[out + j] - start) >> _SIX) & fold] = _ZERO


@njit(cache=True, nogil=True)
def _has(edge_ids: IdArray, first: int, last: int, edge: int) -> bool:
    """Return whether ``edge`` is in ``edge_ids[first:last]``."""
    for i in range(first, last):  # noqa: SIM110  numba has no generator in any()
        if edge_ids[i] == edge:
            return True
    return False


@njit(cache=True, nogil=True)
def pick_with_replacement(
    nodes: IdArray,
    starts: IdArray,
    degrees: IdArray,
    first: int,
    last: int,
    is_all: bool,
    key: np.uint64,
    indptr: LocalArray,
    edge_ids: IdArray,
) -> None:
    """Write the edges that destinations ``first:last`` draw with replacement, or each edge once if ``is_all``."""
    for i in range(first, last):
        out = indptr[i - first]
        count = indptr[i - first + 1] - out
        this = node_key(key, nodes[i])
        for j in range(count):
            rank = j if is_all else bounded(this, j, degrees[i])
            edge_ids[out + j] = starts[i] + rank
