"""The 64-bit checksum for a 4 KiB page, and the digest over a file's pages. Pure kernels.

A page is 512 little-endian 64-bit words. A lane is one of eight running 64-bit values; lane i takes the words i, i + 8,
i + 16, ... one after another. The step for a word is ``m = lane ^ word`` and
``lane = (m ^ rotl(m, 29) ^ rotl(m, 47)) * PRIME``. At the end the eight lanes are combined into the checksum.

What the checksum detects:

- A change within one word, always: for a given lane the step is a bijection of the word, and for a given word a
  bijection of the lane.
- Two or three flipped bits in two consecutive words of a lane, always. One flipped bit changes at least ten bits of the
  lane's next value, and two flipped bits of one word at least eight. So the next word cannot cancel them. The rotations
  are needed, because the multiplication carries differences upwards only.
- A page at the wrong place: the page's number is part of the start value.
- Other changes, except with a probability of 2**-64.

The digest of a file folds its page checksums by the same step. docs/storage.md gives the full definition for other
languages.

Format version 1 has another step, which is frozen; new files never use it. Its step moves bit 34 to bit 63, which the
multiplication does not spread: if it is flipped together with bit 63 of the lane's next word, the change is not
detected. The version in the commit record selects the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.kernels import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray


PAGE_BYTES: Final = 4096  # bytes in a page, the unit of verification
PAGE_WORDS: Final = PAGE_BYTES // 8  # 64-bit words in a page
FORMAT_VERSION: Final = 2  # version for new files; version 2 changed the checksum

# Distances of rotations (29 + 35 = 47 + 17 = 64), small numbers, and the number of lanes. They are uint64, because an
# int combined with a uint64 would make numba compute in floats.
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
    """Return the lane after one more word."""
    mixed = lane ^ word
    first = (mixed << _R29) | (mixed >> _R35)
    second = (mixed << _R47) | (mixed >> _R17)
    return (mixed ^ first ^ second) * PRIME


@njit(cache=True, nogil=True)
def page_checksum_at(words: NDArray[np.uint64], first_word: int, page_index: int, version: int) -> np.uint64:
    """Return the checksum for the page that begins at ``words[first_word]``. Pure; callable from other kernels.

    Parameters
    ----------
    words : C-contiguous uint64 view of the buffer that holds the page
    first_word : the page's first word as an index (byte offset / 8); ``first_word + 512 <= len(words)``
    page_index : the page's number within its file's data region
    version : the directory's format version
    """
    # This is one test per page, which is little compared with 512 steps.
    if version == 1:
        return page_checksum_v1(words, first_word, page_index)
    start = finish(np.uint64(page_index) + _ONE)  # plus one, because `finish` maps 0 to 0
    # The indices are unsigned, because a signed index costs a comparison per word (negative indices wrap).
    at = np.uint64(first_word)
    end = at + _PAGE_WORDS
    # There are eight independent lanes: a single lane would be bound by its multiplication's latency.
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
    # Each lane is finished before it is combined. Otherwise equal differences of two lanes, such as the same flipped
    # bits in their last words, would cancel. The lanes are combined in order by the step, so that swapped lanes, and so
    # swapped words, change the checksum.
    total = _step(_step(start, finish(a)), finish(b))
    total = _step(total, finish(c))
    total = _step(total, finish(d))
    total = _step(total, finish(e))
    total = _step(total, finish(f))
    total = _step(total, finish(g))
    return finish(_step(total, finish(h)))


@njit(cache=True, nogil=True)
def checksum_words(words: NDArray[np.uint64], first_page: int, out: NDArray[np.uint64], version: int) -> None:
    """Write the checksums of ``len(out)`` consecutive pages, the first with the number ``first_page``, into ``out``."""
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
    """Return the digest over ``num_pages`` pages from its running ``state``."""
    return finish(_step(np.uint64(state), np.uint64(num_pages)))


class Digest:
    """A file's running digest, updated with page checksums and printed as 16 hexadecimal digits."""

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
        """Add the next pages' checksums, (n,) uint64."""
        extend = extend_digest_v1 if self._version == 1 else extend_digest
        with np.errstate(over="ignore"):  # the arithmetic wraps; interpreted kernels would warn
            self._state = np.uint64(extend(self._state, checksums))
        self._num_pages += checksums.shape[0]

    def hexdigest(self) -> str:
        """Return the digest over the pages so far."""
        end = finish_digest_v1 if self._version == 1 else _finish_digest
        with np.errstate(over="ignore"):
            return f"{int(end(self._state, np.uint64(self._num_pages))):016x}"


def checksum_pages(
    data: NDArray[np.uint8], first_page: int, out: NDArray[np.uint64], version: int = FORMAT_VERSION
) -> None:
    """Write each page's checksum in ``data`` into ``out``. Thread-safe.

    Parameters
    ----------
    data : (num_pages * 4096,) C-contiguous uint8, 8-byte aligned; a file's last page is padded with zeros
    first_page : the first page's number within its file's data region
    out : (num_pages,) C-contiguous uint64
    version : the directory's format version

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
    """Return a file's digest from its page checksums. Pure."""
    digest = Digest(version)
    digest.update(checksums)
    return digest.hexdigest()


def num_pages_of(num_bytes: int) -> int:
    """Return the page count for ``num_bytes``. Pure."""
    return -(-num_bytes // PAGE_BYTES)


# These constants are uint64 as well. PRIME is the step's odd factor, 2**64 over the golden ratio. The others are the
# constants of Murmur's finaliser.
PRIME = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xFF51AFD7ED558CCD)
_MIX_B = np.uint64(0xC4CEB9FE1A85EC53)
_R33 = np.uint64(33)


@njit(cache=True, nogil=True)
def _step_v1(lane: np.uint64, word: np.uint64) -> np.uint64:
    """Return the lane after one more word, in format version 1."""
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
    """Return the checksum for the page that begins at ``words[first_word]``; see `page_checksum_at`."""
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
    """Return the digest over ``num_pages`` pages from its running ``state``."""
    return finish(_step_v1(np.uint64(state), np.uint64(num_pages)))
