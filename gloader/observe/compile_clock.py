"""Time in which this process compiled numba kernels. In the first run on a machine, it may exceed an epoch's time.

Importing this module registers a listener that numba calls at the start and the end of each compilation. The epoch's
sums and the memory's watch read `compile_seconds`. Each loader calls `say_compiling` when it opens.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from numba.core.event import Listener, register

if TYPE_CHECKING:
    from numba.core.event import Event


_LOG = logging.getLogger("gloader")

_WARN_AFTER_S = 0.5  # compile seconds; one or two new kernels cause no notable wait


class _CompileClock(Listener):
    """Total time for kernel compilations. Numba compiles one kernel at a time and calls this under its lock."""

    def __init__(self) -> None:
        # (seconds in finished compilations, start of the current one). The tuple is replaced in one assignment, because
        # other threads read it without a lock. With two assignments they could count a kernel twice or not at all.
        self._state: tuple[float, float | None] = (0.0, None)
        self._depth = 0  # nested compilations: a kernel compiles the kernels that it calls
        # Compile seconds before the first loader, set by `say_compiling`. The warning counts only later seconds,
        # because a user waits for them.
        self.reported_from_s = math.inf
        self.has_warned = False  # whether the warning was logged

    def on_start(self, event: Event) -> None:
        """Record that a compilation starts. Loading a kernel from numba's cache does not count."""
        if (
            not self.has_warned
            and self.read() - self.reported_from_s > _WARN_AFTER_S
            and event.data["dispatcher"].py_func.__module__.startswith("gloader.")
        ):
            self.has_warned = True
            _LOG.warning("compiling gloader's kernels, once on this machine: up to a minute on two cores")
        if self._depth == 0:
            self._state = (self._state[0], time.perf_counter())
        self._depth += 1

    def on_end(self, event: Event) -> None:
        """Record that a compilation ends."""
        del event
        self._depth -= 1
        if self._depth == 0:
            self._state = (self.read(), None)

    def read(self) -> float:
        """Return the seconds so far, including the current compilation."""
        seconds, began = self._state
        return seconds if began is None else seconds + time.perf_counter() - began


_CLOCK = _CompileClock()  # the process's only clock
register("numba:compile", _CLOCK)


def compile_seconds() -> float:
    """Return the seconds in which this process compiled kernels."""
    return _CLOCK.read()


def say_compiling() -> None:
    """From now on, log a warning once this process has compiled kernels for another half second."""
    _CLOCK.reported_from_s = min(_CLOCK.reported_from_s, _CLOCK.read())
