"""How many requests are in flight at a time: one more for every round without trouble, half as many behind any."""

from __future__ import annotations

from typing import Final

FIRST_WIDTH: Final = 16


class Window:
    """Additive increase, multiplicative decrease, as TCP has it. Not thread-safe.

    Parameters
    ----------
    most : requests in flight at most, from 1
    first : at the beginning
    """

    __slots__ = ("_age", "_most", "_width")

    def __init__(self, most: int, *, first: int = FIRST_WIDTH) -> None:
        self._most = most
        self._width = float(min(first, most))
        self._age = 0  # how often it was halved

    @property
    def width(self) -> int:
        """Requests that may be in flight now."""
        return int(self._width)

    @property
    def age(self) -> int:
        """What a request notes when it is made, for `halve`."""
        return self._age

    def limit(self, most: int) -> int:
        """Have no more than ``most``, from 1, in flight from here on; return the limit, perhaps of before."""
        self._most = min(self._most, most)
        self._width = min(self._width, float(self._most))
        return self._most

    def widen(self) -> None:
        """Count a request that went well: a round of them, as many as are in flight, makes room for one more."""
        self._width = min(self._most, self._width + 1 / self._width)

    def halve(self, age: int) -> bool:
        """Halve the width for a request that was refused or too slow, once a round; return whether it was.

        Parameters
        ----------
        age : of the window when the request was made: those that were in flight together are one piece of news
        """
        if age != self._age:
            return False
        self._age += 1
        self._width = max(1.0, self._width / 2)
        return True
