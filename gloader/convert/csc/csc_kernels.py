"""Kernels (compiled functions) for the external counting sort, for sparse feature rows, and for the look-up of pairs.

Callers check the arrays. Kernels do not. CSC is the result of the sort: ``indices`` (E,) holds the edges' sources,
grouped by destination, and destination d has the edges ``indptr[d] : indptr[d + 1]``. Edges have optional columns:
weight, time, and number. The number is the edge's place in the source's files, counted from 0.

In the sort (`external_csc`), a *bucket* holds the edges of 2**shift consecutive destinations. A *record* is an edge in
a bucket, with its destination as an offset in the bucket.

The look-up (`gloader.convert.links.locate`) finds the positions in ``indices`` of the edges in a link table, a list of
edges to predict. The table's rows are sorted by destination, source, time and row number. Destination d has the rows
``start[d] : start[d + 1]``. A *group* is the rows with the same pair of nodes, which are adjacent. The group's first
row is its *head*. A row's *rank* is its number within the group, counted from 0. A *piece* is a part of the rows or of
the edges that fits in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.kernels import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray


@njit(cache=True, nogil=True)
def first_bad_edge(src: IdArray, dst: IdArray, num_sources: int, num_nodes: int) -> int:
    """Return the first i with a source outside 0..S-1 or a destination outside 0..N-1. -1 means none. Pure.

    S is ``num_sources``, N is ``num_nodes``, the number of destinations.
    """
    for i in range(src.shape[0]):
        if src[i] < 0 or src[i] >= num_sources or dst[i] < 0 or dst[i] >= num_nodes:
            return i
    return -1


@njit(cache=True, nogil=True)
def first_bad_weight(weight: NDArray[np.float32]) -> int:
    """Return the first i with a negative, infinite or NaN weight. -1 means none. Pure."""
    for i in range(weight.shape[0]):
        if not 0 <= weight[i] < np.inf:
            return i
    return -1


@njit(cache=True, nogil=True)
def count_buckets(dst: IdArray, shift: int, counts: IdArray) -> None:
    """Add the number of edges in each bucket ``dst >> shift`` to ``counts`` (num_buckets,)."""
    for i in range(dst.shape[0]):
        counts[dst[i] >> shift] += 1


@njit(cache=True, nogil=True)
def scatter_records(
    src: IdArray,
    dst: IdArray,
    weight: NDArray[np.float32] | None,
    time: IdArray | None,
    number: IdArray | None,
    shift: int,
    cursor: IdArray,
    records: Any,
) -> None:
    """Write each edge as a record to its bucket's next free slot. Within a bucket, input order is kept.

    Parameters
    ----------
    src, dst : (n,) checked ids
    weight, time, number : (n,) columns, or None
    shift : number of low destination bits, which are the offset in the bucket
    cursor : (num_buckets,) each bucket's next slot in ``records``, advanced
    records : (n,) structured array, filled
    """
    mask = (np.int64(1) << shift) - 1  # the low destination bits
    for i in range(dst.shape[0]):
        bucket = dst[i] >> shift
        slot = cursor[bucket]
        cursor[bucket] = slot + 1
        records[slot]["dst"] = dst[i] & mask
        records[slot]["src"] = src[i]
        if weight is not None:
            records[slot]["weight"] = weight[i]
        if time is not None:
            records[slot]["time"] = time[i]
        if number is not None:
            records[slot]["number"] = number[i]


@njit(cache=True, nogil=True)
def count_in_degrees(records: Any, degrees: IdArray) -> None:
    """Add the number of a bucket's records with each destination to ``degrees`` (2**shift or less,), by offset."""
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
    times: IdArray | None,
    numbers: NDArray[Any] | None,
) -> None:
    """Write the sources and columns of a bucket's records to their destinations' next free slots.

    Parameters
    ----------
    records : records in input order
    first, last : offsets of destinations in the bucket; only records with first <= offset < last are written
    cursor : (offsets,) each destination's next slot in the arrays below, advanced
    indices, weights, times, numbers : (E,) arrays of all slots, written; columns may be None
    """
    for i in range(records.shape[0]):
        node = np.int64(records[i]["dst"])
        if first <= node < last:
            slot = cursor[node]
            cursor[node] = slot + 1
            indices[slot] = records[i]["src"]
            if weights is not None:
                weights[slot] = records[i]["weight"]
            if times is not None:
                times[slot] = records[i]["time"]
            if numbers is not None:
                numbers[slot] = records[i]["number"]


