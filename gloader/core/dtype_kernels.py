"""Stored elements of 8 and 16 bits to float32, and back without a loss, inside numba kernels.

Index arithmetic in unsigned numbers: slices are counted references, which cost more than a row's copy, and signed
indices are compared with zero, which keeps loops from being vectorised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from gloader.core.numba_ops import to_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Halves = NDArray[np.uint16]


@njit(cache=True, nogil=True)
def float_of(bits: int) -> np.float32:
    """Return the float whose bits are the low 32 of ``bits``."""
    return np.uint32(bits).view(np.float32)


@njit(cache=True, nogil=True)
def half_to_float(bits: int) -> np.float32:
    """Widen the bits of an IEEE half to a float, exactly, NaN payloads included."""
    magnitude = (bits & 0x7FFF) << 13
    sign = (bits & 0x8000) << 16
    if magnitude >= 0x7C00 << 13:  # infinity or NaN
        return float_of(sign | magnitude | 0x7F800000)
    if magnitude >= 0x400 << 13:
        return float_of(sign | (magnitude + (112 << 23)))
    tiny = np.float32(bits & 0x3FF) * np.float32(2.0**-24)
    return -tiny if sign else tiny


@njit(cache=True, nogil=True)
def half_of_float(bits: int) -> int:
    """Narrow the bits of a float to those of an IEEE half: exactly where `half_to_float` made it, else anyhow."""
    sign = (bits >> 16) & 0x8000
    magnitude = bits & 0x7FFFFFFF
    if magnitude >= 0x7F800000:  # infinity or NaN
        return sign | 0x7C00 | ((magnitude >> 13) & 0x3FF)
    if magnitude >= 113 << 23:
        return sign | (((magnitude - (112 << 23)) >> 13) & 0x7FFF)
    return sign | to_int(float_of(magnitude) * np.float32(2.0**24))


@njit(cache=True, nogil=True)
def widen_halves(taken: NDArray[np.float32], first: int, given: Halves, at: int, count: int) -> None:
    """Copy float16 elements ``given[at:at + count]`` to ``taken[first:]`` as float32."""
    to, start = np.uint64(first), np.uint64(at)
    for k in range(np.uint64(count)):
        taken[to + k] = half_to_float(np.int64(given[start + k]))


@njit(cache=True, nogil=True)
def widen_brains(taken: NDArray[np.float32], first: int, given: Halves, at: int, count: int) -> None:
    """Copy bfloat16 elements ``given[at:at + count]`` to ``taken[first:]`` as float32."""
    to, start = np.uint64(first), np.uint64(at)
    for k in range(np.uint64(count)):
        taken[to + k] = float_of(np.int64(given[start + k]) << 16)


@njit(cache=True, nogil=True)
def scale_bytes(
    taken: NDArray[np.float32], first: int, given: NDArray[np.uint8], at: int, count: int, factor: float
) -> None:
    """Copy int8 elements ``given[at:at + count]`` times ``factor`` to ``taken[first:]`` as float32."""
    to, start = np.uint64(first), np.uint64(at)
    for k in range(np.uint64(count)):
        taken[to + k] = np.float32(np.int8(given[start + k])) * factor


@njit(cache=True, nogil=True)
def narrow_to_halves(taken: Halves, first: int, given: NDArray[np.uint32], at: int, count: int) -> bool:
    """Copy floats, as bits ``given[at:at + count]``, to ``taken[first:]`` as float16; return whether all are exact."""
    to, start = np.uint64(first), np.uint64(at)
    lost = np.uint32(0)
    for k in range(np.uint64(count)):
        bits = given[start + k]
        half = half_of_float(np.int64(bits))
        lost |= np.float32(half_to_float(half)).view(np.uint32) ^ bits
        taken[to + k] = half
    return lost == 0


@njit(cache=True, nogil=True)
def narrow_to_brains(taken: Halves, first: int, given: NDArray[np.uint32], at: int, count: int) -> bool:
    """Copy floats, as bits ``given[at:at + count]``, to ``taken[first:]`` as bfloat16; return whether all are exact."""
    to, start = np.uint64(first), np.uint64(at)
    lost = np.uint32(0)
    for k in range(np.uint64(count)):
        bits = given[start + k]
        lost |= bits & np.uint32(0xFFFF)
        taken[to + k] = bits >> np.uint32(16)
    return lost == 0


@njit(cache=True, nogil=True)
def unscale_to_bytes(
    taken: NDArray[np.uint8], first: int, given: NDArray[np.float32], at: int, count: int, factor: np.float32
) -> bool:
    """Copy floats ``given[at:at + count]`` to ``taken[first:]`` as int8 over ``factor``; return whether all are exact.

    What `scale_bytes` made is: the quotient is off by less than a half, and multiplied again it is the same. A factor
    of zero leaves the sign alone, and a zero of that sign comes back.
    """
    to, start = np.uint64(first), np.uint64(at)
    is_exact = True
    factor_sign = np.copysign(np.float32(1), factor)
    for k in range(np.uint64(count)):
        value = given[start + k]
        quotient = value / factor if factor != 0 else np.copysign(np.float32(1), value * factor_sign)
        near = np.int8(np.rint(quotient)) if -128.5 < quotient < 127.5 else np.int8(0)
        is_exact &= np.float32(near) * factor == value
        taken[to + k] = np.uint8(near)
    return is_exact
