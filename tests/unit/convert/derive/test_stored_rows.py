import numpy as np
import pytest

from gloader.convert.stored_parts import StoredColumnRows, stored_column
from gloader.dataset.schema import checked_schema
from gloader.dataset.writer import DatasetWriter
from gloader.errors import SourceError

WANTED = np.array([0, 2, 5])


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 0), ("float16", 1e-3), ("bfloat16", 1e-2), ("int8", 1e-2)]
)
def test_stretches_of_a_column_are_read_before_it_is_committed(tmp_path, dtype, tolerance):
    # Every row has another scale: a row beside another row's scale would be far off.
    values = np.arange(1, 41, dtype=np.float32)[:, None] * np.array([[0.01, -0.02, 0.03]], np.float32)
    with pytest.raises(KeyError, match="enough"), writer(tmp_path) as made:
        with made.nodes("a").features(3, dtype) as column:
            column.append(values)
        stored = stored_column(column, dtype=dtype, num_rows=40, dim=3)
        with StoredColumnRows(stored) as rows:
            for start in (7, 20, 30):  # forwards, as stretches are
                found = rows.read(start, start + 6, WANTED)
                assert found.dtype == np.float32
                assert np.allclose(found, values[start + WANTED], atol=tolerance)
        raise KeyError("enough")


def test_a_column_that_became_shorter_is_an_error(tmp_path):
    np.save(tmp_path / "rows.npy", np.ones((4, 3), np.float32))
    column = stored_column_of(tmp_path / "rows.npy")
    with StoredColumnRows(column) as rows, pytest.raises(SourceError, match=r"rows\.npy is corrupt: it ends"):
        rows.read(2, 9, WANTED)


def writer(tmp_path):
    schema = checked_schema({"a": 40}, [("a", "to", "a")])
    return DatasetWriter(tmp_path / "out", schema=schema, name="x", num_classes=2)


def stored_column_of(path):
    from gloader.convert.stored_parts import StoredColumn

    return StoredColumn(rows=path, scales=None, dtype="float32", num_rows=4, dim=3)
