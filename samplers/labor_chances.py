"""Kernels that find the chances of LABOR: destination s takes source t with chance min(1, scale_s * chance_t).

The scale makes the variance at s that of ``fanout`` neighbours drawn from its d in-edges: the sum over them of
1 / min(1, scale_s * chance_t) is d * d / fanout (section 3 of the paper).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray, LocalArray


@njit(cache=True, nogil=True)
def scale_for(
    chances: NDArray[np.float64], candidate: LocalArray, first: int, last: int, fanout: int
) -> float:
    """Return the scale of the destination with in-edges ``first:last``; infinity where it takes them all. Pure.

    With the set of sources whose chance reaches 1 given, the equation is linear. That set is empty at scale 0 and
    only grows from one solution to the next, so this ends, in practice after a few passes.
    """
    degree = last - first
    if fanout < 0 or degree <= fanout:
        return np.inf
    target = degree * (degree / fanout)
    scale, certain_before = 0.0, -1
    while True:
        rest, certain = 0.0, 0
        for at in range(first, last):
            chance = chances[candidate[at]]
            if scale * chance >= 1.0:
                certain += 1
            else:
                rest += 1.0 / chance
        if certain <= certain_before or certain == degree:
            return scale
        certain_before = certain
        scale = rest / (target - certain)


@njit(cache=True, nogil=True)
def solve(
    offsets: IdArray,
    num_dst: int,
    candidate: LocalArray,
    fanout: int,
    chances: NDArray[np.float64],
    scales: NDArray[np.float64],
) -> None:
    """Write the scale of every destination."""
    for i in range(num_dst):
        scales[i] = scale_for(chances, candidate, offsets[i], offsets[i + 1], fanout)


@njit(cache=True, nogil=True)
def improve(
    offsets: IdArray,
    num_dst: int,
    candidate: LocalArray,
    fanout: int,
    chances: NDArray[np.float64],
    tops: NDArray[np.float64],
) -> float:
    """Raise every chance to the largest that a destination asks for; return the number of nodes expected now.

    A step never raises the number expected: with the new chances every scale is at most 1.
    """
    tops[: chances.shape[0]] = 0.0
    for i in range(num_dst):
        scale = scale_for(chances, candidate, offsets[i], offsets[i + 1], fanout)
        for at in range(offsets[i], offsets[i + 1]):
            tops[candidate[at]] = max(tops[candidate[at]], scale)
    expected = 0.0
    for t in range(chances.shape[0]):
        chances[t] = min(chances[t] * tops[t], 1.0)
        expected += chances[t]
    return expected
