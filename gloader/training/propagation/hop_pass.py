"""One pass over a relation's edges, which makes the rows of one state for all nodes.

`HopEdges` yields a relation's edges in pieces, and knows each node's degree. With the direction "in", `gather` adds the
rows of a table along the edges of each destination: threads compute pieces, and the chunks of rows come in order. With
the direction "out", `scatter` adds the rows of the destinations, which are read in order, to a table: threads share
out the columns. So no reversed copy of the edges is needed.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from gloader.convert.read_ahead import read_ahead
from gloader.core.aligned_memory import mapped_bytes
from gloader.core.offsets import degrees_between, offsets_of
from gloader.samplers import CscGraph
from gloader.training.inference.scanned_edges import cut_rows
from gloader.training.propagation.propagation_kernels import (
    add_in_degrees,
    add_out_degrees,
    gather_extremes,
    gather_moments,
    gather_sums,
    scatter_extremes,
    scatter_moments,
    scatter_sums,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from numpy.typing import NDArray

    from gloader.samplers import Topology
    from gloader.training.propagation.chains import Direction, Norm, Statistic
    from gloader.types import IdArray

    Matrix = NDArray[np.float32]
    # Consecutive rows, with the number of the first one.
    Chunks: TypeAlias = Iterable[tuple[int, Matrix]]

_NO_WEIGHTS: Final[Matrix] = np.empty(0, dtype=np.float32)
_NODES: Final = 1 << 20  # nodes whose degrees are computed together
_NODES_PER_CUT: Final = 1 << 16  # destinations that are cut into pieces together
_LINE: Final = 16  # float32 values of a cache line: two threads never write to the same line
# Row widths that have kernels with a loop of fixed length, which took 0.4 to 0.7 of the time at these widths.
FIXED_WIDTHS: Final = (4, 8, 16)


def empty_rows(num_rows: int, width: int) -> Matrix:
    """Return an array (num_rows, width), not initialised. Its memory returns to the system with the last view.

    Freed blocks of the C library would stay in the heap of a thread: with a budget of 49 MB these were 25 MB.
    """
    num_bytes = num_rows * width * 4
    return mapped_bytes(num_bytes, touch=False)[:num_bytes].view(np.float32).reshape(num_rows, width)


class RowRing:
    """Memory for chunks of rows, which is used again. A chunk is valid until ``depth`` later chunks are taken.

    Parameters
    ----------
    width : number of columns
    depth : chunks that are valid at a time
    """

    def __init__(self, width: int, depth: int) -> None:
        self._chunks = [empty_rows(0, width)] * depth
        self._width = width
        self._turn = 0

    def take(self, num_rows: int) -> Matrix:
        """Return memory for a chunk, (num_rows, width)."""
        self._turn = (self._turn + 1) % len(self._chunks)
        if len(self._chunks[self._turn]) < num_rows:
            self._chunks[self._turn] = empty_rows(num_rows, self._width)
        return self._chunks[self._turn][:num_rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLimits:
    """The sizes of what a pass holds besides its tables."""

    rows: int  # largest number of rows of a chunk
    edges: int  # largest number of edges of a piece
    threads: int  # threads that compute

    @property
    def chunks(self) -> int:
        """Chunks and pieces that exist at a time: each thread has one, and the caller has one. It is a ring's depth."""
        return self.threads + 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EdgePiece:
    """The edges of consecutive destinations, or some edges of one destination."""

    start: int  # first destination
    indptr: IdArray  # (n + 1,) where the edges of each destination begin in ``sources``
    sources: NDArray[Any]  # (E,) int32 or int64
    weights: Matrix  # (E,) or empty
    is_last: bool  # whether no edge of these destinations follows

    @property
    def num_rows(self) -> int:
        """n, the number of destinations."""
        return len(self.indptr) - 1


