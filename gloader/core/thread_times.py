"""Times of a thread: processor time with the work of its helper threads, and time without a free core."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


P = ParamSpec("P")
T = TypeVar("T")


class HelpAccount:
    """The processor time that other threads used for one thread. Thread-safe."""

    __slots__ = ("_used_ns",)

    def __init__(self) -> None:
        # By helper: each adds to its own number alone, so that none has to wait for a lock.
        self._used_ns: dict[int, int] = {}

    @property
    def used_ns(self) -> int:
        """Nanoseconds so far."""
        # As a list, in one step: another helper may begin meanwhile.
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
    def __init__(self) -> None:
        self.own = HelpAccount()


_accounts = _Accounts()


def own_account() -> HelpAccount:
    """Return the account of the thread that calls."""
    return _accounts.own


def thread_ns() -> int:
    """Return the processor time of this thread and of those that worked for it, in nanoseconds; see `helping`."""
    return time.thread_time_ns() + _accounts.own.used_ns


def helping(work: Callable[P, T]) -> Callable[P, T]:
    """Return ``work`` for another thread to do, whose processor time then counts as that of the thread that calls."""
    account = _accounts.own

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with account.charged():
            return work(*args, **kwargs)

    return run
