import re

import numpy as np
import pytest

from gloader.convert.readers.node_arrays import check_splits, random_splits, to_labels
from gloader.convert.source import Splits
from gloader.dataset.values import MAX_CLASSES
from gloader.errors import SourceError

LABELS = np.array([0, 1, 2, -1, 1, 0])


def splits(train, valid, test):
    return Splits(train=np.array(train, int), valid=np.array(valid, int), test=np.array(test, int))


@pytest.mark.reliability("C13")
@pytest.mark.parametrize(
    ("given", "text"),
    [
        (splits([0, 6], [1], [2]), "train holds node 6 at position 1; nodes are 0..5"),
        (splits([0], [-1], [2]), "valid holds node -1 at position 0"),
        (splits([0, 1], [1], [2]), "node 1 is in train and in valid"),
        (splits([0], [1], [2, 4, 2]), "test holds node 2 more than once"),
        (splits([0, 3], [1], [2]), "train holds node 3 at position 1, which has no label"),
    ],
)
def test_bad_splits_are_named(given, text):
    with pytest.raises(SourceError, match=text):
        check_splits(given, LABELS, where="npy:x")


def test_test_nodes_may_have_hidden_labels():
    check_splits(splits([0], [1], [3]), LABELS, where="npy:x")
    check_splits(splits([], [], []), LABELS, where="npy:x")


def test_random_splits_deal_labelled_nodes_out():
    labels = np.where(np.arange(1000) % 4 == 0, -1, 1)
    first, again, other = (random_splits(labels, seed=seed) for seed in (3, 3, 4))
    assert [len(first.train), len(first.valid), len(first.test)] == [450, 150, 150]
    check_splits(first, labels, where="")
    assert np.array_equal(first.train, again.train)
    assert not np.array_equal(first.train, other.train)


@pytest.mark.reliability("J3")
@pytest.mark.parametrize(
    ("labels", "value"),
    [
        (np.array([0, 1, 2**64 - 1], np.uint64), "18446744073709551615"),
        (np.array([0, 1, 10**12]), "1000000000000"),
        (np.array([0, 1, 1e12]), "1000000000000.0"),
        (np.array([0, 1, np.inf]), "inf"),
        (np.array([0, 1, MAX_CLASSES]), "1000000"),
        (np.array([0, 1, -2]), "-2"),
    ],
)
def test_labels_beyond_any_number_of_classes_are_refused_with_their_row(labels, value):
    with pytest.raises(
        SourceError, match=rf"^here: row 2 has label {re.escape(value)}; labels are classes in 0\.\.999999"
    ):
        to_labels(labels, where="here")
    assert to_labels(np.array([0, 3, MAX_CLASSES - 1], np.uint64), where="here").tolist() == [0, 3, 999_999]
