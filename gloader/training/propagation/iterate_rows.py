"""Repeated hops of one linear operator over rows, of which only the last result is kept: `iterate`.

Correct and smooth uses it (Huang et al., 2021, section 2.3). Errors and labels spread by
 ``Z <- a S Z + (1 - a) Z_0``.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.training.propagation.hop_pass import (
    HopEdges,
    HopRule,
    PassLimits,
    empty_rows,
    gather,
    norm_scale,
)
from gloader.training.propagation.propagate_rows import Pieces, Source
from gloader.training.propagation.propagation_plan import RING_BYTES, WRITER_BYTES, HopCost
from gloader.training.propagation.state_rows import HeldRows, StoredRows, StoredWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.samplers import Topology
    from gloader.training.propagation.chains import Norm

    Matrix = NDArray[np.float32]
    AfterHop = Callable[[int, slice, Matrix], None]


class _Readable(Protocol):
    """Rows of any kind, read in order."""

    def read(self, start: int, stop: int, out: Matrix) -> Any:
        """Read rows ``start`` to ``stop`` into ``out``."""
        ...


def iterate(  # noqa: PLR0913 - independent keywords
    graph: Topology,
    start: _Readable,
    *,
    width: int,
    norm: Norm,
    alpha: float,
    hops: int,
    anchor: _Readable | None,
    memory_budget_bytes: int,
    scratch: Path | None = None,
    after_hop: AfterHop | None = None,
    add_self_loops: bool = True,
    threads: int = 0,
) -> Pieces:
    """Return ``hops`` repetitions of ``Z <- alpha S Z + (1 - alpha) anchor``, with S by ``norm`` along in-edges.

    The columns are computed in slabs that fit the budget. A result that does not fit is in ``scratch``.

    Parameters
    ----------
    graph : the edges of one type; the budget does not count them
    start : (N, width) float32 rows, the first Z
    width : number of columns
    norm : "gcn" or "mean"
    alpha : the share of the neighbours' rows, 0 to 1
    hops : number of hops
    anchor : (N, width) rows that are added at every hop; None adds nothing
    memory_budget_bytes : memory for all rows
    scratch : an empty folder for rows that do not fit; the caller removes it. None allows none
    after_hop : called with the first row, the columns and the rows (n, w) of each chunk of each hop; may change them
    add_self_loops : as `propagate`
    threads : computing threads; 0 means one for each core

    Raises
    ------
    BudgetError
        The rows of one column do not fit, or the result does not fit and there is no scratch folder.
    """
    num_nodes = graph.num_nodes
    threads = threads or len(os.sched_getaffinity(0))
    limits = PassLimits(
        rows=max(1, (4 << 20) // (4 * width)), edges=min(1 << 19, max(graph.num_edges, 1)), threads=threads
    )
    per_column = 4 * num_nodes
    # The factors and the degrees in float64, then chunks and pieces of edges.
    fixed = 12 * num_nodes + (limits.chunks + 3) * (16 * limits.edges + 4 * width * limits.rows)
    left = memory_budget_bytes - fixed
    is_held = left >= 2 * per_column * width
    slab_width = width if is_held else min(width, (left - 2 * WRITER_BYTES) // per_column)
    if slab_width < 1 or (not is_held and scratch is None):
        least = fixed + (2 * width if scratch is None else 1) * per_column + 2 * WRITER_BYTES
        raise BudgetError(
            f"{hops} hops over {num_nodes:,} nodes with {width} columns need {format_bytes(least)} ({least} bytes) and "
            f"the memory budget leaves {format_bytes(memory_budget_bytes)}; raise it by "
            f"{-(-(least - memory_budget_bytes) // 10**6)}MB or more",
            short_bytes=least - memory_budget_bytes,
        )
    edges = HopEdges(graph, limits)
    adds_own = add_self_loops and norm != "mean"
    scale = norm_scale(edges.degrees("in", weighted=True), norm, add_self_loops=adds_own)
    rule = HopRule(stat="mean", scale=scale, adds_own=adds_own)
    factors = None if norm == "mean" else scale
    share, rest = np.float32(alpha), np.float32(1.0 - alpha)
    parts: list[tuple[int, Any]] = []
    with ExitStack() as made:
        for first in range(0, width, slab_width):
            columns = slice(first, min(first + slab_width, width))
            rows: Any = _Columns(start, num_nodes, width, columns)
            fixed_rows = None if anchor is None else _Columns(anchor, num_nodes, width, columns)
            for hop in range(hops):
                source = Source(rows, limits.rows)
                table = source.table(factors, may_change=True)
                # A held table with factors is the rows' own array: it lives until the pass ends.
                into = empty_rows(num_nodes, rows.width) if is_held else None
                with ExitStack() as stack:
                    writer = None
                    if scratch is not None and into is None:
                        path = scratch / f"columns-{first}-{hop}"
                        writer = stack.enter_context(
                            StoredWriter(path, num_rows=num_nodes, width=columns.stop - first)
                        )
                    chunks = stack.enter_context(closing(gather(edges, rule, table, limits, into=into)))
                    del table
                    for row, chunk in chunks:
                        np.multiply(chunk, share, out=chunk)
                        if fixed_rows is not None:
                            part = np.empty_like(chunk)
                            fixed_rows.read(row, row + len(chunk), part)
                            np.multiply(part, rest, out=part)
                            np.add(chunk, part, out=chunk)
                        if after_hop is not None:
                            after_hop(row, columns, chunk)
                        if writer is not None:
                            writer.append(chunk)
                source.close()
                rows = (
                    HeldRows(into)
                    if into is not None
                    else StoredRows(
                        path, num_rows=num_nodes, width=columns.stop - first, ring_bytes=RING_BYTES
                    )
                )
            made.callback(source.close)
            parts.append((first, rows))
        made.pop_all()
    return Pieces(num_rows=num_nodes, width=width, parts=parts, cost=HopCost(edges_read=edges.bytes_read))


class _Columns:
    """Some columns of rows, which are read whole.

    Parameters
    ----------
    rows : (num_rows, full_width) the rows
    num_rows, full_width : their shape
    columns : the columns
    """

    def __init__(self, rows: _Readable, num_rows: int, full_width: int, columns: slice) -> None:
        self.num_rows = num_rows
        self.width = columns.stop - columns.start
        self._rows = rows
        self._full_width = full_width
        self._columns = columns

    def read(self, start: int, stop: int, out: Matrix) -> None:
        """Read rows ``start`` to ``stop`` into ``out``."""
        if self.width == self._full_width:
            self._rows.read(start, stop, out)
            return
        whole = np.empty((stop - start, self._full_width), dtype=np.float32)
        self._rows.read(start, stop, whole)
        out[:] = whole[:, self._columns]
