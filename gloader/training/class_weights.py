"""Weights of classes, for losses in which rare classes count as much as common ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
