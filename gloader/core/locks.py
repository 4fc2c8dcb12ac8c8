"""A lock with waiting that a signal cannot break."""

from __future__ import annotations

import math
import queue
import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Monitor:
    """Does what `threading.Condition` does, where the main thread waits, and Ctrl-C may come at any moment.

    A condition takes its lock, and takes it again after a wait, in Python code: an exception between two lines of that
    leaves the lock held for ever, or given back twice. Here the lock is only used as ``with monitor.lock``, which no
    signal can divide, and nothing is held during a wait.

    Attributes
    ----------
    lock : reentrant, because what is dropped while it is held may close whatever uses it; guards what is waited for
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._bells: list[queue.SimpleQueue[None]] = []

    def when(self, is_ready: Callable[[], object], act: Callable[[], T], timeout_s: float | None = None) -> T:
        """Return what ``act`` returns as soon as ``is_ready`` is true, or after ``timeout_s``; both have the lock."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self.lock:
                if is_ready() or time.monotonic() >= deadline:
                    return act()
                bell: queue.SimpleQueue[None] = queue.SimpleQueue()
                self._bells.append(bell)
            try:
                bell.get(timeout=None if timeout_s is None else max(deadline - time.monotonic(), 0))
            except queue.Empty:
                continue

    def notify_all(self) -> None:
        """Let whoever waits look again; with the lock held, after what is waited for has changed."""
        for bell in self._bells:
            bell.put(None)
        self._bells.clear()
