"""The gather: ids in, rows out, from the device's own rows and those of the host. One kernel where it can run."""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING, Final, Protocol

import torch

from gloader.device.row_table import widen
from gloader.errors import ShapeError

if TYPE_CHECKING:
    from gloader.device.row_table import RowParts, RowTable

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
