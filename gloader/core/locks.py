"""A lock that threads can wait on, and that a signal cannot break (docs/adr/0014-signals.md)."""

from __future__ import annotations

import math
import queue
import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class SignalSafeCondition:
    """A condition for the main thread too: it does what `threading.Condition` does, and Ctrl-C may come at any moment.

    A condition takes its lock, and takes it again after a wait, in Python code: an exception between two lines of that
    leaves the lock held for ever, or given back twice. Here the lock is only used as ``with condition.lock``, which no
    signal can divide, and nothing is held during a wait.

    Attributes
    ----------
    lock : reentrant, because what is dropped while it is held may close whatever uses it; guards what is waited for
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._bells: list[queue.SimpleQueue[None]] = []

    def when(self, is_ready: Callable[[], object], act: Callable[[], T], timeout_s: float | None = None) -> T:
        """Wait until ``is_ready`` is true, then call ``act``, both under the lock; return what ``act`` returns.

        Parameters
        ----------
        is_ready : quick, asked at the start and after every `notify_all`
        act : called once, with the lock still held, so that nothing changes between the two
        timeout_s : seconds after which ``act`` is called in any case; None: waits for ever
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self.lock:
                if is_ready() or time.monotonic() >= deadline:
                    return act()
                bell: queue.SimpleQueue[None] = queue.SimpleQueue()
                # Registered before the lock is let go, so that a change that comes now rings it.
                self._bells.append(bell)
            try:
                # In C, with nothing held: a signal that raises here breaks nothing.
                bell.get(timeout=None if timeout_s is None else max(deadline - time.monotonic(), 0))
            except queue.Empty:
                continue

    def notify_all(self) -> None:
        """Let whoever waits look again; with the lock held, after what is waited for has changed."""
        # Bells of waits that timed out or were interrupted are among them: ringing one nobody hears is harmless.
        for bell in self._bells:
            bell.put(None)
        self._bells.clear()
