"""Random columns of features: the rows are those of a plain oracle, from a text file and a Parquet file alike."""

import csv
import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import NormalDist

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gloader.convert.columns.feature_columns import encoded_features
from gloader.convert.columns.specs import ColumnSpec
from gloader.convert.readers.open_table import open_table
from gloader.convert.readers.table_streams import ColumnNotes
from gloader.dataset.encoders import Encoders
from gloader.errors import FeatureValueError, SourceError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NUMBERS = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, 1.0, -2.5])
WHOLE = st.integers(-(2**24), 2**24) | st.integers(0, 3)
TEXTS = st.text("aZé7, ;\"'", min_size=1, max_size=3) | st.sampled_from(["NA", "10", "9", "-1", "none"])
# Times from 1906 to 2096, to the microsecond.
TIMES = st.integers(-(2 * 10**15), 4 * 10**15).map(lambda value: EPOCH + timedelta(microseconds=value))
# By kind: the values of the column, and their type in a Parquet file.
KINDS = {
    "number": (NUMBERS, pa.float64()),
    "standard": (NUMBERS, pa.float32()),
    "quantile": (NUMBERS, pa.float64()),
    "bool": (st.booleans(), pa.bool_()),
    "time": (TIMES, pa.timestamp("us", tz="UTC")),
    "category": (TEXTS, pa.string()),
    "index": (WHOLE, pa.int64()),
    "top": (TEXTS | st.just("a"), pa.string()),
}


@st.composite
def worlds(draw):
    """Return columns as (specification, values, type), and a mask of training rows."""
    num_rows = draw(st.integers(2, 25))
    columns = []
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(sorted(KINDS)))
        values, arrow = KINDS[kind]
        is_category = kind in {"category", "index", "top"}
        missing = draw(st.sampled_from(["zero", "flag"] if is_category else ["zero", "mean", "flag"]))
        spec = ColumnSpec(
            name=f"c{number}",
            kind="category" if kind == "top" else kind,
            top=draw(st.integers(1, 4)) if kind == "top" else None,
            score=draw(st.sampled_from(["normal", "uniform"])),
            missing=missing,
        )
        some = draw(st.lists(values, min_size=1, max_size=6))
        cells = draw(st.lists(st.none() | st.sampled_from(some), min_size=num_rows, max_size=num_rows))
        columns.append((spec, cells, arrow))
    is_train = np.array(draw(st.lists(st.booleans(), min_size=num_rows, max_size=num_rows)))
    is_train[draw(st.integers(0, num_rows - 1))] = True
    return columns, is_train


def text_of(value):
    """Return a value as text of a CSV file."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat()
    return repr(value) if isinstance(value, float) else str(value)


def write(columns, folder):
    """Write the columns as CSV and as Parquet, and return both paths."""
    names = ["id", *(spec.name for spec, _, _ in columns)]
    lists = [list(range(len(columns[0][1]))), *(cells for _, cells, _ in columns)]
    with (folder / "t.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(
            [names, *([text_of(value) for value in row] for row in zip(*lists, strict=True))]
        )
    arrays = [pa.array(lists[0]), *(pa.array(cells, arrow) for _, cells, arrow in columns)]
    pq.write_table(pa.table(arrays, names), folder / "t.parquet", row_group_size=3)
    return folder / "t.csv", folder / "t.parquet"


def encoded(path, columns, is_train):
    """Return the feature rows, the encoders and the notes of a file."""
    notes = ColumnNotes()
    stream, encoders = encoded_features(
        open_table(path),
        [spec for spec, _, _ in columns],
        num_rows=len(is_train),
        train_rows=is_train,
        budget_bytes=1 << 26,
        notes=notes,
    )
    assert stream.dim == encoders.dim == len(stream.names)
    return np.concatenate(list(stream.chunks(4))), encoders, notes


def oracle(spec, cells, is_train):
    """Return a column's features (n, f), or None if no training row has a value that is needed."""
    train = [value for value, taken in zip(cells, is_train, strict=True) if taken and value is not None]
    is_missing = np.array([value is None for value in cells])
    flag = [is_missing.astype(float)] if spec.missing == "flag" and is_missing.any() else []
    if spec.kind in {"category", "index"}:
        if not train:
            return None
        texts = [str(value) for value in train]
        try:
            values = sorted(set(texts), key=lambda text: (float_of(text), text))
        except ValueError:
            values = sorted(set(texts))
        if spec.top is not None:
            first = {text: rank for rank, text in enumerate(values)}
            values = sorted(values, key=lambda text: (-texts.count(text), first[text]))[: spec.top]
            values = sorted(values, key=lambda text: first[text])
            try:
                values = sorted(values, key=lambda text: (float_of(text), text))
            except ValueError:
                values = sorted(values)
        if spec.kind == "index":
            code = [
                -1 if cell is None or str(cell) not in values else values.index(str(cell)) for cell in cells
            ]
            return np.column_stack([code, *flag])
        hot = [[float(cell is not None and str(cell) == value) for cell in cells] for value in values]
        if spec.top is not None:
            hot.append([float(cell is not None and str(cell) not in values) for cell in cells])
        return np.column_stack([*hot, *flag])
    numbers = np.array([math.nan if cell is None else number_of(cell) for cell in cells])
    known = np.array([number_of(value) for value in train])
    if not len(known) and (spec.kind in {"standard", "quantile", "time"} or spec.missing != "zero"):
        return None if spec.kind not in {"number", "bool"} or is_missing.any() else numbers[:, None]
    if spec.kind == "time":
        numbers, known = (known.max() - numbers) / 86400, (known.max() - known) / 86400
    filled = np.where(is_missing, known.mean() if len(known) else 0, numbers)
    if spec.kind == "standard":
        deviation = known.std()
        filled = (filled - known.mean()) / (deviation if deviation > 1e-9 * abs(known.mean()) else 1)
    if spec.kind == "quantile":
        filled = scores(filled, known, spec.score)
    if spec.missing == "zero":
        filled = np.where(is_missing, 0, filled)
    return np.column_stack([filled, *flag])


