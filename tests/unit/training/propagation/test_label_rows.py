"""Labels by fold: what is propagated, and that no node sees its own label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.dataset import Dataset
from gloader.training.propagation.label_rows import (
    NUM_FOLDS,
    LabelRows,
    folds_of,
    label_columns,
    without_own_fold,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

N, C = 200, 3


def make(path: Path, labels: NDArray[Any], **more: Any) -> Dataset:
    random = np.random.default_rng(0)
    ids = random.permutation(N)
    return Dataset.from_numpy(
        path,
        features=random.normal(size=(N, 2)).astype(np.float32),
        labels=labels,
        edge_index=random.integers(0, N, (2, 900)),
        train=ids[:100],
        valid=ids[100:150],
        test=ids[150:],
        **more,
    )


def classes() -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(0, C, N)


def read(rows: LabelRows, step: int = 33) -> NDArray[np.float32]:
    """Return all rows, read in parts."""
    out = np.full((rows.num_rows, rows.width), np.nan, np.float32)
    for start in range(0, rows.num_rows, step):
        stop = min(start + step, rows.num_rows)
        rows.read(start, stop, out[start:stop])
    return out


def test_folds_have_like_sizes_and_do_not_depend_on_the_other_nodes() -> None:
    folds = folds_of(np.arange(100_000))
    assert np.bincount(folds).tolist() == pytest.approx([20_000] * NUM_FOLDS, rel=0.02)
    assert (folds_of(np.array([7, 99, 5])) == folds[[7, 99, 5]]).all()
    # Neighbours in the order of the ids are in different folds.
    assert (folds[1:] == folds[:-1]).mean() == pytest.approx(0.2, abs=0.01)


def test_a_class_is_one_in_the_column_of_its_fold(tmp_path: Path) -> None:
    dataset = make(tmp_path / "d", classes())
    rows = read(LabelRows(dataset))
    expected = np.zeros((N, NUM_FOLDS, C), np.float32)
    for node in dataset.train:
        expected[node, folds_of(np.array([node]))[0], dataset.labels[node]] = 1
    assert (rows == expected.reshape(N, -1)).all()
    assert label_columns(dataset) == ("0", "1", "2")


def test_values_have_a_column_that_says_where_they_are_known(tmp_path: Path) -> None:
    labels = np.random.default_rng(2).normal(size=(N, 2)).astype(np.float32)
    labels[::3, 0] = np.nan
    dataset = make(tmp_path / "d", labels, label_names=["size", "age"])
    rows = read(LabelRows(dataset)).reshape(N, NUM_FOLDS, 4)
    for node in range(N):
        known = np.isfinite(labels[node]) & (node in dataset.train)
        fold = folds_of(np.array([node]))[0]
        assert (rows[node, fold] == [*np.where(known, labels[node], 0), *known]).all()
        assert not np.delete(rows[node], fold, axis=0).any()
    assert label_columns(dataset) == ("size", "age", "size=known", "age=known")


def test_the_own_fold_is_left_out_in_the_order_of_the_folds() -> None:
    rows = np.random.default_rng(3).normal(size=(50, NUM_FOLDS * C)).astype(np.float32)
    nodes = np.arange(1000, 1050)
    sums = without_own_fold(rows, nodes)
    for row, node in enumerate(nodes):
        total = np.zeros(C, np.float32)
        for fold in range(NUM_FOLDS):
            if fold != folds_of(np.array([node]))[0]:
                total = total + rows[row, fold * C : (fold + 1) * C]
        assert (sums[row] == total).all()


def test_labels_of_other_splits_are_never_read(tmp_path: Path) -> None:
    labels = classes()
    first = make(tmp_path / "a", labels)
    others = labels.copy()
    held_out = np.concatenate([first.valid, first.test])
    others[held_out] = (others[held_out] + 1) % C
    second = make(tmp_path / "b", others)
    assert (second.train == first.train).all()
    assert (read(LabelRows(second)) == read(LabelRows(first))).all()
