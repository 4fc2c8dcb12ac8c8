"""Tables of feature rows that a device can read, and the gather of rows by ids.

A batch's rows come from up to two places. The device's table holds the rows of some nodes; the index in it is a node's
slot. The host's table has the other rows, in pinned memory, from which the device can read. Rows keep their stored
dtype, and are widened to float32 by the gather. If the gather kernel can run, it reads both tables in one pass.
Otherwise torch operations do the same. Devices call `gather_rows` with the `RowParts` of `DeviceTier`.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from gloader.core.dtypes import FEATURE_DTYPES, RowFormat
from gloader.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def torch_dtype(form: RowFormat) -> torch.dtype:
    """Return the dtype of a row's elements on the device. Pure.

    Raises
    ------
    ShapeError
        The device cannot widen such rows.
    """
    name = form.element.name
    if name not in FEATURE_DTYPES:
        *others, last = FEATURE_DTYPES
        raise ShapeError(
            f"a device cache holds {', '.join(others)} or {last} rows, not {form.dtype}; use device_cache=0"
        )
    dtype: torch.dtype = getattr(torch, name)
    return dtype


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTable:
    """Feature rows as tensors: on a device, or in host memory that the device reads in place."""

    rows: torch.Tensor  # (C, F) in a dtype of stored features, contiguous; C is the number of rows here
    # float32 factors of int8 rows, on the device: (C,), or (N,) by node id if the host gathered the rows for one batch.
    scale: torch.Tensor | None = None

    def widened(self, index: torch.Tensor) -> torch.Tensor:
        """Return the rows ``index`` (U,) as float32 (U, F). ``rows`` and ``index`` must be on the same device."""
        rows = widen(self.rows[index])
        return rows if self.scale is None else rows * self.scale[index, None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowParts:
    """The tables that hold a batch's rows.

    If node v has a slot, its row is ``table.rows[slot_of[v]]``. Otherwise its row is in the host's table, either at v
    (``is_host_by_id``), or at the node's position in the batch. The factor of a host row is always ``host.scale[v]``.
    """

    table: RowTable | None  # None if the device holds no rows
    slot_of: torch.Tensor | None  # (N,) int32, -1 without a slot; None if node v has slot v
    host: RowTable | None  # None if the table holds all rows
    is_host_by_id: bool = False  # True if the host's table has all N rows, False if it has the batch's rows
    expected_hit_rate: float | None = None  # share of a batch's rows in the table; None if not measured

    def __post_init__(self) -> None:
        """Raise ShapeError for tables that contradict each other."""
        if self.table is None and (self.host is None or self.slot_of is not None):
            raise ShapeError("rows must come from a table or from the host, and a slot map needs a table")
        if self.host is None and self.slot_of is not None:
            raise ShapeError(
                "a slot map may have nodes without a slot, whose rows are on the host: pass host, or no slot map"
            )

    @property
    def dim(self) -> int:
        """F, the number of features per row."""
        part = self.table if self.table is not None else self.host
        assert part is not None  # noqa: S101 - by __post_init__
        return int(part.rows.shape[1])

    @property
    def share_held(self) -> float:
        """Share of all rows that the device's table holds, in [0, 1].

        It is 1 without a host table. With a host table, it is 0 if the device's table or the slot map is missing.
        """
        if self.table is None or self.slot_of is None:
            return float(self.host is None)
        return min(len(self.table.rows) / max(len(self.slot_of), 1), 1.0)


def widen(rows: torch.Tensor) -> torch.Tensor:
    """Return ``rows`` as float32, with the same bits as the host's kernels, also for NaNs."""
    wide = rows.to(torch.float32)
    if rows.dtype != torch.float16:
        return wide
    # A CPU's conversion turns signalling NaNs into quiet NaNs, and a GPU's conversion drops a NaN's payload.
    bits = rows.view(torch.int16).to(torch.int32)
    exact = ((bits & 0x8000) << 16) | 0x7F800000 | ((bits & 0x3FF) << 13)
    return torch.where(rows.isnan(), exact.view(torch.float32), wide)


def rows_as_tensor(array: NDArray[Any], form: RowFormat | None) -> torch.Tensor:
    """Return ``array`` (C, F) of the stored form, or of float32, as a tensor over the same memory."""
    if form is None or form.element.stored.kind != "u":
        return torch.from_numpy(array)
    # numpy stores bfloat16 as unsigned integers. torch accepts signed integers of this size, and views them as
    # bfloat16.
    return torch.from_numpy(array.view(f"i{array.itemsize}")).view(torch_dtype(form))


# A kernel runs as several programs, each with 128 threads (4 warps of 32). In one step, a program moves a tile: some
# rows, and up to `_MOST_COLUMNS` of their columns. `_TILE` is the number of its elements: with so many, each thread has
# four 16-byte loads in flight.
_TILE: Final = 2048
# Maximum number of columns in a tile. Wider rows take several steps, so that a tile has at least four rows.
_MOST_COLUMNS: Final = 512
# Bytes that all programs together request from the host at a time. A link of 55 GB/s with a latency of 1.5 us is busy
# with 82 KB in flight. The number here is larger, because a program also waits for ids and slots, and writes. Still
# more programs would only hold registers that the model's kernels need. Not yet measured on a GPU.
_ASKED_BYTES: Final = 192 << 10
# Maximum number of programs: four for each of the 132 processors of a large GPU. They keep the GPU's memory busy even
# if only a few percent of the rows come from the host.
MOST_PROGRAMS: Final = 528


