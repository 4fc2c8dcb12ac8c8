"""Edge streams over columns: ids, weights and times in arrays and files.

The readers of arrays and files call this module. An `EdgeStream` yields edges in chunks. An `EdgeColumn` yields one
value per edge. `pair_edges` (from COO) and `csc_edges` make a stream of edges, and `timed_edges` and `weighted_edges`
join a column to it. Values are checked, and cast to the stream's dtypes, chunk by chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gloader.convert.csc.csc_kernels import expand_rows
from gloader.convert.readers.checked_rows import to_weights
from gloader.convert.readers.node_arrays import to_ids
from gloader.convert.source import EdgeChunk, EdgeStream, edges_over
from gloader.core.aligned_memory import plain_array
from gloader.errors import GraphError, ShapeError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from numpy.typing import NDArray

    from gloader.convert.readers.npy_file import NpyFile
    from gloader.types import IdArray


# float64 can represent every whole number up to this limit. A larger time may have been rounded.
_LARGEST_FLOAT = 2.0**53


def check_time_dtype(dtype: np.dtype[Any], where: str) -> None:
    """Refuse dtypes that cannot hold times in seconds. Pure.

    Raises
    ------
    SourceError
        ``dtype`` is neither an integer, float64 nor datetime64. The message gives the reason.
    """
    if dtype.kind == "f" and dtype.itemsize < 8:
        raise SourceError(
            f"{where} has dtype {dtype}, which holds whole seconds only up to {2 ** np.finfo(dtype).nmant * 2:,}, so "
            "that times were rounded; save the original times as int64 seconds"
        )
    if dtype.kind not in "iuM" and dtype != np.float64:
        raise SourceError(
            f"{where} has dtype {dtype}; times are int64 seconds, float64 of whole seconds, or datetime64"
        )


def to_seconds(values: NDArray[Any], *, first: int, where: str) -> IdArray:
    """Return times as int64 seconds. Dates become seconds since 1970 in UTC. Pure.

    Parameters
    ----------
    values : (n,) integers, float64 or datetime64; int64 is not copied
    first : the first row's number, for messages
    where : the file or array, for messages

    Raises
    ------
    SourceError
        As `check_time_dtype`. Or a time is missing, is not a whole second, or is too large. The message names the row.
    """
    check_time_dtype(values.dtype, where)
    if values.dtype.kind == "M":
        seconds = values.astype("datetime64[s]")
        _refuse(values, np.isnat(values) | (seconds != values), first, where)
        return np.ascontiguousarray(seconds.view(np.int64))
    if values.dtype.kind == "f":
        # The condition is negated, so that NaN is refused too.
        _refuse(values, ~((np.abs(values) <= _LARGEST_FLOAT) & (np.floor(values) == values)), first, where)
    if values.dtype == np.uint64:
        _refuse(values, values > np.uint64(2**63 - 1), first, where)
    return plain_array(values, np.int64)


def _refuse(values: NDArray[Any], is_bad: NDArray[np.bool_], first: int, where: str) -> None:
    """Raise SourceError for the first bad time, if any. ``first`` is the number of the first row."""
    if is_bad.any():
        row = int(is_bad.argmax())
        raise SourceError(
            f"{where}: row {first + row} has time {values[row]}; times are whole seconds, and every edge has one"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeColumn:
    """One value per edge of a stream, in the stream's order.

    ``pieces(max_values)`` yields the values from the first on, again at each call. A piece should have at most
    ``max_values`` values, but the pieces of a table may be longer.
    """

    pieces: Callable[[int], Iterator[NDArray[Any]]]
    where: str  # the file, array or table column, for messages
    num_values: int | None = None  # None means unknown until the values are read
    dtype: np.dtype[Any] | None = None  # None means unknown until the values are read


def array_column(
    values: NDArray[Any], *, where: str, numbers: NDArray[np.integer] | None = None
) -> EdgeColumn:
    """Return the column over an array, which may be memory-mapped. Pure.

    Parameters
    ----------
    values : (M,) values
    where : the file or array, for messages
    numbers : (E,) each edge's position in ``values``, or None if the values are in edge order
    """
    flat = values.reshape(-1)
    size = len(flat) if numbers is None else len(numbers)

    def pieces(max_values: int) -> Iterator[NDArray[Any]]:
        for start in range(0, size, max_values):
            part = slice(start, start + max_values)
            yield flat[part] if numbers is None else flat[numbers[part]]

    return EdgeColumn(pieces=pieces, where=where, num_values=size, dtype=values.dtype)


def file_column(file: NpyFile) -> EdgeColumn:
    """Return the column over an array file. Pure."""
    return EdgeColumn(pieces=file.flat, where=file.where, num_values=file.size, dtype=file.dtype)


def timed_edges(edges: EdgeStream, times: EdgeColumn) -> EdgeStream:
    """Return the edges with times from a column. The times' dtype is checked, and their number if it is known.

    Raises
    ------
    SourceError
        As `check_time_dtype`. In ``chunks``, as `to_seconds`.
    ShapeError
        There is not one time per edge.
    """
    if times.dtype is not None:
        check_time_dtype(times.dtype, times.where)
    # If a number is still unknown, `_with_values` checks it during the reading.
    if None not in (times.num_values, edges.num_edges) and times.num_values != edges.num_edges:
        raise ShapeError(f"{times.where} holds {times.num_values} times for {edges.num_edges} edges")

    def chunks(max_edges: int) -> Iterator[EdgeChunk]:
        for chunk, values, first in _with_values(edges, times, "times", max_edges):
            yield replace(chunk, time=to_seconds(values, first=first, where=times.where))

    return replace(edges_over(edges, chunks), has_times=True)


def weighted_edges(edges: EdgeStream, weights: EdgeColumn) -> EdgeStream:
    """Return the edges with weights from a column. ``chunks`` raises as `to_weights` and `timed_edges`."""

    def chunks(max_edges: int) -> Iterator[EdgeChunk]:
        for chunk, values, first in _with_values(edges, weights, "weights", max_edges):
            yield replace(chunk, weight=to_weights(values, first=first, where=weights.where))

    return replace(edges_over(edges, chunks), has_weights=True)


def _with_values(
    edges: EdgeStream, column: EdgeColumn, noun: str, max_edges: int
) -> Iterator[tuple[EdgeChunk, NDArray[Any], int]]:
    """Yield each chunk of edges, its values (n,), and the number of earlier edges. ``noun`` is for messages."""
    # The column's pieces have any length. ``held`` has the values that were read and not yielded yet.
    held: list[NDArray[Any]] = []
    pieces, done = column.pieces(max_edges), 0
    for chunk in edges.chunks(max_edges):
        count = chunk.src.shape[0]
        while sum(map(len, held)) < count and (piece := next(pieces, None)) is not None:
            held.append(piece)
        whole = held[0] if len(held) == 1 else np.concatenate(held or [np.empty(0)])
        if len(whole) < count:
            raise ShapeError(f"{column.where} ends after {done + len(whole)} {noun}; there are more edges")
        held = [whole[count:]] if len(whole) > count else []
        yield chunk, whole[:count], done
        done += count
    if column.num_values is None and (held or any(map(len, pieces))):
        raise ShapeError(f"{column.where} holds more {noun} than there are edges, {done}")


def pair_edges(
    pairs: Callable[[int], Iterator[tuple[NDArray[Any], NDArray[Any]]]],
    num_edges: int,
    *,
    where: tuple[str, str],
    weight: EdgeColumn | None = None,
) -> EdgeStream:
    """Return the stream over sources and destinations of any integer dtype. Pure.

    Parameters
    ----------
    pairs : function of the largest n, which yields (n,) sources and (n,) destinations from the first edge on
    num_edges : E
    where : files or arrays of the sources and of the destinations, for messages
    weight : the weights, or None for unweighted edges
    """

    def chunks(max_edges: int) -> Iterator[EdgeChunk]:
        done = 0
        for src, dst in pairs(max_edges):
            yield EdgeChunk(
                src=to_ids(src, first=done, where=where[0]), dst=to_ids(dst, first=done, where=where[1])
            )
            done += len(src)

    edges = EdgeStream(chunks=chunks, num_edges=num_edges)
    return edges if weight is None else weighted_edges(edges, weight)


def csc_edges(
    indptr: NDArray[Any], indices: EdgeColumn, *, where: str, weight: EdgeColumn | None = None
) -> EdgeStream:
    """Return the stream over a CSC topology, ordered by destination.

    Parameters
    ----------
    indptr : (N + 1,) offsets with any integer dtype: the in-neighbours of v are ``indices[indptr[v] : indptr[v + 1]]``
    indices : (E,) sources with any integer dtype
    where : the offsets' file or array, for messages
    weight : the weights, or None for unweighted edges

    Raises
    ------
    GraphError
        The offsets are not monotone, do not start at 0 or do not end at E, or ids are not native integers.
    """
    offsets = to_ids(indptr, first=0, where=where)
    check_offsets(offsets, indices.num_values or 0, where=where)

    def chunks(max_edges: int) -> Iterator[EdgeChunk]:
        # A row is a destination's list. A chunk begins in the row in which the previous chunk ended, or in a later row.
        # So one walk over the offsets finds all destinations.
        done, row = 0, 0
        for sources in indices.pieces(max_edges):
            dst = np.empty(len(sources), np.int64)
            row = int(expand_rows(offsets, done, row, dst))
            yield EdgeChunk(src=to_ids(sources, first=done, where=indices.where), dst=dst)
            done += len(sources)

    edges = EdgeStream(chunks=chunks, num_edges=indices.num_values)
    edges = edges if weight is None else weighted_edges(edges, weight)
    return replace(edges, held_bytes=offsets.nbytes)


def check_offsets(indptr: IdArray, num_entries: int, *, where: str) -> None:
    """Refuse offsets that do not divide the entries of a CSR or CSC matrix into lists. Pure.

    Parameters
    ----------
    indptr : (n + 1,) offsets
    num_entries : number of entries
    where : the offsets' file or array, for messages

    Raises
    ------
    GraphError
        An offset is invalid. The message names ``where``, the position and the value.
    """
    if indptr.shape[0] == 0 or indptr[0] != 0:
        first = int(indptr[0]) if indptr.shape[0] else "missing"
        raise GraphError(f"{where}: entry 0 is {first}; offsets must start with 0")
    descents = np.flatnonzero(indptr[1:] < indptr[:-1])
    if descents.size:
        first = int(descents[0])
        raise GraphError(
            f"{where}: entry {first + 1} is {indptr[first + 1]}, less than entry {first}, {indptr[first]}; offsets "
            "must not descend"
        )
    if indptr[-1] != num_entries:
        raise GraphError(
            f"{where}: the last entry, number {indptr.shape[0] - 1}, is {indptr[-1]}; it must be the number of "
            f"entries, {num_entries}"
        )
