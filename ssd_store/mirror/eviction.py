"""Which blocks make room for another one: those that are expected to be used least. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FADE: Final = np.float32(0.75)  # what a use counts for when the file was swept once more
# A newcomer must be used so much more than what it replaces: blocks that are used alike would else take turns, and in
# a sweep over more than fits each would be evicted just before it is wanted again.
_MARGIN: Final = np.float32(1.25)


def count_uses(uses: NDArray[np.float32], wanted: NDArray[np.intp]) -> None:
    """Take down one pass over a file, by which the blocks ``wanted`` were used and the others were not."""
    uses *= _FADE
    uses[wanted] += 1


def choose_victims(
    uses: NDArray[np.float32], lengths: NDArray[np.int64], *, needed_bytes: int, newcomer: float | None
) -> NDArray[np.intp] | None:
    """Return which of the blocks that may go have to, the least used first; None: rather leave the newcomer out.

    Parameters
    ----------
    uses : (V,) of the blocks that may be evicted
    lengths : (V,) their bytes
    needed_bytes : how many must become free
    newcomer : its uses; None: it must be kept, whatever has to go
    """
    order = np.argsort(uses, kind="stable")
    freed = np.cumsum(lengths[order])
    count = int(np.searchsorted(freed, needed_bytes)) + 1 if needed_bytes > 0 else 0
    if count > order.size:
        return order if newcomer is None else None
    chosen = order[:count]
    if newcomer is not None and (uses[chosen] * _MARGIN >= newcomer).any():
        return None
    return chosen
