"""Kernels of embedding tables: the first rows by formula, and the hash index of the append buffer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.hashing import GOLDEN, mix64
from gloader.core.kernels import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

UNIFORM: Final = 0
NORMAL: Final = 1
ZEROS: Final = 2

_S11: Final = np.uint64(11)
_UNIT: Final = 2.0**-53  # a word's upper 53 bits are a float64 in [0, 1) after this factor


@njit(cache=True, nogil=True)
def fill_rows(
    ids: IdArray,
    at: IdArray,
    seed: int,
    kind: int,
    scale: float,
    state: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Write the first rows of ``ids`` (M,) to the rows ``at`` (M,) of ``out`` (K, dim + len(state)).

    Parameters
    ----------
    ids, at : (M,) row ids and rows in ``out``, in range
    seed : key of the hash
    kind : `UNIFORM`, `NORMAL` or `ZEROS`
    scale : half width of the uniform distribution, or standard deviation
    state : first value of each state column
    out : the rows, written
    """
    dim = out.shape[1] - state.shape[0]
    key = mix64(np.uint64(seed) + GOLDEN)
    for i in range(ids.shape[0]):
        row = at[i]
        word = mix64(key ^ mix64(np.uint64(ids[i]) + GOLDEN))
        for column in range(dim):
            if kind == ZEROS:
                out[row, column] = np.float32(0.0)
                continue
            word += GOLDEN
            unit = np.float64(np.int64(mix64(word) >> _S11)) * _UNIT
            if kind == UNIFORM:
                out[row, column] = np.float32((2.0 * unit - 1.0) * scale)
            else:
                # Half a step is added, so that the argument is neither 0 nor 1.
                out[row, column] = np.float32(normal_quantile(unit + 0.5 * _UNIT) * scale)
        for column in range(state.shape[0]):
            out[row, dim + column] = state[column]
