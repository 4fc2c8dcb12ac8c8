"""Many small arrays as one block of bytes, so that one copy brings all of them to the device. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Offsets = tuple[int, ...]

_ALIGN: Final = 16  # of every array: what a vector load asks for, and a multiple of every itemsize

_TORCH: Final[dict[str, torch.dtype]] = {
    "int64": torch.int64,
    "int32": torch.int32,
    "float32": torch.float32,
    "float64": torch.float64,
}


def pack_offsets(arrays: Sequence[NDArray[Any]]) -> Offsets:
    """Return where each array starts in the block, and the bytes of all of it."""
    ends = np.cumsum([0, *(-(-array.nbytes // _ALIGN) * _ALIGN for array in arrays)])
    return tuple(ends.tolist())


def pack(arrays: Sequence[NDArray[Any]], offsets: Offsets, block: NDArray[np.uint8]) -> None:
    """Copy ``arrays`` into ``block``, whose bytes between them stay as they are."""
    for array, start in zip(arrays, offsets, strict=False):
        block[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def unpack(block: torch.Tensor, arrays: Sequence[NDArray[Any]], offsets: Offsets) -> tuple[torch.Tensor, ...]:
    """Return the tensors that ``block`` holds, as views of it, with the shapes and dtypes of ``arrays``."""
    return tuple(
        block[start : start + array.nbytes].view(_TORCH[array.dtype.name]).view(array.shape)
        for array, start in zip(arrays, offsets, strict=False)
    )
