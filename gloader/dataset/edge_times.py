"""The order of the times of edges: they ascend within the list of each node, by which a prefix of it is what was then.

A list that is not sorted would give a seed edges from after its time, and no checksum tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from gloader.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.types import IdArray

_NONE = np.empty(0, dtype=np.int64)


class TimeCheck:
    """The check that times are sorted, which come in the order of their edges, in pieces.

    Memory is that of the offsets that lie within a piece.

    Parameters
    ----------
    offsets : pieces of indptr, in order. Where they cannot be read no list is known, and nothing is said: whoever
        reads them says more
    """

    def __init__(self, offsets: Iterable[IdArray]) -> None:
        self._offsets = iter(offsets)
        self._starts: IdArray | None = _NONE
        self._count = 0
        self._last = np.iinfo(np.int64).min

    def wrong(self, values: IdArray) -> str | None:
        """Take the next ``values`` (n,); return what is wrong with the first that is below the one before it, or None.

        Where a list begins, what stands before it is another's.
        """
        first, self._count = self._count, self._count + len(values)
        starts = self._starts_up_to(self._count)
        if starts is None or len(values) == 0:
            return None
        # Read-only, as loaded arrays are: to numba another type, to be compiled for again.
        view = values.view()
        view.flags.writeable = False
        at = int(_first_unsorted(view, first, self._last, starts))
        before, self._last = (values[at - 1] if at > 0 else self._last), int(values[-1])
        if at < 0:
            return None
        return (
            f"edge_time[{first + at}] = {values[at]} comes behind {before} in the same list: times that are not sorted "
            "where sorted ones were promised"
        )

    def wrong_end(self) -> str | None:
        """Return None: the last time may be any."""
        return None

    def _starts_up_to(self, end: int) -> IdArray | None:
        """Return where lists begin, up to element ``end``, ascending; None: it is not known."""
        if self._starts is None:
            return None
        known = [self._starts]
        last = int(self._starts[-1]) if len(self._starts) else -1
        try:
            while last < end and (piece := next(self._offsets, None)) is not None:
                # Copied, as the reader uses its memory again; once each, so that empty lists take none.
                begins = piece[np.flatnonzero(np.diff(piece, prepend=last))]
                known.append(begins)
                last = int(piece[-1])
        except StoreError:
            self._starts = None
            return None
        starts = np.concatenate(known)
        # What lies before the next piece is not asked for again.
        self._starts = starts[np.searchsorted(starts, end) :]
        return starts


@njit(cache=True, nogil=True)
def _first_unsorted(times: IdArray, first: int, last: int, starts: IdArray) -> int:
    """Return the first position of a time below that before it, ``last`` before the first, in the same list; or -1."""
    before = last
    for i in range(times.shape[0]):
        if times[i] < before:
            at = np.searchsorted(starts, first + i)
            if at == starts.shape[0] or starts[at] != first + i:
                return i
        before = times[i]
    return -1
