"""How long a thread was ready to run and had no core."""

from __future__ import annotations

import os
import threading
from typing import Final

_PATH: Final = "/proc/thread-self/schedstat"  # nanoseconds that it ran, and that it waited; how often it ran
_MOST_BYTES: Final = 128


class _Schedule:
    """The scheduler's account of one thread. Owns a descriptor as long as it lives."""

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        try:
            self._fd = os.open(_PATH, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # a kernel that keeps no such account, or a sandbox that shows none
            self._fd = -1

    def waited_ns(self) -> int:
        """Return the nanoseconds so far, 0 where nobody counts them."""
        if self._fd < 0:
            return 0
        try:
            return int(os.pread(self._fd, _MOST_BYTES, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class _Own(threading.local):
    def __init__(self) -> None:
        # Kept open: opening it takes ten times as long as reading it, and it is read for every batch.
        self.schedule = _Schedule()


_own = _Own()


def core_wait_s() -> float:
    """Return the seconds that this thread has waited for a core so far; 0 where the system does not say."""
    return _own.schedule.waited_ns() / 1e9


def _forget() -> None:
    """Begin anew in a forked child: what it inherits describes a thread of its parent."""
    global _own  # noqa: PLW0603 - the accounts of all threads, which are gone
    _own = _Own()


os.register_at_fork(after_in_child=_forget)