@njit(cache=True, nogil=True)
def merge_segments(indptr: IdArray, indices: NDArray[Any], merged: IdArray) -> int:
    """Sort each node's sources and drop duplicates, in place. Return the number of all remaining sources.

    ``indptr`` (n + 1,) bounds each node's segment in ``indices``. ``merged`` (n,) receives the number of sources that
    remain for each node. The remaining sources of all nodes are adjacent at the beginning of ``indices``.
    """
    # The result may overwrite the input, because writing never overtakes reading.
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
def merge_columns(
    indptr: IdArray,
    indices: NDArray[Any],
    weights: NDArray[np.float32] | None,
    times: IdArray | None,
    numbers: NDArray[Any] | None,
    merged: IdArray,
) -> int:
    """Merge the sources as in `merge_segments`, together with the edges' columns.

    For each node, the segment is sorted by source. Adjacent edges with equal sources become one edge at ``end``, in
    place. A weight with the sign bit set marks an edge that was added as the reverse of another. Weights of given edges
    and of added reverses are summed separately, and the larger sum becomes the merged edge's weight. Sums run in input
    order, in float64. With numbers, a merged edge keeps the smallest number, and the time of the edge with this number.
    """
    end = 0
    for node in range(indptr.shape[0] - 1):
        low, high = indptr[node], indptr[node + 1]
        # The sort is stable, so that the weights of parallel edges are added in input order.
        order = np.argsort(indices[low:high], kind="mergesort")
        sources = indices[low:high][order]
        if weights is not None:
            values = weights[low:high][order]
        if times is not None:
            given_times = times[low:high][order]
        if numbers is not None:
            given_numbers = numbers[low:high][order]
        start = end
        i = 0
        while i < sources.shape[0]:
            # The edges i..j-1 have the same source. ``first`` is the edge that gives the time and the number.
            given, reverse, first, j = 0.0, 0.0, i, i
            while j < sources.shape[0] and sources[j] == sources[i]:
                if weights is not None:
                    if np.signbit(values[j]):
                        reverse -= values[j]
                    else:
                        given += values[j]
                j += 1
            if numbers is not None:
                first = i + int(np.argmin(given_numbers[i:j]))
            indices[end] = sources[i]
            if weights is not None:
                weights[end] = max(given, reverse)
            if times is not None:
                times[end] = given_times[first]
            if numbers is not None:
                numbers[end] = given_numbers[first]
            end += 1
            i = j
        merged[node] = end - start
    return end


@njit(cache=True, nogil=True)
def sort_by_time(
    indptr: IdArray,
    indices: NDArray[Any],
    times: IdArray,
    weights: NDArray[np.float32] | None,
    numbers: NDArray[Any] | None,
) -> None:
    """Sort each node's edges by time, then by source, in place. The sort is stable.

    ``indptr`` (n + 1,) bounds each node's edges in ``indices`` and the columns.
    """
    for node in range(indptr.shape[0] - 1):
        low, high = indptr[node], indptr[node + 1]
        is_sorted = True
        for i in range(low + 1, high):
            if times[i] < times[i - 1] or (times[i] == times[i - 1] and indices[i] < indices[i - 1]):
                is_sorted = False
                break
        # Edges from a log are mostly sorted already.
        if is_sorted:
            continue
        order = np.argsort(indices[low:high], kind="mergesort")
        order = order[np.argsort(times[low:high][order], kind="mergesort")]
        indices[low:high] = indices[low:high][order]
        times[low:high] = times[low:high][order]
        if weights is not None:
            weights[low:high] = weights[low:high][order]
        if numbers is not None:
            numbers[low:high] = numbers[low:high][order]


@njit(cache=True, nogil=True)
def mark_sources(
    records: Any,
    node: int,
    first: int,
    is_source: NDArray[np.bool_],
    weight_sums: NDArray[Any] | None,
    reverse_sums: NDArray[Any],
    numbers: IdArray | None,
    times: IdArray | None,
) -> None:
    """Merge a destination's edges from the sources ``first``, ``first + 1``, ... into arrays by source.

    This replaces `merge_columns` for a destination with too many edges for memory: several passes over the records each
    merge one range of s sources.

    Parameters
    ----------
    records : records of one bucket; those with other destinations or sources are skipped
    node : the destination's offset in the bucket
    first : the first source
    is_source : (s,) set to True for sources with an edge
    weight_sums : (s,) receives the weight sum of each source's given edges, or None without weights
    reverse_sums : (s,) receives the weight sum of each source's added reverse edges. Their weights have the sign bit
        set, and count here without it
    numbers : (s,) receives each source's smallest edge number, or None
    times : (s,) receives the time of the edge with this number, or None
    """
    for i in range(records.shape[0]):
        source = np.int64(records[i]["src"]) - first
        if records[i]["dst"] == node and 0 <= source < is_source.shape[0]:
            if numbers is not None:
                number = np.int64(records[i]["number"])
                if not is_source[source] or number < numbers[source]:
                    numbers[source] = number
                    if times is not None:
                        times[source] = records[i]["time"]
            is_source[source] = True
            if weight_sums is not None:
                weight = records[i]["weight"]
                if np.signbit(weight):
                    reverse_sums[source] -= weight
                else:
                    weight_sums[source] += weight


