"""Labels as an input of a propagation, and its result without a node's own label.

The nodes are divided into folds by a hash of their ids. Each fold has a group of columns, with the labels of its
training nodes only, so the labels of each fold are propagated apart from the others. `without_own_fold` adds up the
groups of all folds except the node's own. So no node sees its own label, and training nodes see the same share of the
labels as all other nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.hashing import GOLDEN, mixed_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.dataset import Dataset
    from gloader.types import IdArray

NUM_FOLDS: Final = 5  # a node sees four fifths of the labels; more folds cost as many more columns


def folds_of(nodes: IdArray) -> IdArray:
    """Return the fold (n,) of each of ``nodes`` (n,), 0 to `NUM_FOLDS` - 1. Pure."""
    words = mixed_words(nodes.astype(np.uint64) + GOLDEN)
    return (words % np.uint64(NUM_FOLDS)).astype(np.int64)


def label_columns(dataset: Dataset) -> tuple[str, ...]:
    """Return the names of a fold's columns. Pure.

    A class is one column, which is 1 for training nodes of the class. A label that is a value is two columns: the
    value, which is 0 where it is unknown, and a column that is 1 where it is known.
    """
    names = dataset.label_names or tuple(map(str, range(dataset.num_classes)))
    if dataset.label_kind == "classes":
        return names
    return (*names, *(f"{name}=known" for name in names))


def label_bytes(dataset: Dataset) -> int:
    """Return the bytes of memory that `LabelRows` takes, and its construction. Pure."""
    # The ids, sorted and as loaded, their order, folds and labels.
    return dataset.labelled.split_sizes["train"] * (4 * 8 + 2 * 8 * dataset.label_width)


class LabelRows:
    """The labels of the training nodes as rows (N, NUM_FOLDS * w) float32, read in node order.

    Parameters
    ----------
    dataset : the dataset with the labels
    """

    def __init__(self, dataset: Dataset) -> None:
        table = dataset.labelled
        self.bytes_read = 0  # from the device: none, because the labels are in memory
        self.num_rows = table.num_nodes
        self.names = label_columns(dataset)
        self.width = NUM_FOLDS * len(self.names)
        self._nodes = np.unique(table.train)
        self._folds = folds_of(self._nodes)
        self._labels: NDArray[Any] = table.labels_of(self._nodes)

    def read(self, start: int, stop: int, out: NDArray[np.float32]) -> None:
        """Write rows ``start`` to ``stop`` into ``out`` (stop - start, width)."""
        out[:] = 0
        first, past = np.searchsorted(self._nodes, [start, stop])
        labels, rows = self._labels[first:past], self._nodes[first:past] - start
        starts = self._folds[first:past] * len(self.names)  # the first column of the node's fold
        if labels.ndim == 1:
            is_known = labels >= 0
            out[rows[is_known], (starts + labels)[is_known]] = 1
            return
        is_known, width = np.isfinite(labels), labels.shape[1]
        columns = starts[:, None] + np.arange(width)
        out[rows[:, None], columns] = np.where(is_known, labels, 0)
        out[rows[:, None], columns + width] = is_known


def without_own_fold(rows: NDArray[np.float32], nodes: IdArray) -> NDArray[np.float32]:
    """Return the sums (n, w) over all folds except each node's own, in the order of the folds. Pure.

    Parameters
    ----------
    rows : (n, NUM_FOLDS * w), the propagated labels of each fold
    nodes : (n,) the rows' nodes
    """
    folds = folds_of(nodes)
    by_fold = rows.reshape(len(rows), NUM_FOLDS, -1)
    sums = np.zeros((len(rows), by_fold.shape[2]), np.float32)
    for fold in range(NUM_FOLDS):
        np.add(sums, by_fold[:, fold], out=sums, where=(folds != fold)[:, None])
    return sums
