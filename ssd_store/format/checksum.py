"""The 64-bit checksum of a 4 KiB page, and the digest of a file's pages. Pure kernels.

A page is 512 little-endian 64-bit words. Eight lanes take every eighth word each by ``m = lane ^ word`` and
``lane = (m ^ rotl(m, 29) ^ rotl(m, 47)) * PRIME``, a bijection of the lane for a given word and of the word for a given
lane: a change within one word always changes the result. Bits are spread by the rotations before the multiplication,
which carries differences upwards only: one flipped bit always reaches the lane's next word as ten or more, two of one
word as eight or more (of any content), so that no two or three flipped bits cancel there. Other changes pass by a
coincidence of 2**-64. The page's number goes into the start value, so that a page at the wrong place does not pass.
docs/storage.md spells the definition out for other languages.

Format version 1 has another step, which is frozen: new files never use it. Its step moves bit 34 to bit 63, where the
multiplication leaves it alone: flipped together with bit 63 of the lane's next word, it goes unseen. The version in the
commit record chooses the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.kernels import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray


PAGE_BYTES: Final = 4096
PAGE_WORDS: Final = PAGE_BYTES // 8
FORMAT_VERSION: Final = 2  # of what is written; the checksum is what changed in it

# Constants of uint64: an int beside a uint64 would make numba compute in floats.
_R29 = np.uint64(29)
_R35 = np.uint64(35)
_R47 = np.uint64(47)
_R17 = np.uint64(17)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_U2 = np.uint64(2)
_U3 = np.uint64(3)
_U4 = np.uint64(4)
_U5 = np.uint64(5)
_U6 = np.uint64(6)
_U7 = np.uint64(7)
_LANES = np.uint64(8)
_PAGE_WORDS = np.uint64(PAGE_WORDS)


@njit(cache=True, nogil=True)
def _step(lane: np.uint64, word: np.uint64) -> np.uint64:
    mixed = lane ^ word
    first = (mixed << _R29) | (mixed >> _R35)
    second = (mixed << _R47) | (mixed >> _R17)
    return (mixed ^ first ^ second) * PRIME


@njit(cache=True, nogil=True)
def page_checksum_at(words: NDArray[np.uint64], first_word: int, page_index: int, version: int) -> np.uint64:
    """Checksum of the page whose first word is ``words[first_word]``. Pure; callable from other kernels.

    Parameters
    ----------
    words : C-contiguous uint64 view of the buffer that holds the page
    first_word : index of the page's first word (byte offset / 8); ``first_word + 512 <= len(words)``
    page_index : number of the page within the data region of its file
    version : format version of the directory
    """
    # Asked once a page, beside 512 steps.
    if version == 1:
        return page_checksum_v1(words, first_word, page_index)
    start = finish(np.uint64(page_index) + _ONE)
    # Unsigned indices: a signed one costs a comparison for each word (negative indices wrap).
    at = np.uint64(first_word)
    end = at + _PAGE_WORDS
    # Eight lanes that do not wait for one another: a single one would be bound by the latency of its multiplication.
    a = start
    b = start + _ONE
    c = start + _U2
    d = start + _U3
    e = start + _U4
    f = start + _U5
    g = start + _U6
    h = start + _U7
    while at < end:
        a = _step(a, words[at])
        b = _step(b, words[at + _ONE])
        c = _step(c, words[at + _U2])
        d = _step(d, words[at + _U3])
        e = _step(e, words[at + _U4])
        f = _step(f, words[at + _U5])
        g = _step(g, words[at + _U6])
        h = _step(h, words[at + _U7])
        at += _LANES
    # Finished one by one: two lanes that differ alike, as by flipped bits of their last words, must not cancel.
    # In order and from another start, so that swapped lanes, hence swapped words, give another checksum: two that
    # were only joined by ``^`` could change places.
    total = _step(_step(start, finish(a)), finish(b))
    total = _step(total, finish(c))
    total = _step(total, finish(d))
    total = _step(total, finish(e))
    total = _step(total, finish(f))
    total = _step(total, finish(g))
    return finish(_step(total, finish(h)))


@njit(cache=True, nogil=True)
def checksum_words(words: NDArray[np.uint64], first_page: int, out: NDArray[np.uint64], version: int) -> None:
    """Write the checksums of ``len(out)`` consecutive pages, the first of which is number ``first_page``."""
    for i in range(out.shape[0]):
        out[i] = page_checksum_at(words, i * PAGE_WORDS, first_page + i, version)


@njit(cache=True, nogil=True)
def extend_digest(state: np.uint64, checksums: NDArray[np.uint64]) -> np.uint64:
    """Fold page checksums, in page order, into the running digest ``state`` (0 at the start). Pure."""
    folded = np.uint64(state)
    for i in range(checksums.shape[0]):
        folded = _step(folded, checksums[i])
    return folded


@njit(cache=True, nogil=True)
def _finish_digest(state: np.uint64, num_pages: np.uint64) -> np.uint64:
    return finish(_step(np.uint64(state), np.uint64(num_pages)))


class Digest:
    """The running digest of a file: page checksums go in, 16 hexadecimal digits come out."""

    __slots__ = ("_num_pages", "_state", "_version")

    def __init__(self, version: int = FORMAT_VERSION) -> None:
        self._version = version
        self._state = _ZERO
        self._num_pages = 0

    @property
    def num_pages(self) -> int:
        """Number of pages so far."""
        return self._num_pages

    def update(self, checksums: NDArray[np.uint64]) -> None:
        """Add the checksums of the next pages."""
        extend = extend_digest_v1 if self._version == 1 else extend_digest
        with np.errstate(over="ignore"):  # the arithmetic wraps; interpreted kernels would complain
            self._state = np.uint64(extend(self._state, checksums))
        self._num_pages += checksums.shape[0]

    def hexdigest(self) -> str:
        """Return the digest of the pages so far."""
        end = finish_digest_v1 if self._version == 1 else _finish_digest
        with np.errstate(over="ignore"):
            return f"{int(end(self._state, np.uint64(self._num_pages))):016x}"


def checksum_pages(
    data: NDArray[np.uint8], first_page: int, out: NDArray[np.uint64], version: int = FORMAT_VERSION
) -> None:
    """Write the checksum of each page of ``data`` into ``out``. Thread-safe.

    Parameters
    ----------
    data : (num_pages * 4096,) C-contiguous uint8, 8-byte aligned; the last page of a file padded with zeros
    first_page : number of the first page within the data region of its file
    out : (num_pages,) C-contiguous uint64
    version : format version of the directory

    Raises
    ------
    ValueError
        The sizes do not match, or ``data`` is not contiguous.
    """
    if data.dtype != np.uint8 or not data.flags.c_contiguous or data.size != out.size * PAGE_BYTES:
        raise ValueError(
            f"data must be contiguous uint8 of {out.size} pages of {PAGE_BYTES} bytes, "
            f"not {data.dtype} with {data.size} elements"
        )
    with np.errstate(over="ignore"):  # as in `Digest`
        checksum_words(data.reshape(-1).view(np.uint64), first_page, out, version)


def digest_of(checksums: NDArray[np.uint64], version: int = FORMAT_VERSION) -> str:
    """Return the digest of a file whose pages have ``checksums``. Pure."""
    digest = Digest(version)
    digest.update(checksums)
    return digest.hexdigest()


def num_pages_of(num_bytes: int) -> int:
    """Return the number of pages that hold ``num_bytes``. Pure."""
    return -(-num_bytes // PAGE_BYTES)


# Constants of uint64: an int beside a uint64 would make numba compute in floats.
PRIME = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xFF51AFD7ED558CCD)
_MIX_B = np.uint64(0xC4CEB9FE1A85EC53)
_R33 = np.uint64(33)


@njit(cache=True, nogil=True)
def _step_v1(lane: np.uint64, word: np.uint64) -> np.uint64:
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
        a = _step_v1(a, words[at])
        b = _step_v1(b, words[at + _ONE])
        c = _step_v1(c, words[at + np.uint64(2)])
        d = _step_v1(d, words[at + np.uint64(3)])
        e = _step_v1(e, words[at + np.uint64(4)])
        f = _step_v1(f, words[at + np.uint64(5)])
        g = _step_v1(g, words[at + np.uint64(6)])
        h = _step_v1(h, words[at + np.uint64(7)])
        at += _LANES
    total = _step_v1(_step_v1(_step_v1(_step_v1(_step_v1(_step_v1(a, b), c), d), e), f), g)
    return finish(_step_v1(total, h))


@njit(cache=True, nogil=True)
def extend_digest_v1(state: np.uint64, checksums: NDArray[np.uint64]) -> np.uint64:
    """Fold page checksums, in page order, into the running digest ``state`` (0 at the start)."""
    folded = np.uint64(state)
    for i in range(checksums.shape[0]):
        folded = _step_v1(folded, checksums[i])
    return folded


@njit(cache=True, nogil=True)
def finish_digest_v1(state: np.uint64, num_pages: np.uint64) -> np.uint64:
    """Return the digest of ``num_pages`` pages from its running ``state``."""
    return finish(_step_v1(np.uint64(state), np.uint64(num_pages)))
