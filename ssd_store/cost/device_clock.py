"""A clock that shares a device's time out among those who use it at the same time."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gloader.core.core_wait import core_wait_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Of a wait for a core: what the device stands still. It works on for as long as it has requests; in 186 superbatches on
# two busy cores 0.7 to 0.8 of the waits came on top of what the same reads took while the cores were idle.
_LOST: Final = 0.75


class DeviceUse:
    """The seconds of one use of the device: a fair share of the time in which others used it as well."""

    def __init__(self) -> None:
        self.seconds = 0.0


class DeviceClock:
    """Shares out the time of a device among those who use it: n at a time get an n-th each. Thread-safe.

    The shares add up to the time in which anybody used it, less the time in which a user had no core to ask it for
    more: a device cannot be faster or slower by that. So what a sweep and the reads that run beside it took can be
    compared with what a cost model says about each alone.

    Parameters
    ----------
    now : the seconds of a clock
    waited : the seconds that the calling thread has waited for a core so far
    """

    def __init__(
        self, *, now: Callable[[], float] = time.perf_counter, waited: Callable[[], float] = core_wait_s
    ) -> None:
        self._now = now
        self._waited = waited
        self._lock = threading.Lock()
        self._num_users = 0
        self._last = 0.0
        self._share = 0.0  # what somebody who had used the device all along would have got

    @contextmanager
    def using(self) -> Iterator[DeviceUse]:
        """Count the block as a use; its seconds are complete when it ends."""
        use = DeviceUse()
        waited, (began, share) = self._waited(), self._advance(1)
        try:
            yield use
        finally:
            ended, share_then = self._advance(-1)
            waited = self._waited() - waited
            use.seconds = (share_then - share) * _working(waited, ended - began)

    def _advance(self, change: int) -> tuple[float, float]:
        """Account for the time since the last change of users; return the time, and the share so far."""
        with self._lock:
            # Everybody's share grows at the same pace, so one running sum serves all: a use is a difference of it.
            # The clock is read inside the lock, or time would seem to run backwards for the second of two threads.
            now = self._now()
            if self._num_users > 0:
                self._share += (now - self._last) / self._num_users
            self._last = now
            self._num_users += change
            return now, self._share


def _working(waited: float, seconds: float) -> float:
    """Return the share of the ``seconds`` of a use that is left without what was lost to waits for a core. Pure."""
    return 1 - _LOST * min(max(waited / seconds, 0.0), 1.0) if seconds > 0 else 1.0
