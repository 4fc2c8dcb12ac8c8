"""Rows of link tables that come in several chunks."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gloader.convert.links.link_rows import edge_table
from gloader.convert.readers import csv_table
from gloader.convert.readers.table_streams import ColumnNotes
from gloader.errors import ShapeError, SourceError


def rows_of(path):
    return edge_table(f"t={path}", ColumnNotes()).rows


def test_labels_are_classes_only_where_all_of_a_file_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_table, "_BLOCK_BYTES", 64)
    (tmp_path / "t.csv").write_text("src,dst,label\n0,1,0.5\n" + "0,1,2\n" * 100)
    rows = rows_of(tmp_path / "t.csv")
    assert (rows.num_rows, rows.label_dtype) == (101, "float32")
    assert [label for part in rows.labels(7) for label in part.tolist()] == [0.5] + [2.0] * 100


def test_a_wrong_time_is_named_by_its_row_in_the_file(tmp_path):
    table = {"src": [0] * 8, "dst": [1] * 8, "time": [0.0] * 6 + [0.5] * 2}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    with pytest.raises(SourceError, match=r"row 6 has time 0\.5"):
        list(rows_of(tmp_path / "t.parquet").chunks(4))


@pytest.mark.reliability("S2")
def test_an_end_of_edges_is_no_label_and_of_several_columns_none_is_taken(tmp_path):
    (tmp_path / "t.csv").write_text("source,target\n0,1\n")
    assert rows_of(tmp_path / "t.csv").label_dtype is None
    for names, what in (("label,y", "labels"), ("time,t", "times")):
        (tmp_path / "t.csv").write_text(f"source,target,{names}\n0,1,1,2\n")
        with pytest.raises(
            SourceError, match=rf"several columns may be the {what} of .*t\.csv: {names[:-2]}, "
        ):
            rows_of(tmp_path / "t.csv")


@pytest.mark.reliability("S1")
def test_two_pairs_are_rows_or_columns_and_say_which(tmp_path):
    for order in "CF":
        np.save(tmp_path / "t.npy", np.array([[0, 1], [2, 3]], order=order))
        with pytest.raises(
            ShapeError, match=r"t\.npy has shape \(2, 2\): an edge in each row, or .* Write a table"
        ):
            rows_of(tmp_path / "t.npy")