@njit(cache=True, nogil=True)
def expand_rows(indptr: IdArray, first: int, first_row: int, rows: IdArray) -> int:
    """Write the row numbers of a CSR matrix's entries ``first``, ``first + 1``, ... Return the last row number.

    Parameters
    ----------
    indptr : (N + 1,) the rows' offsets
    first : number of the first entry
    first_row : a row at or before the row of entry ``first``, where the search starts
    rows : (n,) receives the rows of n entries
    """
    row = first_row
    for i in range(rows.shape[0]):
        while indptr[row + 1] <= first + i:
            row += 1
        rows[i] = row
    return row


@njit(cache=True, nogil=True)
def add_sparse_rows(indptr: IdArray, columns: IdArray, values: NDArray[Any], out: NDArray[Any]) -> int:
    """Add n rows of a CSR matrix to the dense ``out`` (n, F). Return the first entry with a column outside 0..F-1.

    Without such an entry the result is -1. ``columns`` and ``values`` hold the entries that were read from the file.
    ``indptr`` (n + 1,) bounds the rows' entries, counted from the start of the file; the first one is ``indptr[0]``.
    """
    base = indptr[0]
    for row in range(out.shape[0]):
        for i in range(indptr[row] - base, indptr[row + 1] - base):
            column = columns[i]
            if column < 0 or column >= out.shape[1]:
                return i
            out[row, column] += values[i]
    return -1


@njit(cache=True, nogil=True)
def first_not_below(values: IdArray, low: int, high: int, value: int) -> int:
    """Return the first i in low..high-1 with ``values[i] >= value``, or ``high``. Needs ascending ``values``. Pure."""
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
    """Count, for the sorted rows of one piece, the rows of another piece that come before them in the same group.

    Both pieces belong to the same bucket, which did not fit into memory. For each row of the other piece, the group of
    its pair is searched. The row is counted at the first row of the group that comes after it by time and row number.
    The caller sums these counts along each group; the running sum is the number of other rows ahead of each row.

    Parameters
    ----------
    rows, destinations, sources, times : (m,) columns of the other piece's rows
    first : the first destination in ``start``
    start : (n + 1,) bounds of each destination's rows
    group_sources, group_times, group_rows : (r,) columns of the sorted rows
    added : (r,) counts at the sorted rows, increased
    """
    for other in range(rows.shape[0]):
        node = destinations[other] - first
        # First the group of the pair, then the place in the group.
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
    num_matched: IdArray,
    cursor: IdArray,
    last: IdArray,
    positions: IdArray,
) -> int:
    """Match a piece of edges with the rows of their pairs. Return the last edge's destination.

    The caller passes the graph's edges in pieces, in position order. Each edge is searched among its destination's
    rows. A pair's k-th edge is matched with the row of rank k in the pair's group. The state of a group is kept at its
    head, from piece to piece.

    Parameters
    ----------
    indptr : (n + 1,) bounds of n destinations' lists, as positions in the graph
    node : a destination at or before the first edge's destination, where the search starts
    first_position : the first edge's position
    indices : (m,) the edges' sources
    start : (n + 1,) bounds of each destination's rows
    group_sources : (r,) each row's source
    heads : (r,) first row in each row's group
    ranks : (r,) each row's rank in its group, ascending; ranks of rows in other pieces of the table are missing
    num_matched : (r,) at a group's head, the number of the pair's edges so far, with or without a row in this piece
    cursor : (r,) at a group's head, the group's next row without an edge
    last : (r,) at a group's head, the position of the pair's last edge so far
    positions : (r,) each row's edge position, written for matched rows
    """
    begin, end = first_position, first_position + indices.shape[0]
    while begin < end:
        # The edges from ``begin`` to ``stop`` have the destination ``node``.
        while indptr[node + 1] <= begin:
            node += 1
        stop = min(end, indptr[node + 1])
        low, high = start[node], start[node + 1]
        if low < high:
            for position in range(begin, stop):
                source = indices[position - first_position]
                head = first_not_below(group_sources, low, high, source)
                if head == high or group_sources[head] != source:
                    continue
                number = num_matched[head]
                num_matched[head] = number + 1
                last[head] = position
                row = cursor[head]
                if row < high and heads[row] == head and ranks[row] == number:
                    positions[row] = position
                    cursor[head] = row + 1
        begin = stop
    return node  # the search for the next piece starts here