class HopEdges:
    """The edges of a relation, for passes in their order. Does not own the graph.

    Parameters
    ----------
    graph : the relation's edges
    limits : the sizes of pieces
    """

    def __init__(self, graph: Topology, limits: PassLimits) -> None:
        self.num_nodes = graph.num_nodes
        self.num_sources = graph.num_sources
        self.bytes_read = 0  # bytes of edges that were read from the SSD
        self._graph = graph
        self._limits = limits
        self._is_held = isinstance(graph, CscGraph)

    @contextmanager
    def pieces(self, *, weighted: bool) -> Generator[Iterator[EdgePiece]]:
        """Give the pieces of all edges, in order. A thread reads them ahead if they are on the SSD."""
        with (
            closing(self._pieces(weighted=weighted)) as pieces,
            read_ahead(pieces, name="propagate-edges", is_on=not self._is_held) as ahead,
        ):
            yield ahead

    def _pieces(self, *, weighted: bool) -> Generator[EdgePiece]:
        graph, most = self._graph, self._limits.edges
        sources = graph.sources.scan()
        weights = graph.weights.scan() if weighted and graph.weights is not None else None
        for start, offsets in self._ranges():
            begin, end = int(offsets[0]), int(offsets[-1])
            # Only one destination alone may have more edges. A range without edges has one empty piece, because its
            # rows are made all the same.
            for first in range(begin, max(end, begin + 1), most):
                past = min(first + most, end)
                lists = np.full(min(past - first, 1), first), np.full(min(past - first, 1), past - first)
                ids = sources.lists(*lists)
                factors = _NO_WEIGHTS
                if weights is not None:
                    factors = weights.lists(*lists)
                    self.bytes_read += 0 if self._is_held else factors.nbytes
                    factors = np.asarray(factors, dtype=np.float32)
                self.bytes_read += 0 if self._is_held else ids.nbytes
                indptr = np.clip(offsets, first, past) - first
                yield EdgePiece(start=start, indptr=indptr, sources=ids, weights=factors, is_last=past == end)

    def _ranges(self) -> Iterator[tuple[int, IdArray]]:
        """Yield consecutive destinations within the limits: the first one, and the offsets (n + 1,) of their edges."""
        for start in range(0, self.num_nodes, _NODES_PER_CUT):
            stop = min(start + _NODES_PER_CUT, self.num_nodes)
            offsets = offsets_of(self._graph.offsets, np.arange(start, stop + 1))
            limits = self._limits
            for rows in cut_rows(np.diff(offsets), max_edges=limits.edges, max_rows=limits.rows):
                yield start + rows.start, offsets[rows.start : rows.stop + 1]

    def degrees(self, direction: Direction, *, weighted: bool) -> NDArray[np.floating[Any]]:
        """Return each node's sum of edge weights, or number of edges, at the receiving end of a direction.

        Numbers that offsets have are float32. Sums over edges are float64.
        """
        weighted = weighted and self._graph.weights is not None
        if direction == "in" and not weighted:
            numbers = np.empty(self.num_nodes, dtype=np.float32)
            for start in range(0, self.num_nodes, _NODES):
                stop = min(start + _NODES, self.num_nodes)
                numbers[start:stop] = degrees_between(self._graph.offsets, start, stop)
            return numbers
        degrees = np.zeros(self.num_nodes if direction == "in" else self.num_sources, dtype=np.float64)
        with self.pieces(weighted=weighted) as pieces:
            for piece in pieces:
                if direction == "in":
                    part = degrees[piece.start : piece.start + piece.num_rows]
                    add_in_degrees(piece.indptr, piece.weights, part)
                else:
                    add_out_degrees(piece.sources, piece.weights, degrees)
        return degrees


def norm_scale(degrees: NDArray[np.floating[Any]], norm: Norm, *, add_self_loops: bool) -> Matrix:
    """Return each node's factor, (N,): ``1 / sqrt(d)`` for gcn and ppr, ``1 / d`` for mean; 0 without edges. Pure.

    Parameters
    ----------
    degrees : (N,) sums of edge weights; overwritten
    norm : the norm
    add_self_loops : whether the node itself counts as one more neighbour, for gcn and ppr
    """
    if norm != "mean":
        if add_self_loops:
            degrees += 1.0
        np.sqrt(degrees, out=degrees)
    np.divide(1.0, degrees, out=degrees, where=degrees > 0)
    return degrees.astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassRule:
    """The computation of a pass for each receiving node."""

    stat: Statistic
    scale: Matrix | None  # (N,) factor of each receiving node's sum; None for other statistics
    adds_own: bool = False  # whether the node's own row of the table is the first term of its sum


