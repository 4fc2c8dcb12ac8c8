"""Values of columns in pyarrow's types: numbers, truth values, times and texts, from typed files and text files."""

from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from gloader.dataset.column_values import Place, in_order, numbers, plain_column, texts, times, truths
from gloader.errors import FeatureValueError, ShapeError, SourceError

PLACE = Place(where="t.csv", column="x", first=10)
SECOND = 10**6


def one(column):
    return numbers(column, width=1, place=PLACE).values[:, 0].tolist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 2]),
        pa.array([1, 2], pa.uint8()),
        pa.array([1, 2], pa.float16()),
        pa.array([1.0, 2.0], pa.float32()),
        pa.array([Decimal("1.0"), Decimal("2.0")]),
        pa.array(["1", " 2.0 "]),
        pa.array(["1e0", "+2"]),
        pa.array(["1", "2"], pa.large_string()),
        pa.array([1, 2]).dictionary_encode(),
        pa.chunked_array([[1], [2]]),
    ],
)
def test_numbers_of_any_type_are_the_same(column):
    assert one(plain_column(column)) == [1.0, 2.0]


@pytest.mark.parametrize("missing", [None, "NA", "nan", " null ", "?", "-NaN"])
def test_missing_texts_of_numbers_are_nan(missing):
    assert np.isnan(one(pa.array(["1", missing]))[1])


def test_missing_numbers_are_nan():
    for kind in (pa.int64(), pa.uint64(), pa.float32(), pa.bool_(), pa.decimal128(20, 1)):
        assert np.isnan(one(pa.array([1, None]).cast(kind))[1])
    assert np.isnan(one(pa.nulls(2))).all()


@pytest.mark.parametrize("text", ["one", "1_000", "1,5", "0x10", "1 2", "--1"])
def test_other_texts_are_no_numbers(text):
    with pytest.raises(FeatureValueError, match=r"t.csv: row 11, column 'x' is .*; it is no number"):
        one(pa.array(["1", text]))


def test_large_whole_numbers_that_float32_lacks_are_marked():
    values = [2**53, 2**60, 2**60 + 1, 2**60 + 2**20, -(2**63)]
    found = numbers(pa.array(values), width=1, place=PLACE).is_inexact[:, 0]
    assert found.tolist() == [False, False, True, True, False]
    found = numbers(pa.array([*map(str, values), "1e300", "x" * 0]), width=1, place=PLACE).is_inexact[:, 0]
    assert found.tolist() == [False, False, True, True, False, False, False]


def test_lists_have_one_length():
    for kind in (pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.int32(), 2)):
        found = numbers(pa.array([[1, 2], None, [3, None]], kind), width=2, place=PLACE).values
        np.testing.assert_array_equal(found, [[1, 2], [np.nan, np.nan], [3, np.nan]])
    # A slice of a column begins within its lists.
    found = numbers(pa.array([[1, 2], [3, 4], [5, 6]]).slice(1), width=2, place=PLACE).values
    assert found.tolist() == [[3, 4], [5, 6]]
    with pytest.raises(
        ShapeError, match="row 12 has a list of 3 in column 'x'; every list must have 2 numbers"
    ):
        numbers(pa.array([[1, 2], None, [1, 2, 3]]), width=2, place=PLACE)
    with pytest.raises(FeatureValueError, match="lists of 2 numbers are expected"):
        numbers(pa.array([1]), width=2, place=PLACE)


def test_other_types_are_no_numbers():
    with pytest.raises(
        SourceError, match=r"t.csv: column 'x' has type binary; a column of numbers is expected"
    ):
        numbers(pa.array([b"1"]), width=1, place=Place(where="t.csv", column="x", error=SourceError))


