"""Columns read with their stored values, out of text, Parquet and part files."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gloader.convert.readers import typed_table
from gloader.convert.readers.open_table import open_table
from gloader.errors import GraphError, SourceError


def rows(table, *columns):
    """Return the columns of all batches as lists, after a check of the batches' types."""
    batches = list(table.read_arrow(columns, error=SourceError))
    for batch in batches:
        assert batch.schema.names == list(columns)
        assert batch.schema.types == [table.arrow_type(name) for name in columns]
    return [[value for batch in batches for value in batch.column(name).to_pylist()] for name in columns]


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return open_table(path)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_fields_of_a_text_are_exact(tmp_path, name):
    text = 'key,n,x\n007, 1 ,"a,b"\nnan,,nan\n"say ""hi""",0x1,""\n null ,1e3, c\n'
    table = write(tmp_path / name, text)
    assert rows(table, "x", "key", "n") == [
        ["a,b", "nan", None, " c"],
        ["007", "nan", 'say "hi"', " null "],
        [" 1 ", None, "0x1", "1e3"],
    ]
    assert table.arrow_type("n") == pa.string()


def test_blanks_of_a_text_do_not_depend_on_quotes_elsewhere(tmp_path):
    table = write(tmp_path / "a.csv", "key,x\n a ,1\n" + "b,2\n" * 300_000 + '"c",3\n')
    (keys,) = rows(table, "key")
    assert (keys[0], keys[1], keys[-1]) == (" a ", "b", "c")


def test_aligned_text_has_no_blanks(tmp_path):
    table = write(tmp_path / "a.txt", "key   n\n  x1   7\n y2\t 8 \n")
    assert rows(table, "key", "n") == [["x1", "y2"], ["7", "8"]]


def test_aligned_text_keeps_the_blanks_in_quotes(tmp_path):
    table = write(tmp_path / "a.txt", 'key   n\n"x  y"\t 7\n "\tz ""  "  8\n')
    assert rows(table, "key", "n") == [["x  y", '\tz "  '], ["7", "8"]]


def test_tabs_beside_blanks_align_columns(tmp_path):
    table = write(tmp_path / "a.txt", ' key \t n\nx1 \t7 \n  "x  2" \t8\n')
    assert rows(table, "key", "n") == [["x1", "x  2"], ["7", "8"]]
    # A blank in some places only is part of a text.
    table = write(tmp_path / "b.txt", "key\tn\nx1 \t7\nx2\t8\n")
    assert rows(table, "key") == [["x1 ", "x2"]]


def test_a_text_that_begins_with_a_byte_order_mark_keeps_it(tmp_path):
    # Only the mark at the start of the file belongs to no field.
    table = write(tmp_path / "a.csv", "\ufeffkey,x\n\ufeffa,1\n\ufeffb,2\n")
    assert rows(table, "key") == [["\ufeffa", "\ufeffb"]]
    assert rows(write(tmp_path / "b.csv", "\ufeff1,2\n3,4\n"), "c0") == [["1", "3"]]


def test_keys_of_text_parts_may_look_like_numbers_in_one_part(tmp_path):
    (tmp_path / "p").mkdir()
    for number, text in enumerate(("key,n\n7,1\n", "key,n\nu7,2.5\n", "key,n\n,x\n")):
        (tmp_path / "p" / f"part-{number}.csv").write_text(text)
    table = open_table(tmp_path / "p")
    assert rows(table, "key", "n") == [["7", "u7", None], ["1", "2.5", "x"]]
    assert (table.kind("key"), table.kind("n")) == ("number", "number")
    # As numbers the column is refused, wherever the reading begins.
    with pytest.raises(
        SourceError, match=r"part-2\.csv holds strings in column 'n', and part-0\.csv integers"
    ):
        list(table.read({"n": "float64"}, error=SourceError))


def test_a_text_table_without_rows_has_no_batches(tmp_path):
    assert rows(write(tmp_path / "a.csv", "key,x\n"), "key") == [[]]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("key,x\na,1\nb\n", r"a\.csv: row 1 \(line 3\) has 1 fields; the header has 2"),
        ("key,x\n1,1\n#b,2\n", r"a\.csv: line 3 is .#b,2.*a comment, or a row"),
        ('key,x\na,1\n"b\nc",2\n', r"a\.csv: line 3 has a quote that does not end"),
    ],
)
def test_a_bad_row_of_text_is_named(tmp_path, text, error):
    table = write(tmp_path / "a.csv", text)
    with pytest.raises((GraphError, SourceError), match=error):
        list(table.read_arrow(["key"], error=GraphError))


