"""Kernels of one hop: sums, extremes and deviations of source rows over edges.

A kernel takes a piece of a relation's edges: ``sources`` (E,) int32 or int64, for n consecutive destinations, and
``indptr`` (n + 1,) int64, where each destination's edges begin. With the direction "in", a kernel *gathers*: it adds
the sources' rows, from a table (N, w), to the destinations' rows. With the direction "out", it *scatters*: it adds the
destinations' rows to the sources' rows, in a table (N, w). Every column is computed alone and in the order of the
edges, so that a column's bits depend neither on the other columns nor on pieces and threads. The callers have checked
all ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gloader.core.kernels import njit
from gloader.core.numba_ops import prefetch, to_int

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gloader.types import IdArray

    Floats = NDArray[np.float32]
    Doubles = NDArray[np.float64]

_LINE: Final = 16  # float32 elements of a cache line, which has 64 bytes
# Elements of rows in flight: rows of 128 columns are requested 8 edges before their use. 256 and 512 elements took
# 1.3 times as long, 2,048 the same. So is the limit for narrow rows, in edges.
_AHEAD: Final = 1024
_MOST_AHEAD: Final = 32


@njit(cache=True, nogil=True)
def gather_sums(
    indptr: IdArray, sources: Any, weights: Floats, table: Floats, lanes: Any, rows: Floats
) -> None:
    """Add the sum of each destination's source rows to ``rows``.

    Parameters
    ----------
    indptr, sources : a piece of edges
    weights : (E,) a factor for each edge; empty means ones
    table : (N, w) the rows of all sources
    lanes : a tuple of w elements, which gives the loop over a narrow row a fixed length; empty for any w
    rows : (n, w) the destinations' rows so far
    """
    width, values = len(lanes) if len(lanes) > 0 else rows.shape[1], table.reshape(-1)
    for v in range(rows.shape[0]):
        for e in range(indptr[v], indptr[v + 1]):
            _prefetch_row(sources, e, values, width, 0, width)
            u = to_int(sources[e])
            if weights.shape[0] > 0:
                for c in range(width):
                    rows[v, c] += weights[e] * table[u, c]
            else:
                for c in range(width):
                    rows[v, c] += table[u, c]


@njit(cache=True, nogil=True)
def gather_extremes(indptr: IdArray, sources: Any, table: Floats, is_max: bool, rows: Floats) -> None:
    """Replace ``rows`` by the least, or the largest, of themselves and the source rows. NaN stays NaN.

    Parameters
    ----------
    indptr, sources, table : see `gather_sums`
    is_max : True for the largest
    rows : (n, w) the destinations' rows so far
    """
    width, values = rows.shape[1], table.reshape(-1)
    for v in range(rows.shape[0]):
        for e in range(indptr[v], indptr[v + 1]):
            _prefetch_row(sources, e, values, width, 0, width)
            u = to_int(sources[e])
            for c in range(width):
                rows[v, c] = _extreme(rows[v, c], table[u, c], is_max)


@njit(cache=True, nogil=True)
def gather_moments(
    indptr: IdArray, sources: Any, table: Floats, seen: IdArray, means: Doubles, squares: Doubles
) -> None:
    """Update the mean and the sum of squared deviations of each destination's source rows (Welford, 1962).

    Parameters
    ----------
    indptr, sources, table : see `gather_sums`
    seen : (n,) int64 number of each destination's edges so far
    means, squares : (n, w) the values so far
    """
    width, values = means.shape[1], table.reshape(-1)
    for v in range(means.shape[0]):
        for e in range(indptr[v], indptr[v + 1]):
            _prefetch_row(sources, e, values, width, 0, width)
            u = to_int(sources[e])
            seen[v] += 1
            for c in range(width):
                off = table[u, c] - means[v, c]
                means[v, c] += off / seen[v]
                squares[v, c] += off * (table[u, c] - means[v, c])


@njit(cache=True, nogil=True)
def scatter_sums(
    indptr: IdArray,
    sources: Any,
    weights: Floats,
    rows: Floats,
    own: int,
    first: int,
    past: int,
    table: Floats,
) -> None:
    """Add each destination's row to the rows of its sources, in the columns ``first`` to ``past``.

    Parameters
    ----------
    indptr, sources : a piece of edges
    weights : (E,) a factor for each edge; empty means ones
    rows : (n, w) the destinations' rows
    own : the first destination's row in ``table``, if each destination's row is also added to its own row, before its
        edges; else negative
    first, past : the range of columns
    table : (N, w) the sources' rows so far
    """
    width, values = rows.shape[1], table.reshape(-1)
    for v in range(rows.shape[0]):
        if own >= 0:
            for c in range(first, past):
                table[own + v, c] += rows[v, c]
        for e in range(indptr[v], indptr[v + 1]):
            _prefetch_row(sources, e, values, width, first, past)
            u = to_int(sources[e])
            if weights.shape[0] > 0:
                for c in range(first, past):
                    table[u, c] += weights[e] * rows[v, c]
            else:
                for c in range(first, past):
                    table[u, c] += rows[v, c]


@njit(cache=True, nogil=True)
def scatter_extremes(
    indptr: IdArray, sources: Any, rows: Floats, is_max: bool, first: int, past: int, table: Floats
) -> None:
    """Replace the sources' rows by the least, or the largest, of themselves and the destinations' rows.

    Parameters
    ----------
    indptr, sources, rows, first, past, table : see `scatter_sums`
    is_max : True for the largest
    """
    width, values = rows.shape[1], table.reshape(-1)
    for v in range(rows.shape[0]):
        for e in range(indptr[v], indptr[v + 1]):
            _prefetch_row(sources, e, values, width, first, past)
            u = to_int(sources[e])
            for c in range(first, past):
                table[u, c] = _extreme(table[u, c], rows[v, c], is_max)


@njit(cache=True, nogil=True)
def scatter_moments(
    indptr: IdArray, sources: Any, rows: Floats, seen: IdArray, means: Doubles, squares: Doubles
) -> None:
    """Update the mean and the sum of squared deviations of each source, over its destinations' rows.

    Parameters
    ----------
    indptr, sources, rows : see `scatter_sums`
    seen : (N,) int64 number of each source's edges so far
    means, squares : (N, w) the values so far
    """
    for v in range(rows.shape[0]):
        for e in range(indptr[v], indptr[v + 1]):
            u = to_int(sources[e])
            seen[u] += 1
            for c in range(rows.shape[1]):
                off = rows[v, c] - means[u, c]
                means[u, c] += off / seen[u]
                squares[u, c] += off * (rows[v, c] - means[u, c])


@njit(cache=True, nogil=True)
def add_in_degrees(indptr: IdArray, weights: Floats, degrees: Doubles) -> None:
    """Add each destination's weights to ``degrees`` (n,); ``indptr`` (n + 1,) and ``weights`` (E,) are a piece."""
    for v in range(degrees.shape[0]):
        for e in range(indptr[v], indptr[v + 1]):
            degrees[v] += weights[e]


@njit(cache=True, nogil=True)
def add_out_degrees(sources: Any, weights: Floats, degrees: Doubles) -> None:
    """Add each edge's weight, or 1 without weights, to its source's entry of ``degrees`` (N,)."""
    for e in range(sources.shape[0]):
        degrees[to_int(sources[e])] += weights[e] if weights.shape[0] > 0 else 1.0


@njit(cache=True, nogil=True)
def _prefetch_row(sources: Any, edge: int, values: Floats, width: int, first: int, past: int) -> None:
    """Start to load the columns ``first`` to ``past`` of a later edge's row in ``values`` (N * width,)."""
    later = min(edge + min(max(_AHEAD // width, 4), _MOST_AHEAD), sources.shape[0] - 1)
    begin = to_int(sources[later]) * width
    for c in range(first, past, _LINE):
        prefetch(values, begin + c)


@njit(cache=True, nogil=True)
def _extreme(kept: float, value: float, is_max: bool) -> float:
    """Return the larger or the smaller of two values, or NaN if one is NaN."""
    stays = kept >= value if is_max else kept <= value
    return kept if stays | (kept != kept) else value  # noqa: PLR0124 - only NaN differs from itself
