"""What the C library keeps of freed memory."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# What glibc's own adjustment ends at after a program freed one large block, and no more than a heap's free end.
_LAZY = {_M_MMAP_THRESHOLD: 32 << 20, _M_TRIM_THRESHOLD: 64 << 20}
_EAGER = {_M_MMAP_THRESHOLD: 256 << 10, _M_TRIM_THRESHOLD: 128 << 10}


def release_freed_memory() -> None:
    """Give the pages of freed blocks back to the system; does nothing where the C library is not glibc.

    A training step frees tensors of all sizes, and the C library keeps their memory for the next step. Between two
    phases of a run it is needed elsewhere.
    """
    trim = getattr(_libc(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def frees_at_once() -> Iterator[None]:
    """Give every larger block back to the system as soon as it is freed, inside the block.

    For code that makes large blocks of many sizes, each used for long: the heap would keep holes between them. A
    training step, which makes the same blocks again and again, is up to half slower this way. The setting is the
    process's: what other threads free goes back at once too.
    """
    _set(_EAGER)
    try:
        yield
    finally:
        _set(_LAZY)
        release_freed_memory()


def _set(options: dict[int, int]) -> None:
    mallopt = getattr(_libc(), "mallopt", None)
    if mallopt is not None:
        for option, value in options.items():
            mallopt(option, value)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
