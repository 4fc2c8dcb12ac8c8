"""Kernels on array values: checks at the speed of memory, and conversions between stored dtypes. Pure.

A check returns the index of the first bad value, or -1. It goes through the array in blocks. In a block, it tests all
values without a branch, so that the compiler uses vector instructions. Only in a block with a bad value, it searches
for the value.

A conversion turns stored elements of 8 or 16 bits into float32 (widen, dequantize), or float32 back into the same
elements (narrow, requantize). It takes arrays and start indices, not slices, because making a slice costs more than
copying a row. Its indices are converted to unsigned integers, because numba compares signed indices with zero, which
prevents vector instructions. `gloader.core.dtypes` has the list of stored dtypes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.kernels import njit
from gloader.core.numba_ops import to_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bits16 = NDArray[np.uint16]  # bits of float16 or bfloat16, which numba does not support


_BLOCK: Final = 4096  # elements per block of a check


@njit(cache=True, nogil=True)
def first_outside(values: NDArray[Any], low: int, high: int) -> int:
    """Return the index of the first value outside low..high, or -1."""
    for start in range(0, values.shape[0], _BLOCK):
        # For a bad value, one of the two differences is negative. Then the sign bit of ``signs`` stays set.
        block = values[start : start + _BLOCK]
        signs = np.int64(0)
        for value in block:
            signs |= (np.int64(value) - low) | (high - np.int64(value))
        if signs < 0:
            for i in range(block.shape[0]):
                if not low <= block[i] <= high:
                    return start + i
    return -1


@njit(cache=True, nogil=True)
def first_descent(values: NDArray[Any], last: int) -> int:
    """Return the index of the first value below its predecessor, or -1. ``last`` precedes the first value."""
    if values.shape[0] and values[0] < last:
        return 0
    for start in range(0, values.shape[0], _BLOCK):
        block = values[start : start + _BLOCK + 1]  # with the next block's first value
        # The values are compared, not subtracted, because a difference may overflow.
        num_good = np.int64(1)
        for i in range(block.shape[0] - 1):
            num_good += block[i + 1] >= block[i]
        if num_good < block.shape[0]:
            for i in range(1, block.shape[0]):
                if block[i] < block[i - 1]:
                    return start + i
    return -1


@njit(cache=True, nogil=True)
def first_bad_weight(weights: NDArray[Any]) -> int:
    """Return the index of the first weight that is negative, infinite or not a number, or -1."""
    for start in range(0, weights.shape[0], _BLOCK):
        block = weights[start : start + _BLOCK]
        num_good = np.int64(0)
        for weight in block:
            num_good += (weight >= 0) & (weight < np.inf)
        if num_good < block.shape[0]:
            for i in range(block.shape[0]):
                if not 0 <= block[i] < np.inf:
                    return start + i
    return -1


@njit(cache=True, nogil=True)
def float32_from_bits(bits: int) -> np.float32:
    """Return the float32 with the low 32 bits of ``bits``."""
    return np.uint32(bits).view(np.float32)


@njit(cache=True, nogil=True)
def float16_to_float32(bits: int) -> np.float32:
    """Return the float16 with these ``bits`` as float32. Exact, including NaN payloads."""
    magnitude = (bits & 0x7FFF) << 13
    sign = (bits & 0x8000) << 16
    if magnitude >= 0x7C00 << 13:  # infinity or NaN
        return float32_from_bits(sign | magnitude | 0x7F800000)
    if magnitude >= 0x400 << 13:  # a normal number: the exponent's bias grows by 112, from 15 to 127
        return float32_from_bits(sign | (magnitude + (112 << 23)))
    # A subnormal number, or zero: a multiple of 2**-24. float32 represents each of these multiples exactly.
    tiny = np.float32(bits & 0x3FF) * np.float32(2.0**-24)
    return -tiny if sign else tiny


@njit(cache=True, nogil=True)
def float32_to_float16(bits: int) -> int:
    """Return the float16 bits of the float32 with these ``bits``. Exact only for results of `float16_to_float32`."""
    sign = (bits >> 16) & 0x8000
    magnitude = bits & 0x7FFFFFFF
    if magnitude >= 0x7F800000:  # infinity or NaN
        return sign | 0x7C00 | ((magnitude >> 13) & 0x3FF)
    if magnitude >= 113 << 23:  # at least 2**-14, a normal number of float16
        return sign | (((magnitude - (112 << 23)) >> 13) & 0x7FFF)
    return sign | to_int(float32_from_bits(magnitude) * np.float32(2.0**24))


@njit(cache=True, nogil=True)
def widen_float16(
    out: NDArray[np.float32], out_start: int, values: Bits16, values_start: int, count: int
) -> None:
    """Copy float16 elements ``values[values_start:][:count]`` to ``out[out_start:]`` as float32."""
    to, start = np.uint64(out_start), np.uint64(values_start)
    for k in range(np.uint64(count)):
        out[to + k] = float16_to_float32(np.int64(values[start + k]))


@njit(cache=True, nogil=True)
def widen_bfloat16(
    out: NDArray[np.float32], out_start: int, values: Bits16, values_start: int, count: int
) -> None:
    """Copy bfloat16 elements ``values[values_start:][:count]`` to ``out[out_start:]`` as float32."""
    to, start = np.uint64(out_start), np.uint64(values_start)
    for k in range(np.uint64(count)):
        out[to + k] = float32_from_bits(np.int64(values[start + k]) << 16)


@njit(cache=True, nogil=True)
def dequantize_int8(
    out: NDArray[np.float32],
    out_start: int,
    values: NDArray[np.uint8],
    values_start: int,
    count: int,
    factor: float,
) -> None:
    """Copy int8 elements ``values[values_start:][:count]`` times ``factor`` to ``out[out_start:]`` as float32."""
    to, start = np.uint64(out_start), np.uint64(values_start)
    for k in range(np.uint64(count)):
        out[to + k] = np.float32(np.int8(values[start + k])) * factor


@njit(cache=True, nogil=True)
def narrow_to_float16(
    out: Bits16, out_start: int, values: NDArray[np.uint32], values_start: int, count: int
) -> bool:
    """Copy float32 bits ``values[values_start:][:count]`` to ``out[out_start:]`` as float16; return True if exact."""
    to, start = np.uint64(out_start), np.uint64(values_start)
    lost = np.uint32(0)  # bits that differ between a value and its float16, over all values
    for k in range(np.uint64(count)):
        bits = values[start + k]
        half = float32_to_float16(np.int64(bits))
        lost |= np.float32(float16_to_float32(half)).view(np.uint32) ^ bits
        out[to + k] = half
    return lost == 0


@njit(cache=True, nogil=True)
def narrow_to_bfloat16(
    out: Bits16, out_start: int, values: NDArray[np.uint32], values_start: int, count: int
) -> bool:
    """Copy float32 bits ``values[values_start:][:count]`` to ``out[out_start:]`` as bfloat16; return True if exact."""
    to, start = np.uint64(out_start), np.uint64(values_start)
    lost = np.uint32(0)  # the lower halves, which bfloat16 lacks, over all values
    for k in range(np.uint64(count)):
        bits = values[start + k]
        lost |= bits & np.uint32(0xFFFF)
        out[to + k] = bits >> np.uint32(16)
    return lost == 0


@njit(cache=True, nogil=True)
def requantize_int8(
    out: NDArray[np.uint8],
    out_start: int,
    values: NDArray[np.float32],
    values_start: int,
    count: int,
    factor: np.float32,
) -> bool:
    """Quantize ``values[values_start:][:count]`` by ``factor`` into ``out[out_start:]``; return True if all are exact.

    Results of `dequantize_int8` are exact: the rounded quotient is the original element, whose product is equal again.
    """
    to, start = np.uint64(out_start), np.uint64(values_start)
    is_exact = True
    # If the factor is zero, the value is a zero that keeps only the element's sign. Then +1 or -1 restores this zero.
    factor_sign = np.copysign(np.float32(1), factor)
    for k in range(np.uint64(count)):
        value = values[start + k]
        quotient = value / factor if factor != 0 else np.copysign(np.float32(1), value * factor_sign)
        near = np.int8(np.rint(quotient)) if -128.5 < quotient < 127.5 else np.int8(0)
        is_exact &= np.float32(near) * factor == value
        out[to + k] = np.uint8(near)
    return is_exact
