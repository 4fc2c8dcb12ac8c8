"""The plan by which full-neighbour inference fits a memory budget, layer by layer. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.models.conv import made_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.models.conv import Conv

FLOAT_BYTES = 4
EDGE_BYTES = 40  # a source, one that is read ahead, a destination and the scores of a few heads
MAX_BUFFER_BYTES = 128 << 20  # larger chunks are not faster
OUTPUT_BYTES = 32  # of a node whose class is asked for: its id, its position, its label, its class
FILE_BYTES = 8 << 20  # buffers of the files that activations are written to and read from

# Of a GPU, whose pieces are worth their launches only where they are large.
MAX_DEVICE_BUFFER_BYTES = 512 << 20
# Three chunks of inputs are there at a time; the one that is computed on is widened, normalised and cut off at 0.
DEVICE_ROW_COPIES = 6
DEVICE_EDGE_BYTES = (
    64  # three pieces of sources are there at a time; of one, destinations, positions and scores
)
# On the host: its position, twice, where lists are gathered; its source, and three pieces of sources on their way.
SENT_EDGE_BYTES = 48
# Of the features of an edge: that are computed on and read ahead; on a device three pieces; on the host those that are
# read, and three pieces on their way.
_FEATURE_COPIES = 2
_DEVICE_FEATURE_COPIES = 3
_SENT_FEATURE_COPIES = 4
# So many columns keep the passes over the inputs few; narrower ones are possible.
REASONABLE_COLUMNS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """How one layer is computed for its output rows."""

    slabs: tuple[slice, ...]  # ranges of the columns that are made, one pass over the inputs each
    rows_per_read: int  # input rows projected at once
    rows_per_piece: int  # output rows propagated at once, at most
    edges_per_piece: int  # in-edges propagated at once
    is_on_disk: bool  # the outputs go to the SSD
    is_on_device: bool = False  # they stay on the device that computes


def plan_inference(
    convs: Sequence[Conv], *, num_nodes: int, num_outputs: int, budget_bytes: int
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

    Raises
    ------
    BudgetError
        A layer's narrowest table does not fit.
    """
    # A quarter for chunks in flight: more of it would make slabs narrower, and each slab reads all inputs once more.
    buffers = min(budget_bytes // 4, MAX_BUFFER_BYTES)
    left = budget_bytes - buffers - min(budget_bytes // 8, FILE_BYTES) - OUTPUT_BYTES * num_outputs
    plans = []
    input_bytes = 0  # of the activations below that are held in memory
    for depth, conv in enumerate(convs):
        rows = num_nodes if depth < len(convs) - 1 else num_outputs
        output_bytes = rows * made_dim(conv) * FLOAT_BYTES
        # A third: the outputs, the inputs below them and the table share what is left.
        is_on_disk = output_bytes > left // 3
        held = input_bytes + (0 if is_on_disk else output_bytes)
        width = _slab_width(conv, num_nodes, left - held)
        if width is None:
            raise _too_small(conv, num_nodes, left - held)
        # Two buffers of inputs and the entered copy, beside the projected row.
        row_bytes = FLOAT_BYTES * (3 * _entered_floats(convs, depth) + sum(conv.table_widths(width)))
        plans.append(
            LayerPlan(
                slabs=_slabs(conv, width),
                rows_per_read=max(1, buffers // 2 // row_bytes),
                rows_per_piece=max(1, buffers // 4 // (4 * FLOAT_BYTES * width)),
                edges_per_piece=max(1, buffers // 4 // (EDGE_BYTES + edge_bytes(conv, _FEATURE_COPIES))),
                is_on_disk=is_on_disk,
            )
        )
        input_bytes = 0 if is_on_disk else output_bytes
    return tuple(plans)


def plan_on_device(
    convs: Sequence[Conv],
    *,
    num_nodes: int,
    num_outputs: int,
    device_bytes: int,
    budget_bytes: int,
) -> tuple[LayerPlan, ...] | None:
    """Return a plan for each layer with its tables on a device; None if not even the narrowest fit there. Pure.

    Less memory makes slabs narrower, not the device idle. Activations stay on the device where a third of it holds
    them, else in host memory where half of that does, else on the SSD.

    Parameters
    ----------
    convs, num_nodes, num_outputs : as of `plan_inference`
    device_bytes : for tables, activations and buffers; what is known of the edges is not counted
    budget_bytes : of host memory, for buffers, activations and what comes out
    """
    for keeps_activations in (True, False):
        plans = _plan_on_device(
            convs,
            num_nodes=num_nodes,
            num_outputs=num_outputs,
            device=Room(device_bytes, MAX_DEVICE_BUFFER_BYTES),
            host=Room(
                budget_bytes,
                MAX_BUFFER_BYTES,
                fixed=min(budget_bytes // 8, FILE_BYTES) + OUTPUT_BYTES * num_outputs,
            ),
            keeps_activations=keeps_activations,
        )
        if plans is not None:
            return plans
    return None


def reasonable_device_bytes(convs: Sequence[Conv], *, num_nodes: int) -> int:
    """Return the device memory with which no layer needs slabs of less than 16 columns. Pure.

    Parameters
    ----------
    convs : the L layers
    num_nodes : N
    """
    tables = max(
        num_nodes * FLOAT_BYTES * sum(conv.table_widths(_columns(conv, REASONABLE_COLUMNS))) for conv in convs
    )
    return with_device_buffers(tables)


def with_device_buffers(num_bytes: int) -> int:
    """Return the device memory of which ``num_bytes`` are left beside the buffers. Pure."""
    # A quarter of it is for buffers, up to their most.
    return min(num_bytes + num_bytes // 3 + 4, num_bytes + MAX_DEVICE_BUFFER_BYTES)


def read_dim(convs: Sequence[Conv], depth: int) -> int:
    """Return the width of the rows that layer ``depth`` reads: features, or what the layer below made. Pure."""
    return made_dim(convs[depth - 1]) if depth else convs[0].in_dim


def edge_bytes(conv: Conv, feature_copies: int) -> int:
    """Return what an edge of a piece takes more because ``conv`` looks at its features. Pure."""
    return FLOAT_BYTES * (feature_copies * conv.edge_dim + conv.edge_floats)


def _entered_floats(convs: Sequence[Conv], depth: int) -> int:
    """Return the width of a row on its way into layer ``depth``, whatever is the widest. Pure."""
    # A head has a width of its own between its layers, and that of what it makes: as wide as a hidden row, mostly.
    has_head = depth > 0 and convs[depth - 1].head is not None
    width = max(read_dim(convs, depth), convs[depth].in_dim)
    return 2 * width if has_head else width


class Room:
    """Memory of a kind: buffers, and what is left for all else."""

    def __init__(self, num_bytes: int, max_buffer_bytes: int, *, fixed: int = 0) -> None:
        self.buffers = min(num_bytes // 4, max_buffer_bytes)
        self.left = num_bytes - self.buffers - fixed


def _plan_on_device(
    convs: Sequence[Conv],
    *,
    num_nodes: int,
    num_outputs: int,
    device: Room,
    host: Room,
    keeps_activations: bool,
) -> tuple[LayerPlan, ...] | None:
    plans = []
    input_bytes = 0  # of the activations below that the device holds
    for depth, conv in enumerate(convs):
        is_last = depth == len(convs) - 1
        output_bytes = (num_outputs if is_last else num_nodes) * made_dim(conv) * FLOAT_BYTES
        # Those of the last layer are the result, which is asked for in host memory.
        is_on_device = keeps_activations and not is_last and output_bytes <= device.left // 3
        held = input_bytes + (output_bytes if is_on_device else 0)
        width = _slab_width(conv, num_nodes, device.left - held)
        if width is None:
            return None
        row_bytes = FLOAT_BYTES * (
            DEVICE_ROW_COPIES * _entered_floats(convs, depth) + sum(conv.table_widths(width))
        )
        plans.append(
            LayerPlan(
                slabs=_slabs(conv, width),
                # On the host there are three buffers, for the inputs of a layer first and its outputs then, and pieces.
                rows_per_read=max(
                    1,
                    min(
                        device.buffers // 2 // row_bytes,
                        host.buffers // 4 // (FLOAT_BYTES * read_dim(convs, depth)),
                    ),
                ),
                rows_per_piece=max(
                    1,
                    min(
                        device.buffers // 4 // (4 * FLOAT_BYTES * width),
                        host.buffers // 4 // (FLOAT_BYTES * width),
                    ),
                ),
                edges_per_piece=max(
                    1,
                    min(
                        device.buffers // 4 // (DEVICE_EDGE_BYTES + edge_bytes(conv, _DEVICE_FEATURE_COPIES)),
                        host.buffers
                        // 4
                        // (SENT_EDGE_BYTES + _SENT_FEATURE_COPIES * FLOAT_BYTES * conv.edge_dim),
                    ),
                ),
                # Half: the inputs below share what is left.
                is_on_disk=not is_on_device and output_bytes > host.left // 2,
                is_on_device=is_on_device,
            )
        )
        input_bytes = output_bytes if is_on_device else 0
    return tuple(plans)


def _slabs(conv: Conv, width: int) -> tuple[slice, ...]:
    num_columns = made_dim(conv)
    return tuple(slice(start, min(start + width, num_columns)) for start in range(0, num_columns, width))


def _columns(conv: Conv, num_columns: int) -> int:
    """Return ``num_columns``, rounded up to what the layer can be cut into."""
    step = conv.column_step
    return min(-(-num_columns // step) * step, made_dim(conv))


def _slab_width(conv: Conv, num_nodes: int, left: int) -> int | None:
    """Return the most columns whose table fits ``left`` bytes; None if the narrowest does not."""
    # The widest that does: every slab less saves a pass over the inputs.
    widths = range(made_dim(conv), 0, -conv.column_step)[::-1]
    most = bisect_right(
        widths, left, key=lambda width: num_nodes * sum(conv.table_widths(width)) * FLOAT_BYTES
    )
    return widths[most - 1] if most else None


def _too_small(conv: Conv, num_nodes: int, left: int) -> BudgetError:
    needed = num_nodes * sum(conv.table_widths(conv.column_step)) * FLOAT_BYTES
    return BudgetError(
        f"full-neighbour inference keeps at least {format_bytes(needed)} for {num_nodes:,} nodes; the memory "
        f"budget leaves {format_bytes(max(left, 0))} for that. Raise the budget",
        short_bytes=needed - left,
    )
