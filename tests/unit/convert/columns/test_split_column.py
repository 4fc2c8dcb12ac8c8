"""Splits from columns: words, folds, bools and times, and refusals."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gloader.convert.columns.split_column import SplitSpec, read_split_column
from gloader.convert.readers.open_table import open_table
from gloader.convert.readers.table_streams import ColumnNotes
from gloader.errors import BudgetError, ConfigError, ShapeError, SourceError


def parse(entry):
    return SplitSpec.parse(entry, where="graph.yaml")


def parquet(tmp_path, **columns):
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=2)
    return open_table(tmp_path / "t.parquet")


def read(table, entry, *, has_label=None, num_rows=None, budget=1 << 20):
    """Return the three parts as lists, and the note."""
    notes = ColumnNotes()
    splits = read_split_column(
        table,
        parse(entry),
        num_rows=table.count_rows() if num_rows is None else num_rows,
        has_label=has_label,
        budget_bytes=budget,
        notes=notes,
    )
    return [splits.train.tolist(), splits.valid.tolist(), splits.test.tolist()], notes.lines[0]


def test_words_in_any_case(tmp_path):
    words = ["train", "Val", "TEST", None, "none", " training ", "validation", "testing"]
    parts, note = read(parquet(tmp_path, part=words), "part")
    assert parts == [[0, 5], [1, 6], [2, 7]]
    assert note == "split: part of t.parquet, words: train 2, valid 2, test 2, 2 in no part"


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_folds(tmp_path, form):
    folds = [0, 1, 2, 3, 4, 5, 0]
    table = parquet(tmp_path, fold=folds)
    if form == "csv":
        (tmp_path / "t.csv").write_text(
            "id,fold\n" + "".join(f"{row},{fold}\n" for row, fold in enumerate(folds))
        )
        table = open_table(tmp_path / "t.csv")
    parts, note = read(table, {"column": "fold", "train": [0, 1, 2], "valid": 3, "test": 4})
    assert parts == [[0, 1, 2, 6], [3], [4]]
    assert "by value (train 0, 1, 2; valid 3; test 4): train 4, valid 1, test 1, 1 in no part" in note


def test_columns_of_bools(tmp_path):
    table = parquet(tmp_path, a=[True, False, None], b=[0, 1, 0], c=["no"] * 3, d=["false", "0", "true"])
    parts, _ = read(table, {"train": "a", "valid": "b", "test": "d"})
    assert parts == [[0], [1], [2]]
    with pytest.raises(SourceError, match="row 0, column 'c' is 'no'; it must be true or false"):
        read(table, {"train": "a", "valid": "b", "test": "c"})
    table = parquet(tmp_path, a=[True, True], b=[False, True], d=[False, False])
    with pytest.raises(SourceError, match="row 1 is in train and in valid, by 'a' and 'b'"):
        read(table, {"train": "a", "valid": "b", "test": "d"})


def test_times_divide_the_labelled_rows(tmp_path):
    days = pa.array([5, 1, 4, 2, 3, 0], pa.int64()).cast(pa.timestamp("s"))
    parts, _ = read(parquet(tmp_path, t=days), {"by": "time", "column": "t", "shares": "50/17/33"})
    assert parts == [[1, 3, 5], [4], [0, 2]]
    table = parquet(tmp_path, t=["2024-01-01", "2024-01-03", None, "2024-01-02"])
    mask = np.array([True, True, False, True])
    parts, note = read(table, {"by": "time", "column": "t", "shares": "34/33/33"}, has_label=mask)
    assert parts == [[0], [3], [1]]
    assert "train 2024-01-01 to 2024-01-01; valid 2024-01-02 to 2024-01-02; test 2024-01-03" in note
    with pytest.raises(SourceError, match="row 2, column 't' is missing; a split by time needs the time"):
        read(table, {"by": "time", "column": "t"})


def test_equal_times_keep_the_order_of_rows(tmp_path):
    parts, _ = read(parquet(tmp_path, t=[7] * 5), {"by": "time", "column": "t"})
    assert parts == [[0, 1, 2], [3], [4]]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, "split: 3; write a column's name"),
        ({}, "names no columns; write a column's name"),
        ({"train": "a", "valid": "b"}, "names no columns"),
        ({"train": [0], "valid": 1, "test": 2}, "names no columns"),
        ({"col": "fold"}, "split: has the key 'col'; did you mean 'column'"),
        ({"column": 3}, "split: column: 3"),
        ({"column": "fold", "train": [0, 1], "valid": 1}, "the value 1 is in train and in valid"),
        ({"column": "fold", "train": [0.5]}, "train: 0.5; the values of a part are whole numbers or texts"),
        ({"by": "time"}, "a split by time is {by: time, column: joined, shares: 60/20/20}"),
        ({"by": "size", "column": "t"}, "a split by time is"),
        ({"by": "time", "column": "t", "shares": "60/20"}, "split: shares '60/20': write the shares"),
        ({"by": "time", "column": "t", "shares": "60/20/30"}, "adds up to 110"),
    ],
)
def test_wrong_entries_are_refused(entry, message):
    with pytest.raises(ConfigError) as caught:
        parse(entry)
    assert message in str(caught.value)


def test_unknown_words_and_absent_values_are_refused(tmp_path):
    table = parquet(tmp_path, part=["train", "holdout", "test"], fold=[0, 1, 2], none=[None] * 3)
    with pytest.raises(SourceError) as caught:
        read(table, "part")
    for words in ("row 1, column 'part' is 'holdout'", "train, valid, test", "{column: part, train: [...]"):
        assert words in str(caught.value)
    with pytest.raises(SourceError, match="column 'fold' is '0'; the words of a split are"):
        read(table, "fold")
    with pytest.raises(SourceError, match="column 'fold' has no value '7', which the split names for valid"):
        read(table, {"column": "fold", "train": 0, "valid": 7})
    with pytest.raises(SourceError, match="no row is in train by part"):
        read(parquet(tmp_path, part=["test", "valid"]), "part")
    with pytest.raises(SourceError, match="has no column 'prt' for the split: did you mean 'part'"):
        read(table, "prt")


def test_other_numbers_of_rows_and_small_budgets_are_refused(tmp_path):
    table = parquet(tmp_path, part=["train", "valid", "test"])
    with pytest.raises(ShapeError, match="more than the 2 rows"):
        read(table, "part", num_rows=2)
    with pytest.raises(ShapeError, match="has 3 rows, and 4 are expected"):
        read(table, "part", num_rows=4)
    with pytest.raises(BudgetError, match="the split of 3 rows takes 99 B"):
        read(table, "part", budget=98)
