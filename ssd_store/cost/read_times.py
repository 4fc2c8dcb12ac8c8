"""How long a read takes by its size, and which holes are therefore worth reading. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final, Literal, TypeAlias

# Bytes of the reads whose rates are measured. Reads of the last size, in file order, run at the sequential rate.
SMALL_BYTES: Final = 4096
MEDIUM_BYTES: Final = 16384
WIDE_BYTES: Final = 65536
SEQUENTIAL_BYTES: Final = 256 * 1024

# The rates that reads are known by.
SizeClass: TypeAlias = Literal["small", "medium", "wide", "in_order"]
_RATE_OF: Final[dict[int, SizeClass]] = {
    SMALL_BYTES: "small",
    MEDIUM_BYTES: "medium",
    WIDE_BYTES: "wide",
    SEQUENTIAL_BYTES: "in_order",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTimes:
    """Seconds that the device needs for a read among many, by its size.

    Some devices take the time of a request and that of its bytes, some the longer of the two: between the sizes that
    were measured, a read takes what those on either side lead to, which is right for both. Sizes that were not measured
    (0) are taken to cost the request and the bytes.
    """

    small_per_s: float  # of 4 KiB, at random
    medium_per_s: float  # of 16 KiB, at random; 0: not measured
    wide_per_s: float  # of 64 KiB, at random; 0: not measured
    bytes_per_s: float  # in file order

    def seconds(self, size: float) -> float:
        """Return the seconds of one read of ``size`` bytes; nothing is read in less than a page."""
        points = _points(self)
        for number, (high, _) in enumerate(points[1:]):
            if size <= high:
                return _between(points, number, max(size, points[0][0]))
        return points[-1][1] * size / SEQUENTIAL_BYTES

    def shares(self, size: float) -> dict[SizeClass, float]:
        """Return which parts of the seconds of a read of ``size`` bytes follow from which of the rates.

        Of "small", "medium" and "wide" reads, and of those "in_order"; they add up to 1.
        """
        points = _points(self)
        for (low, before), (high, after) in pairwise(points):
            if size <= high:
                above = max(size - low, 0) / (high - low)
                far = above * after / (before * (1 - above) + after * above)
                found = {_RATE_OF[low]: 1 - far, _RATE_OF[high]: far}
                return {name: share for name, share in found.items() if share > 0}
        return {"in_order": 1.0}

    def gap_bytes(self, read_bytes: float, *, most: int) -> int:
        """Return the longest hole between two reads of ``read_bytes`` that is read in less time than a request more.

        In whole pages, 0 where the device is bound by bytes: wide rows are then read alone.

        Parameters
        ----------
        read_bytes : of either read, pages included
        most : more is never read through
        """
        apart, best = 2 * self.seconds(read_bytes), 0
        for gap in range(SMALL_BYTES, most + 1, SMALL_BYTES):
            if self.seconds(2 * read_bytes + gap) <= apart:
                best = gap
        return best

    def sweep_gap_bytes(self, *, most: int) -> int:
        """Return the longest hole that a sweep reads through: what passes in file order in the time of a request.

        Parameters
        ----------
        most : more is never read through
        """
        gap = self.bytes_per_s * self.seconds(SMALL_BYTES) - SMALL_BYTES
        return int(math.ceil(min(max(gap, 0.0), most)) // SMALL_BYTES * SMALL_BYTES)


@lru_cache(maxsize=64)  # asked for again and again while memory is shared out
def _points(times: ReadTimes) -> tuple[tuple[int, float], ...]:
    """Return sizes and their seconds: larger reads take no less time, and no more for a byte."""
    last, before = SMALL_BYTES, 1 / times.small_per_s
    found = [(last, before)]
    for size, rate in (
        (MEDIUM_BYTES, times.medium_per_s),
        (WIDE_BYTES, times.wide_per_s),
        (SEQUENTIAL_BYTES, 0.0),
    ):
        if size == WIDE_BYTES and not rate:
            continue
        both = before + (size - last) / times.bytes_per_s
        measured = 1 / rate if rate else both
        seconds = size / times.bytes_per_s if size == SEQUENTIAL_BYTES else measured
        before, last = min(max(seconds, before), before * size / last), size
        found.append((last, before))
    return tuple(found)


def _between(points: tuple[tuple[int, float], ...], number: int, size: float) -> float:
    """Return the seconds of a read whose size is between two points: those before and behind them, drawn on.

    Where the line bends between the two, it is where both meet; it is no higher than straight from one to the other,
    which it is where nothing was measured before them.
    """
    (low, before), (high, after) = points[number : number + 2]
    straight = before + (after - before) * (size - low) / (high - low)
    if number == 0:
        return straight
    earlier, earlier_s = points[number - 1]
    # Behind the last point a read takes the time of its bytes.
    later, later_s = points[number + 2] if number + 2 < len(points) else (2 * high, 2 * after)
    rising, falling = (before - earlier_s) / (low - earlier), (later_s - after) / (later - high)
    return min(straight, max(before + rising * (size - low), after - falling * (high - size)))
