"""Memory that two processes share: anonymous, so that the kernel frees it when both are gone, however they end."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def create_segment(num_bytes: int) -> tuple[int, NDArray[np.uint8]]:
    """Return a descriptor, which the caller owns, of new shared memory, and the memory itself (num_bytes,).

    It cannot be made shorter: no other process can take a mapped page away. Unmapped when the last view is gone.
    """
    descriptor = os.memfd_create("gloader", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, max(num_bytes, 1))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return descriptor, map_segment(descriptor)
    except BaseException:
        os.close(descriptor)
        raise


def map_segment(descriptor: int) -> NDArray[np.uint8]:
    """Return the whole shared memory of ``descriptor``, its pages touched. Unmapped when the last view is gone."""
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return np.frombuffer(mmap.mmap(descriptor, os.fstat(descriptor).st_size, flags=flags), dtype=np.uint8)
