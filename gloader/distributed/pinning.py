"""Pinning shared memory for the device of a rank; nothing where there is no such device."""

from __future__ import annotations

from mmap import PAGESIZE
from typing import TYPE_CHECKING

import torch

from gloader.device.cuda import forget_error
from gloader.device.host_memory import pin_in_place

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gloader.device.host_memory import PinnedArray


def pin_segment(memory: NDArray[np.uint8], device: torch.device) -> PinnedArray | None:
    """Pin ``memory`` in place, so that ``device`` copies from it directly.

    Returns
    -------
    what unpins it; None without CUDA, or where the limit of locked memory is too low: all works on, more slowly
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    # In one piece: a copy must not go over the border of two.
    pinned = pin_in_place(
        memory,
        torch.cuda.cudart(),  # type: ignore[no-untyped-call]
        chunk_bytes=memory.nbytes + PAGESIZE,
    )
    if pinned is None:
        forget_error(device)
    return pinned
