"""Checks of all values of an array, at the speed of memory: where is the first that cannot be? Pure kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK: Final = 4096


@njit(cache=True, nogil=True)
def first_outside(values: NDArray[Any], low: int, high: int) -> int:
    """Return the first position of a value that is not in low..high, or -1."""
    for start in range(0, values.shape[0], _BLOCK):
        # Blocks without a way out become vector instructions: the sign of either difference tells.
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
    """Return the first position of a value below the one before it, ``last`` before the first; or -1."""
    if values.shape[0] and values[0] < last:
        return 0
    for start in range(0, values.shape[0], _BLOCK):
        block = values[start : start + _BLOCK + 1]
        # Compared, not subtracted: a difference may be too large for its sign.
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
    """Return the first position of a weight that is negative, infinite or not a number, or -1."""
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
