"""A resource that pieces of work share: how much of it each gets, and when the next of them has enough."""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

T = TypeVar("T")

# Of a second, or of the time on the clock where that is more: what is left of a demand by rounding is nothing.
ROUNDING: Final = 1e-12


class Resource(Generic[T]):
    """A resource that is shared out evenly: each unit that is wanted gets as much as any other, and no more than one.

    So one number, what a unit had that was there all the time, tells what everybody had since they came.

    Parameters
    ----------
    capacity : units of it, such as cores; infinite where everybody has their own
    """

    __slots__ = ("_at_s", "_capacity", "_ends", "_had_s", "_rate", "_units", "_used_s", "due_s")

    def __init__(self, capacity: float) -> None:
        self._capacity = capacity
        self._units = 0.0  # that are wanted
        self._rate = 1.0  # seconds of service in a second, for each of these
        self._had_s = 0.0  # seconds of service of one that was there all the time
        self._used_s = 0.0  # seconds of service of all of them
        self._at_s = 0.0  # the time at which that was so
        # A heap of those who use it: what will have been had when each has enough, and how many units it wants.
        self._ends: list[tuple[float, int, float, T]] = []
        self.due_s = math.inf  # the time at which the next of them has

    def begin(self, user: T, number: int, seconds: float, units: float, now_s: float) -> None:
        """Let ``user`` have ``units`` of it until they had ``seconds`` in all.

        Parameters
        ----------
        user : whoever it is
        number : of no other user
        seconds : of service, of all of its units together
        units : that it could use at a time
        now_s : the time
        """
        self._advance(now_s)
        heappush(self._ends, (self._had_s + seconds / units, number, units, user))
        self._share(self._units + units)

    def release(self, now_s: float) -> list[T]:
        """Let those go who have had enough by ``now_s``, the next time at which any has, and return them."""
        self._advance(now_s)
        enough_s = self._had_s + ROUNDING * max(1.0, now_s)
        units, ends, released = self._units, self._ends, []
        while ends and ends[0][0] <= enough_s:
            _, _, its_units, user = heappop(ends)
            units -= its_units
            released.append(user)
        self._share(units)
        return released

    @property
    def is_in_use(self) -> bool:
        """Whether anybody uses it."""
        return bool(self._ends)

    def used_s(self, now_s: float) -> float:
        """Return the seconds of service that all had by ``now_s``, the time."""
        return self._used_s + self._units * self._rate * (now_s - self._at_s)

    def _advance(self, now_s: float) -> None:
        had_s = self._rate * (now_s - self._at_s)
        self._had_s += had_s
        self._used_s += self._units * had_s
        self._at_s = now_s

    def _share(self, units: float) -> None:
        self._units = units
        if self._ends:
            self._rate = min(1.0, self._capacity / units)
            self.due_s = self._at_s + (self._ends[0][0] - self._had_s) / self._rate
        else:
            self.due_s = math.inf