def test_text_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"key,x\nok,1\nK\xf6ln,2\n")
    with pytest.raises(GraphError, match=r"row 1 \(line 3\), column 'key' is 'K.*not UTF-8; save the file"):
        list(open_table(tmp_path / "a.csv").read_arrow(["key"], error=GraphError))


def test_stored_values_keep_their_types(tmp_path):
    columns = {
        "big": pa.array([2**64 - 1, 0], pa.uint64()),
        "word": pa.array(["a", None]).dictionary_encode(),
        "day": pa.array([0, 1], pa.date32()),
        "list": pa.array([[1.5], [2.5]], pa.list_(pa.float32())),
        "bits": pa.array([b"\0" * 16, b"\1" * 16], pa.binary(16)),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    table = open_table(tmp_path / "a.parquet")
    assert table.arrow_type("word") == pa.string()
    assert table.kind("word") == "string"
    assert rows(table, "bits", "big", "word") == [[b"\0" * 16, b"\1" * 16], [2**64 - 1, 0], ["a", None]]
    assert rows(table, "day", "list") == [columns["day"].to_pylist(), [[1.5], [2.5]]]


def test_numbers_in_a_dictionary_are_numbers(tmp_path):
    pq.write_table(pa.table({"n": pa.array([5, 7, 5]).dictionary_encode()}), tmp_path / "a.parquet")
    table = open_table(tmp_path / "a.parquet")
    ((column,),) = table.read({"n": "int64"}, error=SourceError)
    assert (table.kind("n"), column.tolist()) == ("integer", [5, 7, 5])


def test_texts_are_read_in_small_batches(tmp_path, monkeypatch):
    pq.write_table(pa.table({"key": [str(i) for i in range(100)], "x": range(100)}), tmp_path / "a.parquet")
    monkeypatch.setattr(typed_table, "_BATCH_TEXTS", 30)
    table = open_table(tmp_path / "a.parquet")
    sizes = [batch.num_rows for batch in table.read_arrow(["key"], error=SourceError)]
    assert sizes == [30, 30, 30, 10]
    assert [batch.num_rows for batch in table.read_arrow(["x"], error=SourceError)] == [100]


def test_a_file_that_is_cut_off_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"key": np.arange(20_000).astype(str)}), path)
    table = open_table(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(SourceError, match=r"a\.parquet is truncated or corrupt"):
        list(table.read_arrow(["key"], error=SourceError))


def test_parts_of_a_table_have_one_type(tmp_path):
    (tmp_path / "t").mkdir()
    kinds = (pa.int32(), pa.int64(), pa.uint8())
    for number, kind in enumerate(kinds):
        pq.write_table(
            pa.table({"n": pa.array([number, number + 1], kind)}), tmp_path / f"t/{number}.parquet"
        )
    table = open_table(tmp_path / "t")
    assert table.arrow_type("n") == pa.int64()
    assert rows(table, "n") == [[0, 1, 1, 2, 2, 3]]


def test_parts_of_different_types_are_refused(tmp_path):
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"n": [1]}), tmp_path / "t/0.parquet")
    (tmp_path / "t/1.csv").write_text("n\n2\n")
    table = open_table(tmp_path / "t")
    with pytest.raises(
        SourceError, match=r"1\.csv stores the column 'n' as string, and files before it as int64"
    ):
        list(table.read_arrow(["n"], error=SourceError))


def test_a_number_beyond_the_common_type_names_its_part(tmp_path):
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"n": [-1]}), tmp_path / "t/0.parquet")
    pq.write_table(pa.table({"n": pa.array([2**64 - 1], pa.uint64())}), tmp_path / "t/1.parquet")
    with pytest.raises(
        SourceError, match=r"1\.parquet: .*18446744073709551615.*; write each column with one type"
    ):
        list(open_table(tmp_path / "t").read_arrow(["n"], error=SourceError))
