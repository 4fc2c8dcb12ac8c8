"""Children forked from a test, which say by their exit status whether all was as it should be."""

from __future__ import annotations

import os
import threading
import traceback
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S = 60


def in_child(act: Callable[[], object]) -> int:
    """Return how a forked child that calls ``act`` ends: 0; 1 after an exception; -9 where it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
        pid = os.fork()
    if pid == 0:
        try:
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    killer = threading.Timer(LIMIT_S, os.kill, (pid, 9))
    killer.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        killer.cancel()
        killer.join()
