"""The time in which kernels were compiled: in the first run on a machine, longer than an epoch takes."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from numba.core.event import Listener, register

if TYPE_CHECKING:
    from numba.core.event import Event


_LOG = logging.getLogger("gloader")

_TOLD_AFTER_S = 0.5  # of compiling: a kernel or two that an earlier run did not need are no wait


class _CompileClock(Listener):
    """Adds up the time in which a kernel was compiled. Numba compiles one at a time, and tells it under its lock."""

    def __init__(self) -> None:
        # Seconds of what has been compiled, and when what is being compiled began. One tuple, replaced as a whole:
        # other threads read it without a lock, and would count a kernel twice or not at all between two assignments.
        self._state: tuple[float, float | None] = (0.0, None)
        self._depth = 0  # a kernel is compiled inside of one that calls it
        self.heard_from_s = math.inf  # of compiling, before a loader was built whose user waits
        self.is_told = False

    def on_start(self, event: Event) -> None:
        """Note that a kernel begins to be compiled; one that is loaded from numba's cache is not."""
        if (
            not self.is_told
            and self.read() - self.heard_from_s > _TOLD_AFTER_S
            and event.data["dispatcher"].py_func.__module__.startswith("gloader.")
        ):
            self.is_told = True
            _LOG.warning("compiling gloader's kernels, once on this machine: up to a minute on two cores")
        if self._depth == 0:
            self._state = (self._state[0], time.perf_counter())
        self._depth += 1

    def on_end(self, event: Event) -> None:
        """Note that it is compiled."""
        del event
        self._depth -= 1
        if self._depth == 0:
            self._state = (self.read(), None)

    def read(self) -> float:
        """Return the seconds so far, those of a kernel that is being compiled included."""
        seconds, began = self._state
        return seconds if began is None else seconds + time.perf_counter() - began


_CLOCK = _CompileClock()
register("numba:compile", _CLOCK)


def compile_seconds() -> float:
    """Return the seconds in which this process compiled kernels."""
    return _CLOCK.read()


def say_compiling() -> None:
    """Have the log say in a line that this process compiles kernels of gloader, once it has for half a second."""
    _CLOCK.heard_from_s = min(_CLOCK.heard_from_s, _CLOCK.read())
