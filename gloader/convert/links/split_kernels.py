"""Loops that deal edges out. Callers check the arrays, kernels do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from gloader.core.hashing import GOLDEN, mix64

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray


@njit(cache=True, nogil=True)
def deal_pairs(
    src: IdArray, dst: IdArray, is_ordered: bool, key: Any, first: Any, second: Any, parts: NDArray[np.uint8]
) -> None:
    """Write the part of each edge, 0, 1 or 2, by a hash of its pair.

    Parameters
    ----------
    src, dst : (n,) ends
    is_ordered : whether the ends are of different types; else (u, v) and (v, u) are one pair
    key : uint64, of the split
    first, second : uint64, the hashes at which parts 1 and 2 begin
    parts : (n,) written
    """
    for i in range(src.shape[0]):
        low, high = src[i], dst[i]
        if not is_ordered and low > high:
            low, high = high, low
        drawn = mix64(mix64(key + np.uint64(low) * GOLDEN) + np.uint64(high))
        parts[i] = np.uint8(0) if drawn < first else np.uint8(1) if drawn < second else np.uint8(2)
