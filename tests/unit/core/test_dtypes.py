"""The page of dtypes: what is stored, how it becomes float32, and what features cannot be stored as."""

from __future__ import annotations

import numpy as np
import pytest

from gloader.core.dtypes import FEATURE_DTYPES, RAW, STORED_DTYPES, RowFormat, feature_dtype
from gloader.core.value_kernels import decode, encode
from gloader.errors import ConfigError, ShapeError


def _form(name: str, *, num_rows: int = 3, dim: int = 5) -> RowFormat:
    element = STORED_DTYPES[name]
    scale = np.array([0.5, 2.0, 0.25], np.float32)[:num_rows] if element.has_scale else None
    return RowFormat(dtype=element.stored, dim=dim, is_bfloat16=name == "bfloat16", scale=scale)


@pytest.mark.parametrize("name", STORED_DTYPES)
def test_every_dtype_is_found_again_from_its_form(name: str) -> None:
    element = STORED_DTYPES[name]
    assert element.name == name
    assert _form(name).element == element
    assert element.stored == np.dtype("uint16" if name == "bfloat16" else name)


@pytest.mark.parametrize("name", FEATURE_DTYPES)
def test_features_of_every_dtype_become_float32_and_come_back(name: str) -> None:
    form = _form(name, dim=4)
    assert form.way_to(np.dtype(np.float32)) == form.way
    if form.way == RAW:
        assert name == "float32"
        return
    values = np.array([0.0, 1.0, -2.0, 24.0], np.float32)  # exact in every dtype, times the factor
    factor = np.float32(1.0 if form.scale is None else form.scale[0])
    values *= factor
    stored = np.zeros(form.row_bytes, np.uint8)
    halves = stored[: len(stored) // 2 * 2].view(np.uint16)
    assert encode(form.way, stored, halves, 0, form.row_bytes, values, values.view(np.uint32), 0, factor)
    expected = {
        "float16": values.astype(np.float16),
        "bfloat16": (values.view(np.uint32) >> 16).astype(np.uint16),
        "int8": (values / factor).astype(np.int8),
    }[name]
    assert stored.view(form.dtype).tolist() == expected.tolist()
    found = np.empty_like(values)
    decode(form.way, found, 0, stored, halves, 0, form.row_bytes, factor)
    assert found.tolist() == values.tolist()


def test_a_row_has_its_factor_beside_it() -> None:
    assert {name: STORED_DTYPES[name].row_bytes(10) for name in FEATURE_DTYPES} == {
        "float32": 40,
        "float16": 20,
        "bfloat16": 20,
        "int8": 14,
    }


def test_rows_without_a_way_to_float32_are_refused() -> None:
    wanted = np.dtype(np.float32)
    with pytest.raises(ShapeError, match=r"rows stored as int8 can be read as int8$"):
        RowFormat(dtype=np.dtype(np.int8), dim=2).way_to(wanted)
    with pytest.raises(ShapeError, match="rows stored as uint16 can be read as uint16 or float32"):
        _form("bfloat16").way_to(np.dtype(np.float64))


def test_only_dtypes_of_features_are_taken_for_features() -> None:
    assert feature_dtype(np.float16) is STORED_DTYPES["float16"]
    assert feature_dtype("bfloat16") is STORED_DTYPES["bfloat16"]
    for wrong in ("float64", "uint16", "complex", "nonsense"):
        with pytest.raises(
            ConfigError, match=r"cannot be stored as .*; allowed: float32, float16, bfloat16, int8"
        ):
            feature_dtype(wrong)
