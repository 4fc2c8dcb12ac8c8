"""The bijection: the same in kernels and in Python, and undone by its inverse."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gloader.core.hashing import GOLDEN, MUL_1, MUL_2, inverse, mix64, mix_int, unmix64

WORDS = st.integers(0, 2**64 - 1)


@given(x=WORDS)
def test_the_kernel_is_the_python_and_is_undone(x: int) -> None:
    with np.errstate(over="ignore"):  # interpreted kernels multiply numpy scalars
        mixed = int(mix64(np.uint64(x)))
        assert mixed == mix_int(x)
        assert int(unmix64(np.uint64(mixed))) == x


def test_inverses() -> None:
    assert all(int(odd) * int(inverse(odd)) % 2**64 == 1 for odd in (GOLDEN, MUL_1, MUL_2))
