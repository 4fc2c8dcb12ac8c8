"""Labels that are values: columns (N, k) of float32 for several labels per node, or for numbers to predict.

`to_values` turns an array of any real dtype into such labels, NaN where a label is unknown. It never rounds a whole
number, and refuses infinite numbers. Labels that are classes (N,) are in `gloader.convert.readers.node_arrays`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.aligned_memory import plain_array
from gloader.errors import SourceError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STEP_ELEMENTS: Final = 1 << 18  # labels per step of a check, so that its temporary arrays stay small


def has_fraction(values: NDArray[Any]) -> bool:
    """Return True if a finite number in ``values`` (N,) is not whole. Pure."""
    if values.dtype.kind != "f":
        return False
    for start in range(0, values.shape[0], _STEP_ELEMENTS):
        part = values[start : start + _STEP_ELEMENTS]
        if (np.isfinite(part) & (np.floor(part) != part)).any():
            return True
    return False


def to_values(values: NDArray[Any], *, where: str, allows_any: bool) -> NDArray[np.float32]:
    """Return label columns as float32 (N, k), NaN where unknown; float32 is not copied. Pure.

    Parameters
    ----------
    values : (N, k) real numbers or bools
    where : the file or array, for messages
    allows_any : whole numbers of an integer dtype may be other than 0 and 1, because the user asked for values

    Raises
    ------
    SourceError
        A number is infinite, or has no exact place in float32, or whole numbers are neither 0 nor 1 without
        ``allows_any``. The message names the row, the column and the number.
    """
    is_whole = values.dtype.kind in "iu"
    result = plain_array(values, np.float32) if values.dtype == np.float32 else None
    cast = np.empty(values.shape, np.float32) if result is None else result
    step = max(1, _STEP_ELEMENTS // max(1, values.shape[1]))
    for start in range(0, values.shape[0], step):
        part = values[start : start + step]
        if is_whole and not allows_any:
            _refuse(part, (part != 0) & (part != 1), start, where, _NEITHER_0_NOR_1)
        if result is None:
            # A number beyond float32 becomes infinite, and is refused below.
            with np.errstate(over="ignore"):
                cast[start : start + step] = part
        if is_whole:
            # Below 2**53, float64 holds every whole number, so the comparison is exact.
            stored = cast[start : start + step].astype(np.float64)
            _refuse(part, (stored != part) | (np.abs(stored) > 2**53), start, where, _ROUNDED)
        _refuse(part, np.isinf(cast[start : start + step]), start, where, _INFINITE)
    return cast


_NEITHER_0_NOR_1: Final = (
    "columns of whole numbers are several labels per node, each 0 or 1; for numbers to predict give "
    '--labels-as values, in Python labels_as="values", and for one class per node an array (N,)'
)
_ROUNDED: Final = (
    "it has no exact place in float32; subtract a constant from the labels, or divide them, and save floats"
)
_INFINITE: Final = "a label must be finite in float32, or NaN where it is unknown"


def _refuse(part: NDArray[Any], is_bad: NDArray[np.bool_], first: int, where: str, rule: str) -> None:
    """Raise SourceError for the first bad label in ``part`` (n, k), whose rows begin at ``first``."""
    bad = np.flatnonzero(is_bad)
    if bad.size:
        row, column = divmod(int(bad[0]), part.shape[1])
        raise SourceError(
            f"{where}: row {first + row}, column {column} has label {part[row, column]}; {rule}"
        )