class RowParts(Protocol):
    """Rows that are read in order, as a pass takes them."""

    @property
    def width(self) -> int:
        """Number of columns."""
        ...

    def part(self, start: int, stop: int) -> Matrix:
        """Return rows ``start`` to ``stop``, C-contiguous."""
        ...


def gather(
    edges: HopEdges, rule: PassRule, table: Matrix, limits: PassLimits, *, into: Matrix | None = None
) -> Generator[tuple[int, Matrix]]:
    """Yield the rows of all destinations in consecutive chunks, each with its first row.

    Parameters
    ----------
    edges : the relation's edges
    rule : the statistic
    table : (N, w) the sources' rows
    limits : sizes, and the number of threads
    into : (N, w) memory for the chunks; None for memory of their own
    """
    width = table.shape[1]
    work, ring = _Gather(rule, table), RowRing(width, limits.chunks)
    with (
        edges.pieces(weighted=rule.stat == "mean") as pieces,
        ThreadPoolExecutor(limits.threads, thread_name_prefix="gloader-propagate") as pool,
    ):
        waiting: deque[tuple[int, Any]] = deque()
        unfinished: _Rows | None = None  # the rows of a destination with more pieces
        try:
            for piece in pieces:
                past = piece.start + piece.num_rows
                if unfinished is None:
                    out = ring.take(piece.num_rows) if into is None else into[piece.start : past]
                    rows = _Rows(rule, piece.start, out)
                else:
                    rows = unfinished
                if not piece.is_last:
                    # The pieces of one destination are added one after another.
                    work.add(piece, rows)
                    unfinished = rows
                    continue
                unfinished = None
                waiting.append((piece.start, pool.submit(work.complete, piece, rows)))
                if len(waiting) == limits.chunks:
                    start, made = waiting.popleft()
                    yield start, made.result()
            while waiting:
                start, made = waiting.popleft()
                yield start, made.result()
        finally:
            for _, made in waiting:
                made.cancel()


class _Rows:
    """Rows of receiving nodes during their computation.

    Parameters
    ----------
    rule : the statistic
    start : first node
    out : (n, w) the result's memory
    """

    def __init__(self, rule: PassRule, start: int, out: Matrix) -> None:
        self.start = start
        self.out = out
        self.is_new = True
        self.seen: IdArray | None = None
        self.moments: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        if rule.stat == "std":
            self.seen = np.zeros(len(out), dtype=np.int64)
            self.moments = (np.zeros(out.shape, dtype=np.float64), np.zeros(out.shape, dtype=np.float64))


class _Gather:
    """The computation of pieces by threads. Thread-safe for different rows.

    Parameters
    ----------
    rule : the statistic
    table : (N, w) the sources' rows
    """

    def __init__(self, rule: PassRule, table: Matrix) -> None:
        self._rule = rule
        self._table = table
        self._lanes = (0,) * table.shape[1] if table.shape[1] in FIXED_WIDTHS else ()

    def add(self, piece: EdgePiece, rows: _Rows) -> None:
        """Add a piece's edges to ``rows``."""
        stat, out = self._rule.stat, rows.out
        if rows.is_new:
            rows.is_new = False
            if self._rule.adds_own:
                out[:] = self._table[rows.start : rows.start + len(out)]
            else:
                out[:] = first_value(stat)
        if stat == "mean":
            gather_sums(piece.indptr, piece.sources, piece.weights, self._table, self._lanes, out)
        elif stat == "std":
            assert rows.moments is not None  # noqa: S101 - its constructor
            gather_moments(piece.indptr, piece.sources, self._table, rows.seen, *rows.moments)
        else:
            gather_extremes(piece.indptr, piece.sources, self._table, stat == "max", out)

    def complete(self, piece: EdgePiece, rows: _Rows) -> Matrix:
        """Add the last piece's edges, and return the final rows."""
        self.add(piece, rows)
        out = rows.out
        if rows.moments is not None and rows.seen is not None:
            write_deviations(rows.seen, rows.moments[1], out)
        elif self._rule.scale is not None:
            out *= self._rule.scale[rows.start : rows.start + len(out), None]
        else:
            # The last piece of a destination with several pieces has an edge.
            out[np.diff(piece.indptr) == 0] = 0.0
        return out


