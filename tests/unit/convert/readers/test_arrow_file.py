"""Arrow files and streams as tables."""

import numpy as np
import pyarrow as pa
import pyarrow.feather as pafeather
import pyarrow.ipc as paipc
import pytest

from gloader.convert.readers import typed_table
from gloader.convert.readers.open_table import is_table, open_table
from gloader.errors import GraphError, SourceError

N = 1000
TABLE = pa.table(
    {
        "src": pa.array(range(N), pa.int32()),
        "word": pa.array([f"w{i % 7}" for i in range(N)]).dictionary_encode(),
        "vector": pa.array(np.arange(2.0 * N).reshape(N, 2).tolist(), pa.list_(pa.float32())),
        "key": [f"key {i}" for i in range(N)],
    }
)
FORMS = ("lz4", "zstd", "uncompressed", "stream", "packed stream")


def write(path, form, table=TABLE, rows=300):
    """Write a table in one of the `FORMS`, in batches of ``rows``."""
    if "stream" not in form:
        pafeather.write_feather(table, path, compression=form, chunksize=rows)
        return path
    options = paipc.IpcWriteOptions(compression="lz4" if "packed" in form else None)
    with paipc.new_stream(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_file_is_the_table(tmp_path, form):
    table = open_table(write(tmp_path / "a.arrow", form))
    assert table.names == ("src", "word", "vector", "key")
    assert [table.kind(name) for name in table.names] == ["integer", "string", "list of 2", "string"]
    assert (table.num_rows, table.count_rows(), table.width("vector")) == (N, N, 2)
    chunks = list(table.read({"vector": "float32", "src": "int64"}, error=SourceError))
    np.testing.assert_array_equal(np.concatenate([rows for rows, _ in chunks]).ravel(), np.arange(2 * N))
    np.testing.assert_array_equal(np.concatenate([ids for _, ids in chunks]), np.arange(N))
    batches = list(table.read_arrow(["key", "word"], error=SourceError))
    assert batches[0].schema.types == [pa.string(), pa.string()]
    assert [key for batch in batches for key in batch.column("key").to_pylist()] == TABLE["key"].to_pylist()
    assert [w for batch in batches for w in batch.column("word").to_pylist()] == TABLE["word"].to_pylist()


def test_files_of_this_kind_are_tables(tmp_path):
    for name in ("a.arrow", "b.feather", "c.ipc", "d.arrows"):
        assert is_table(write(tmp_path / name, "lz4"))
    parts = open_table(tmp_path / "*.*")
    assert parts.num_rows == 4 * N
    assert parts.arrow_type("word") == pa.string()


def test_a_large_batch_is_read_in_slices(tmp_path, monkeypatch):
    table = open_table(write(tmp_path / "a.arrow", "uncompressed", rows=N))
    monkeypatch.setattr(typed_table, "_BATCH_TEXTS", 64)
    sizes = [batch.num_rows for batch in table.read_arrow(["key"], error=SourceError)]
    assert sizes == [64] * (N // 64) + [N % 64]


@pytest.mark.parametrize("form", ["lz4", "zstd", "packed stream"])
def test_memory_for_unpacking_a_batch_is_known_before(tmp_path, form):
    table = pa.table({"a": np.zeros(100_000), "b": np.zeros(100_000, np.int32)})
    path = write(tmp_path / "a.feather", form, table, rows=60_000)
    assert path.stat().st_size < 30_000
    assert 12 * 60_000 <= open_table(path).reading_bytes(["a"]) < 12 * 60_000 + 200


def test_memory_for_views_of_the_file_is_none(tmp_path):
    plain = TABLE.select(["src", "key"])
    assert open_table(write(tmp_path / "a.arrow", "uncompressed", plain)).reading_bytes(["src"]) == 0


def test_a_file_without_rows_is_empty(tmp_path):
    for form in ("lz4", "stream"):
        table = open_table(write(tmp_path / "a.arrow", form, TABLE.slice(0, 0)))
        assert (table.num_rows, table.kind("vector")) == (0, "empty")
        assert list(table.read({"src": "int64"}, error=SourceError)) == []


def rows_or_error(path):
    """Return the number of rows in the file's header and in its batches, or the text of the error."""
    try:
        table = open_table(path)
        return table.num_rows, sum(
            batch.num_rows for batch in table.read_arrow(table.names, error=SourceError)
        )
    except SourceError as error:
        return str(error)


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_is_cut_off_is_named(tmp_path, form):
    path = write(tmp_path / "a.arrow", form)
    content = path.read_bytes()
    # A stream that ends between two batches is complete, because its end needs no mark.
    allowed = [(rows, rows) for rows in (0, 300, 600, 900)] if "stream" in form else []
    for size in range(1, len(content) - 400, 997):
        path.write_bytes(content[:size])
        found = rows_or_error(path)
        assert found in allowed or "a.arrow" in found


def test_a_stream_that_is_cut_off_is_refused_before_it_is_read(tmp_path):
    path = write(tmp_path / "a.arrow", "stream")
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(SourceError, match=r"a\.arrow is truncated: its message at byte \d+ ends at byte"):
        open_table(path)


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_file_is_an_error_or_another_table(tmp_path, form):
    path = write(tmp_path / "a.arrow", form, TABLE.slice(0, 50))
    content, draw = path.read_bytes(), np.random.default_rng(0)
    num_errors = 0
    for _ in range(100):
        damaged = bytearray(content)
        for at in draw.integers(0, len(content), 3):
            damaged[at] = draw.integers(256)
        path.write_bytes(damaged)
        found = rows_or_error(path)
        num_errors += isinstance(found, str)
        assert isinstance(found, tuple) or "a.arrow" in found
    assert num_errors > 10


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "no Arrow file, or is truncated"),
        (b"src,dst\n0,1\n1,2\n", "no Arrow file, or is truncated|is truncated: its message"),
        (b"FEA1" + b"\0" * 100, r"Feather file of version 1; pandas\.read_feather"),
    ],
)
def test_other_files_are_refused(tmp_path, content, text):
    (tmp_path / "a.feather").write_bytes(content)
    with pytest.raises(SourceError, match=rf"a\.feather.*({text})"):
        open_table(tmp_path / "a.feather")


def test_a_missing_id_is_named(tmp_path):
    table = open_table(write(tmp_path / "a.arrow", "lz4", pa.table({"src": [0, None, 2]})))
    with pytest.raises(GraphError, match=r"a\.arrow: row 1, column 'src' is null"):
        list(table.read({"src": "int64"}, error=GraphError))


def test_two_columns_of_one_name_are_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(SourceError, match="has the column 'a' twice"):
        open_table(write(tmp_path / "a.arrow", "stream", table))
