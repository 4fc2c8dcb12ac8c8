"""The page checksum and the digest of format version 1, which old directories are read by. Frozen; pure kernels.

Its step moves bit 34 to bit 63, where the multiplication leaves it alone: flipped together with bit 63 of the lane's
next word, it goes unseen. Nothing new is written with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Constants of uint64: an int beside a uint64 would make numba compute in floats.
PRIME = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xFF51AFD7ED558CCD)
_MIX_B = np.uint64(0xC4CEB9FE1A85EC53)
_R29 = np.uint64(29)
_R35 = np.uint64(35)
_R33 = np.uint64(33)
_ONE = np.uint64(1)
_LANES = np.uint64(8)
_PAGE_WORDS = np.uint64(512)


@njit(cache=True, nogil=True)
def _step(lane: np.uint64, word: np.uint64) -> np.uint64:
    mixed = lane ^ word
    return ((mixed << _R29) | (mixed >> _R35)) * PRIME


@njit(cache=True, nogil=True)
def finish(value: np.uint64) -> np.uint64:
    """Murmur's 64-bit finaliser: a bijection in which every bit reaches every bit; the same in every version."""
    value = (value ^ (value >> _R33)) * _MIX_A
    value = (value ^ (value >> _R33)) * _MIX_B
    return value ^ (value >> _R33)


@njit(cache=True, nogil=True, inline="always")
def page_checksum_v1(words: NDArray[np.uint64], first_word: int, page_index: int) -> np.uint64:
    """Return the checksum of the page whose first word is ``words[first_word]``; see `page_checksum_at`."""
    lane = finish(np.uint64(page_index) + _ONE)
    at = np.uint64(first_word)
    end = at + _PAGE_WORDS
    a, b, c, d = lane, lane + _ONE, lane + np.uint64(2), lane + np.uint64(3)
    e, f, g, h = lane + np.uint64(4), lane + np.uint64(5), lane + np.uint64(6), lane + np.uint64(7)
    while at < end:
        a = _step(a, words[at])
        b = _step(b, words[at + _ONE])
        c = _step(c, words[at + np.uint64(2)])
        d = _step(d, words[at + np.uint64(3)])
        e = _step(e, words[at + np.uint64(4)])
        f = _step(f, words[at + np.uint64(5)])
        g = _step(g, words[at + np.uint64(6)])
        h = _step(h, words[at + np.uint64(7)])
        at += _LANES
    total = _step(_step(_step(_step(_step(_step(a, b), c), d), e), f), g)
    return finish(_step(total, h))


@njit(cache=True, nogil=True)
def extend_digest_v1(state: np.uint64, checksums: NDArray[np.uint64]) -> np.uint64:
    """Fold page checksums, in page order, into the running digest ``state`` (0 at the start)."""
    folded = np.uint64(state)
    for i in range(checksums.shape[0]):
        folded = _step(folded, checksums[i])
    return folded


@njit(cache=True, nogil=True)
def finish_digest_v1(state: np.uint64, num_pages: np.uint64) -> np.uint64:
    """Return the digest of ``num_pages`` pages from its running ``state``."""
    return finish(_step(np.uint64(state), np.uint64(num_pages)))
