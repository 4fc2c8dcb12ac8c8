"""Block copies and prefetches in kernels."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from gloader.core.numba_ops import copy_block, prefetch


@njit
def _copy(target, to, source, start, length):
    prefetch(source, start + 10**9)
    copy_block(target, to, source, start, length)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_a_block_is_copied_and_nothing_beside_it(dtype: type) -> None:
    source = np.arange(100, dtype=dtype)
    for to, start, length in ((0, 0, 100), (3, 7, 11), (99, 0, 1), (5, 5, 0)):
        target = np.full(100, 77, dtype=dtype)
        expected = target.copy()
        expected[to : to + length] = source[start : start + length]
        _copy(target, to, source, start, length)
        assert np.array_equal(target, expected)
