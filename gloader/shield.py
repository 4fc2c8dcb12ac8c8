"""Closing what must be closed, also where a signal arrives in the middle of it, or of what opened it."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_AGAIN_S = 0.02  # long enough for the finalizer to return
_BEGINS_S = 0.1  # more than a thread needs to begin, once it was made
_ATTEMPTS = 8  # whoever presses Ctrl-C more often than this does not want to wait


def to_the_end(close: Callable[[], T]) -> T:
    """Call ``close``, which is idempotent, again whenever Ctrl-C or SIGTERM cuts it short, and return its result.

    Raises
    ------
    KeyboardInterrupt, SystemExit
        The first that arrived, once ``close`` has returned.
    """
    arrived: BaseException | None = None
    for _ in range(_ATTEMPTS):
        try:
            result = close()
        except (KeyboardInterrupt, SystemExit) as error:
            arrived = arrived or error
            continue
        if arrived is not None:
            raise arrived
        return result
    raise arrived if arrived is not None else RuntimeError("there was no attempt to close")


def to_the_end_of_a_finalizer(close: Callable[[], object]) -> None:
    """Do as `to_the_end` where Python ignores what is raised: a signal that arrived is sent once more, afterwards."""
    try:
        to_the_end(close)
    except (KeyboardInterrupt, SystemExit) as arrived:
        number = signal.SIGINT if isinstance(arrived, KeyboardInterrupt) else signal.SIGTERM
        threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number)).start()


def join_begun(thread: threading.Thread, timeout_s: float | None = None) -> bool:
    """Join ``thread``, the start of which a signal may have cut short; return whether it ever began.

    Such a thread was either not made, or is about to begin without anybody having waited for that: `Thread.join`
    refuses both. And a join that a signal cuts short takes a thread for ended that still runs (CPython before 3.13),
    so that the next one returns at once; but a thread is listed until it has ended.

    Parameters
    ----------
    timeout_s : as of `Thread.join`
    """
    deadline = time.monotonic() + _BEGINS_S
    ends = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while True:
        try:
            thread.join(timeout_s)
        except RuntimeError:
            if thread is threading.current_thread():
                raise
            if thread.ident is None and time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        else:
            while thread in threading.enumerate() and time.monotonic() < ends:
                time.sleep(0.001)
            return True
