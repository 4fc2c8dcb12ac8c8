from __future__ import annotations

import numpy as np
import pytest

from gloader.ssd_store import RamFeatures
from gloader.training.inference.layer_rows import InputRows, RamRows, SsdRows

VALUES = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
SLABS = [slice(0, 2), slice(2, 5), slice(5, 6)]


def _chunks(columns):
    for start in range(0, len(VALUES), 7):
        yield VALUES[start : start + 7, columns]


@pytest.mark.parametrize("kind", ["ram", "ssd"])
def test_rows_written_by_slabs_are_read_whole(tmp_path, kind) -> None:
    rows = (
        RamRows(num_rows=50, width=6)
        if kind == "ram"
        else SsdRows(tmp_path / "layer", num_rows=50, num_slabs=3)
    )
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


@pytest.mark.parametrize("num_slabs", [1, 3, 300])
def test_many_slabs_take_the_memory_of_few(num_slabs, tmp_path) -> None:
    """The plan has room for one reader of all slabs; 256 with a ring each took 250 MB."""
    values = np.arange(50 * num_slabs, dtype=np.float32).reshape(50, num_slabs)
    rows = SsdRows(tmp_path / "layer", num_rows=50, num_slabs=num_slabs)
    for number in range(num_slabs):
        rows.write_slab(slice(number, number + 1), [values[:, number : number + 1]])
    rings = [store._lane.bounce_bytes for _, store in rows._slabs]
    # A row of 4 bytes may begin in one page and end in the next.
    assert sum(rings) <= max(1 << 20, 8192 * num_slabs)
    out = np.empty((20, num_slabs), np.float32)
    rows.read(30, 50, out)
    np.testing.assert_array_equal(out, values[30:50])
    rows.close()


def test_a_writer_that_fails_leaves_no_readable_slab(tmp_path) -> None:
    rows = SsdRows(tmp_path / "layer", num_rows=50, num_slabs=3)

    def broken():
        yield VALUES[:7, :2]
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        rows.write_slab(slice(0, 2), broken())
    rows.close()
    assert list(tmp_path.iterdir()) == []


def test_features_are_read_in_order_as_float32() -> None:
    out = np.empty((5, 6), dtype=np.float32)
    InputRows(RamFeatures(VALUES.astype(np.float16))).read(10, 15, out)
    np.testing.assert_array_equal(out, VALUES[10:15].astype(np.float16).astype(np.float32))
