"""Features from the columns of a table: notes, limits, refusals, and what the fit depends on."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gloader.convert.columns import feature_columns, fits
from gloader.convert.columns.feature_columns import encoded_features, row_blocks
from gloader.convert.columns.specs import column_specs
from gloader.convert.readers import csv_table
from gloader.convert.readers.open_table import open_table
from gloader.convert.readers.table_streams import ColumnNotes
from gloader.errors import BudgetError, FeatureValueError, ShapeError, SourceError


def encoded(tmp_path, columns, specs, *, train=None, missing="error", budget=1 << 26, num_rows=None):
    """Return the rows, the stream and the notes of a Parquet file with ``columns``."""
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=4)
    table, notes = open_table(tmp_path / "t.parquet"), ColumnNotes()
    count = table.count_rows() if num_rows is None else num_rows
    mask = None if train is None else np.isin(np.arange(count), train)
    stream, _ = encoded_features(
        table,
        column_specs(specs, where="graph.yaml"),
        num_rows=count,
        train_rows=mask,
        missing=missing,
        budget_bytes=budget,
        notes=notes,
    )
    return np.concatenate(list(stream.chunks(3))), stream, notes


def test_names_notes_and_unused_columns(tmp_path):
    columns = {
        "age": [20, 30, None, 50],
        "city": ["Rome", "Oslo", "Rome", "Bonn"],
        "v": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int64(), 2)),
        "left": [1, 2, 3, 4],
    }
    specs = [{"name": "age", "as": "standard", "missing": "flag"}, {"name": "city", "as": "category"}, "v"]
    rows, stream, notes = encoded(tmp_path, columns, specs, train=[0, 1])
    assert stream.names == ("age", "age=missing", "city=Oslo", "city=Rome", "v[0]", "v[1]")
    assert rows.tolist() == [
        [-1, 0, 0, 1, 1, 2],
        [1, 0, 1, 0, 3, 4],
        [0, 1, 0, 1, 5, 6],
        [5, 0, 0, 0, 7, 8],
    ]
    assert "; ".join(notes.lines) == (
        "features of t.parquet: age: standard, 20 to 50, 1 row missing -> the mean and a flag; "
        "city: category of 2 values -> 2 columns, 1 row with a value that no training row has, such as 'Bonn'; "
        "v: 2 numbers, 1 to 8"
    )
    assert notes.unused == ("left (integer) of t.parquet",)


def test_infinite_values_count_as_missing_and_are_noted(tmp_path):
    columns = {"x": [1.0, np.inf, 3.0, None]}
    rows, _, notes = encoded(tmp_path, columns, ["x"], missing="mean")
    assert rows.tolist() == [[1], [2], [3], [2]]
    assert "; ".join(notes.lines) == (
        "features (fitted to all rows) of t.parquet: x: number, 1 to 3, 2 rows missing -> mean, "
        "1 infinite value among them"
    )
    with pytest.raises(FeatureValueError, match=r"t.parquet: row 1, column 'x' is inf; write a value there"):
        encoded(tmp_path, columns, ["x"])


def test_allowed_nan_is_kept_in_numbers_and_refused_in_categories(tmp_path):
    rows, _, _ = encoded(tmp_path, {"x": [1.0, None]}, ["x"], missing="keep")
    assert np.isnan(rows[1, 0])
    with pytest.raises(FeatureValueError, match="row 1, column 'c' is missing"):
        encoded(tmp_path, {"c": ["a", None]}, [{"name": "c", "as": "category"}], missing="keep")


def test_flags_exist_only_for_columns_that_have_missing_values(tmp_path):
    columns = {"x": [1.0, 2.0], "y": [1.0, None]}
    rows, stream, _ = encoded(tmp_path, columns, ["x", "y"], missing="flag")
    assert stream.names == ("x", "y", "y=missing")
    assert rows.tolist() == [[1, 1, 0], [2, 1, 1]]


def test_missing_lists_have_one_flag_and_the_mean_of_each_entry(tmp_path):
    columns = {"v": pa.array([[1.0, 2.0], None, [3.0, None]], pa.list_(pa.float64()))}
    rows, stream, _ = encoded(tmp_path, columns, ["v"], missing="flag")
    assert stream.names == ("v[0]", "v[1]", "v=missing")
    assert rows.tolist() == [[1, 2, 0], [2, 2, 1], [3, 2, 1]]


def test_too_many_categories_say_how_many_there_are_and_what_to_type(tmp_path):
    cities = [f"city {number}" for number in range(70)]
    with pytest.raises(SourceError) as caught:
        encoded(tmp_path, {"city": cities}, [{"name": "city", "as": "category"}])
    message = str(caught.value)
    assert "column 'city' has 70 different values in the training rows; as: category allows 64" in message
    for cure in ("as: category, max: 70 takes them all", "top: 63 takes", "as: index takes their numbers"):
        assert cure in message
    assert encoded(tmp_path, {"city": cities}, [{"name": "city", "as": "category", "max": 70}])[0].shape == (
        70,
        70,
    )
    rows, stream, notes = encoded(tmp_path, {"city": [*cities, "city 3"]}, [{"name": "city", "top": 1}])
    assert stream.names == ("city=city 3", "city=other")
    assert rows.sum(axis=0).tolist() == [2, 69]
    assert "category of the 1 most frequent of 70 values -> 2 columns" in notes.lines[0]


def test_only_training_rows_count_for_the_limit(tmp_path):
    cities = ["a", "b", *map(str, range(100))]
    specs = [{"name": "city", "as": "category"}]
    rows, _, notes = encoded(tmp_path, {"city": cities}, specs, train=[0, 1])
    assert rows.shape == (102, 2)
    assert "100 rows with a value that no training row has, such as '0'" in notes.lines[0]


def test_counting_ends_at_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(fits, "MOST_COUNTED", 80)
    cities = [f"city {number}" for number in range(400)]
    with pytest.raises(SourceError, match=r"column 'city' has more than \d+ different values") as caught:
        encoded(tmp_path, {"city": cities}, [{"name": "city", "as": "category"}])
    assert "takes them all" not in str(caught.value)
    # The values of other rows are not counted beyond the bound, and the training rows are still encoded.
    rows, _, notes = encoded(tmp_path, {"city": cities}, [{"name": "city", "as": "category"}], train=[0, 1])
    assert rows.sum() == 2
    assert "values that no training row has are not counted" in notes.lines[0]


def test_counts_beyond_the_memory_budget_are_refused(tmp_path):
    words = [f"word {number}" for number in range(2000)]
    with pytest.raises(
        BudgetError, match=r"counting the values of column 'w' takes more than .* Raise --memory-budget"
    ):
        encoded(tmp_path, {"w": words}, [{"name": "w", "as": "index"}], budget=400_000)


def test_a_small_budget_samples_the_rows_for_quantiles(tmp_path):
    values = np.random.default_rng(0).standard_normal(20_000)
    _, _, whole = encoded(tmp_path, {"x": values}, [{"name": "x", "as": "quantile"}])
    assert "normal scores by 1000 quantiles of all training rows" in whole.lines[0]
    _, _, sampled = encoded(tmp_path, {"x": values}, [{"name": "x", "as": "quantile"}], budget=400_000)
    assert re.search(r"by 1000 quantiles of a sample of 6,\d\d\d training rows", sampled.lines[0])


def test_times_become_days_before_the_latest_training_row(tmp_path):
    when = pa.array([0, 86_400, 10 * 86_400], pa.timestamp("s"))
    rows, _, notes = encoded(tmp_path, {"t": when}, [{"name": "t", "as": "time"}], train=[0, 1])
    assert rows.tolist() == [[1], [0], [-9]]
    assert "1970-01-01 to 1970-01-11, in days before 1970-01-02 (the latest training row)" in notes.lines[0]
    rows, _, notes = encoded(tmp_path, {"t": when}, [{"name": "t", "as": "time", "at": "1970-01-03"}])
    assert rows.tolist() == [[2], [1], [-8]]
    assert notes.lines[0].endswith("in days before 1970-01-03")


def test_whole_numbers_that_float32_rounds_are_refused_and_rounded_on_request(tmp_path):
    for value in (2**24 + 1, 2**60 + 2**20, -(2**63)):
        columns = {"x": [1, value]}
        if value == -(2**63):  # a power of 2 is exact
            assert encoded(tmp_path, columns, ["x"])[0][1, 0] == float(value)
            continue
        with pytest.raises(
            FeatureValueError, match=r"row 1, column 'x' is .*which float32 would round.*--dtype float32"
        ):
            encoded(tmp_path, columns, ["x"])
        # A scaled column is no longer a key.
        assert encoded(tmp_path, columns, [{"name": "x", "as": "standard"}])[0].tolist() == [[-1], [1]]


def test_the_rounded_stream_rounds(tmp_path):
    pq.write_table(pa.table({"x": [1, 2**24 + 1]}), tmp_path / "t.parquet")
    stream, encoders = encoded_features(
        open_table(tmp_path / "t.parquet"),
        column_specs(["x"], where="here"),
        num_rows=2,
        train_rows=None,
        budget_bytes=1 << 26,
        notes=ColumnNotes(),
    )
    assert np.concatenate(list(stream.rounded.chunks(9))).tolist() == [[1], [2**24]]
    with pytest.raises(
        FeatureValueError, match="the rows: row 1, column 'x' is 16777217, which float32 would round"
    ):
        encoders.encode(pa.table({"x": [1, 2**24 + 1]}))


@pytest.mark.parametrize(
    ("num_rows", "message"), [(3, "more than the 3 rows"), (9, "has 4 rows, and 9 are expected")]
)
def test_other_numbers_of_rows_are_refused(tmp_path, num_rows, message):
    with pytest.raises(ShapeError, match=message):
        encoded(tmp_path, {"x": [1, 2, 3, 4]}, ["x"], num_rows=num_rows)


def test_lists_of_another_length_are_refused(tmp_path):
    columns = {"v": pa.array([[1.0, 2.0], [3.0]], pa.list_(pa.float64()))}
    with pytest.raises(
        ShapeError, match=r"row 1 has a list of 1 in column 'v'; every list must have 2 numbers"
    ):
        encoded(tmp_path, columns, ["v"])


def test_a_text_among_numbers_is_refused_with_its_row(tmp_path):
    (tmp_path / "t.csv").write_text("id,x\n" + "".join(f"{row},{row}\n" for row in range(200)) + "200,many\n")
    with pytest.raises(FeatureValueError, match=r"t.csv: row 200, column 'x' is 'many'; it is no number"):
        encoded_features(
            open_table(tmp_path / "t.csv"),
            column_specs(["x"], where="here"),
            num_rows=201,
            train_rows=None,
            budget_bytes=1 << 26,
            notes=ColumnNotes(),
        )


def test_encoders_that_do_not_fit_the_record_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("gloader.convert.columns.fits._MOST_STORED_BYTES", 20)
    with pytest.raises(SourceError, match=r"the values of column 'c' have 31 B of text, and 20 B fit"):
        encoded(tmp_path, {"c": ["a" * 30, "b"]}, [{"name": "c", "as": "category"}])


def test_blocks_have_one_size_whatever_the_batches_are():
    batches = [
        pa.record_batch({"x": list(range(start, start + count))}) for start, count in ((0, 5), (5, 0), (5, 2))
    ]
    assert [block.column(0).to_pylist() for block in row_blocks(batches, 3)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_the_fit_does_not_depend_on_the_batches_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_columns, "_BLOCK_ROWS", 64)
    monkeypatch.setattr(csv_table, "_BLOCK_BYTES", 2000)
    values = np.random.default_rng(0).lognormal(size=1000).tolist()
    pq.write_table(pa.table({"x": values}), tmp_path / "t.parquet", row_group_size=7)
    (tmp_path / "t.csv").write_text(
        "id,x\n" + "".join(f"{row},{value!r}\n" for row, value in enumerate(values))
    )
    fitted = [
        encoded_features(
            open_table(tmp_path / name),
            column_specs([{"name": "x", "as": "standard"}], where="here"),
            num_rows=len(values),
            train_rows=None,
            budget_bytes=1 << 26,
            notes=ColumnNotes(),
        )
        for name in ("t.parquet", "t.csv")
    ]
    assert fitted[0][1] == fitted[1][1]
    rows = [b"".join(chunk.tobytes() for chunk in stream.chunks(500)) for stream, _ in fitted]
    assert rows[0] == rows[1]