def test_truths():
    for column in (
        pa.array([True, False, None]),
        pa.array([1, 0, None]),
        pa.array([1.0, 0.0, np.nan]),
        pa.array(["TRUE", " false ", "NA"]),
        pa.array(["1", "0", None]),
    ):
        np.testing.assert_array_equal(truths(column, place=PLACE), [1, 0, np.nan])
    for column, value in ((pa.array([0, 2]), "2"), (pa.array(["true", "yes"]), "'yes'")):
        with pytest.raises(
            FeatureValueError, match=f"row 11, column 'x' is {value}; it must be true or false"
        ):
            truths(column, place=PLACE)


NOON = datetime(2024, 1, 31, 12, 0, 0, 500_000)  # noqa: DTZ001 - a time without a zone is in UTC
STAMP = 1_706_702_400 * SECOND + 500_000


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (pa.array([NOON, None], pa.timestamp("us")), STAMP),
        (pa.array([NOON, None], pa.timestamp("ns")), STAMP),
        (pa.array([NOON, None], pa.timestamp("ms", tz="UTC")), STAMP),
        (pa.array([NOON, None], pa.timestamp("us", tz="Europe/Paris")), STAMP),
        (pa.array([date(1970, 1, 2), None]), 86_400 * SECOND),
        (pa.array([date(9999, 12, 31), None]), 253_402_214_400 * SECOND),
        (pa.array([86_400, None]), 86_400 * SECOND),
        (pa.array([0.5, None]), SECOND // 2),
        (pa.array(["2024-01-31T12:00:00.5", None]), STAMP),
        (pa.array(["2024-01-31 12:00:00.500000999", ""]), STAMP),
        (pa.array(["2024-01-31T12:00:00.5Z", "NaT"[:0]]), STAMP),
        (pa.array(["2024-01-31T14:00:00.5+02:00", None]), STAMP),
        (pa.array(["1970-01-02", None]), 86_400 * SECOND),
        (pa.array(["86400", "na"]), 86_400 * SECOND),
        (pa.array(["-1.5", None]), -3 * SECOND // 2),
    ],
)
def test_times_are_microseconds(column, value):
    found = times(column, place=PLACE)
    assert found.is_missing.tolist() == [False, True]
    assert found.values.tolist() == [value, 0]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            pa.array([0, 1_700_000_000_000]),
            "row 11, column 'x' is 1700000000000; numbers of times are seconds",
        ),
        (
            pa.array(["0", "1700000000000"]),
            "row 11, column 'x' is 1700000000000; .*divide milliseconds by 1000",
        ),
        (pa.array(["1970-01-01", "31.1.2024"]), "row 11, column 'x' is '31.1.2024'; times are texts such as"),
        (pa.array(["1970-01-01", "2024-13-01T00:00Z"]), "row 11, column 'x' is '2024-13-01T00:00Z'"),
        (pa.array([b"1"]), "column 'x' has type binary; times are timestamps, dates, texts"),
        (pa.array([2**62], pa.timestamp("s")), "a time is out of the range of microseconds"),
    ],
)
def test_other_times_are_refused(column, message):
    with pytest.raises(FeatureValueError, match=message):
        times(column, place=PLACE)


def test_texts_of_categories():
    for column, expected in (
        (pa.array(["a ", None]), ["a ", None]),
        (pa.array([7, None]), ["7", None]),
        (pa.array([7.0, None]), ["7", None]),
        (pa.array([7.0, np.nan]), ["7", None]),
        (pa.array([date(2024, 1, 31), None]), ["2024-01-31", None]),
        (pa.nulls(2), [None, None]),
    ):
        assert texts(column, place=PLACE).to_pylist() == expected
    with pytest.raises(
        FeatureValueError, match=r"row 11, column 'x' is 0.5; categories are texts or whole numbers"
    ):
        texts(pa.array([1.0, 0.5]), place=PLACE)
    with pytest.raises(
        FeatureValueError, match="has type bool; categories are texts, whole numbers or dates"
    ):
        texts(pa.array([True]), place=PLACE)


def test_categories_are_in_order_of_their_numbers_if_all_are_numbers():
    assert in_order(["10", "9", "-1", "9.5"]) == ["-1", "9", "9.5", "10"]
    assert in_order(["b", "9", "10"]) == ["10", "9", "b"]
