"""The nodes of the three parts of a task: checked, drawn at random, or read from masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.convert.readers.ids import to_ids
from gloader.convert.source import Splits
from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

_SHARES = (0.6, 0.2)


def check_splits(splits: Splits, labels: IdArray, *, where: str) -> None:
    """Refuse ids out of range, ids given twice, and nodes without a label in train or valid. Pure.

    Test nodes may have no label: some public tasks keep those to themselves.

    Raises
    ------
    SourceError
        Names ``where``, the split, the position and the node.
    """
    owner = np.zeros(labels.shape[0], np.uint8)
    names = ("train", "valid", "test")
    for number, (name, ids) in enumerate(
        zip(names, (splits.train, splits.valid, splits.test), strict=True), 1
    ):
        outside = np.flatnonzero((ids < 0) | (ids >= labels.shape[0]))
        if outside.size:
            raise SourceError(
                f"{where}: {name} holds node {ids[outside[0]]} at position {outside[0]}; nodes are "
                f"0..{labels.shape[0] - 1}"
            )
        taken = np.flatnonzero(owner[ids])
        if taken.size:
            node = int(ids[taken[0]])
            raise SourceError(
                f"{where}: node {node} is in {names[owner[node] - 1]} and in {name}; a node has one part"
            )
        owner[ids] = number
        if np.count_nonzero(owner == number) != ids.shape[0]:
            node = _first_repeat(ids)
            raise SourceError(f"{where}: {name} holds node {node} more than once")
        bare = np.flatnonzero(labels[ids] < 0)
        if bare.size and name != "test":
            raise SourceError(
                f"{where}: {name} holds node {ids[bare[0]]} at position {bare[0]}, which has no label"
            )


def random_splits(labels: IdArray, *, seed: int) -> Splits:
    """Deal the labelled nodes out at random: 60% train, 20% valid, 20% test. Pure; equal seeds, equal splits."""
    labelled = np.flatnonzero(labels >= 0)
    shuffled = np.random.default_rng(seed).permutation(labelled)
    first = round(_SHARES[0] * labelled.shape[0])
    second = first + round(_SHARES[1] * labelled.shape[0])
    return Splits(
        train=np.sort(shuffled[:first]),
        valid=np.sort(shuffled[first:second]),
        test=np.sort(shuffled[second:]),
    )


def to_split(values: NDArray[Any], *, num_nodes: int, where: str) -> IdArray:
    """Return node ids from an array of ids (n,) or from a mask of bools (N,). Pure.

    Raises
    ------
    ShapeError
        The array is not one-dimensional, or a mask is not N long.
    GraphError
        The ids are no integers.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ShapeError(f"{where} has shape {values.shape}; a split is (n,) node ids or an (N,) mask")
    if values.dtype == np.bool_:
        if values.shape[0] != num_nodes:
            raise ShapeError(f"{where} is a mask of {values.shape[0]} nodes; there are {num_nodes}")
        return np.flatnonzero(values)
    return to_ids(values, first=0, where=where)


def _first_repeat(ids: IdArray) -> int:
    unique, counts = np.unique(ids, return_counts=True)
    return int(unique[counts > 1][0])
