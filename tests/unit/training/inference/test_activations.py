from __future__ import annotations

import numpy as np
import pytest

from gloader.ssd_store import RamFeatures
from gloader.training.inference.activations import FeatureRows, RamRows, SsdRows

VALUES = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
SLABS = [slice(0, 2), slice(2, 5), slice(5, 6)]


def _chunks(columns):
    for start in range(0, len(VALUES), 7):
        yield VALUES[start : start + 7, columns]


@pytest.mark.parametrize("kind", ["ram", "ssd"])
def test_rows_written_by_slabs_are_read_whole(tmp_path, kind) -> None:
    rows = RamRows(num_rows=50, width=6) if kind == "ram" else SsdRows(tmp_path / "layer", num_rows=50)
    for columns in SLABS:
        rows.write_slab(columns, _chunks(columns))
    out = np.full((13, 6), np.nan, dtype=np.float32)
    rows.read(20, 33, out)
    np.testing.assert_array_equal(out, VALUES[20:33])
    picked = np.array([49, 0, 7, 7, 20, 3, 1, 2, 48, 5, 4, 6, 8])
    rows.take(picked, out)
    np.testing.assert_array_equal(out, VALUES[picked])
    rows.close()
    rows.close()
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_fails_leaves_no_readable_slab(tmp_path) -> None:
    rows = SsdRows(tmp_path / "layer", num_rows=50)

    def broken():
        yield VALUES[:7, :2]
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        rows.write_slab(slice(0, 2), broken())
    rows.close()
    assert list(tmp_path.iterdir()) == []


def test_features_are_read_in_order_as_float32() -> None:
    out = np.empty((5, 6), dtype=np.float32)
    FeatureRows(RamFeatures(VALUES.astype(np.float16))).read(10, 15, out)
    np.testing.assert_array_equal(out, VALUES[10:15].astype(np.float16).astype(np.float32))
