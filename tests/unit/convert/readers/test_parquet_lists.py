"""Columns of lists: ids or features, all rows of one length."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gloader.convert.readers import parquet_lists
from gloader.convert.readers.parquet_lists import NODE_IDS, NUMBERS, ParquetLists, is_list_column
from gloader.convert.readers.parquet_table import ParquetTable
from gloader.errors import GraphError, ShapeError, SourceError


def write(path, rows, kind=None):
    pq.write_table(pa.table({"x": pa.array(rows, kind), "y": range(len(rows))}), path)
    return path


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int32()), pa.large_list(pa.uint8()), pa.list_(pa.int64(), 3), pa.list_(pa.float64())]
)
def test_all_forms_of_lists_are_rows(tmp_path, kind, monkeypatch):
    rows = np.arange(60).reshape(20, 3)
    path = write(tmp_path / "a.parquet", rows.tolist(), kind)
    monkeypatch.setattr(parquet_lists, "_BATCH_NUMBERS", 21)
    entries = NUMBERS if kind.value_type == pa.float64() else NODE_IDS
    lists = ParquetLists.open(path, "x", entries)
    assert (lists.num_rows, lists.dim, lists.dtype) == (20, 3, entries.dtype)
    for max_rows in (1, 4, 100):
        chunks = list(lists.chunks(max_rows))
        assert max(map(len, chunks)) <= min(7, max_rows)
        assert {chunk.dtype for chunk in chunks} == {entries.dtype}
        np.testing.assert_array_equal(np.concatenate(chunks), rows)
    assert is_list_column(path, "x")
    assert not is_list_column(path, "y")


def test_a_table_without_rows_has_rows_of_one(tmp_path):
    lists = ParquetLists.open(write(tmp_path / "a.parquet", [], pa.list_(pa.int64())), "x", NODE_IDS)
    assert (lists.num_rows, lists.dim, sum(map(len, lists.chunks(5)))) == (0, 1, 0)


@pytest.mark.parametrize(
    ("rows", "entries", "error", "text"),
    [
        ([1, 2], NUMBERS, SourceError, "has type int64; it must hold lists of numbers"),
        ([["a"]], NUMBERS, SourceError, "must hold lists of numbers"),
        ([[0.5]], NODE_IDS, GraphError, "has type list<.*double> ?; it must hold lists of node ids"),
        ([None, [1]], NUMBERS, ShapeError, "row 0 has no list in column 'x'; every row has"),
        ([[1], [2, 3]], NUMBERS, ShapeError, "row 1 has a list of 2 in column 'x'; row 0 has 1"),
        ([[1, 2], None], NODE_IDS, ShapeError, "row 1 has no list in column 'x'; row 0 has 2"),
        (
            [[1, 2], [3, None]],
            NUMBERS,
            SourceError,
            "row 1 has a null in column 'x'; every entry is a number",
        ),
        ([[1, 2], [None, 3]], NODE_IDS, GraphError, "row 1 has a null in column 'x'; every entry is a node"),
    ],
)
def test_lists_that_are_no_rows_are_refused(tmp_path, rows, entries, error, text):
    path = write(tmp_path / "a.parquet", rows)
    with pytest.raises(error, match=text):
        list(ParquetLists.open(path, "x", entries).chunks(5))


def test_an_empty_first_list_is_refused(tmp_path):
    path = write(tmp_path / "a.parquet", [[], [1]], pa.list_(pa.int64()))
    with pytest.raises(ShapeError, match="row 0 has an empty list in column 'x'"):
        ParquetLists.open(path, "x", NODE_IDS)


def test_a_file_that_is_cut_off_is_named(tmp_path):
    path = write(tmp_path / "a.parquet", np.arange(6000).reshape(2000, 3).tolist())
    lists = ParquetLists.open(path, "x", NODE_IDS)
    path.write_bytes(path.read_bytes()[:2000])
    for read in (lambda: list(lists.chunks(5)), lambda: is_list_column(path, "x")):
        with pytest.raises(SourceError, match=r"a\.parquet is truncated or corrupt"):
            read()


@pytest.mark.parametrize("form", ["columns", "lists"])
def test_a_file_is_read_in_pieces(tmp_path, form):
    rows = np.random.default_rng(0).standard_normal((40_000, 64)).astype(np.float32)  # 10 MB
    columns = {f"f{i}": column for i, column in enumerate(rows.T)} if form == "columns" else {"x": list(rows)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=4000)
    if form == "columns":
        table = ParquetTable.open(tmp_path / "a.parquet")
        chunks = table.read(dict.fromkeys(table.names, "float32"), error=SourceError)
    else:
        chunks = ParquetLists.open(tmp_path / "a.parquet", "x", NUMBERS).chunks(1000)
    before, most, count = pa.total_allocated_bytes(), 0, 0
    for chunk in chunks:
        count += len(chunk[0]) if form == "columns" else len(chunk)
        most = max(most, pa.total_allocated_bytes() - before)
    assert count == len(rows)
    assert most < 0.7 * rows.nbytes, most
