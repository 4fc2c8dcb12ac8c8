"""Repeated hops of one operator over rows, of which only the last result is kept: `iterate`.

Correct and smooth uses it (Huang et al., 2021, section 2.3): rows spread with ``Z <- a S Z + (1 - a) Z_0``. The matrix
S is gcn's normalised adjacency. A *slab* is a range of columns. Its rows stay in memory for all hops.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.training.propagation.hop_pass import (
    HopEdges,
    PassLimits,
    PassRule,
    empty_rows,
    gather,
    norm_scale,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from gloader.samplers import Topology
    from gloader.training.inference.layer_rows import MadeRows

    Matrix = NDArray[np.float32]
    Progress = Callable[[float], None]

_TABLES: Final = 3  # of a slab: the rows, the next rows, and the first rows
_NODE_BYTES: Final = 12  # of a node: its factor, and its degree in float64
_CHUNK_BYTES: Final = 1 << 20  # of rows that are read at once
_MAX_PIECE_EDGES: Final = 1 << 19  # larger pieces are not faster
_EDGE_BYTES: Final = (
    16  # of an edge in a piece: its id as it is read, twice while pages are copied, and its weight
)


class ReadableRows(Protocol):
    """Rows that are read in order."""

    def read(self, start: int, stop: int, out: Matrix) -> None:
        """Read rows ``start`` to ``stop`` into ``out``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Repetitions of ``Z <- share S Z + (1 - share) Z_0``, in which all numbers are kept within a range."""

    number: int
    share: float  # share of the neighbours' rows, 0 to 1
    low: float  # smallest number; the largest one is 1
    add_self_loops: (
        bool  # whether each node counts as its own neighbour; False if the graph stores such loops
    )


def iterate(
    graph: Topology,
    first: ReadableRows,
    made: MadeRows,
    hops: Repeats,
    *,
    width: int,
    memory_budget_bytes: int,
    on_progress: Progress,
) -> None:
    """Write the rows behind all ``hops`` to ``made``.

    Parameters
    ----------
    graph : the edges of one type; the budget does not count them
    first : (N, width) float32 rows Z_0; each slab reads them once
    made : (N, width) rows that are written, slab by slab; the budget does not count them
    hops : the repetitions
    width : number of columns
    memory_budget_bytes : memory for slabs, and for pieces of edges
    on_progress : called with the finished share, 0 to 1

    Raises
    ------
    BudgetError
        See `slab_width`.
    """
    num_nodes, limits = graph.num_nodes, _limits(graph, width)
    step = slab_width(graph, width=width, memory_budget_bytes=memory_budget_bytes)
    edges = HopEdges(graph, limits)
    degrees = edges.degrees("in", weighted=True)
    scale = norm_scale(degrees, "gcn", add_self_loops=hops.add_self_loops)
    del degrees
    rule = PassRule(stat="mean", scale=scale, adds_own=hops.add_self_loops)
    share = np.float32(hops.share)
    for start in range(0, width, step):
        columns = slice(start, min(start + step, width))
        rows = _columns(first, columns, width, num_nodes, limits.rows)
        others = empty_rows(*rows.shape)
        fixed = rows * (1 - share)
        for hop in range(hops.number):
            rows *= scale[:, None]
            with closing(gather(edges, rule, rows, limits, into=others)) as chunks:
                for row, chunk in chunks:
                    np.multiply(chunk, share, out=chunk)
                    np.add(chunk, fixed[row : row + len(chunk)], out=chunk)
                    np.clip(chunk, hops.low, 1.0, out=chunk)
            rows, others = others, rows
            on_progress((start + (columns.stop - start) * (hop + 1) / hops.number) / width)
        made.write_slab(columns, _chunks(rows, limits.rows))


def slab_width(graph: Topology, *, width: int, memory_budget_bytes: int) -> int:
    """Return the number of columns of a slab that fits the budget. Pure.

    Raises
    ------
    BudgetError
        A slab of one column does not fit.
    """
    limits = _limits(graph, width)
    # Each thread has a piece of edges. One more is read, and one waits; a chunk of rows is read beside them.
    num_edges = min(limits.edges * (limits.chunks + 2), graph.num_edges)
    fixed = _NODE_BYTES * graph.num_nodes + _EDGE_BYTES * num_edges + 4 * width * limits.rows
    per_column = 4 * _TABLES * graph.num_nodes
    columns = (memory_budget_bytes - fixed) // max(1, per_column)
    if columns < 1:
        least = fixed + per_column
        raise BudgetError(
            f"hops over {graph.num_nodes:,} nodes take at least {format_bytes(least)}, for one column; the memory "
            f"budget leaves {format_bytes(max(memory_budget_bytes, 0))} for that. Raise the budget",
            short_bytes=least - memory_budget_bytes,
        )
    return min(columns, width)


def _limits(graph: Topology, width: int) -> PassLimits:
    """Return the sizes of what a pass holds besides its slab."""
    return PassLimits(
        rows=max(1, min(_CHUNK_BYTES // (4 * width), graph.num_nodes)),
        edges=max(1, min(_MAX_PIECE_EDGES, graph.num_edges)),
        threads=len(os.sched_getaffinity(0)),
    )


def _columns(first: ReadableRows, columns: slice, width: int, num_rows: int, step: int) -> Matrix:
    """Return some columns of all rows, in memory."""
    found = empty_rows(num_rows, columns.stop - columns.start)
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        whole = np.empty((stop - start, width), dtype=np.float32)
        first.read(start, stop, whole)
        found[start:stop] = whole[:, columns]
    return found


def _chunks(rows: Matrix, step: int) -> Iterator[Matrix]:
    """Yield consecutive rows."""
    return (rows[start : start + step] for start in range(0, len(rows), step))
