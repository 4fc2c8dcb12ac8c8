"""Labels from files: whole numbers, -1 (or NaN) where a node has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.errors import ShapeError, SourceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray


def to_labels(values: NDArray[Any], *, where: str) -> IdArray:
    """Return the labels (N,) or (N, 1) as int64 (N,), -1 where a float is NaN. Pure.

    Raises
    ------
    ShapeError
        There is more than one label per node.
    SourceError
        A label is not a whole number of at least -1; names ``where``, the row and the value.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ShapeError(f"{where} has shape {values.shape}; labels must be (N,): one class per node")
    if values.dtype.kind not in "iufb":
        raise SourceError(f"{where} has dtype {values.dtype}; labels must be whole numbers")
    if values.dtype.kind == "f":
        unlabelled = np.isnan(values)
        values = np.where(unlabelled, values.dtype.type(-1), values)
        _refuse(values, (np.floor(values) != values) | (np.abs(values) > 2**53), where)
    _refuse(values, values < -1, where)
    return np.ascontiguousarray(values, np.int64)


def count_classes(labels: IdArray) -> int:
    """Return the number of classes that ``labels`` (N,) need: the largest plus one, at least 1. Pure."""
    return max(1, int(labels.max(initial=-1)) + 1)


def _refuse(values: NDArray[Any], is_bad: NDArray[np.bool_], where: str) -> None:
    bad = np.flatnonzero(is_bad)
    if bad.size:
        raise SourceError(
            f"{where}: row {int(bad[0])} has label {values[bad[0]]}; labels are classes 0, 1, ..., or -1 or NaN where "
            "there is none"
        )
