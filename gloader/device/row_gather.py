"""Ids in, rows out: one gather from the device's own rows and those of the host, fused where Triton is there."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from gloader.errors import ShapeError

if TYPE_CHECKING:
    from gloader.device.row_table import RowTable

# Not yet measured on a GPU: enough to keep the memory of a large device busy, few enough that a program that waits for
# the host's memory leaves most of a multiprocessor's warps to the model.
PROGRAMS_PER_MULTIPROCESSOR: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowParts:
    """Where the rows of a batch are.

    Node v's row is ``table.rows[slot_of[v]]`` where it has a slot. The row at position p of the batch is otherwise
    ``host.rows[p]``, or ``host.rows[v]`` where the host's rows are all of them.
    """

    table: RowTable | None  # None: the device holds no rows
    slot_of: (
        torch.Tensor | None
    )  # (N,) int32, -1 without a slot; None: the slot of v is v, if there is a table
    host: RowTable | None  # None: every row is in the table
    is_host_by_id: bool = False

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


def has_triton() -> bool:
    """Return whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def gather_rows(
    ids: torch.Tensor, parts: RowParts, *, out: torch.Tensor, max_programs: int | None = None
) -> None:
    """Put the rows of ``ids`` (U,) int64 into ``out`` (U, F) float32, without waiting for the device.

    One kernel where Triton is there and the device is a GPU; operations of torch elsewhere, and where the host's rows
    are not pinned. The kernel reads those in place: they must stay as they are until it has run.

    Parameters
    ----------
    max_programs : the most programs that the kernel runs as, so that the model keeps its share of the device;
        `PROGRAMS_PER_MULTIPROCESSOR` where None

    Raises
    ------
    ShapeError
        ``out`` does not fit.
    """
    _check(ids, parts, out)
    if ids.device.type == "cuda" and has_triton() and (parts.host is None or _is_reachable(parts.host.rows)):
        from gloader.device.triton_kernels import launch_gather  # Triton looks for a GPU when it is imported

        count = torch.cuda.get_device_properties(ids.device).multi_processor_count
        launch_gather(ids, parts, out, max_programs or PROGRAMS_PER_MULTIPROCESSOR * count)
    else:
        gather_rows_in_torch(ids, parts, out=out)


def gather_rows_in_torch(ids: torch.Tensor, parts: RowParts, *, out: torch.Tensor) -> None:
    """Do what the kernel does with operations of torch; on a GPU, with the host's part of the batch copied there.

    No operation's result has a size that depends on data, so that nothing waits for the device.
    """
    if parts.host is None or parts.table is None:
        part, index = (parts.table, ids) if parts.table is not None else (parts.host, ids)
        assert part is not None  # noqa: S101 - by RowParts
        if parts.table is None and not parts.is_host_by_id:
            out.copy_(part.rows[: len(ids)], non_blocking=True)
        else:
            out.copy_(part.widened(index))
        return
    slots = ids if parts.slot_of is None else parts.slot_of[ids]
    cached = parts.table.widened(slots.clamp_min(0))
    if parts.is_host_by_id:
        others = parts.host.widened(ids)
    else:
        others = parts.host.rows[: len(ids)].to(out.device, non_blocking=True)
    torch.where((slots >= 0)[:, None], cached, others, out=out)


def fill_cached(ids: torch.Tensor, table: RowTable, slot_of: torch.Tensor, *, out: torch.Tensor) -> None:
    """Put the rows that have a slot into ``out`` (U, F), in place; the others are there. For the CPU."""
    slots = slot_of[ids]
    at = torch.nonzero(slots >= 0).squeeze(1)
    out[at] = table.widened(slots[at])


def _is_reachable(rows: torch.Tensor) -> bool:
    """Return whether a kernel can read ``rows``: shared memory is not pinned where the system did not let it."""
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
    if host is not None and not parts.is_host_by_id and host.rows.dtype != torch.float32:
        raise ShapeError(f"the host's part of a batch is float32, not {host.rows.dtype}")
