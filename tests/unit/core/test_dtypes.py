"""The page of dtypes: what is stored, how it becomes float32, and what features cannot be stored as."""

from __future__ import annotations

import numpy as np
import pytest

from gloader.cache import SlotCache
from gloader.core.dtypes import FEATURE_DTYPES, STORED_DTYPES, RowFormat, feature_dtype
from gloader.errors import ConfigError, ShapeError
from gloader.ssd_store import RamFeatures
from gloader.types import CacheStep


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
    form = _form(name, num_rows=1, dim=4)
    values = np.array([[0.0, 1.0, -2.0, 24.0]], np.float32)  # exact in every dtype, times the factor
    factor = np.float32(1.0 if form.scale is None else form.scale[0])
    stored = {
        "float32": values,
        "float16": values.astype(np.float16),
        "bfloat16": (values.view(np.uint32) >> 16).astype(np.uint16),
        "int8": values.astype(np.int8),
    }[name]
    assert stored.dtype == form.dtype
    found = np.empty_like(values)
    source = RamFeatures(stored, is_bfloat16=form.is_bfloat16, scale=form.scale)
    source.read_into(np.array([0]), found)
    assert found.tolist() == (values * factor).tolist()
    row, at, none = np.array([0]), np.array([0]), np.empty(0, np.int64)
    with SlotCache(1, dim=4, dtype=form.dtype, is_bfloat16=form.is_bfloat16, scale=form.scale) as cache:
        admit = CacheStep(hit_pos=none, hit_slot=none, miss_pos=at, miss_row=row, admit_pos=at, admit_slot=at)
        cache.admit(admit, row, found)
        held = np.empty((1, form.row_bytes), np.uint8)
        assert cache.copy_held(row, held).tolist() == [True]
    assert held.view(form.dtype).tolist() == stored.tolist()


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