def float_of(text):
    """Return the number in a text; ValueError if it is none for a person."""
    if text.strip() != text or not any(letter.isdigit() for letter in text):
        raise ValueError(text)
    return float(text)


def number_of(cell):
    """Return a cell as a number."""
    return (cell - EPOCH) / timedelta(seconds=1) if isinstance(cell, datetime) else float(cell)


def scores(values, known, score):
    """Return the share of ``known`` below each value, or its normal score."""
    shares = [share_below(value, sorted(known)) for value in values]
    if score == "uniform":
        return np.array(shares)
    return np.array([NormalDist().inv_cdf(min(max(share, 1e-7), 1 - 1e-7)) for share in shares])


def share_below(value, known):
    """Return the share of the sorted ``known`` values below ``value``, linear between them, the middle for equals."""
    if value <= known[0] or value >= known[-1]:
        return float(value > known[0])
    equal = [rank for rank, each in enumerate(known) if each == value]
    if equal:
        return (equal[0] + equal[-1]) / 2 / (len(known) - 1)
    above = next(rank for rank, each in enumerate(known) if each > value)
    below, next_one = known[above - 1], known[above]
    return (above - 1 + (value - below) / (next_one - below)) / (len(known) - 1)


@settings(max_examples=60)
@given(world=worlds())
def test_random_columns_become_the_rows_of_the_oracle(world, tmp_path_factory):
    columns, is_train = world
    expected = [oracle(spec, cells, is_train) for spec, cells, _ in columns]
    paths = write(columns, tmp_path_factory.mktemp("t"))
    if any(each is None for each in expected):
        for path in paths:
            with pytest.raises(
                SourceError, match=rf"{path.name}: column .* has no value in any training row"
            ):
                encoded(path, columns, is_train)
        return
    rows = np.column_stack(expected)
    found = [encoded(path, columns, is_train) for path in paths]
    for (values, encoders, _), path in zip(found, paths, strict=True):
        assert values.shape == rows.shape, path
        np.testing.assert_allclose(values, rows, rtol=2e-5, atol=2e-5, err_msg=str(path))
        stored = Encoders.from_json(json.loads(json.dumps(encoders.to_json())))
        assert stored == encoders
        again = stored.encode(pq.read_table(paths[1]))
        assert values.tobytes() == again.tobytes(), "the encoders give other bits than the preparation"
    assert found[0][0].tobytes() == found[1][0].tobytes(), (
        "a text file and a Parquet file of one table differ"
    )


@settings(max_examples=30)
@given(world=worlds(), data=st.data())
def test_rows_outside_the_training_set_change_no_encoder(world, data, tmp_path_factory):
    columns, is_train = world
    if any(oracle(spec, cells, is_train) is None for spec, cells, _ in columns):
        return
    changed = []
    for spec, cells, arrow in columns:
        values = KINDS["top" if spec.top else spec.kind][0]
        others = [cell if taken else data.draw(values) for cell, taken in zip(cells, is_train, strict=True)]
        changed.append((spec, others, arrow))
    kinds = []
    for each in (columns, changed):
        _, encoders, _ = encoded(write(each, tmp_path_factory.mktemp("t"))[1], each, is_train)
        # Only whether a column has a flag depends on all rows.
        kinds.append([replace(encoder, has_flag=False) for encoder in encoders.columns])
    assert kinds[0] == kinds[1]


@settings(max_examples=30)
@given(world=worlds())
def test_a_missing_value_is_refused_with_its_row_by_default(world, tmp_path_factory):
    columns, is_train = world
    bare = [(replace(spec, missing=None), cells, arrow) for spec, cells, arrow in columns]
    first = (
        min((cells.index(None), number) for number, (_, cells, _) in enumerate(bare) if None in cells)
        if any(None in cells for _, cells, _ in bare)
        else None
    )
    if first is None:
        return
    for path in write(bare, tmp_path_factory.mktemp("t")):
        with pytest.raises(FeatureValueError, match="is missing; write a value there") as caught:
            encoded(path, bare, is_train)
        assert "row " in str(caught.value)
        assert str(path) in str(caught.value)
