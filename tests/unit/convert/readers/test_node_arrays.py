import numpy as np
import pytest

from gloader.convert.readers.node_arrays import check_splits, random_splits
from gloader.convert.source import Splits
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
