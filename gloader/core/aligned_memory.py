"""Page-aligned memory for O_DIRECT, the checksum kernels and row copies."""

from __future__ import annotations

import logging
import mmap
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOG = logging.getLogger(__name__)

# Bytes of a memory page. A file's pages and a device's sectors equal it or divide it.
_PAGE_BYTES: Final = 4096
_HUGE_PAGE_BYTES: Final = 2 * 2**20


def aligned_bytes(num_bytes: int) -> NDArray[np.uint8]:
    """Return ``num_bytes`` of memory that starts on a page, uninitialised and untouched.

    numpy allocates it: its allocator reuses freed memory, and requests huge pages where `numpy.zeros` does not.
    """
    # One page more than requested, so that a page begins within the first one.
    raw = np.empty(num_bytes + _PAGE_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % _PAGE_BYTES
    return raw[start : start + num_bytes]


def warm_bytes(num_bytes: int) -> NDArray[np.uint8]:
    """Return uninitialised, touched memory (num_bytes,), which returns to the system with its last view."""
    return mapped_bytes(num_bytes)[:num_bytes]


def mapped_bytes(num_bytes: int, *, touch: bool = True, inherited: bool = True) -> NDArray[np.uint8]:
    """Return full pages of memory, at least one, ``num_bytes`` rounded up, unmapped with their last view.

    This returns large memory to the system at once. numpy's allocator may keep blocks below 32 MB in an arena of the
    calling thread for the life of the process, so each new loader would take more memory. The pages are touched now
    unless ``touch`` is false, so that later uses do not wait for page faults. A forked child has its own copy, or no
    memory at these addresses if ``inherited`` is false.
    """
    size = max(-(-num_bytes // _PAGE_BYTES), 1) * _PAGE_BYTES
    # The mapping is private, unlike mmap's default: a forked child must not write rows into its parent's memory.
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if not inherited:
        mapping.madvise(mmap.MADV_DONTFORK)
    if size >= _HUGE_PAGE_BYTES:
        try:
            mapping.madvise(mmap.MADV_HUGEPAGE)
        except (OSError, AttributeError, ValueError) as error:  # an older kernel is slower, not wrong
            _LOG.debug("no huge pages: %s", error)
    # The view keeps the mapping alive, because the mapping has no other owner.
    memory = np.frombuffer(mapping, np.uint8)
    if touch:
        memory[::_PAGE_BYTES] = 0
    return memory


def plain_array(values: NDArray[Any], dtype: np.dtype[Any] | type[np.generic] | None = None) -> NDArray[Any]:
    """Return a contiguous, aligned and writable array for kernels, or ``values`` itself if it is such an array. Pure.

    An array mapped from the middle of a file may be unaligned or read-only. numba would compile each kernel again for
    such an array.

    Parameters
    ----------
    values : array of at least one dimension
    dtype : dtype to convert to. None keeps the dtype.
    """
    return np.require(values, dtype, ["C", "A", "W", "E"])
