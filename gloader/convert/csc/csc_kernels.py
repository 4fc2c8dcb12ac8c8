"""Loops of the external counting sort and of sparse feature rows. Callers check the arrays, kernels do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray


@njit(cache=True, nogil=True)
def first_bad_edge(src: IdArray, dst: IdArray, num_sources: int, num_nodes: int) -> int:
    """Return the first i whose source or destination is outside its range, which starts at 0, or -1. Pure."""
    for i in range(src.shape[0]):
        if src[i] < 0 or src[i] >= num_sources or dst[i] < 0 or dst[i] >= num_nodes:
            return i
    return -1


@njit(cache=True, nogil=True)
def first_bad_weight(weight: NDArray[np.float32]) -> int:
    """Return the first i whose weight is negative, infinite or not a number, or -1. Pure."""
    for i in range(weight.shape[0]):
        if not 0 <= weight[i] < np.inf:
            return i
    return -1


@njit(cache=True, nogil=True)
def count_buckets(dst: IdArray, shift: int, counts: IdArray) -> None:
    """Add to ``counts[b]`` the edges whose destination lies in bucket ``b = dst >> shift``."""
    for i in range(dst.shape[0]):
        counts[dst[i] >> shift] += 1


@njit(cache=True, nogil=True)
def scatter_records(
    src: IdArray,
    dst: IdArray,
    weight: NDArray[np.float32] | None,
    shift: int,
    cursor: IdArray,
    records: Any,
) -> None:
    """Write each edge to its bucket's next free slot; destinations become offsets in the bucket."""
    mask = (np.int64(1) << shift) - 1
    for i in range(dst.shape[0]):
        bucket = dst[i] >> shift
        slot = cursor[bucket]
        cursor[bucket] = slot + 1
        records[slot]["dst"] = dst[i] & mask
        records[slot]["src"] = src[i]
        if weight is not None:
            records[slot]["weight"] = weight[i]


@njit(cache=True, nogil=True)
def count_in_degrees(records: Any, degrees: IdArray) -> None:
    """Add to ``degrees[d]`` the records of destination ``d``, counted within the bucket."""
    for i in range(records.shape[0]):
        degrees[records[i]["dst"]] += 1


@njit(cache=True, nogil=True)
def scatter_sources(
    records: Any,
    first: int,
    last: int,
    cursor: IdArray,
    indices: NDArray[Any],
    weights: NDArray[np.float32] | None,
) -> None:
    """Write each source with a destination in [first, last) to that destination's next free slot."""
    for i in range(records.shape[0]):
        node = np.int64(records[i]["dst"])
        if first <= node < last:
            slot = cursor[node]
            cursor[node] = slot + 1
            indices[slot] = records[i]["src"]
            if weights is not None:
                weights[slot] = records[i]["weight"]


@njit(cache=True, nogil=True)
def merge_segments(indptr: IdArray, indices: NDArray[Any], merged: IdArray) -> int:
    """Sort each node's sources and keep one of each, in place; return how many are left in all.

    ``indptr`` (n + 1,) bounds the segments, and ``merged`` (n,) receives how many of each are left.
    """
    # What is left never overtakes what is read: the result may overwrite the input.
    end = 0
    for node in range(indptr.shape[0] - 1):
        segment = indices[indptr[node] : indptr[node + 1]]
        segment.sort()
        start = end
        for source in segment:
            if end == start or indices[end - 1] != source:
                indices[end] = source
                end += 1
        merged[node] = end - start
    return end


@njit(cache=True, nogil=True)
def merge_weighted_segments(
    indptr: IdArray, indices: NDArray[Any], weights: NDArray[np.float32], merged: IdArray
) -> int:
    """Merge as `merge_segments` does; an edge's weight is the larger of two sums: its own weights, its reverse's.

    The sign bit of a weight says that it is the reverse's. Sums run in input order, in float64.
    """
    end = 0
    for node in range(indptr.shape[0] - 1):
        low, high = indptr[node], indptr[node + 1]
        # A stable sort, so that the weights of parallel edges are added in input order.
        order = np.argsort(indices[low:high], kind="mergesort")
        sources = indices[low:high][order]
        values = weights[low:high][order]
        start = end
        i = 0
        while i < sources.shape[0]:
            own, reverse, j = 0.0, 0.0, i
            while j < sources.shape[0] and sources[j] == sources[i]:
                if np.signbit(values[j]):
                    reverse -= values[j]
                else:
                    own += values[j]
                j += 1
            indices[end] = sources[i]
            weights[end] = max(own, reverse)
            end += 1
            i = j
        merged[node] = end - start
    return end


@njit(cache=True, nogil=True)
def mark_sources(
    records: Any,
    node: int,
    first: int,
    seen: NDArray[np.bool_],
    own: NDArray[Any] | None,
    reverse: NDArray[Any],
) -> None:
    """Mark in ``seen`` the sources of ``node`` from ``first`` on, and sum their weights."""
    for i in range(records.shape[0]):
        source = np.int64(records[i]["src"]) - first
        if records[i]["dst"] == node and 0 <= source < seen.shape[0]:
            seen[source] = True
            if own is not None:
                weight = records[i]["weight"]
                if np.signbit(weight):
                    reverse[source] -= weight
                else:
                    own[source] += weight


@njit(cache=True, nogil=True)
def expand_rows(indptr: IdArray, first: int, first_row: int, rows: IdArray) -> int:
    """Write the row of entries ``first``, ``first + 1``, ... of a compressed matrix; return the last row.

    ``first_row`` is a row at or before that of entry ``first``.
    """
    row = first_row
    for i in range(rows.shape[0]):
        while indptr[row + 1] <= first + i:
            row += 1
        rows[i] = row
    return row


@njit(cache=True, nogil=True)
def add_sparse_rows(
    indptr: IdArray, columns: IdArray, values: NDArray[np.float32], out: NDArray[np.float32]
) -> int:
    """Add compressed rows to the dense ``out`` (n, F); return the first bad entry of ``columns``, or -1.

    ``indptr`` (n + 1,) bounds the rows' entries in ``columns`` and ``values``, counted from ``indptr[0]``.
    """
    # The offsets are those of the whole file; columns and values are the part that was read.
    base = indptr[0]
    for row in range(out.shape[0]):
        for i in range(indptr[row] - base, indptr[row + 1] - base):
            column = columns[i]
            if column < 0 or column >= out.shape[1]:
                return i
            out[row, column] += values[i]
    return -1
