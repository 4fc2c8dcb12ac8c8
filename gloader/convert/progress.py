"""The receiver of a conversion's progress."""

from __future__ import annotations

import sys
from typing import Protocol


class PrepareProgress(Protocol):
    """Receives the progress of a conversion, step after step, from one thread."""

    def advance(self, step: str, done: int, total: int | None, unit: str) -> None:
        """Receive how much of a step is done.

        Parameters
        ----------
        step : a phrase such as "reading edges"; a new one begins the next step
        done : how many units are done
        total : how many there are; None: unknown
        unit : a plural noun such as "edges", "rows" or "bytes"
        """
        ...


class _NoProgress:
    """Ignores the progress."""

    def advance(self, step: str, done: int, total: int | None, unit: str) -> None:
        pass


NO_PROGRESS: PrepareProgress = _NoProgress()


class NamedProgress:
    """Passes progress on, every step with the name of its relation or node type."""

    def __init__(self, progress: PrepareProgress, name: str) -> None:
        self._progress = progress
        self._name = name

    def advance(self, step: str, done: int, total: int | None, unit: str) -> None:
        """Receive how much of a step is done; see `PrepareProgress`."""
        self._progress.advance(f"{step} of {self._name}", done, total, unit)


class WatchedSteps:
    """Passes progress on, notes the most memory, and gives freed memory back between steps; not thread-safe.

    Memory that one step freed lies between the next step's blocks, and would count twice.
    """

    def __init__(self, progress: PrepareProgress) -> None:
        self._progress = progress
        self._step: str | None = None
        self._most = 0
        _release()  # of what the program freed before

    def advance(self, step: str, done: int, total: int | None, unit: str) -> None:
        """Receive how much of a step is done; see `PrepareProgress`."""
        self._most = max(self._most, _anonymous_bytes())
        if step != self._step:
            self._step = step
            _release()
        self._progress.advance(step, done, total, unit)

    def peak_bytes(self, held_bytes: int) -> int:
        """Return the most memory that was seen above the rest at the end: Python, libraries and compiled kernels.

        Parameters
        ----------
        held_bytes : of the conversion's own arrays that are there at the end
        """
        _release()
        return max(0, self._most - _anonymous_bytes() + held_bytes)


def _anonymous_bytes() -> int:
    # Imported here: numba loads when something is converted, not for --help.
    from gloader.observe.peak_memory import anonymous_bytes

    return anonymous_bytes()


def _release() -> None:
    from gloader.observe.peak_memory import release_freed_memory

    # Arrow has a heap of its own.
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    release_freed_memory()
