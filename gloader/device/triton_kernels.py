"""The gather of a batch's rows as one Triton kernel, which reads each row from its table and widens it to float32.

`launch_gather` starts the kernel. Its caller, `gloader.device.row_table.gather_rows`, checks the arguments, and gathers
with torch operations if this kernel cannot run. There are two tables: the device's static cache, in which a node's row
is at the node's slot, and the host's rows. A Triton kernel runs as several programs, each of which is a group of GPU
threads. In one step, a program moves a tile of ROWS rows and COLUMNS columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import triton
import triton.language as tl

from gloader.device.row_table import block_shape

if TYPE_CHECKING:
    import torch

    from gloader.device.row_table import RowParts

_WARPS: Final = 4  # warps per program, with 32 threads each


@triton.jit
def _widened(values):  # type: ignore[no-untyped-def]
    """Return ``values`` as float32, with the bits of `gloader.device.row_table.widen`.

    Plain conversions differ: a GPU gives every float16 NaN the same bits, and Triton's interpreter loses the subnormal
    numbers of bfloat16.
    """
    if values.dtype == tl.float16:
        bits = values.to(tl.int16, bitcast=True).to(tl.int32)
        # A float32 NaN with float16's sign (1 bit) and mantissa (10 of 23 bits); all exponent bits are set.
        nan = ((bits & 0x8000) << 16) | 0x7F800000 | ((bits & 0x3FF) << 13)
        is_nan = (bits & 0x7FFF) > 0x7C00  # without the sign, 0x7C00 is float16's infinity
        widened = tl.where(is_nan, nan.to(tl.float32, bitcast=True), values.to(tl.float32))
    elif values.dtype == tl.bfloat16:
        # A bfloat16 is the upper half of a float32.
        widened = (values.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        widened = values.to(tl.float32)
    return widened


# The number of rows differs in every batch: separate compilations for 1 or for multiples of 16 would gain nothing.
@triton.jit(do_not_specialize=["num_rows"])
def _gather_kernel(  # type: ignore[no-untyped-def]
    ids,
    slot_of,
    table,
    table_scale,
    host,
    host_scale,
    out,
    num_rows,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HAS_TABLE: tl.constexpr,
    HAS_MAP: tl.constexpr,
    HAS_HOST: tl.constexpr,
    IS_BY_ID: tl.constexpr,
    IS_TABLE_SCALED: tl.constexpr,
    IS_HOST_SCALED: tl.constexpr,
):
    """Write the feature row of node ``ids[position]`` to ``out[position]``, for every position of the batch.

    Of P programs, program p takes the tiles p, p + P, p + 2P, ..., so that P may be less than the number of tiles.
    A node with a slot has its row in ``table``, the cache with C slots. The rows of other nodes are in ``host``.

    Arrays are passed as pointers: ``ids`` (num_rows,), ``slot_of`` (N,), ``table`` (C, DIM), ``host`` (num_rows or N,
    DIM), ``table_scale`` (C,) by slot, ``host_scale`` (N,) by node, ``out`` (num_rows, DIM) float32. Scales are the
    factors of int8 rows.

    Constants in capitals select the code at compilation. ``HAS_MAP``: slots come from ``slot_of``; otherwise node v
    has slot v. ``IS_BY_ID``: ``host`` has a row for each node, instead of each position.
    """
    for tile in range(tl.program_id(0), tl.cdiv(num_rows, ROWS), tl.num_programs(0)):
        position = (tile * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        is_row = position < num_rows
        node = tl.load(ids + position, mask=is_row, other=0).to(tl.int64)  # ids may come as 32 bits
        if HAS_MAP:  # noqa: SIM108 - decided at compilation, unlike a conditional expression
            slot = tl.load(slot_of + node, mask=is_row, other=-1).to(tl.int64)
        else:
            slot = node
        if HAS_TABLE and HAS_HOST:
            is_cached = is_row & (slot >= 0)
            is_host = is_row & (slot < 0)
        else:
            is_cached = is_row
            is_host = is_row
        # Addresses are computed even where the mask excludes the load, so they must be valid.
        slot = tl.maximum(slot, 0)
        place = node if IS_BY_ID else position
        for first in range(0, DIM, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            is_column = column < DIM
            to = position[:, None] * DIM + column[None, :]
            # The loads from both tables start before the first result is used.
            if HAS_TABLE:
                cached = _widened(
                    tl.load(
                        table + slot[:, None] * DIM + column[None, :],
                        mask=is_cached[:, None] & is_column[None, :],
                    )
                )
            if HAS_HOST:
                other = _widened(
                    tl.load(
                        host + place[:, None] * DIM + column[None, :],
                        mask=is_host[:, None] & is_column[None, :],
                    )
                )
            if IS_TABLE_SCALED:
                cached *= tl.load(table_scale + slot, mask=is_cached)[:, None]
            if IS_HOST_SCALED:
                other *= tl.load(host_scale + node, mask=is_host)[:, None]
            if HAS_TABLE and HAS_HOST:
                value = tl.where(is_cached[:, None], cached, other)
            elif HAS_TABLE:
                value = cached
            else:
                value = other
            tl.store(out + to, value, mask=is_row[:, None] & is_column[None, :])


def launch_gather(ids: torch.Tensor, parts: RowParts, out: torch.Tensor, max_programs: int | None) -> None:
    """Run the kernel on the current stream.

    Parameters
    ----------
    ids, parts, out : node ids, tables and output, which `gloader.device.row_table.gather_rows` has checked
    max_programs : maximum number of the kernel's programs; None means one for each tile of rows
    """
    num_rows = len(ids)
    if num_rows == 0:
        return
    rows, columns = block_shape(parts.dim)
    table, host = parts.table, parts.host
    # In place of a missing array, any other pointer is passed. The kernel's constants exclude its use.
    pointers: list[Any] = [
        ids,
        ids if parts.slot_of is None else parts.slot_of,
        out if table is None else table.rows,
        out if table is None or table.scale is None else table.scale,
        out if host is None else host.rows,
        out if host is None or host.scale is None else host.scale,
        out,
    ]
    num_tiles = triton.cdiv(num_rows, rows)
    _gather_kernel[(num_tiles if max_programs is None else min(num_tiles, max_programs),)](
        *pointers,
        num_rows,
        DIM=parts.dim,
        ROWS=rows,
        COLUMNS=columns,
        HAS_TABLE=table is not None,
        HAS_MAP=parts.slot_of is not None,
        HAS_HOST=host is not None,
        IS_BY_ID=parts.is_host_by_id,
        IS_TABLE_SCALED=table is not None and table.scale is not None,
        IS_HOST_SCALED=host is not None and host.scale is not None,
        num_warps=_WARPS,
    )
