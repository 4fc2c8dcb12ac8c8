"""Page-aligned memory, as O_DIRECT and the checksum kernels want it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.ssd_store.checksum import PAGE_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray


def aligned_bytes(num_bytes: int, *, alignment: int = PAGE_BYTES) -> NDArray[np.uint8]:
    """Return ``num_bytes`` of uninitialised memory whose address is a multiple of ``alignment``. Pure."""
    raw = np.empty(num_bytes + alignment, dtype=np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + num_bytes]
