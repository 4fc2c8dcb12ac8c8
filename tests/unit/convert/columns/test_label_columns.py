"""Labels from columns: what types and values become, the notes on it, and refusals."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gloader.convert.columns import label_columns
from gloader.convert.columns.label_columns import read_label_columns
from gloader.convert.readers.open_table import open_table
from gloader.convert.readers.table_streams import ColumnNotes
from gloader.dataset.values import label_kind_of
from gloader.errors import BudgetError, ShapeError, SourceError

NAN = np.nan


def read(table, columns="y", *, as_=None, num_rows=None, budget=1 << 26):
    """Return the labels with their names and kind, and the note on them."""
    notes = ColumnNotes()
    count = table.count_rows() if num_rows is None else num_rows
    columns = [columns] if isinstance(columns, str) else columns
    labels, names = read_label_columns(
        table, columns, as_=as_, num_rows=count, budget_bytes=budget, notes=notes
    )
    return SimpleNamespace(values=labels, names=names, kind=label_kind_of(labels)), notes.lines[0]


def parquet(tmp_path, **columns):
    pq.write_table(
        pa.table({"id": list(range(len(next(iter(columns.values()))))), **columns}), tmp_path / "t.parquet"
    )
    return open_table(tmp_path / "t.parquet")


def text(tmp_path, *values, name="y"):
    lines = "".join(f"{row},{value}\n" for row, value in enumerate(values))
    (tmp_path / "t.csv").write_text(f"id,{name}\n{lines}")
    return open_table(tmp_path / "t.csv")


def test_texts_are_classes_in_order_with_their_names(tmp_path):
    for table in (
        parquet(tmp_path, y=["b", "a", None, "b"]),
        parquet(tmp_path, y=pa.array(["b", "a", None, "b"]).dictionary_encode()),
        text(tmp_path, "b", "a", "", "b"),
    ):
        found, note = read(table)
        assert found.values.dtype == np.int64
        assert found.values.tolist() == [1, 0, -1, 1]
        assert (found.kind, found.names) == ("classes", ("a", "b"))
        assert note.endswith("text -> 2 classes (a 1, b 2), 1 rows without a label")


def test_bools_are_the_classes_false_and_true(tmp_path):
    for table in (
        parquet(tmp_path, y=[True, False, None, True]),
        text(tmp_path, "True", "False", "", "true"),
    ):
        found, note = read(table)
        assert found.values.tolist() == [1, 0, -1, 1]
        assert (found.kind, found.names) == ("classes", ("false", "true"))
        assert "bool -> 2 classes (false 1, true 2)" in note
        found, _ = read(table, as_="values")
        assert (found.kind, found.values.dtype) == ("binary", np.float32)
        np.testing.assert_array_equal(found.values, np.array([[1], [0], [NAN], [1]]))


def test_whole_numbers_from_0_are_classes_as_they_are(tmp_path):
    for table in (
        parquet(tmp_path, y=[1, 0, -1, None, 2]),
        parquet(tmp_path, y=[1.0, 0.0, -1.0, None, 2.0]),
        text(tmp_path, "1", "0", "-1", "", "2"),
    ):
        found, note = read(table)
        assert found.values.tolist() == [1, 0, -1, -1, 2]
        assert found.names == ()
        assert note.endswith("3 classes (0 1, 1 1, 2 1), 2 rows without a label")
        assert read(table, as_="classes")[0].values.tolist() == [1, 0, -1, -1, 2]


def test_other_whole_numbers_are_renumbered_and_named(tmp_path):
    for table in (parquet(tmp_path, y=[30, 10, 20, -1]), text(tmp_path, "30", "10", "20", "-1")):
        for as_ in (None, "classes"):
            found, note = read(table, as_=as_)
            assert found.values.tolist() == [2, 0, 1, -1]
            assert found.names == ("10", "20", "30")
            assert "whole numbers, renumbered in their order -> 3 classes (10 1, 20 1, 30 1)" in note
    assert read(parquet(tmp_path, y=[9, 10, 9]), as_="values")[0].values.tolist() == [[9], [10], [9]]


def test_numbers_with_fractions_are_values(tmp_path):
    for table in (parquet(tmp_path, y=[1.0, 2.5, None]), text(tmp_path, "1", "2.5", "")):
        found, note = read(table)
        assert (found.kind, found.names) == ("values", ("y",))
        np.testing.assert_array_equal(found.values, np.array([[1], [2.5], [NAN]], np.float32))
        assert note.endswith(
            "numbers with fractions (row 1: 2.5) -> values, 1 to 2.5, 1 rows without a label"
        )


def test_several_columns_of_0_and_1_are_multilabel(tmp_path):
    table = parquet(tmp_path, a=[1, 0, None], b=[True, None, None], c=[0.0, 1.0, None])
    found, note = read(table, ["a", "b", "c"])
    assert (found.kind, found.names) == ("multilabel", ("a", "b", "c"))
    np.testing.assert_array_equal(found.values, np.array([[1, 1, 0], [0, NAN, 1], [NAN] * 3], np.float32))
    assert note.endswith(
        "3 columns of 0 and 1 -> multilabel (ones: a 1, b 1, c 1), 1 rows without a label, 1 rows with unknown "
        "labels among others"
    )
    assert "3 columns of 0 and 1 -> multilabel" in read(table, ["a", "b", "c"], as_="values")[1]


def test_several_columns_of_numbers_are_values(tmp_path):
    found, note = read(parquet(tmp_path, a=[1, 5], b=[0.5, None]), ["a", "b"])
    assert (found.kind, found.values.shape) == ("values", (2, 2))
    assert "2 columns of numbers -> values, 0.5 to 5" in note


def test_a_column_of_lists_has_a_label_for_each_entry(tmp_path):
    table = parquet(tmp_path, y=pa.array([[1, 0], [0, 1], None], pa.list_(pa.int8())))
    found, _ = read(table)
    assert (found.kind, found.names) == ("multilabel", ("y[0]", "y[1]"))
    np.testing.assert_array_equal(found.values, np.array([[1, 0], [0, 1], [NAN, NAN]]))


@pytest.mark.parametrize(
    ("values", "as_", "message"),
    [
        ([-5, 1], None, "row 0 is -5; classes are whole numbers from 0"),
        ([-1, 1], None, "the labels are -1 and 1, and -1 means unknown, so one class would be left"),
        (
            list(range(1, 1502)),
            None,
            "has 1,501 different whole numbers, 1 to 1501: are they classes, or numbers",
        ),
        ([None, None], None, "has type null; labels are numbers, texts or bools"),
        ([np.nan, np.nan], None, "has no label in any row"),
        (pa.array([None, None], pa.bool_()), None, "has no label in any row"),
        ([1.5, 2.0], "classes", "row 0 is 1.5; classes are whole numbers, texts or bools"),
        (["a", "b"], "values", "holds texts; values are numbers"),
        ([[["a"]], [["b"]]], None, "lists of numbers are expected"),
        ([1.0, np.inf], None, "row 1, column 'y' is inf; a label must be finite"),
        ([1, 2**60 + 2**20], None, "such a large number is a key and no label"),
    ],
)
def test_unclear_labels_are_refused(tmp_path, values, as_, message):
    with pytest.raises(SourceError, match=message):
        read(parquet(tmp_path, y=pa.array(values)), as_=as_)


def test_a_text_among_numbers_is_refused_or_makes_classes(tmp_path):
    table = text(tmp_path, *["3"] * 150, "x")
    with pytest.raises(SourceError, match=r"row 150, column 'y' is 'x'; .* \(of labels as: classes\)"):
        read(table)
    found, _ = read(table, as_="classes")
    assert found.names == ("3", "x")


def test_an_unknown_column_is_refused(tmp_path):
    with pytest.raises(SourceError, match="has no column 'z' for labels"):
        read(parquet(tmp_path, y=[0, 1]), "z")


def test_several_columns_are_no_classes(tmp_path):
    with pytest.raises(SourceError, match="one column has the class of a node"):
        read(parquet(tmp_path, a=[0, 1], b=[1, 0]), ["a", "b"], as_="classes")
    with pytest.raises(SourceError, match="label 'b' is unknown in every row: leave it out"):
        read(parquet(tmp_path, a=[0, 1], b=pa.array([None, None], pa.int64())), ["a", "b"])
    with pytest.raises(
        SourceError, match="column 'b' has type string; several label columns are numbers or bools"
    ):
        read(parquet(tmp_path, a=[0, 1], b=["x", "y"]), ["a", "b"])


def test_other_numbers_of_rows_and_small_budgets_are_refused(tmp_path):
    table = parquet(tmp_path, y=[0, 1])
    for num_rows in (1, 3):
        with pytest.raises(ShapeError, match=r"has (more than the 1 rows that|2 rows, and 3) are expected"):
            read(table, num_rows=num_rows)
    with pytest.raises(BudgetError, match="1 label for each of 2 rows take 68 B while they are read"):
        read(table, budget=60)
    with pytest.raises(BudgetError, match="the classes of column 'y' take more than 32 B"):
        read(parquet(tmp_path, y=["a", "b"]), budget=100)


def test_too_many_names_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(label_columns, "_MOST_NAME_BYTES", 10)
    with pytest.raises(
        SourceError, match="has more than 1 different values, which are too many for named classes"
    ):
        read(parquet(tmp_path, y=["a" * 8, "b" * 8]))


def test_rounded_values_are_counted_in_the_note(tmp_path):
    _, note = read(parquet(tmp_path, y=[2**24 + 1, 3]), as_="values")
    assert "1 whole numbers rounded to float32" in note
    _, note = read(parquet(tmp_path, a=[2**24 + 1, 3], b=[0.5, 1]), ["a", "b"])
    assert "2 columns of numbers -> values, 0.5 to 1.67772e+07, 1 whole numbers rounded to float32" in note
