"""Features of any bit pattern, and the comparison of what came back with them, bit for bit. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def make_features(num_rows: int, dim: int, dtype: str, *, seed: int = 0) -> NDArray[Any]:
    """Return features of any bit pattern, NaNs with payloads among them. Pure.

    Parameters
    ----------
    num_rows : N
    dim : F
    dtype : a numpy dtype's name, or "bfloat16", whose elements are stored as uint16
    seed : equal arguments give equal features

    Returns
    -------
    (N, F), C-contiguous.
    """
    stored = np.dtype({"bfloat16": "uint16"}.get(dtype, dtype))
    bits = np.random.default_rng(seed).integers(0, 256, num_rows * dim * stored.itemsize, dtype=np.uint8)
    return bits.view(stored).reshape(num_rows, dim)


def widen(array: NDArray[Any], dtype: str, scale: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Return the float32 rows that stored rows must become: numpy's own conversion. Pure.

    Parameters
    ----------
    array : (N, F), as stored
    dtype : of the elements, "bfloat16" for those stored as uint16
    scale : (N,) what an int8 row is multiplied by; None: nothing
    """
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):  # float16 signalling NaNs
        wide = array.astype(np.float32)
    return wide if scale is None else wide * scale[:, None]


def same_bits(first: NDArray[Any], second: NDArray[Any]) -> bool:
    """Return whether two arrays have the same dtype, shape and bits: a NaN equals itself. Pure."""
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()
