"""A thread's times: processor time with the work of its helper threads, and time without a free core.

Some stages of the pipeline give a part of their work to other threads. `helping` makes the processor time of such a
helper count for the thread that gave the work. `thread_ns` returns the sum. `core_wait_s` returns the time that a
thread was ready to run but had no core.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# The file has three numbers: nanoseconds running, nanoseconds waiting for a core, and time slices.
_PATH: Final = "/proc/thread-self/schedstat"
_MOST_BYTES: Final = 128  # bytes to read from this file, more than it has


class _Schedule:
    """The kernel's scheduling times of one thread. Owns an open file until it is deleted."""

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        try:
            self._fd = os.open(_PATH, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # the kernel lacks this file, or a sandbox hides it
            self._fd = -1

    def waited_ns(self) -> int:
        """Return the nanoseconds that the thread has waited for a core, or 0 if the system does not count them."""
        if self._fd < 0:
            return 0
        try:
            return int(os.pread(self._fd, _MOST_BYTES, 0).split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class _OwnSchedule(threading.local):
    """The `_Schedule` of the calling thread."""

    def __init__(self) -> None:
        # The file stays open, because opening it takes ten times as long as reading it, and every batch reads it.
        self.schedule = _Schedule()


_own = _OwnSchedule()


def core_wait_s() -> float:
    """Return the seconds that this thread has waited for a core so far, or 0 if the system does not report them."""
    return _own.schedule.waited_ns() / 1e9


def _forget() -> None:
    """Open a new file in a forked child, whose inherited file belongs to a thread of its parent."""
    global _own  # noqa: PLW0603 - one object per process, which every thread uses
    _own = _OwnSchedule()


os.register_at_fork(after_in_child=_forget)


P = ParamSpec("P")
T = TypeVar("T")


class HelpAccount:
    """The processor time that other threads used for one thread. Thread-safe."""

    __slots__ = ("_used_ns",)

    def __init__(self) -> None:
        # Nanoseconds by helper thread. Each helper changes only its own entry, so that no lock is needed.
        self._used_ns: dict[int, int] = {}

    @property
    def used_ns(self) -> int:
        """Nanoseconds of processor time that helpers have used so far."""
        # `list` copies the values in one step, because another helper may add an entry meanwhile.
        return sum(list(self._used_ns.values())) if self._used_ns else 0

    @contextmanager
    def charged(self) -> Iterator[None]:
        """Add the processor time of the block, which another thread runs."""
        began = thread_ns()
        try:
            yield
        finally:
            helper = threading.get_ident()
            self._used_ns[helper] = self._used_ns.get(helper, 0) + thread_ns() - began


class _Accounts(threading.local):
    """The `HelpAccount` of the calling thread."""

    def __init__(self) -> None:
        self.own = HelpAccount()


_accounts = _Accounts()


def own_account() -> HelpAccount:
    """Return the calling thread's account."""
    return _accounts.own


def thread_ns() -> int:
    """Return the processor time of this thread and its helpers in nanoseconds, see `helping`."""
    return time.thread_time_ns() + _accounts.own.used_ns


def helping(work: Callable[P, T]) -> Callable[P, T]:
    """Return ``work`` for another thread. Its processor time counts for the thread that called `helping`."""
    account = _accounts.own

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with account.charged():
            return work(*args, **kwargs)

    return run
