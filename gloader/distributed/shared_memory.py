"""Memory that two processes share. It has no name: the kernel frees it when both are gone, however they end."""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from gloader.device.cuda import CudaHostMemory
from gloader.device.host_memory import ONE_PIECE, pin_in_place

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.device.host_memory import PinnedArray

# Neither process can shrink the memory under the other, which would kill it with SIGBUS.
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
# Nobody maps it writable from now on; mappings that are there stay as they are. Python has no name for it.
_SEAL_FUTURE_WRITE: Final = 0x10


def create_segment(num_bytes: int, *, is_touched: bool = True) -> tuple[int, NDArray[np.uint8]]:
    """Return a descriptor of new shared memory, which the caller owns, and the memory (num_bytes,).

    Unmapped when the last view is gone. Pages are touched now unless ``is_touched`` is false: for memory so large that
    this would take long, in one call that no Ctrl-C interrupts.
    """
    descriptor = os.memfd_create("gloader", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, max(num_bytes, 1))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return descriptor, map_segment(descriptor, is_touched=is_touched)
    except BaseException:
        os.close(descriptor)
        raise


def map_segment(descriptor: int, *, is_touched: bool = True) -> NDArray[np.uint8]:
    """Return the whole shared memory of ``descriptor`` (num_bytes,), which stays the caller's.

    Its pages are touched, unless told otherwise. Unmapped when the last view is gone.
    """
    flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if is_touched else 0)
    mapping = mmap.mmap(descriptor, os.fstat(descriptor).st_size, flags=flags)
    if not is_touched:
        with suppress(
            OSError, ValueError, AttributeError
        ):  # where the system has huge pages of shared memory
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, dtype=np.uint8)


def take_segment(descriptor: int, *, is_touched: bool = True) -> NDArray[np.uint8]:
    """Return the whole shared memory of ``descriptor``, and close that."""
    try:
        return map_segment(descriptor, is_touched=is_touched)
    finally:
        os.close(descriptor)


def seal_contents(descriptor: int) -> None:
    """Refuse every further writable mapping of the memory, where the kernel can (Linux 5.1)."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL)


def pin_segment(memory: NDArray[np.uint8], device: torch.device) -> PinnedArray | None:
    """Pin ``memory`` in place, so that ``device`` copies from it directly.

    Returns
    -------
    The pinned memory; None without CUDA, or if the system refuses it: copies then are slower.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    return pin_in_place(memory, CudaHostMemory(device), chunk_bytes=ONE_PIECE)
