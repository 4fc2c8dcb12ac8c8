"""Weights of classes and draws of their nodes, with which rare classes count as much as common ones.

`class_weights_of` reads the weights for a loss, `balanced_weights` computes them, and `balanced_seeds` draws training
nodes equally often from every class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.core.order import DrawnSeeds, Draws
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.dataset import Dataset
    from gloader.types import IdArray


def balanced_weights(labels: IdArray, num_classes: int) -> NDArray[np.float64]:
    """Return the weight n / (C * count) for each class, with which all classes weigh alike, (C,) float64. Pure.

    Parameters
    ----------
    labels : (n,) int64 classes of the training nodes; negative ones are unknown and not counted in n
    num_classes : C

    Raises
    ------
    ConfigError
        A class has no training node, or a label is not below C.
    """
    known = labels[labels >= 0]
    counts = np.bincount(known, minlength=num_classes)
    if len(counts) > num_classes:
        raise ConfigError(
            f"a training node has label {len(counts) - 1}, and there are {num_classes:,} classes: 0 to "
            f"{num_classes - 1}"
        )
    if (empty := np.flatnonzero(counts == 0)).size:
        some = ", ".join(map(str, empty[:5])) + (", ..." if len(empty) > 5 else "")
        raise ConfigError(
            f"balanced class weights need a training node in each of the {num_classes:,} classes, and {len(empty):,} "
            f"have none: {some}; give the weights, such as --class-weights 1,5"
        )
    weights: NDArray[np.float64] = len(known) / (num_classes * counts.astype(np.float64))
    return weights


def class_weights_of(text: str, labels: IdArray, num_classes: int) -> tuple[float, ...]:
    """Return the weights of the classes, (C,). Pure.

    Parameters
    ----------
    text : "balanced", or numbers such as "1,5"; of two classes, one number is the weight of class 1
    labels : (n,) classes of the training nodes
    num_classes : C

    Raises
    ------
    ConfigError
        The text is none of these, a weight is not a positive number, their number is not C, or a class has no training
        node and the weights are "balanced".
    """
    if not isinstance(text, str):
        raise ConfigError(f"class_weights is {text!r}; allowed: a text, such as 'balanced' or '1,5'")
    if text == "balanced":
        return tuple(map(float, balanced_weights(labels, num_classes)))
    try:
        weights = tuple(float(part) for part in text.split(","))
    except ValueError:
        weights = ()
    if len(weights) == 1 and num_classes == 2:
        weights = (1.0, *weights)
    if not weights or not all(0 < weight < float("inf") for weight in weights):
        raise ConfigError(
            f"--class-weights {text} is neither none, balanced, nor positive numbers such as 1,5"
        )
    if len(weights) != num_classes:
        raise ConfigError(
            f"--class-weights {text} are {len(weights)} numbers, and the labels have {num_classes} classes; give one "
            "for each class, or balanced"
        )
    return weights


def balanced_seeds(dataset: Dataset) -> DrawnSeeds:
    """Return the training nodes with equally many draws from every class. Reads their labels.

    An epoch has as many draws as there are training nodes, rounded up to a multiple of the number of classes. A class
    without training nodes has no draws.
    """
    nodes = dataset.train
    groups = plain_classes(dataset.labels_of(nodes))
    num_groups = len(np.unique(groups))
    per_class = -(-len(nodes) // num_groups)
    drawn = Draws(num_draws=per_class * num_groups, groups=groups)
    return DrawnSeeds(nodes=nodes, draws=drawn)


def plain_classes(labels: NDArray[Any]) -> IdArray:
    """Return classes (n,) int64 from ``labels``: (n,) classes, or (n, 1) float32 of 0 and 1. Pure."""
    return labels.reshape(-1).astype(np.int64, copy=False)
