"""The memory and the disk that putting features of edges in order takes, known before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gloader.convert.csc.external_csc import EdgeNumbers
from gloader.convert.order.edge_moves import DEAL_BYTES, PAIR_BYTES
from gloader.convert.order.ordered_rows import ranges_per_pass, spill_dtype
from gloader.core.units import format_bytes
from gloader.errors import BudgetError

if TYPE_CHECKING:
    from gloader.convert.options import EdgeRules
    from gloader.convert.source import FeatureStream

# Bytes of feature rows read at a time, and copies of them alive at once: as read, as float32, as stored, by range.
_CHUNK_BYTES = 4 << 20
_CHUNK_COPIES = 4
# Files that rows, and what is known of their places, are dealt out to; all are written in turns.
_MAX_RANGES = 4096
# Sorting the numbers of a range: a number, its position, and what the sort takes beside them.
_ROW_SORT_BYTES = 24
_DEAL_POSITIONS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRowPlan:
    """Memory and disk that putting features of edges in order takes, and the shares of its parts."""

    chunk_rows: int  # feature rows read at a time
    range_rows: int  # feature rows put in order at a time
    range_edges: int  # edges of the source whose positions are in memory at a time
    deal_positions: int  # positions looked at at a time
    memory_bytes: int  # at most
    number_bytes: int  # on disk, of the numbers of the edges: from the sort of the edges on
    scratch_bytes: int  # on disk, at most, while rows are put in order; these included


NO_EDGE_ROWS: Final = EdgeRowPlan(
    chunk_rows=0,
    range_rows=0,
    range_edges=0,
    deal_positions=0,
    memory_bytes=0,
    number_bytes=0,
    scratch_bytes=0,
)


def plan_edge_rows(
    features: FeatureStream,
    num_edges: int,
    *,
    dtype: str,
    rules: EdgeRules,
    budget_bytes: int,
    where: str,
    num_passes: int = 1,
) -> EdgeRowPlan:
    """Divide a memory budget between the parts of putting the features of edges in order. Pure.

    Parameters
    ----------
    features : (E_s, F_e) in the order of the source; its sizes count, nothing is read
    num_edges : of the dataset, or as many as there may be
    dtype : that the rows will be stored as
    rules : what happens to the edges
    budget_bytes : memory that it stays within
    where : the source, for messages
    num_passes : in which rows are put in order, a part of them on the disk at a time

    Raises
    ------
    BudgetError
        The smallest useful buffers do not fit; says needed and allowed.
    """
    row_bytes = features.dim * max(4, features.dtype.itemsize)
    places = 2 if rules.symmetrize else 1  # of an edge
    stored = features.dim * spill_dtype(dtype).itemsize
    # Half for the rows of a range, a quarter for a chunk of them, and a quarter for where they go.
    least_range = max(1, -(-num_edges // _MAX_RANGES)) * (stored + _ROW_SORT_BYTES)
    least_chunk = places * _CHUNK_COPIES * row_bytes
    least_moves = max(1, -(-features.num_rows // _MAX_RANGES)) * places * PAIR_BYTES
    needed = max(2 * least_range, 4 * least_chunk, 4 * least_moves)
    if needed > budget_bytes:
        raise BudgetError(
            f"{where}: putting the features of {num_edges} edges in order takes at least {format_bytes(needed)}; the "
            f"memory budget leaves {format_bytes(budget_bytes)} for it. Raise --memory-budget"
        )
    chunk = max(1, min(_CHUNK_BYTES, budget_bytes // 4 // _CHUNK_COPIES) // (places * row_bytes))
    chunk_rows = min(chunk, max(1, features.num_rows))
    range_rows = max(1, min(num_edges, budget_bytes // 2 // (stored + _ROW_SORT_BYTES)))
    range_edges = max(1, min(features.num_rows, budget_bytes // 4 // (places * PAIR_BYTES), 2**32 - 1))
    dealt = max(1, min(_DEAL_POSITIONS, num_edges, budget_bytes // DEAL_BYTES))
    is_spilled, is_dealt_out = range_rows < num_edges, range_edges < features.num_rows
    held = (
        range_rows * (stored + _ROW_SORT_BYTES)
        + chunk_rows * places * _CHUNK_COPIES * row_bytes
        + range_edges * places * PAIR_BYTES
    )
    number = EdgeNumbers.bytes_of(features.num_rows)
    pair = 8 if num_edges < 2**32 else 12
    # Of the ranges that rows are dealt out to, those of one pass are on the disk.
    of_pass = ranges_per_pass(-(-num_edges // range_rows), num_passes)
    spilled = min(num_edges, of_pass * range_rows) if is_spilled else 0
    return EdgeRowPlan(
        chunk_rows=chunk_rows,
        range_rows=range_rows,
        range_edges=range_edges,
        deal_positions=dealt,
        memory_bytes=max(held, dealt * DEAL_BYTES),
        number_bytes=num_edges * number,
        scratch_bytes=num_edges * (number + pair * is_dealt_out) + spilled * stored,
    )


def most_edges(given: int, rules: EdgeRules, num_nodes: int) -> int:
    """Return how many edges ``given`` ones are at most, after ``rules``. Pure."""
    return given * (2 if rules.symmetrize else 1) + num_nodes * rules.self_loops