def scatter(
    edges: HopEdges, rule: PassRule, rows: RowParts, limits: PassLimits, *, into: Matrix | None = None
) -> Generator[tuple[int, Matrix]]:
    """Yield the rows of all sources in consecutive chunks, each with its first row. They are complete at the first.

    Parameters
    ----------
    edges : the relation's edges
    rule : the statistic; ``adds_own`` adds the row of node v before v's edges
    rows : the destinations' rows
    limits : sizes, and the number of threads
    into : (N, w) memory for the sources' rows; None for memory of its own
    """
    num_rows, width = edges.num_sources, rows.width
    table = empty_rows(num_rows, width) if into is None else into
    if rule.stat == "std":
        _scatter_moments(edges, rows, table)
    else:
        table[:] = first_value(rule.stat)
        touched = np.zeros(num_rows if rule.stat in {"min", "max"} else 0, dtype=np.bool_)
        columns = column_ranges(width, limits.threads)
        with (
            edges.pieces(weighted=rule.stat == "mean") as pieces,
            read_ahead(_with_rows(pieces, rows), name="propagate-rows") as ahead,
            ThreadPoolExecutor(len(columns), thread_name_prefix="gloader-propagate") as pool,
        ):
            for piece, part, is_new in ahead:
                if len(touched):
                    touched[piece.sources] = True
                own = piece.start if rule.adds_own and is_new else -1
                work = partial(_scatter_columns, rule.stat, piece, part, own, table)
                list(pool.map(work, columns))
        if len(touched):
            table[~touched] = 0.0
    for start in range(0, num_rows, limits.rows):
        chunk = table[start : start + limits.rows]
        if rule.scale is not None:
            chunk *= rule.scale[start : start + limits.rows, None]
        yield start, chunk


def column_ranges(width: int, threads: int) -> list[slice]:
    """Return at most ``threads`` ranges of whole cache lines of columns. Pure."""
    lines = -(-width // _LINE)
    share = -(-lines // min(threads, lines)) * _LINE
    return [slice(start, min(start + share, width)) for start in range(0, width, share)]


def _with_rows(pieces: Iterable[EdgePiece], rows: RowParts) -> Generator[tuple[EdgePiece, Matrix, bool]]:
    """Yield each piece with its destinations' rows, and whether it is their first piece."""
    is_new, part = True, empty_rows(0, rows.width)
    for piece in pieces:
        if is_new:
            part = rows.part(piece.start, piece.start + piece.num_rows)
        yield piece, part, is_new
        is_new = piece.is_last


def _scatter_columns(
    stat: Statistic, piece: EdgePiece, part: Matrix, own: int, table: Matrix, columns: slice
) -> None:
    """Scatter a piece in a range of columns."""
    span = (columns.start, columns.stop)
    if stat == "mean":
        scatter_sums(piece.indptr, piece.sources, piece.weights, part, own, *span, table)
    else:
        scatter_extremes(piece.indptr, piece.sources, part, stat == "max", *span, table)


def _scatter_moments(edges: HopEdges, rows: RowParts, table: Matrix) -> None:
    """Write the standard deviations of each source's destination rows to ``table``. One thread counts and computes."""
    seen = np.zeros(len(table), dtype=np.int64)
    means, squares = np.zeros(table.shape, dtype=np.float64), np.zeros(table.shape, dtype=np.float64)
    with (
        edges.pieces(weighted=False) as pieces,
        read_ahead(_with_rows(pieces, rows), name="propagate-rows") as ahead,
    ):
        for piece, part, _ in ahead:
            scatter_moments(piece.indptr, piece.sources, part, seen, means, squares)
    for start in range(0, len(table), _NODES):
        span = slice(start, start + _NODES)
        write_deviations(seen[span], squares[span], table[span])


def first_value(stat: Statistic) -> np.float32:
    """Return the value of a statistic over no edges. Pure."""
    return np.float32({"min": np.inf, "max": -np.inf}.get(stat, 0.0))


def write_deviations(seen: IdArray, squares: NDArray[np.float64], out: Matrix) -> None:
    """Write the standard deviations of ``seen`` (n,) values with the sums ``squares`` (n, w) to ``out`` (n, w).

    ``squares`` is overwritten.
    """
    squares /= np.maximum(seen, 1)[:, None]
    np.sqrt(squares, out=squares)
    out[:] = squares
