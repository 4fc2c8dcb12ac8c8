"""Page-aligned memory for O_DIRECT, the checksum kernels and row copies.

`aligned_bytes` allocates through numpy. `mapped_bytes` and `warm_bytes` map memory that returns to the system when its
last view is deleted. `plain_array` makes arrays fit for kernels. A page is *touched* when it was written once: the
system provides its memory only then, which takes time.
"""

from __future__ import annotations

import logging
import mmap
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOG = logging.getLogger(__name__)

# Bytes of a memory page, and of a page of a file. It is a multiple of every disk's sector, as O_DIRECT requires.
_PAGE_BYTES: Final = 4096
_HUGE_PAGE_BYTES: Final = 2 * 2**20  # bytes of a huge page, for which the processor needs fewer table entries


def aligned_bytes(num_bytes: int) -> NDArray[np.uint8]:
    """Return memory (num_bytes,) that starts on a page, uninitialised and untouched.

    It comes from `numpy.empty`, which reuses freed memory and requests huge pages, unlike `numpy.zeros`.
    """
    # One page more than needed is allocated, so that the array can start at the first page boundary.
    raw = np.empty(num_bytes + _PAGE_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % _PAGE_BYTES
    return raw[start : start + num_bytes]


def warm_bytes(num_bytes: int) -> NDArray[np.uint8]:
    """Return memory (num_bytes,) with touched pages, which returns to the system when its last view is deleted."""
    return mapped_bytes(num_bytes)[:num_bytes]


def mapped_bytes(num_bytes: int, *, touch: bool = True, inherited: bool = True) -> NDArray[np.uint8]:
    """Return memory of ``num_bytes`` bytes, rounded up to full pages. It is unmapped when its last view is deleted.

    So the memory returns to the system. numpy's allocator may keep freed blocks below 32 MB until the process ends, in
    an arena of the calling thread. Then each new loader would take more memory.

    Parameters
    ----------
    num_bytes : least number of bytes; the result has at least one page
    touch : write to every page now, so that later uses do not wait for page faults
    inherited : True if a forked child has its own copy. If False, these addresses are not mapped in the child
    """
    size = max(-(-num_bytes // _PAGE_BYTES), 1) * _PAGE_BYTES
    # The mapping is private: with mmap's default, a forked child would write into its parent's memory.
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if not inherited:
        mapping.madvise(mmap.MADV_DONTFORK)
    if size >= _HUGE_PAGE_BYTES:
        try:
            mapping.madvise(mmap.MADV_HUGEPAGE)
        except (
            OSError,
            AttributeError,
            ValueError,
        ) as error:  # an older kernel lacks this; the memory is only slower
            _LOG.debug("no huge pages: %s", error)
    # The view keeps the mapping alive, because the mapping has no other owner.
    memory = np.frombuffer(mapping, np.uint8)
    if touch:
        memory[::_PAGE_BYTES] = 0
    return memory


def plain_array(values: NDArray[Any], dtype: np.dtype[Any] | type[np.generic] | None = None) -> NDArray[Any]:
    """Return a contiguous, aligned and writable array for kernels, or ``values`` itself if it is such an array. Pure.

    An array that is mapped from the middle of a file may be unaligned or read-only. For such an array, numba would
    compile each kernel again.

    Parameters
    ----------
    values : array of at least one dimension
    dtype : dtype to convert to. None keeps the dtype.
    """
    # C-contiguous, aligned, writable, and an ndarray itself instead of a subclass such as numpy.memmap.
    return np.require(values, dtype, ["C", "A", "W", "E"])
