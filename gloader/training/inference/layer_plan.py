"""The plan by which full-neighbour inference fits a memory budget, layer by layer. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.core.units import format_bytes
from gloader.errors import BudgetError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.models.conv import Conv

_FLOAT_BYTES = 4
_EDGE_BYTES = 32  # a source, a destination and the scores of a few heads
_MAX_BUFFER_BYTES = 128 << 20  # larger chunks are not faster
_OUTPUT_BYTES = 32  # of a node whose class is asked for: its id, its position, its label, its class
_FILE_BYTES = 8 << 20  # buffers of the files that activations are written to and read from


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """How one layer is computed for its output rows."""

    slabs: tuple[slice, ...]  # ranges of output columns, one pass over the inputs each
    rows_per_read: int  # input rows projected at once
    rows_per_piece: int  # output rows propagated at once, at most
    edges_per_piece: int  # in-edges propagated at once
    is_on_disk: bool  # the outputs go to the SSD


def plan_inference(
    convs: Sequence[Conv], *, num_nodes: int, num_outputs: int, budget_bytes: int, fetch_edge_bytes: int = 0
) -> tuple[LayerPlan, ...]:
    """Return a plan for each layer that keeps everything it holds within ``budget_bytes``. Pure.

    A layer needs a table with one row per node. Where all of its columns do not fit, it is made in slabs of
    columns: every slab streams the inputs once more, in node order, so that all I/O stays sequential.

    Parameters
    ----------
    convs : the L layers
    num_nodes : N
    num_outputs : nodes whose logits are wanted; the last layer computes no others
    budget_bytes : for tables, activations, buffers and what comes out together; the topology is not counted
    fetch_edge_bytes : of an edge while it is fetched from the SSD, where the topology is not in memory

    Raises
    ------
    BudgetError
        A layer's narrowest table does not fit.
    """
    # A quarter for chunks in flight: more of it would make slabs narrower, and each slab reads all inputs once more.
    buffers = min(budget_bytes // 4, _MAX_BUFFER_BYTES)
    left = budget_bytes - buffers - min(budget_bytes // 8, _FILE_BYTES) - _OUTPUT_BYTES * num_outputs
    plans = []
    input_bytes = 0  # of the activations below that are held in memory
    for depth, conv in enumerate(convs):
        rows = num_nodes if depth < len(convs) - 1 else num_outputs
        output_bytes = rows * conv.out_dim * _FLOAT_BYTES
        # A third: the outputs, the inputs below them and the table share what is left.
        is_on_disk = output_bytes > left // 3
        held = input_bytes + (0 if is_on_disk else output_bytes)
        width = _slab_width(conv, num_nodes, left - held, budget_bytes)
        # Two buffers of inputs and the entered copy, beside the projected row.
        row_bytes = _FLOAT_BYTES * (3 * conv.in_dim + sum(conv.table_widths(width)))
        plans.append(
            LayerPlan(
                slabs=tuple(
                    slice(start, min(start + width, conv.out_dim)) for start in range(0, conv.out_dim, width)
                ),
                rows_per_read=max(1, buffers // 2 // row_bytes),
                rows_per_piece=max(1, buffers // 4 // (4 * _FLOAT_BYTES * width)),
                edges_per_piece=max(1, buffers // 4 // (_EDGE_BYTES + fetch_edge_bytes)),
                is_on_disk=is_on_disk,
            )
        )
        input_bytes = 0 if is_on_disk else output_bytes
    return tuple(plans)


def _slab_width(conv: Conv, num_nodes: int, left: int, budget_bytes: int) -> int:
    """Return the most output columns whose table fits ``left`` bytes."""
    step = conv.column_step
    candidates = range(conv.out_dim, 0, -step)
    # The widest first: every slab less saves a pass over the inputs.
    for width in candidates:
        if num_nodes * sum(conv.table_widths(width)) * _FLOAT_BYTES <= left:
            return width
    needed = num_nodes * sum(conv.table_widths(step)) * _FLOAT_BYTES
    raise BudgetError(
        f"full-neighbour inference keeps at least {format_bytes(needed)} for {num_nodes:,} nodes; the memory "
        f"budget of {format_bytes(budget_bytes)} leaves {format_bytes(max(left, 0))}. Raise --memory-budget"
    )
