"""Tables of feature rows that a device can read, and the gather of their rows by ids.

Rows have the dtype that they are stored in. One kernel gathers the rows of the device and of the host where it can
run.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import torch

from gloader.errors import ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray


_TORCH: Final[dict[str, torch.dtype]] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "int8": torch.int8,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowFormat:
    """The dtype and width of stored feature rows."""

    dtype: np.dtype[Any]  # uint16 for bfloat16
    dim: int  # F
    is_bfloat16: bool = False
    scale: NDArray[np.float32] | None = None  # (N,) the factor of each int8 row

    @property
    def row_bytes(self) -> int:
        """R."""
        return int(self.dtype.itemsize) * self.dim

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of a row's elements on the device.

        Raises
        ------
        ShapeError
            The device cannot widen such rows.
        """
        if self.dtype == np.uint16 and self.is_bfloat16:
            return torch.bfloat16
        found = _TORCH.get(self.dtype.name)
        if found is None:
            raise ShapeError(
                f"a device cache holds float32, float16, bfloat16 or int8 rows, not {self.dtype}; use device_cache=0"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTable:
    """Feature rows as tensors: on a device, or in host memory that the device reads in place."""

    rows: torch.Tensor  # (C, F) float32, float16, bfloat16 or int8, contiguous
    # float32, on the device: the factor of each int8 row, (C,), or (N,) by node for what the host brings of a batch
    scale: torch.Tensor | None = None

    def widened(self, index: torch.Tensor) -> torch.Tensor:
        """Return the rows ``index`` (U,) as float32 (U, F); rows and index on one device."""
        rows = widen(self.rows[index])
        return rows if self.scale is None else rows * self.scale[index, None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowParts:
    """Where the rows of a batch are.

    Node v's row is ``table.rows[slot_of[v]]`` where it has a slot. The row at position p of the batch is otherwise
    ``host.rows[p]``, or ``host.rows[v]`` where the host's rows are all of them; its factor is ``host.scale[v]`` in
    both cases.
    """

    table: RowTable | None  # None: the device holds no rows
    slot_of: torch.Tensor | None  # (N,) int32, -1 without a slot; None: node v is in row v of the table
    host: RowTable | None  # None: every row is in the table
    is_host_by_id: bool = False
    expected_hit_rate: float | None = None  # share of a batch's rows that are in the table; None: not counted

    def __post_init__(self) -> None:
        if self.table is None and (self.host is None or self.slot_of is not None):
            raise ShapeError("rows must come from a table or from the host, and a slot map needs a table")
        if self.host is None and self.slot_of is not None:
            raise ShapeError(
                "a slot map may leave rows to the host, which brings none: pass host or no slot map"
            )

    @property
    def dim(self) -> int:
        """F."""
        part = self.table if self.table is not None else self.host
        assert part is not None  # noqa: S101 - by __post_init__
        return int(part.rows.shape[1])

    @property
    def share_held(self) -> float:
        """The share of all rows that is in the table; 0 where nothing tells which node has which."""
        if self.table is None or self.slot_of is None:
            return float(self.host is None)
        return min(len(self.table.rows) / max(len(self.slot_of), 1), 1.0)


def widen(rows: torch.Tensor) -> torch.Tensor:
    """Return ``rows`` as float32, with the bits that the host's kernels make of them: those of NaNs too."""
    wide = rows.to(torch.float32)
    if rows.dtype != torch.float16:
        return wide
    # A conversion by the processor makes a quiet NaN of a signalling one, and a GPU's drops the payload.
    bits = rows.view(torch.int16).to(torch.int32)
    exact = ((bits & 0x8000) << 16) | 0x7F800000 | ((bits & 0x3FF) << 13)
    return torch.where(rows.isnan(), exact.view(torch.float32), wide)


def rows_as_tensor(array: NDArray[Any], *, is_bfloat16: bool) -> torch.Tensor:
    """Return ``array`` (C, F) as a tensor over the same memory; uint16 holds bfloat16 if ``is_bfloat16``."""
    # numpy has no bfloat16, and torch no uint16 that it can view: int16 is the way from one to the other.
    tensor = torch.from_numpy(array.view(np.int16) if is_bfloat16 else array)
    return tensor.view(torch.bfloat16) if is_bfloat16 else tensor


# Elements that a program moves at a time: four 16-byte loads in flight for each of its 128 threads (4 warps of 32).
_TILE: Final = 2048
# A wider row is moved in several steps, so that a tile still holds four rows or more.
_MOST_COLUMNS: Final = 512
# That programs ask the host for at a time. A link of 55 GB/s that answers after 1.5 us is busy with 82 KB on their way;
# for part of its time a program waits for ids and slots, or writes. More programs would only hold registers that the
# model's kernels wait for. Not yet measured on a GPU.
_ASKED_BYTES: Final = 192 << 10
# Four for each processor of a large GPU: with a few rows of a hundred from the host, the device's own memory is busy.
MOST_PROGRAMS: Final = 528


class LaunchGather(Protocol):
    """The kernel: `gloader.device.triton_kernels.launch_gather`."""

    def __call__(
        self, ids: torch.Tensor, parts: RowParts, out: torch.Tensor, max_programs: int | None, /
    ) -> None:
        """Run it on the current stream.

        Parameters
        ----------
        ids, parts, out : as of `gather_rows`, which checks them
        max_programs : most programs of the kernel; None: one for each tile of rows
        """
        ...


def has_triton() -> bool:
    """Return whether Triton is installed; whether its kernels run here, `CudaDevice.can_launch` knows."""
    return importlib.util.find_spec("triton") is not None


def gather_rows(
    ids: torch.Tensor, parts: RowParts, *, out: torch.Tensor, launch: LaunchGather | None = None
) -> None:
    """Gather the rows of a batch without waiting for the device.

    By the kernel, which reads the host's rows in place: they must stay as they are until it has run. By operations of
    torch without it, and where the host's rows are not pinned.

    Parameters
    ----------
    ids : (U,) int32 or int64 node ids
    parts : the tables that hold the rows
    out : (U, F) float32, contiguous
    launch : the kernel, where the device can run it

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
    """Return how many programs gather at a time, so that the model keeps its share of the device; None: any. Pure.

    Enough of them wait for the link that it is busy: the narrower a row is stored, the fewer bytes a program asks for,
    and of rows that the device holds it asks the host for none. Rows of the device alone, also those that a copy put
    there, take no time that a limit would save.
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
    """Return how many rows, and columns of them, a program moves at a time: powers of two. Pure."""
    columns = min(1 << (dim - 1).bit_length(), _MOST_COLUMNS)
    return max(_TILE // columns, 1), columns


def gather_rows_in_torch(ids: torch.Tensor, parts: RowParts, *, out: torch.Tensor) -> None:
    """Gather the rows of a batch with operations of torch; the kernel's twin.

    On a GPU the host's part of the batch is copied there first.

    Parameters
    ----------
    ids : (U,) int32 or int64 node ids
    parts : the tables that hold the rows
    out : (U, F) float32, contiguous
    """
    # Every result has a size that is known beforehand: one that depended on data would wait for the device.
    if parts.host is None or parts.table is None:
        if parts.table is not None:
            out.copy_(parts.table.widened(ids))
        elif parts.host is not None:
            out.copy_(_from_host(ids, parts.host, parts, out.device), non_blocking=True)
        return
    # Every position reads from both parts, at slot 0 if it has none, and `where` drops the row that is not its own.
    slots = ids if parts.slot_of is None else parts.slot_of[ids]
    cached = parts.table.widened(slots.clamp_min(0))
    others = _from_host(ids, parts.host, parts, out.device)
    torch.where((slots >= 0)[:, None], cached, others, out=out)


def _from_host(ids: torch.Tensor, host: RowTable, parts: RowParts, place: torch.device) -> torch.Tensor:
    """Return the host's rows (U, F) as float32 at ``place``, whether they lie there by id or by their place."""
    if parts.is_host_by_id:
        return host.widened(ids)
    rows = widen(host.rows[: len(ids)].to(place, non_blocking=True))
    return rows if host.scale is None else rows * host.scale[ids, None]


def fill_cached(ids: torch.Tensor, table: RowTable, slot_of: torch.Tensor, *, out: torch.Tensor) -> None:
    """Overwrite the rows of a batch that have a slot; the others are there already. For the CPU.

    Parameters
    ----------
    ids : (U,) int32 or int64 node ids
    table : the cached rows
    slot_of : (N,) int32, -1 without a slot
    out : (U, F) float32
    """
    slots = slot_of[ids]
    at = torch.nonzero(slots >= 0).squeeze(1)
    out[at] = table.widened(slots[at])


def _is_reachable(rows: torch.Tensor) -> bool:
    """Return whether a kernel can read ``rows``; the system may have refused to pin shared memory."""
    return rows.device.type != "cpu" or rows.is_pinned()


def _check(ids: torch.Tensor, parts: RowParts, out: torch.Tensor) -> None:
    if out.shape != (len(ids), parts.dim) or out.dtype != torch.float32 or not out.is_contiguous():
        raise ShapeError(
            f"rows of {len(ids)} ids go to contiguous float32 of shape {(len(ids), parts.dim)}, not {out.dtype} of "
            f"{tuple(out.shape)}"
        )
    host = parts.host
    if host is not None and not parts.is_host_by_id and len(host.rows) < len(ids):
        raise ShapeError(f"the host brings {len(host.rows)} rows for {len(ids)} ids")
    if host is not None and not parts.is_host_by_id and host.rows.dtype == torch.int8 and host.scale is None:
        raise ShapeError("the host's part of a batch is int8, and the factors of all nodes are missing")
