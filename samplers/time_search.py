"""Where a time stands in lists of edges that are sorted by time, in memory or on the SSD."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.samplers import time_kernels
from gloader.samplers.graph import HeldValues
from gloader.samplers.graph_errors import bad_time

if TYPE_CHECKING:
    from gloader.samplers.graph import EdgeValues
    from gloader.types import IdArray

# Two pages of times. A list of no more is read whole: halving it first would read a page for each page that it saves,
# and wait for one after the other. Of a longer one each step reads a page and saves half of the rest.
_READ_WHOLE: Final = 1024
# Times that are read at a time, of many lists: a bound for the memory, and requests enough for the disk.
_AT_A_TIME: Final = 1 << 18
# Of a list that is searched, beside its times: where it begins and ends, what it is searched for, what was found to lie
# before and behind it, its rank, and the same once more of those that are halved together.
_LIST_BYTES: Final = 160
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def rank_bounds(
    times: EdgeValues, starts: IdArray, counts: IdArray, bounds: IdArray, *, is_inclusive: bool
) -> IdArray:
    """Return how many times of each list are before its bound, or at it, (M,) int64. Thread-safe.

    In memory by binary search. On the SSD a list of up to 1,024 times is read, and a longer one halved until no more
    are left: at most log2(d / 1024) + 3 pages of a list of d edges.

    Parameters
    ----------
    times : of all edges, ascending in each list
    starts, counts : (M,) int64, where each list begins, and how many edges it has
    bounds : (M,) int64
    is_inclusive : whether a time that equals the bound is counted

    Raises
    ------
    GraphError
        A time that was read from the SSD is less than one before it in its list; names the position.
    GloaderError
        As of `EdgeValues`.
    """
    if isinstance(times, HeldValues):
        ranks = np.empty(len(starts), dtype=np.int64)
        time_kernels.rank_bounds(times.array, starts, counts, bounds, is_inclusive, ranks)
        return ranks
    search = _Search(times, starts, counts, bounds, is_inclusive=is_inclusive)
    search.halve()
    return search.finish(starts)


def search_bytes(times: EdgeValues, *, num_lists: int, num_edges: int) -> int:
    """Return the memory that a call of `rank_bounds` takes at its peak, for lists with so many edges in all. Pure."""
    ranks = 8 * num_lists
    if isinstance(times, HeldValues):
        return ranks
    in_hand = max(times.list_bytes(min(num_edges, _AT_A_TIME)), times.fetch_bytes(num_lists))
    return ranks + _LIST_BYTES * num_lists + in_hand


class _Search:
    """Lists on the SSD, of which less and less is left to search."""

    def __init__(
        self, times: EdgeValues, starts: IdArray, counts: IdArray, bounds: IdArray, *, is_inclusive: bool
    ) -> None:
        self._times = times
        self._left = starts.copy()  # the place of the bound is in left..right
        self._right = starts + counts
        self._bounds = bounds
        self._is_inclusive = is_inclusive
        # The times before ``left`` and at ``right``: what was read is compared, so that no list passes for sorted that
        # was seen not to be.
        self._floors = np.full(len(starts), _FIRST)
        self._ceilings = np.full(len(starts), _LAST)

    def halve(self) -> None:
        """Read times in the middle of long lists, until no list is long."""
        while len(wide := np.flatnonzero(self._right - self._left > _READ_WHOLE)):
            middle = (self._left[wide] + self._right[wide]) >> 1
            values, places = self._times.at(middle)
            found, bounds = values[places], self._bounds[wide]
            wrong = (found < self._floors[wide]) | (found > self._ceilings[wide])
            if wrong.any():
                at = int(np.argmax(wrong))
                raise bad_time(int(middle[at]), int(found[at]))
            is_before = found <= bounds if self._is_inclusive else found < bounds
            before, behind = wide[is_before], wide[~is_before]
            self._left[before], self._floors[before] = middle[is_before] + 1, found[is_before]
            self._right[behind], self._ceilings[behind] = middle[~is_before], found[~is_before]

    def finish(self, starts: IdArray) -> IdArray:
        """Read what is left of the lists; return the ranks from ``starts``."""
        counts = self._right - self._left
        ends = np.cumsum(counts)
        ranks = np.empty(len(counts), dtype=np.int64)
        first = 0
        while first < len(counts):
            done = int(ends[first - 1]) if first else 0
            # At least one: no list is longer than what is read at a time.
            last = int(np.searchsorted(ends, done + _AT_A_TIME, side="right"))
            self._finish(slice(first, last), counts, ranks)
            first = last
        return ranks + self._left - starts

    def _finish(self, some: slice, counts: IdArray, ranks: IdArray) -> None:
        lists = self._times.lists(self._left[some], counts[some], 0, some.stop - some.start)
        found = lists.values, lists.starts, counts[some]
        bad, rank = time_kernels.first_unsorted(*found, self._floors[some], self._ceilings[some])
        if bad >= 0:
            value = int(lists.values[lists.starts[bad] + rank])
            raise bad_time(int(self._left[some][bad]) + rank, value)
        time_kernels.rank_bounds(*found, self._bounds[some], self._is_inclusive, ranks[some])
