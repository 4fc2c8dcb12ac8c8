"""A clock that shares a device's time out among those who use it at the same time."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class DeviceUse:
    """The seconds of one use of the device: a fair share of the time in which others used it as well."""

    def __init__(self) -> None:
        self.seconds = 0.0


class DeviceClock:
    """Shares out the time of a device among those who use it: n at a time get an n-th each. Thread-safe.

    The shares add up to the time in which anybody used it. So what a sweep and the reads that run beside it took
    can be compared with what a cost model says about each alone.
    """

    def __init__(self, *, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._num_users = 0
        self._last = 0.0
        self._share = 0.0  # what somebody who had used the device all along would have got

    @contextmanager
    def using(self) -> Iterator[DeviceUse]:
        """Count the block as a use; its seconds are complete when it ends."""
        use = DeviceUse()
        begin = self._advance(1)
        try:
            yield use
        finally:
            use.seconds = self._advance(-1) - begin

    def _advance(self, change: int) -> float:
        """Account for the time since the last change of users; return the share so far."""
        with self._lock:
            # Everybody's share grows at the same pace, so one running sum serves all: a use is a difference of it.
            # The clock is read inside the lock, or time would seem to run backwards for the second of two threads.
            now = self._now()
            if self._num_users > 0:
                self._share += (now - self._last) / self._num_users
            self._last = now
            self._num_users += change
            return self._share
