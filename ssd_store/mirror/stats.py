"""What a mirror did so far."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


@dataclass(slots=True, kw_only=True)
class FetchCounts:
    """What was asked of the store so far."""

    requests: int = 0
    retries: int = 0  # of them, those that repeat another
    bytes: int = 0  # that arrived, the damaged and repeated ones included
    limited_s: float = 0.0  # that requests waited for the limits
    paused_s: float = 0.0  # that they waited to be repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorStats:
    """Counts since the mirror was opened, and the blocks that are here now."""

    requests: int  # made to the store: for the record, for facts of objects, for blocks
    retries: int  # of them, those that repeated one that failed
    bytes: int  # that arrived
    waited_s: float  # that requests were held back: by the limits, or before they were repeated
    blocks_here: int
    blocks: int  # of all files
    evicted: int
    starved_s: float  # in which at least one reader waited for a block
    not_kept: int  # blocks that came and were not kept: they did not fit, or the disk refused them


class WaitClock:
    """Counts the seconds in which at least one thread waits. Thread-safe; a block that each waits in.

    Parameters
    ----------
    clock : seconds, as of `time.monotonic`
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting = 0
        self._since = 0.0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Of all waits so far, also of those under way."""
        with self._lock:
            return self._seconds + (self._clock() - self._since if self._waiting else 0.0)

    def __enter__(self) -> Self:
        with self._lock:
            if not self._waiting:
                self._since = self._clock()
            self._waiting += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._waiting -= 1
            if not self._waiting:
                self._seconds += self._clock() - self._since
