"""Labels that are values: which arrays become classes, which values, and which are refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gloader.convert.readers.node_arrays import check_splits, count_classes, random_splits, to_labels
from gloader.convert.source import Splits
from gloader.errors import ShapeError, SourceError

NAN = np.nan


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        (np.array([0, 2, -1]), [0, 2, -1]),
        (np.array([0.0, 2.0, NAN], np.float32), [0, 2, -1]),
        (np.array([[0.0], [2.0], [NAN]]), [0, 2, -1]),
        (np.array([True, False]), [1, 0]),
        (np.array([[3], [1]], np.uint8), [3, 1]),
    ],
)
def test_one_column_of_whole_numbers_holds_classes(given, classes):
    labels = to_labels(given, where="here")
    assert labels.dtype == np.int64
    assert labels.tolist() == classes
    assert to_labels(given, where="here", labels_as="classes").tolist() == classes


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (np.array([0.5, -3.0, NAN]), [[0.5], [-3.0], [NAN]]),
        (np.array([[0.5], [1.0]], np.float16), [[0.5], [1.0]]),
        (np.array([[0, 1], [1, 1]]), [[0, 1], [1, 1]]),
        (np.array([[True, False]]), [[1, 0]]),
        (np.array([[1.0, NAN], [2.0, 7.0]], np.float32), [[1, NAN], [2, 7]]),
        (np.eye(3, dtype=np.int8), np.eye(3).tolist()),
    ],
)
def test_fractions_and_several_columns_are_values(given, values):
    labels = to_labels(given, where="here")
    assert labels.dtype == np.float32
    assert labels.flags.c_contiguous
    np.testing.assert_array_equal(labels, np.array(values, np.float32))
    assert count_classes(labels) == len(values[0])


def test_the_users_choice_decides_over_the_array():
    assert to_labels(np.array([7, -1, 3]), where="here", labels_as="values").tolist() == [[7], [-1], [3]]
    chosen = to_labels(np.array([1.0, NAN]), where="here", labels_as="values")
    np.testing.assert_array_equal(chosen, np.array([[1], [NAN]], np.float32))
    with pytest.raises(SourceError, match=r"^here: row 1 has label 0\.5; labels are classes in 0\.\.999999"):
        to_labels(np.array([1.0, 0.5]), where="here", labels_as="classes")
    with pytest.raises(
        ShapeError, match=r"classes needs \(N,\): .* of one-hot rows labels\.argmax\(axis=1\)"
    ):
        to_labels(np.eye(2), where="here", labels_as="classes")


@pytest.mark.parametrize(
    ("given", "labels_as", "said"),
    [
        (
            np.array([[0, 1], [1, 2]]),
            None,
            "row 1, column 1 has label 2; columns of whole numbers are several",
        ),
        (np.array([[0, -1]]), None, "row 0, column 1 has label -1; columns of whole numbers"),
        (np.array([[1.0, np.inf]]), None, "row 0, column 1 has label inf; a label must be finite"),
        (np.array([[1.0, 1e39]]), None, "row 0, column 1 has label 1e+39; a label must be finite in float32"),
        (np.array([0.5, -np.inf]), None, "row 1, column 0 has label -inf; a label must be finite"),
        (np.array([2**24 + 1]), "values", "row 0, column 0 has label 16777217; it has no exact place in"),
        (np.array([2**63 + 1], np.uint64), "values", "it has no exact place in float32"),
    ],
)
def test_a_value_that_cannot_be_a_label_is_named(given, labels_as, said):
    with pytest.raises(SourceError, match=re.escape(said)):
        to_labels(given, where="here", labels_as=labels_as)


@pytest.mark.parametrize("shape", [(), (3, 0), (3, 2, 1)])
def test_an_array_without_rows_of_labels_is_refused(shape):
    with pytest.raises(
        ShapeError, match=re.escape(f"here has shape {shape}; labels must be (N,), one class")
    ):
        to_labels(np.zeros(shape), where="here")


def test_a_float32_matrix_is_not_copied_and_a_large_one_is_checked_to_its_end():
    values = np.zeros((300_000, 3), np.float32)
    assert to_labels(values, where="here") is values
    values[-1, 2] = np.inf
    with pytest.raises(SourceError, match="row 299999, column 2 has label inf"):
        to_labels(values, where="here")


def test_a_node_with_one_known_value_is_labelled_and_others_are_in_no_random_part():
    labels = np.full((10, 2), NAN, np.float32)
    labels[3, 1] = labels[7, 0] = labels[8] = labels[9, 0] = labels[2, 0] = 1.0
    splits = random_splits(labels, seed=0)
    assert sorted(np.r_[splits.train, splits.valid, splits.test].tolist()) == [2, 3, 7, 8, 9]
    check_splits(splits, labels, where="here")
    none, empty = np.array([0]), np.array([], np.int64)
    check_splits(Splits(train=empty, valid=empty, test=none), labels, where="here")  # as OGB's hidden labels
    with pytest.raises(SourceError, match="valid holds node 0 at position 0, which has no label"):
        check_splits(Splits(train=empty, valid=none, test=empty), labels, where="here")
