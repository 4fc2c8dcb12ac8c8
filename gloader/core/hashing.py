"""The hash function behind all random numbers of gloader: a bijection of 64-bit words.

A random number is a hash of its address, such as (seed, epoch, batch, hop, node), so no generator has a state. The
bijection `mix64` is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
OOPSLA'14), with the constants of Stafford's variant 13. It exists for kernels (`mix64`), for arrays (`mixed_words`) and
for Python integers (`mix_int`). `unmix64` is its inverse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.kernels import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)  # the increment of SplitMix64
# The multipliers and the shifts of Stafford's variant 13.
MUL_1: Final = np.uint64(0xBF58476D1CE4E5B9)
MUL_2: Final = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)
_S54, _S60, _S62 = np.uint64(54), np.uint64(60), np.uint64(62)  # multiples of the shifts, for `unmix64`
_MASK = 2**64 - 1  # the low 64 bits of a Python int
_INT_1, _INT_2 = int(MUL_1), int(MUL_2)  # converted once: a batch mixes a dozen Python integers


def inverse(odd: np.uint64) -> np.uint64:
    """Return the inverse of ``odd`` modulo 2**64. Pure."""
    return np.uint64(pow(int(odd), -1, 2**64))


_INVERSE_1: Final = inverse(MUL_1)
_INVERSE_2: Final = inverse(MUL_2)


@njit(cache=True, nogil=True, inline="always")
def mix64(x: np.uint64) -> np.uint64:
    """Return a bijective mix of ``x``'s 64 bits. Pure."""
    x = (x ^ (x >> _S30)) * MUL_1
    x = (x ^ (x >> _S27)) * MUL_2
    return x ^ (x >> _S31)


# The steps of `mix64` are undone from the last to the first. x ^ (x >> s) is undone by x ^ (x >> s) ^ (x >> 2s) ^ ...,
# up to 64 bits. A product is undone by a product with the factor's inverse modulo 2**64.
@njit(cache=True, nogil=True, inline="always")
def unmix64(x: np.uint64) -> np.uint64:
    """Return the word w with ``mix64(w) == x``. Pure."""
    x = (x ^ (x >> _S31) ^ (x >> _S62)) * _INVERSE_2
    x = (x ^ (x >> _S27) ^ (x >> _S54)) * _INVERSE_1
    return x ^ (x >> _S30) ^ (x >> _S60)


def mixed_words(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `mix64` of each word in ``words`` (n,), without compiling a kernel. Pure."""
    words = (words ^ (words >> _S30)) * MUL_1
    words = (words ^ (words >> _S27)) * MUL_2
    return words ^ (words >> _S31)


def mix_int(x: int) -> int:
    """Return `mix64` of a Python int in 0..2**64-1. Pure."""
    # Python ints do not wrap around, so each product is cut to 64 bits.
    x = ((x ^ (x >> 30)) * _INT_1) & _MASK
    x = ((x ^ (x >> 27)) * _INT_2) & _MASK
    return x ^ (x >> 31)
