"""Kernels (compiled functions) for keys: their hash, pairs of chunks in turn, and texts read as numbers or UUIDs.

A key is a sequence of bytes. A chunk of n keys has their bytes, ``data`` (B,), and their ``starts`` (n + 1,): key i is
``data[starts[i] : starts[i + 1]]``. A key's *words* are its bytes as unsigned 64-bit little-endian numbers. The last
word is padded with zero bytes. Callers check the arrays. Kernels do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.core.hashing import GOLDEN, mix64
from gloader.core.kernels import njit
from gloader.core.numba_ops import copy_block

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

_MINUS, _ZERO, _NINE = 45, 48, 57  # the characters "-", "0" and "9"
_TEN = np.uint64(10)
_LARGEST = np.uint64(2**64 - 1)
_SIGN = np.uint64(2**63)  # the absolute value of the smallest int64


@njit(cache=True, nogil=True, inline="always")
def key_word(data: NDArray[np.uint8], at: np.uint64, stop: np.uint64) -> np.uint64:
    """Return the word of the bytes ``data[at : min(at + 8, stop)]``. Pure."""
    # The indices are unsigned, because numba would compare each signed index with 0.
    one = np.uint64(1)
    word = np.uint64(0)
    if at + np.uint64(8) <= np.uint64(data.shape[0]):
        # The compiler makes one load of the eight.
        word = (
            np.uint64(data[at])
            | (np.uint64(data[at + one]) << np.uint64(8))
            | (np.uint64(data[at + np.uint64(2)]) << np.uint64(16))
            | (np.uint64(data[at + np.uint64(3)]) << np.uint64(24))
            | (np.uint64(data[at + np.uint64(4)]) << np.uint64(32))
            | (np.uint64(data[at + np.uint64(5)]) << np.uint64(40))
            | (np.uint64(data[at + np.uint64(6)]) << np.uint64(48))
            | (np.uint64(data[at + np.uint64(7)]) << np.uint64(56))
        )
        if stop - at < np.uint64(8):
            word &= (one << ((stop - at) << np.uint64(3))) - one
        return word
    shift = np.uint64(0)
    while at < stop:
        word |= np.uint64(data[at]) << shift
        shift += np.uint64(8)
        at += one
    return word


@njit(cache=True, nogil=True, inline="always")
def first_hash(length: np.uint64) -> np.uint64:
    """Return the hash of the key's length in bytes, to which its words are added with ``mix64(hash ^ word)``. Pure."""
    return mix64(length ^ GOLDEN)


@njit(cache=True, nogil=True)
def hash_keys(data: NDArray[np.uint8], starts: IdArray, hashes: NDArray[np.uint64]) -> None:
    """Write the hash of each key to ``hashes`` (n,)."""
    for i in range(starts.shape[0] - 1):
        at, stop = np.uint64(starts[i]), np.uint64(starts[i + 1])
        value = first_hash(stop - at)
        while at < stop:
            value = mix64(value ^ key_word(data, at, min(at + np.uint64(8), stop)))
            at += np.uint64(8)
        hashes[i] = value


@njit(cache=True, nogil=True)
def interleave_keys(
    first: NDArray[np.uint8],
    first_starts: IdArray,
    second: NDArray[np.uint8],
    second_starts: IdArray,
    data: NDArray[np.uint8],
    starts: IdArray,
) -> None:
    """Write the keys of two chunks of n keys in turn: first[0], second[0], first[1], ...

    ``data`` receives the bytes, and ``starts`` (2 n + 1,) the places.
    """
    at = 0
    for i in range(first_starts.shape[0] - 1):
        starts[2 * i] = at
        length = first_starts[i + 1] - first_starts[i]
        copy_block(data, at, first, first_starts[i], length)
        at += length
        starts[2 * i + 1] = at
        length = second_starts[i + 1] - second_starts[i]
        copy_block(data, at, second, second_starts[i], length)
        at += length
    starts[starts.shape[0] - 1] = at


@njit(cache=True, nogil=True)
def parse_integers(
    data: NDArray[np.uint8], starts: IdArray, is_signed: bool, numbers: NDArray[np.uint64]
) -> int:
    """Write the integers that the texts spell, as their bits. Return the first other text's index, or -1.

    Only the canonical text of a 64-bit integer is accepted: no sign "+", no zeros in front, no blanks.
    """
    for i in range(starts.shape[0] - 1):
        at, stop = starts[i], starts[i + 1]
        is_negative = is_signed and at < stop and data[at] == _MINUS
        if is_negative:
            at += 1
        if at == stop or (data[at] == _ZERO and (stop - at > 1 or is_negative)):
            return i
        value = np.uint64(0)
        for k in range(at, stop):
            if data[k] < _ZERO or data[k] > _NINE:
                return i
            digit = np.uint64(data[k] - _ZERO)
            if value > (_LARGEST - digit) // _TEN:
                return i
            value = value * _TEN + digit
        if is_signed and value > (_SIGN if is_negative else _SIGN - np.uint64(1)):
            return i
        numbers[i] = np.uint64(0) - value if is_negative else value
    return -1


@njit(cache=True, nogil=True)
def parse_uuids(data: NDArray[np.uint8], starts: IdArray, uuids: NDArray[np.uint8]) -> int:
    """Write the 16 bytes of each UUID text to ``uuids`` (n, 16). Return the first other text's index, or -1.

    Accepted are 8-4-4-4-12 hexadecimal digits in upper or lower case, which spell the same UUID (RFC 9562, 4).
    """
    for i in range(starts.shape[0] - 1):
        if starts[i + 1] - starts[i] != 36:
            return i
        place = 0  # number of digits so far
        for k in range(36):
            letter = np.int64(data[starts[i] + k])
            if k in (8, 13, 18, 23):
                if letter != _MINUS:
                    return i
                continue
            if _ZERO <= letter <= _NINE:
                digit = letter - _ZERO
            elif 97 <= (letter | 32) <= 102:  # a letter from a to f; the bit 32 makes it lower case
                digit = (letter | 32) - 87
            else:
                return i
            if place % 2 == 0:
                uuids[i, place // 2] = digit << 4
            else:
                uuids[i, place // 2] |= np.uint8(digit)
            place += 1
    return -1


@njit(cache=True, nogil=True)
def same_keys(
    data: NDArray[np.uint8],
    starts: IdArray,
    indices: IdArray,
    other_data: NDArray[np.uint8],
    other_starts: IdArray,
    other_indices: IdArray,
    is_same: NDArray[np.bool_],
) -> None:
    """Compare key ``indices[i]`` of one chunk with key ``other_indices[i]`` of another; ``is_same`` (n,) is filled."""
    for i in range(indices.shape[0]):
        at, stop = starts[indices[i]], starts[indices[i] + 1]
        other = other_starts[other_indices[i]]
        is_same[i] = stop - at == other_starts[other_indices[i] + 1] - other
        k = 0
        while is_same[i] and k < stop - at:
            is_same[i] = data[at + k] == other_data[other + k]
            k += 1
