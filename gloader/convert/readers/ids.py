"""Node ids from files: integers of any width, widened to int64 without ever wrapping."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.errors import GraphError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray


def check_id_dtype(dtype: np.dtype[Any], where: str) -> None:
    """Refuse ids that are not native integers. Pure.

    Raises
    ------
    GraphError
        ``dtype`` is a float, a bool, of foreign byte order or no number; names ``where``.
    """
    if dtype.kind not in "iu" or not dtype.isnative:
        raise GraphError(
            f"{where} has dtype {dtype.str!r}; node ids and offsets must be native integers: save them with "
            ".astype('int64')"
        )


def to_ids(values: NDArray[Any], *, first: int, where: str) -> IdArray:
    """Return ``values`` (n,) as int64; ``first`` is the number of the first one in its file. Pure.

    Raises
    ------
    GraphError
        As `check_id_dtype`, or an unsigned value does not fit into int64.
    """
    check_id_dtype(values.dtype, where)
    if values.dtype == np.uint64:
        bad = np.flatnonzero(values > np.uint64(2**63 - 1))
        if bad.size:
            raise GraphError(
                f"{where}: entry {first + int(bad[0])} is {values[bad[0]]}; ids must be below 2**63"
            )
    return np.ascontiguousarray(values, np.int64)