# The kernel, `gloader.device.triton_kernels.launch_gather`. Arguments: ids, parts, output, maximum number of programs.
LaunchGather: TypeAlias = "Callable[[torch.Tensor, RowParts, torch.Tensor, int | None], None]"


def has_triton() -> bool:
    """Return True if Triton is installed. `CudaDevice.can_launch` shows whether its kernels run here."""
    return importlib.util.find_spec("triton") is not None


def gather_rows(
    ids: torch.Tensor, parts: RowParts, *, out: torch.Tensor, launch: LaunchGather | None = None
) -> None:
    """Gather a batch's rows without waiting for the device.

    The kernel reads the host's rows in place, so that they must not change until the kernel has run. Without the
    kernel, or if the host's rows are not pinned, torch operations gather the rows.

    Parameters
    ----------
    ids : (U,) int32 or int64 node ids
    parts : the tables with the rows
    out : (U, F) float32, contiguous
    launch : the kernel, if the device can run it

    Raises
    ------
    ShapeError
        ``out`` or the host's rows do not fit the ids.
    """
    _check(ids, parts, out)
    if launch is not None and (parts.host is None or _is_reachable(parts.host.rows)):
        launch(ids, parts, out, most_programs(parts))
    else:
        gather_rows_in_torch(ids, parts, out=out)


def most_programs(parts: RowParts) -> int | None:
    """Return the maximum number of programs for a gather, or None for any number. Pure.

    The programs should request just enough bytes from the host to keep the link busy, and leave the rest of the device
    to the model. The fewer bytes a tile requests from the host, the more programs are needed. If no row is read from
    the host's memory, there is no limit.
    """
    if parts.host is None or parts.host.rows.device.type != "cpu":
        return None
    share = parts.share_held
    if share == 1:
        return None
    rows, columns = block_shape(parts.dim)
    tile_bytes = rows * min(parts.dim, columns) * parts.host.rows.element_size()
    hits = share if parts.expected_hit_rate is None else parts.expected_hit_rate
    from_host = tile_bytes * (1 - hits)
    return math.ceil(_ASKED_BYTES / from_host) if from_host * MOST_PROGRAMS > _ASKED_BYTES else MOST_PROGRAMS


def block_shape(dim: int) -> tuple[int, int]:
    """Return the rows and the columns of a program's tile, both powers of two. Pure."""
    columns = min(1 << (dim - 1).bit_length(), _MOST_COLUMNS)
    return max(_TILE // columns, 1), columns


def gather_rows_in_torch(ids: torch.Tensor, parts: RowParts, *, out: torch.Tensor) -> None:
    """Gather a batch's rows with torch operations. The result is the same as the kernel's.

    On a GPU, the rows that the host gathered for the batch are first copied to the GPU.

    Parameters
    ----------
    ids : (U,) int32 or int64 node ids
    parts : the tables that hold the rows
    out : (U, F) float32, contiguous
    """
    # Every size is known in advance, because a size that depends on data would wait for the device.
    if parts.host is None or parts.table is None:
        if parts.table is not None:
            out.copy_(parts.table.widened(ids))
        elif parts.host is not None:
            out.copy_(_from_host(ids, parts.host, parts, out.device), non_blocking=True)
        return
    # Each position reads a row from both tables, from slot 0 if the node has no slot. `where` drops the wrong row.
    slots = ids if parts.slot_of is None else parts.slot_of[ids]
    cached = parts.table.widened(slots.clamp_min(0))
    others = _from_host(ids, parts.host, parts, out.device)
    torch.where((slots >= 0)[:, None], cached, others, out=out)


def _from_host(ids: torch.Tensor, host: RowTable, parts: RowParts, place: torch.device) -> torch.Tensor:
    """Return the host's rows (U, F) as float32 at ``place``."""
    if parts.is_host_by_id:
        return host.widened(ids)
    rows = widen(host.rows[: len(ids)].to(place, non_blocking=True))
    return rows if host.scale is None else rows * host.scale[ids, None]


def fill_cached(ids: torch.Tensor, table: RowTable, slot_of: torch.Tensor, *, out: torch.Tensor) -> None:
    """Overwrite a batch's rows that have a slot; ``out`` already holds the other rows. For the CPU.

    Parameters
    ----------
    ids : (U,) int32 or int64 node ids
    table : the cached rows
    slot_of : (N,) int32, -1 without a slot
    out : (U, F) float32
    """
    slots = slot_of[ids]
    cached = torch.nonzero(slots >= 0).squeeze(1)  # positions in the batch
    out[cached] = table.widened(slots[cached])


def _is_reachable(rows: torch.Tensor) -> bool:
    """Return True if a kernel can read ``rows``. Host memory that the system refused to pin is not readable."""
    return rows.device.type != "cpu" or rows.is_pinned()


def _check(ids: torch.Tensor, parts: RowParts, out: torch.Tensor) -> None:
    """Raise ShapeError if ``out`` or the host's rows do not fit ``ids``."""
    if out.shape != (len(ids), parts.dim) or out.dtype != torch.float32 or not out.is_contiguous():
        raise ShapeError(
            f"out must be contiguous float32 of shape {(len(ids), parts.dim)} for {len(ids)} ids; it is {out.dtype} of "
            f"shape {tuple(out.shape)}"
        )
    host = parts.host
    if host is not None and not parts.is_host_by_id and len(host.rows) < len(ids):
        raise ShapeError(f"the host has {len(host.rows)} rows for {len(ids)} ids; pass one row for each id")
    if host is not None and not parts.is_host_by_id and host.rows.dtype == torch.int8 and host.scale is None:
        raise ShapeError("the host's rows are int8; pass the factors of all nodes as host.scale")
