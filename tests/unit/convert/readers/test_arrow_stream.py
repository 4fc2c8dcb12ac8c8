"""Streams of Arrow from other programs, read once into a file."""

import errno
import os

import numpy as np
import pyarrow as pa
import pyarrow.dataset as padataset
import pytest

from gloader.convert.readers import arrow_stream
from gloader.convert.readers.arrow_stream import spilled_stream
from gloader.convert.readers.table_streams import ColumnNotes
from gloader.errors import SourceError, StoreWriteError
from gloader.ssd_store.os_io import OsIO
from gloader.testing.faults import EVERY_CALL, FaultyOS

TABLE = pa.table({"src": [3, 1, 2], "key": ["a", None, "cc"]})


class Capsule:
    """An object with nothing but the method of Arrow's PyCapsule Interface."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def values(table, *columns):
    batches = list(table.read_arrow(columns, error=SourceError))
    return [[value for batch in batches for value in batch.column(name).to_pylist()] for name in columns]


@pytest.mark.parametrize(
    "make",
    [
        lambda: TABLE,
        lambda: Capsule(TABLE),
        lambda: TABLE.to_reader(max_chunksize=1),
        lambda: TABLE.to_batches()[0],
        lambda: padataset.dataset(TABLE),
        lambda: padataset.dataset(TABLE).scanner(),
        lambda: pytest.importorskip("pandas").DataFrame({"src": [3, 1, 2], "key": ["a", None, "cc"]}),
        lambda: pytest.importorskip("polars").DataFrame({"src": [3, 1, 2], "key": ["a", None, "cc"]}),
        lambda: pytest.importorskip("duckdb").sql("from (values (3, 'a'), (1, null), (2, 'cc')) t(src, key)"),
    ],
    ids=["table", "capsule", "reader", "batch", "dataset", "scanner", "pandas", "polars", "duckdb"],
)
def test_every_kind_of_stream_can_be_read_again(tmp_path, make):
    table = spilled_stream(make(), tmp_path, "edges")
    for _ in range(2):
        assert values(table, "key", "src") == [["a", None, "cc"], [3, 1, 2]]
    assert (table.num_rows, table.kind("src"), table.kind("key")) == (3, "integer", "string")


def test_dictionaries_and_views_are_written_as_their_values(tmp_path):
    words = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "d"]).dictionary_encode()]
    table = pa.table(
        {"word": pa.chunked_array(words), "view": pa.array(["1", "2", "3", "4"], pa.string_view())}
    )
    spilled = spilled_stream(table, tmp_path, "nodes")
    assert values(spilled, "word", "view") == [["a", "b", "c", "d"], ["1", "2", "3", "4"]]
    assert spilled.arrow_type("word") == pa.string()


def test_the_disk_is_stated(tmp_path, caplog):
    caplog.set_level("INFO")
    notes = ColumnNotes()
    table = pa.table({"src": np.zeros(1 << 20, np.int64)})
    spilled_stream(table, tmp_path, "edges", notes=notes)
    (line,) = notes.lines
    assert line == "edges: a stream of 1,048,576 rows, kept in 8.39 MB of temporary disk space"
    (file,) = tmp_path.iterdir()
    assert f"{line} at {file}" in caplog.text
    assert file.stat().st_size == pytest.approx(8 << 20, abs=2000)


def test_large_batches_are_written_in_slices(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_stream, "_SLICE_BYTES", 1000)
    table = spilled_stream(pa.table({"src": range(1000)}), tmp_path, "edges")
    sizes = [batch.num_rows for batch in table.file.batches(["src"], 10_000)]
    assert max(sizes) <= 125
    assert values(table, "src") == [list(range(1000))]


def test_messages_have_the_name_of_the_table(tmp_path):
    table = spilled_stream(TABLE, tmp_path, "nodes['a/b']")
    assert str(table.path) == "nodes['a/b']"
    spilled_stream(TABLE, tmp_path, "nodes['a b']")  # its file has another name
    assert sorted(each.name for each in tmp_path.iterdir()) == ["nodes_a_b.0.arrows", "nodes_a_b.1.arrows"]


def broken(error, table=TABLE):
    def batches():
        yield table.to_batches()[0]
        raise error

    return pa.RecordBatchReader.from_batches(table.schema, batches())


TWICE = pa.Table.from_arrays([pa.array([1])] * 2, ["a", "a"])


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        ([1, 2], r"edges is a list; give a table or a stream of Arrow.*pyarrow\.table\("),
        (broken(ValueError("lost")), "edges: the stream failed after 3 rows: .*lost"),
        (broken(ValueError("read too early"), TWICE), "edges has the column 'a' twice"),
        (pa.table({"f": [1]}).schema, "edges .*Schema|edges cannot be read"),
    ],
)
def test_what_is_no_stream_is_refused(tmp_path, stream, text):
    with pytest.raises(SourceError, match=text):
        spilled_stream(stream, tmp_path, "edges")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_no_file(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        spilled_stream(broken(KeyboardInterrupt()), tmp_path, "edges")
    assert list(tmp_path.iterdir()) == []


class SmallDisk(OsIO):
    """A disk with a number of free bytes."""

    def __init__(self, free):
        self.free = free

    def statvfs(self, path):
        status = list(super().statvfs(path))
        status[1], status[4] = 1, self.free  # f_frsize and f_bavail
        return os.statvfs_result(status)


def test_a_disk_that_is_too_small_is_named_before_it_is_full(tmp_path):
    with pytest.raises(StoreWriteError, match=r"writing needs 66\d+ bytes .* has 70 bytes .*free") as raised:
        spilled_stream(pa.table({"src": range(100)}), tmp_path, "edges", os_io=SmallDisk(70))
    assert raised.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_every_failing_call_of_the_system_is_an_error(tmp_path):
    calls = EVERY_CALL - {"close", "unlink"}
    counting = FaultyOS(calls=calls)
    spilled_stream(TABLE, tmp_path, "edges", os_io=counting)
    for each in tmp_path.iterdir():
        each.unlink()
    for number in range(1, counting.num_calls + 1):
        with pytest.raises(StoreWriteError, match="Input/output error"):
            spilled_stream(TABLE, tmp_path, "edges", os_io=FaultyOS(fail_at=number, calls=calls))
        assert list(tmp_path.iterdir()) == []
