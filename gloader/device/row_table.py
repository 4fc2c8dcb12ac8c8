"""Tables of feature rows that a device can read, in the dtype they are stored in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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
