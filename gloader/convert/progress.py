"""Receivers of a conversion's progress.

The steps of a conversion report to a `PrepareProgress`, for example the progress bars of a command. Two receivers
forward to another one: `NamedProgress` adds a name to each step, and `WatchedSteps` measures the memory.
"""

from __future__ import annotations

import sys
from typing import Protocol


class PrepareProgress(Protocol):
    """Receives a conversion's progress, step by step, from one thread."""

    def advance(self, step: str, done: int, total: int | None, unit: str) -> None:
        """Receive a step's progress.

        Parameters
        ----------
        step : a phrase such as "reading edges"; a new phrase begins the next step
        done : number of finished units
        total : number of all units, or None if unknown
        unit : a plural noun such as "edges", "rows" or "bytes"
        """
        ...


class _NoProgress:
    """Ignores the progress."""

    def advance(self, step: str, done: int, total: int | None, unit: str) -> None:
        pass


NO_PROGRESS: PrepareProgress = _NoProgress()


class NamedProgress:
    """Forwards progress, and adds ``name``, a relation or a node type, to each step's name."""

    def __init__(self, progress: PrepareProgress, name: str) -> None:
        self._progress = progress
        self._name = name

    def advance(self, step: str, done: int, total: int | None, unit: str) -> None:
        """Receive a step's progress; see `PrepareProgress`."""
        self._progress.advance(f"{step} of {self._name}", done, total, unit)


class WatchedSteps:
    """Forwards progress, and records the peak memory, measured at each call. Not thread-safe.

    The allocator may keep memory that a step has freed, and the next step's peak would include this memory. So freed
    memory is returned to the system between steps.
    """

    def __init__(self, progress: PrepareProgress) -> None:
        self._progress = progress
        self._step: str | None = None  # the present step
        self._most = 0  # largest number of bytes at any call
        _release()  # returns memory that the program freed before

    def advance(self, step: str, done: int, total: int | None, unit: str) -> None:
        """Receive a step's progress; see `PrepareProgress`."""
        self._most = max(self._most, _anonymous_bytes())
        if step != self._step:
            self._step = step
            _release()
        self._progress.advance(step, done, total, unit)

    def peak_bytes(self, held_bytes: int) -> int:
        """Return the peak memory in bytes without Python, libraries and compiled kernels. Call it at the end.

        Memory that is still in use then, except ``held_bytes``, belongs to these and is subtracted.

        Parameters
        ----------
        held_bytes : bytes of the conversion's arrays that are still alive
        """
        _release()
        return max(0, self._most - _anonymous_bytes() + held_bytes)


def _anonymous_bytes() -> int:
    """Return the process's memory without pages of files, in bytes."""
    # The import is here, so that numba loads only for a conversion, not for --help.
    from gloader.observe.peak_memory import anonymous_bytes

    return anonymous_bytes()


def _release() -> None:
    """Return freed memory to the system."""
    from gloader.observe.peak_memory import release_freed_memory

    # Arrow has a separate heap.
    if (arrow := sys.modules.get("pyarrow")) is not None:
        arrow.default_memory_pool().release_unused()
    release_freed_memory()
