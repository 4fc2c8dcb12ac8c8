"""Work that uses so much processor time, however long that takes on a busy machine."""

import threading
import time
from collections.abc import Callable

BURN_NS = 5_000_000


def burn() -> None:
    """Use `BURN_NS` of this thread's processor time."""
    end = time.thread_time_ns() + BURN_NS
    while time.thread_time_ns() < end:
        pass


def run_on_thread(work: Callable[[], object]) -> None:
    """Run ``work`` on a thread of its own, and wait for it."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
