"""Plan of an out-of-core mean: blocks of rows that are summed in memory, and what is read for each, in file order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.units import format_bytes
from gloader.errors import BudgetError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

# Per edge of a block: its source as read, the order that sorts it, source, destination and place in what was read.
_EDGE_BYTES = 48
# Offsets and degrees of a row, and its copies.
_ROW_BYTES = 32
# Of source rows at a time: as they lie in the file, and the wanted ones of them as float32, twice.
_CHUNK_BYTES = 4 << 20
_MIN_EDGES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanPlan:
    """Shares of the memory budget that the sums, the edges and the rows read have."""

    block_rows: int  # rows summed at a time, at most
    block_edges: int  # their edges, at most; a row of more is summed in parts
    chunk_rows: int  # source rows read at a time
    memory_bytes: int  # of all of it, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """What is read for some edges, and where it is added. Stretches ascend, and edges ascend by source."""

    sources: IdArray  # (e,) rows to read
    targets: IdArray  # (e,) row of the block that each is added to
    starts: IdArray  # (s,) the first edge of each stretch of rows that is read in one go


def plan_means(
    *, num_rows: int, num_edges: int, dim: int, source_row_bytes: int, budget_bytes: int
) -> MeanPlan:
    """Divide a memory budget so that as few blocks as possible cover all rows. Pure.

    Parameters
    ----------
    num_rows : rows to make
    num_edges : of all rows
    dim : F
    source_row_bytes : of a row as it is read
    budget_bytes : memory that making a block stays within

    Raises
    ------
    BudgetError
        Not even a block of one row fits; says needed and allowed.
    """
    wide = source_row_bytes + 8 * dim
    chunk_rows = max(1, min(_CHUNK_BYTES, budget_bytes // 8) // wide)
    # A mean of each row's edges beside its sums; the rest of a block's edges are what skewed blocks have more.
    row_bytes = 4 * dim + _ROW_BYTES
    free = budget_bytes - chunk_rows * wide
    needed = row_bytes + _MIN_EDGES * _EDGE_BYTES
    if free < needed:
        raise BudgetError(
            f"averaging rows of {dim} features needs at least {format_bytes(needed + chunk_rows * wide)}; the memory "
            f"budget leaves {format_bytes(budget_bytes)} for it. Raise --memory-budget"
        )
    edges_per_row = -(-num_edges // max(1, num_rows))
    rows = max(1, (free - _MIN_EDGES * _EDGE_BYTES) // (row_bytes + edges_per_row * _EDGE_BYTES))
    block_rows = max(1, min(num_rows, rows))
    block_edges = min(max(1, num_edges), (free - block_rows * row_bytes) // _EDGE_BYTES)
    memory = chunk_rows * wide + block_rows * row_bytes + block_edges * _EDGE_BYTES
    return MeanPlan(
        block_rows=block_rows,
        block_edges=max(1, block_edges),
        chunk_rows=chunk_rows,
        memory_bytes=memory,
    )


def plan_gather(indptr: IdArray, indices: NDArray[Any], *, first_entry: int, max_gap: int) -> Gather:
    """Sort the edges of a block by what is read for them. Pure.

    Edges of one source keep their order, so that the sums of a row run in one order, whatever the blocks: by
    ascending source.

    Parameters
    ----------
    indptr : (n + 1,) offsets of the block's rows
    indices : (e,) their entries from number ``first_entry`` on; a part of them where a row has too many
    first_entry : number of the first of ``indices``
    max_gap : rows that nobody wants between two that are wanted, and that are read through all the same
    """
    order = np.argsort(indices, kind="stable")
    sources = indices[order].astype(np.int64, copy=False)
    # The row of entry k is the last one that begins at k or before.
    targets = np.searchsorted(indptr, order + first_entry, side="right") - 1
    breaks = np.flatnonzero(np.diff(sources) > max_gap + 1) + 1
    starts = np.concatenate([np.zeros(min(1, sources.shape[0]), np.int64), breaks])
    return Gather(sources=sources, targets=targets, starts=starts)
