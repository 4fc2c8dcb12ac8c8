"""The processor time of a thread, what other threads did for it included."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
