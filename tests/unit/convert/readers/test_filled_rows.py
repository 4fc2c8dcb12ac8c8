"""Missing features that become 0, a mean, or a mean with a flag."""

from dataclasses import replace

import numpy as np
import pytest

from gloader.convert.readers.arrays import array_features
from gloader.convert.readers.filled_rows import FilledRows
from gloader.errors import SourceError

NAN, INF = np.nan, np.inf
ROWS = np.array([[1, NAN, 5], [3, 4, INF], [8, NAN, 7], [NAN, 2, 9]], np.float32)


def filled(rows, missing, *, train=None, names=(), max_rows=3):
    """Return the filled rows, the stream and the receipt's text."""
    mask = None if train is None else np.isin(np.arange(len(rows)), train)
    given = replace(array_features(rows), names=names)
    wrapped = FilledRows(given, missing=missing, is_train=mask, where="x.npy")
    stream = wrapped.stream()
    found = np.concatenate(list(stream.chunks(max_rows)))
    assert found.shape == (len(rows), stream.dim)
    assert found.dtype == rows.dtype
    return found.tolist(), stream, wrapped.text()


def test_zero():
    rows, stream, text = filled(ROWS, "zero")
    assert rows == [[1, 0, 5], [3, 4, 0], [8, 0, 7], [0, 2, 9]]
    assert (stream.dim, stream.names) == (3, ())
    assert text == "4 -> zero, in columns 0, 1, 2, 1 of them infinite"


def test_means_come_from_training_rows():
    assert filled(ROWS, "mean")[0] == [[1, 3, 5], [3, 4, 7], [8, 3, 7], [4, 2, 9]]
    assert filled(ROWS, "mean", train=[0, 1])[0] == [[1, 4, 5], [3, 4, 5], [8, 4, 7], [2, 2, 9]]


@pytest.mark.parametrize("max_rows", [1, 2, 100])
def test_flags_exist_for_columns_with_missing_values(max_rows):
    rows = ROWS[:3]
    found, stream, text = filled(rows, "flag", names=("a", "b", "c"), max_rows=max_rows)
    assert found == [[1, 4, 5, 1, 0], [3, 4, 6, 0, 1], [8, 4, 7, 1, 0]]
    assert stream.names == ("a", "b", "c", "b=missing", "c=missing")
    assert text == "3 -> the mean and a flag, in columns b, c, 1 of them infinite"
    assert filled(rows, "flag")[1].names == ("0", "1", "2", "1=missing", "2=missing")


def test_rows_without_missing_values_stay_as_they_are():
    rows = np.ones((3, 2), np.float16)
    for missing in ("zero", "mean", "flag"):
        found, stream, text = filled(rows, missing)
        assert (found, stream.dim, text) == (rows.tolist(), 2, "")
    whole = np.ones((3, 2), np.int32)
    given = array_features(whole)
    assert FilledRows(given, missing="flag", is_train=None, where="x").stream() is given


def test_a_pass_for_means_is_made_only_for_missing_values():
    passes = []
    given = array_features(ROWS[1:2, :2])

    def chunks(max_rows):
        passes.append(max_rows)
        return given.chunks(max_rows)

    stream = FilledRows(replace(given, chunks=chunks), missing="mean", is_train=None, where="x").stream()
    list(stream.chunks(9))
    assert len(passes) == 1


def test_a_column_without_training_values_has_no_mean():
    with pytest.raises(
        SourceError, match=r"x.npy: column 'b' has no value in any training row.*--missing zero"
    ):
        filled(ROWS, "mean", train=[0, 2], names=("a", "b", "c"))


def test_the_rounded_rows_are_filled_too():
    given = array_features(np.array([[NAN, 1]], np.float64))
    rounded = replace(given, rounded=array_features(np.array([[NAN, 2]], np.float64)))
    stream = FilledRows(rounded, missing="zero", is_train=None, where="x").stream()
    assert np.concatenate(list(stream.rounded.chunks(3))).tolist() == [[0, 2]]
    assert np.concatenate(list(stream.chunks(3))).tolist() == [[0, 1]]
    assert stream.rounded.rounded is None
