"""Loops of the out-of-core mean. Callers check the arrays, kernels do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import njit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gloader.types import IdArray


@njit(cache=True, nogil=True)
def add_rows(rows: NDArray[np.float32], places: IdArray, targets: IdArray, sums: NDArray[np.float32]) -> None:
    """Add ``rows[places[e]]`` to ``sums[targets[e]]`` for each edge e, in order."""
    for e in range(places.shape[0]):
        place, target = places[e], targets[e]
        for column in range(sums.shape[1]):
            sums[target, column] += rows[place, column]
