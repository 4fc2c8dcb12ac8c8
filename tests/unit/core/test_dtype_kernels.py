"""Narrow elements: every 16-bit number there and back, every int8 with many scales, and what does not fit."""

from __future__ import annotations

import numpy as np
import pytest

from gloader.core.value_kernels import (
    dequantize_int8,
    narrow_to_bfloat16,
    narrow_to_float16,
    requantize_int8,
    widen_bfloat16,
    widen_float16,
)

ALL = np.arange(1 << 16, dtype=np.uint16)


def test_every_half_is_numpys_float_and_comes_back() -> None:
    floats, again = np.empty(1 << 16, dtype=np.float32), np.empty(1 << 16, dtype=np.uint16)
    widen_float16(floats, 0, ALL, 0, len(ALL))
    numbers = ~np.isnan(floats)
    assert np.array_equal(floats[numbers], ALL.view(np.float16)[numbers].astype(np.float32))
    assert narrow_to_float16(again, 0, floats.view(np.uint32), 0, len(ALL))
    assert np.array_equal(again, ALL)


def test_every_bfloat16_is_the_upper_half_of_a_float_and_comes_back() -> None:
    floats, again = np.empty(1 << 16, dtype=np.float32), np.empty(1 << 16, dtype=np.uint16)
    widen_bfloat16(floats, 0, ALL, 0, len(ALL))
    assert np.array_equal(floats.view(np.uint32), ALL.astype(np.uint32) << 16)
    assert narrow_to_bfloat16(again, 0, floats.view(np.uint32), 0, len(ALL))
    assert np.array_equal(again, ALL)


def test_every_byte_times_any_scale_comes_back() -> None:
    octets = np.arange(256, dtype=np.uint8)
    rng = np.random.default_rng(0)
    scales = np.concatenate([rng.random(2000), 10.0 ** rng.uniform(-44, 36, 2000), [1e-45, -2e-45, -1.5, 1]])
    floats, again = np.empty(256, dtype=np.float32), np.empty(256, dtype=np.uint8)
    for scale in scales.astype(np.float32):
        dequantize_int8(floats, 0, octets, 0, 256, scale)
        assert np.array_equal(floats, octets.view(np.int8) * scale)
        assert requantize_int8(again, 0, floats, 0, 256, scale)
        assert np.array_equal(again, octets)


@pytest.mark.parametrize("value", [0.1, 65_519.0, 1e9, 1.5 * 2.0**-24, 1e-10, 2.0**-14 * (1 + 2.0**-11)])
def test_what_no_half_stands_for_is_noticed(value: float) -> None:
    bits = np.array([1.0, value], dtype=np.float32).view(np.uint32)
    taken = np.empty(2, dtype=np.uint16)
    assert narrow_to_float16(taken, 0, bits, 0, 1)
    assert not narrow_to_float16(taken, 0, bits, 0, 2)


def test_what_no_scaled_byte_stands_for_is_noticed() -> None:
    taken = np.empty(1, dtype=np.uint8)
    for value in (0.75, 128.0, -129.0, 1e30, np.inf, np.nan):
        assert not requantize_int8(taken, 0, np.array([value], dtype=np.float32), 0, 1, np.float32(1))
    assert requantize_int8(taken, 0, np.zeros(1, dtype=np.float32), 0, 1, np.float32(0))
    assert not requantize_int8(taken, 0, np.ones(1, dtype=np.float32), 0, 1, np.float32(0))
