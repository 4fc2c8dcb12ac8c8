"""Page-aligned memory, as O_DIRECT, the checksum kernels and the copies of rows want it."""

from __future__ import annotations

import logging
import mmap
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LOG = logging.getLogger(__name__)

_PAGE_BYTES: Final = 4096  # of memory; a file's pages and a device's sectors are as large or divide it
_HUGE_PAGE_BYTES: Final = 2 * 2**20


def aligned_bytes(num_bytes: int) -> NDArray[np.uint8]:
    """Return ``num_bytes`` of memory that starts on a page, uninitialised and untouched.

    From numpy, whose allocator reuses what was freed, and asks for huge pages where `numpy.zeros` does not.
    """
    # A page more than asked for, so that a page begins somewhere within the first one.
    raw = np.empty(num_bytes + _PAGE_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % _PAGE_BYTES
    return raw[start : start + num_bytes]


def warm_bytes(num_bytes: int) -> NDArray[np.uint8]:
    """Return uninitialised memory (num_bytes,), touched, that goes back to the system with its last view."""
    return mapped_bytes(num_bytes)[:num_bytes]


def mapped_bytes(num_bytes: int, *, touch: bool = True, inherited: bool = True) -> NDArray[np.uint8]:
    """Return whole pages of memory, ``num_bytes`` rounded up and at least one, unmapped when their last view goes.

    Large memory goes back to the system at once this way. numpy's allocator may keep what is below 32 MB for the life
    of the process, in an arena of each thread that asked: loaders opened one after another took more memory each time.
    Pages are touched now unless ``touch`` is false, so that later uses need not wait for the system to find them. A
    forked child has a copy of its own; nothing at these addresses unless ``inherited``.
    """
    size = max(-(-num_bytes // _PAGE_BYTES), 1) * _PAGE_BYTES
    # Private, which is not the default: a forked child must not read its rows into the memory of its parent's.
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if not inherited:
        mapping.madvise(mmap.MADV_DONTFORK)
    if size >= _HUGE_PAGE_BYTES:
        try:
            mapping.madvise(mmap.MADV_HUGEPAGE)
        except (OSError, AttributeError, ValueError) as error:  # an older kernel: slower, not wrong
            _LOG.debug("no huge pages: %s", error)
    # The view keeps the mapping alive: it has no other owner, and is unmapped with its last view.
    memory = np.frombuffer(mapping, np.uint8)
    if touch:
        memory[::_PAGE_BYTES] = 0
    return memory


def plain_array(values: NDArray[Any], dtype: np.dtype[Any] | type[np.generic] | None = None) -> NDArray[Any]:
    """Return an array that kernels take as they are: contiguous, aligned and writable; the same where it is so. Pure.

    What is mapped from the middle of a file lies at any address, and may be read-only: numba would compile each kernel
    once more for it.

    Parameters
    ----------
    values : of at least one dimension
    dtype : to convert to; None: as it is
    """
    return np.require(values, dtype, ["C", "A", "W", "E"])
