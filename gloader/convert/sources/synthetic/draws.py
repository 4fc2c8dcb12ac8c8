"""Addressed random draws: a draw is a hash of its purpose and number, so that any part of a graph can be made alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from gloader.core.hashing import GOLDEN, mix64, mix_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

U64 = np.uint64
_ONE = U64(1)
_S11 = U64(11)
_TO_UNIT = 2.0**-53


@njit(cache=True, nogil=True)
def draw(key: np.uint64, index: np.uint64) -> np.uint64:
    """Return draw number ``index`` of ``key``."""
    return mix64(key + (index + _ONE) * GOLDEN)


@njit(cache=True, nogil=True)
def to_unit(bits: np.uint64) -> float:
    """Return 64 random bits as a float64 in [0, 1)."""
    return np.float64(bits >> _S11) * _TO_UNIT


@njit(cache=True, nogil=True)
def permute(x: np.uint64, size: np.uint64, perm: NDArray[np.uint64]) -> np.uint64:
    """Return the image of ``x`` under the permutation ``perm`` of [0, size).

    Each step is a bijection of [0, 2**bits); values beyond ``size`` walk on along their cycle (Black and
    Rogaway, CT-RSA'02), so no table of N entries is needed.
    """
    mask, shift = perm[0], perm[1]
    while True:
        x = ((x + perm[2]) * perm[3]) & mask
        x ^= x >> shift
        x = (x * perm[4]) & mask
        x ^= x >> shift
        x = (x * perm[5]) & mask
        x ^= x >> shift
        if x < size:
            return x


@njit(cache=True, nogil=True)
def _permute_range(
    first: np.uint64, size: np.uint64, perm: NDArray[np.uint64], out: NDArray[np.int64]
) -> None:
    for i in range(out.shape[0]):
        out[i] = np.int64(permute(first + U64(i), size, perm))


def make_key(seed: int, purpose: str) -> np.uint64:
    """Return the key of the draws that serve ``purpose`` in a graph of ``seed``. Pure."""
    # The length is hashed too, as two purposes may share their first eight letters.
    state = int.from_bytes(purpose.encode()[:8].ljust(8, b"\0"), "little")
    for word in (seed, len(purpose)):
        state = mix_int(state ^ mix_int((word + int(GOLDEN)) % 2**64))
    return U64(state)


def make_permutation(size: int, seed: int, purpose: str) -> NDArray[np.uint64]:
    """Return the constants of a permutation for `permute`. Pure.

    Parameters
    ----------
    size : the permutation is one of [0, size)
    seed : of the graph
    purpose : tells the permutations of a graph apart, such as "ids"
    """
    # Odd factors are what makes a multiplication modulo 2**bits a bijection.
    bits = max(1, (size - 1).bit_length())
    key = int(make_key(seed, purpose))
    odd = [mix_int((key + j) % 2**64) | 1 for j in range(3)]
    return np.array([(1 << bits) - 1, max(1, (bits + 1) // 2), key, *odd], dtype=np.uint64)


def permute_range(start: int, stop: int, size: int, perm: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the image of a range of numbers under a permutation. Pure.

    Parameters
    ----------
    start, stop : the numbers ``start`` ... ``stop - 1``
    size : the permutation is one of [0, size); ``stop`` is at most this
    perm : (6,) its constants, from `make_permutation`

    Returns
    -------
    (stop - start,) numbers in [0, size)
    """
    out = np.empty(stop - start, np.int64)
    # Hashes wrap around by design; compiled kernels do not check, interpreted ones warn.
    with np.errstate(over="ignore"):
        _permute_range(U64(start), U64(size), perm, out)
    return out
