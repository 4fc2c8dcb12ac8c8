"""The receiver of a conversion's progress."""

from __future__ import annotations

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
