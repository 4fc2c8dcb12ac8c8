"""The points of a set that no other point beats in everything. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


def non_dominated(points: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """Return the numbers of the points that no other one dominates, in their order. Pure.

    A point dominates another one where it is nowhere larger, and somewhere smaller; of equal points none does.

    Parameters
    ----------
    points : (P, D) what is to be small, such as seconds and dollars
    """
    if not points:
        return ()
    values = np.asarray(points, dtype=np.float64)
    return tuple(
        number
        for number, point in enumerate(values)
        if not np.any((values <= point).all(axis=1) & (values < point).any(axis=1))
    )
