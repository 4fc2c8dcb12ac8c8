"""Where a conversion reports how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the progress of a conversion, stage after stage, from one thread."""

    def advance(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Take note that ``done`` of ``total`` (None: unknown) ``unit`` of ``stage`` are through.

        Units are plural nouns such as "edges" and "rows".
        """
        ...


class NoProgress:
    """Takes no note."""

    def advance(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Do nothing."""


NO_PROGRESS: Progress = NoProgress()
