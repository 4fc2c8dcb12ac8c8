"""Rounding to float32: numbers that float32 would change, and the text for messages about them.

Features are stored as float32 or narrower floats. Whole numbers such as ids lose digits there, and small numbers become
0, so both are found before they are stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.aligned_memory import plain_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLOAT32_BITS: Final = 24  # bits of float32's significand: whole numbers up to 2**24 are exact


def is_rounded(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the numbers that float32 would change. Pure.

    These are whole numbers that float32 does not hold exactly, and numbers that would become 0. Of whole numbers in a
    float64, only those up to 2**53 count. Beyond it, all floats are whole, and need not be meant as whole numbers.
    """
    if values.dtype.kind in "fb":
        narrow = as_float32(values)
        is_whole = (np.abs(values) <= 2**53) & (np.floor(values) == values)
        return (narrow != values) & (is_whole | (narrow == 0))
    # The check uses magnitudes as uint64, because int64 cannot hold the magnitude of the smallest int64. The magnitude
    # of a negative number is its two's complement.
    wide = values.astype(np.uint64) if values.dtype.kind == "u" else values.astype(np.int64).view(np.uint64)
    magnitude = wide if values.dtype.kind == "u" else np.where(values < 0, ~wide + np.uint64(1), wide)
    # A number is exact if at most 24 bits lie from its first set bit to its last set bit. ``last`` is the value of the
    # last set bit.
    last = magnitude & (~magnitude + np.uint64(1))
    return magnitude // np.maximum(last, np.uint64(1)) >= np.uint64(1 << FLOAT32_BITS)


def as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers as float32. Numbers out of range become 0 or infinite. float32 is not copied. Pure."""
    with np.errstate(over="ignore", under="ignore"):
        return plain_array(values, np.float32)


def of_rounding(value: Any, option: str) -> str:
    """Return the end of a message about a feature that float32 would round. Pure.

    Parameters
    ----------
    value : the feature
    option : the dtype option that accepts the rounding
    """
    result = (
        " to 0. Scale the features"
        if abs(value) < 1
        else ". Features are stored as floats: leave ids and keys out of them"
    )
    return f", which float32 would round{result}, or accept the rounding with {option}"
