"""The memory of a process over a stretch of time, in a few numbers however long it is."""

from __future__ import annotations

from typing import Final

NUM_PARTS: Final = 16
_MAX_SLOTS: Final = 4 * NUM_PARTS
_FIRST_SLOT_S: Final = 0.02


class MemoryCourse:
    """The most bytes in each of equal parts of the time since it began. Not thread-safe.

    Readings fill slots of equal length. Where they would be too many, each two become one of twice the length.
    """

    def __init__(self) -> None:
        self._slots: list[int] = []
        self._slot_s = _FIRST_SLOT_S
        self._last: int | None = None

    def add(self, seconds: float, num_bytes: int) -> None:
        """Take a reading.

        Parameters
        ----------
        seconds : since the course began; not before those of an earlier reading
        num_bytes : at that moment
        """
        while seconds >= _MAX_SLOTS * self._slot_s:
            self._slots = [max(self._slots[i : i + 2]) for i in range(0, len(self._slots), 2)]
            self._slot_s *= 2
        place = int(seconds / self._slot_s)
        # Until somebody looks again, it is as it was.
        before = num_bytes if self._last is None else self._last
        self._slots += [before] * (place + 1 - len(self._slots))
        self._slots[-1] = max(self._slots[-1], num_bytes)
        self._last = num_bytes

    def parts(self) -> tuple[int, ...]:
        """Return the most bytes in each of `NUM_PARTS` equal parts; nothing without a reading."""
        count = len(self._slots)
        if not count:
            return ()
        # Of fewer slots than parts, some stand for several.
        bounds = [(i * count // NUM_PARTS, -(-(i + 1) * count // NUM_PARTS)) for i in range(NUM_PARTS)]
        return tuple(max(self._slots[first:end]) for first, end in bounds)
