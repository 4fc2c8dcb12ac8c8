"""Columns of numbers and of lists of them in Parquet files."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gloader.convert.readers import typed_table
from gloader.convert.readers.parquet_table import open_parquet_table
from gloader.errors import GraphError, ShapeError, SourceError


def write(path, rows, kind=None):
    pq.write_table(pa.table({"x": pa.array(rows, kind), "y": range(len(rows))}), path)
    return path


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int32()), pa.large_list(pa.uint8()), pa.list_(pa.int64(), 3), pa.list_(pa.float64())]
)
def test_all_forms_of_lists_are_rows(tmp_path, kind, monkeypatch):
    rows = np.arange(60).reshape(20, 3)
    monkeypatch.setattr(typed_table, "_BATCH_NUMBERS", 21)
    table = open_parquet_table(write(tmp_path / "a.parquet", rows.tolist(), kind))
    assert (table.kind("x"), table.width("x"), table.width("y")) == ("list of 3", 3, 1)
    number = "float32" if kind.value_type == pa.float64() else "int64"
    chunks = [chunk for (chunk,) in table.read({"x": number}, error=SourceError)]
    assert max(map(len, chunks)) == 7
    np.testing.assert_array_equal(np.concatenate(chunks), rows)


def test_lists_without_rows_are_of_no_length(tmp_path):
    table = open_parquet_table(write(tmp_path / "a.parquet", [], pa.list_(pa.int64())))
    assert (table.kind("x"), table.width("x")) == ("empty", 1)
    assert list(table.read({"x": "int64"}, error=SourceError)) == []


@pytest.mark.parametrize(
    ("rows", "number", "error", "text"),
    [
        ([["a"]], "float32", SourceError, "has type list<.*string> ?; it must hold numbers"),
        ([[0.5]], "int64", GraphError, "has type list<.*double> ?; ids are whole numbers"),
        (
            [None, [1]],
            "float32",
            ShapeError,
            "row 0 has no list in column 'x'; every row must have a list of 1",
        ),
        (
            [[], [1]],
            "float32",
            ShapeError,
            "row 0 has a list of 0 in column 'x'; every row must have a list of 1",
        ),
        (
            [[1], [2, 3]],
            "float32",
            ShapeError,
            "row 1 has a list of 2 in column 'x'; every row must have a list of 1",
        ),
        (
            [[1, 2], None],
            "int64",
            ShapeError,
            "row 1 has no list in column 'x'; every row must have a list of 2",
        ),
        ([[1, 2], [None, 3]], "int64", GraphError, "row 1, column 'x' is null"),
        ([1, None], "int64", GraphError, "row 1, column 'x' is null"),
        ([0.0, 1.0, None], "int64", GraphError, "whole numbers, and row 2 has none, so pandas wrote"),
        (
            [0.0, 1.0],
            "int64",
            GraphError,
            "has type double; ids are whole numbers: if all of these ids are, write",
        ),
    ],
)
def test_rows_that_are_none_are_refused(tmp_path, rows, number, error, text):
    table = open_parquet_table(write(tmp_path / "a.parquet", rows))
    with pytest.raises(error, match=text):
        list(table.read({"x": number}, error=error))


@pytest.mark.parametrize("rows", [[1, None], [0.5, None], [[1.0], [None]], [[1], [None]]])
def test_floats_that_are_missing_are_nan(tmp_path, rows):
    table = open_parquet_table(write(tmp_path / "a.parquet", rows))
    ((column,),) = table.read({"x": "float32"}, error=SourceError)
    np.testing.assert_array_equal(np.isnan(column.ravel()), [False, True])


def test_decimals_are_numbers(tmp_path):
    table = open_parquet_table(write(tmp_path / "a.parquet", [1, 2], pa.decimal128(5, 2)))
    ((column,),) = table.read({"x": "float32"}, error=SourceError)
    assert (table.kind("x"), column.tolist()) == ("number", [1, 2])


def test_a_file_that_is_cut_off_is_named(tmp_path):
    path = write(tmp_path / "a.parquet", np.arange(6000).reshape(2000, 3).tolist())
    table = open_parquet_table(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(SourceError, match=r"a\.parquet is truncated or corrupt"):
        list(table.read({"x": "int64"}, error=SourceError))


@pytest.mark.parametrize("form", ["columns", "lists"])
def test_a_file_is_read_in_pieces(tmp_path, form):
    rows = np.random.default_rng(0).standard_normal((40_000, 64)).astype(np.float32)  # 10 MB
    columns = {f"f{i}": column for i, column in enumerate(rows.T)} if form == "columns" else {"x": list(rows)}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=4000)
    table = open_parquet_table(tmp_path / "a.parquet")
    before, most, count = pa.total_allocated_bytes(), 0, 0
    for chunk in table.read(dict.fromkeys(table.names, "float32"), error=SourceError):
        count += len(chunk[0])
        most = max(most, pa.total_allocated_bytes() - before)
    assert count == len(rows)
    assert most < 0.7 * rows.nbytes, most


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_batches_of_long_texts_have_few_rows(tmp_path, is_dictionary):
    """A batch of texts takes about 1 MiB, whatever their length. A dictionary counts by its values in the rows."""
    texts = pa.array([f"{row:06}".ljust(600, "k") for row in range(6_000)])
    column = texts.dictionary_encode() if is_dictionary else texts
    pq.write_table(pa.table({"key": column}), tmp_path / "t.parquet")
    batches = list(open_parquet_table(tmp_path / "t.parquet").read_arrow(["key"], error=SourceError))
    assert pa.concat_arrays([batch.column(0) for batch in batches]).cast(pa.string()).equals(texts)
    assert 1_500 <= max(batch.num_rows for batch in batches) <= 1_800
