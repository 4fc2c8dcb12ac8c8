"""Feature rows where a device can read them, in the dtype they are stored in."""

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
    """How feature rows are stored."""

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
    """Rows as tensors: on a device, or in host memory that the device reaches."""

    rows: torch.Tensor  # (C, F) float32, float16, bfloat16 or int8, contiguous
    scale: torch.Tensor | None = None  # (C,) float32, on the device: the factor of each int8 row

    def widened(self, index: torch.Tensor) -> torch.Tensor:
        """Return the rows ``index`` (U,) as float32 (U, F); rows and index on one device."""
        rows = self.rows[index].to(torch.float32)
        return rows if self.scale is None else rows * self.scale[index, None]


def rows_as_tensor(array: NDArray[Any], *, is_bfloat16: bool) -> torch.Tensor:
    """Return ``array`` (C, F) as a tensor over the same memory; uint16 as bfloat16 where it is that."""
    tensor = torch.from_numpy(array.view(np.int16) if is_bfloat16 else array)
    return tensor.view(torch.bfloat16) if is_bfloat16 else tensor
