"""Kernels of one hop: sums, extremes and deviations of source rows over edges.

A kernel takes a piece of a relation's edges: ``sources`` (E,) int32 or int64, the edges of n consecutive destinations,
and ``indptr`` (n + 1,) int64, where each destination's edges begin. With the direction "in", a kernel *gathers*: it adds
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
# Elements of rows in flight. With 512, rows of 128 columns are requested 4 edges before their use, which was fastest of
# 4, 8 and 16; with rows of 16 columns, 8 to 32 edges were equal.
_AHEAD: Final = 512
_MOST_AHEAD: Final = 32  # edges


@njit(cache=True, nogil=True)
def gather_sums(
    indptr: IdArray, sources: Any, weights: Floats, table: Floats, lanes: Any, rows: Floats
) -> None:
    """Add the sum of each destination's source rows to ``rows``.

    Parameters
    ----------
    indptr, sources : a piece of edges
    weights : (E,) a factor for each edge; empty means ones
    table : (N * w,) the rows of all sources, one after another
    lanes : a tuple of w elements, so that the loop over a narrow row has a fixed length; empty for any w
    rows : (n, w) the destinations' rows so far
    """
    width = len(lanes) if len(lanes) > 0 else rows.shape[1]
    distance = min(max(_AHEAD // width, 4), _MOST_AHEAD)
    last = sources.shape[0] - 1
    for v in range(rows.shape[0]):
        row = rows[v]
        for e in range(indptr[v], indptr[v + 1]):
            later = to_int(sources[min(e + distance, last)]) * width
            for c in range(0, width, _LINE):
                prefetch(table, later + c)
            begin = to_int(sources[e]) * width
            if weights.shape[0] > 0:
                weight = weights[e]
                for c in range(width):
                    row[c] += weight * table[begin + c]
            else:
                for c in range(width):
                    row[c] += table[begin + c]


@njit(cache=True, nogil=True)
def gather_extremes(indptr: IdArray, sources: Any, table: Floats, is_max: bool, rows: Floats) -> None:
    """Replace ``rows`` by the least, or the largest, of themselves and the source rows. NaN stays NaN.

    Parameters
    ----------
    indptr, sources : a piece of edges
    table : (N * w,) the rows of all sources
    is_max : True for the largest
    rows : (n, w) the destinations' rows so far
    """
    width = rows.shape[1]
    distance = min(max(_AHEAD // width, 4), _MOST_AHEAD)
    last = sources.shape[0] - 1
    for v in range(rows.shape[0]):
        row = rows[v]
        for e in range(indptr[v], indptr[v + 1]):
            later = to_int(sources[min(e + distance, last)]) * width
            for c in range(0, width, _LINE):
                prefetch(table, later + c)
            begin = to_int(sources[e]) * width
            if is_max:
                for c in range(width):
                    kept, value = row[c], table[begin + c]
                    row[c] = kept if (kept >= value) | (kept != kept) else value
            else:
                for c in range(width):
                    kept, value = row[c], table[begin + c]
                    row[c] = kept if (kept <= value) | (kept != kept) else value


@njit(cache=True, nogil=True)
def gather_moments(
    indptr: IdArray, sources: Any, table: Floats, seen: IdArray, means: Doubles, squares: Doubles
) -> None:
    """Update the mean and the sum of squared deviations of each destination's source rows (Welford, 1962).

    Parameters
    ----------
    indptr, sources : a piece of edges
    table : (N * w,) the rows of all sources
    seen : (n,) int64 number of each destination's edges so far
    means, squares : (n, w) the values so far
    """
    width = means.shape[1]
    for v in range(means.shape[0]):
        mean, square = means[v], squares[v]
        for e in range(indptr[v], indptr[v + 1]):
            begin = to_int(sources[e]) * width
            seen[v] += 1
            share = 1.0 / seen[v]
            for c in range(width):
                value = table[begin + c]
                off = value - mean[c]
                mean[c] += off * share
                square[c] += off * (value - mean[c])


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
    table : (N * w,) the sources' rows so far
    """
    width = rows.shape[1]
    distance = min(max(_AHEAD // width, 4), _MOST_AHEAD)
    last = sources.shape[0] - 1
    for v in range(rows.shape[0]):
        row = rows[v]
        if own >= 0:
            for c in range(first, past):
                table[(own + v) * width + c] += row[c]
        for e in range(indptr[v], indptr[v + 1]):
            later = to_int(sources[min(e + distance, last)]) * width
            for c in range(first, past, _LINE):
                prefetch(table, later + c)
            begin = to_int(sources[e]) * width
            if weights.shape[0] > 0:
                weight = weights[e]
                for c in range(first, past):
                    table[begin + c] += weight * row[c]
            else:
                for c in range(first, past):
                    table[begin + c] += row[c]


@njit(cache=True, nogil=True)
def scatter_extremes(
    indptr: IdArray, sources: Any, rows: Floats, is_max: bool, first: int, past: int, table: Floats
) -> None:
    """Replace the sources' rows by the least, or the largest, of themselves and the destinations' rows.

    Parameters
    ----------
    indptr, sources, rows, first, past, table : see `scatter_sums`
    is_max : see `gather_extremes`
    """
    width = rows.shape[1]
    for v in range(rows.shape[0]):
        row = rows[v]
        for e in range(indptr[v], indptr[v + 1]):
            begin = to_int(sources[e]) * width
            for c in range(first, past):
                kept, value = table[begin + c], row[c]
                if is_max:
                    table[begin + c] = kept if (kept >= value) | (kept != kept) else value
                else:
                    table[begin + c] = kept if (kept <= value) | (kept != kept) else value


@njit(cache=True, nogil=True)
def scatter_moments(
    indptr: IdArray, sources: Any, rows: Floats, seen: IdArray, means: Doubles, squares: Doubles
) -> None:
    """Update the mean and the sum of squared deviations of each source, over its destinations' rows.

    Parameters
    ----------
    indptr, sources : a piece of edges
    rows : (n, w) the destinations' rows
    seen : (N,) int64 number of each source's edges so far
    means, squares : (N, w) the values so far
    """
    width = rows.shape[1]
    for v in range(rows.shape[0]):
        row = rows[v]
        for e in range(indptr[v], indptr[v + 1]):
            u = to_int(sources[e])
            seen[u] += 1
            share = 1.0 / seen[u]
            for c in range(width):
                off = row[c] - means[u, c]
                means[u, c] += off * share
                squares[u, c] += off * (row[c] - means[u, c])


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
