"""Threads that are started and joined in one place, and the error where the system allows no more of them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from gloader.core.locks import SignalSafeCondition
from gloader.core.signals import uninterrupted
from gloader.errors import ThreadStartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")


@contextmanager
def thread_errors() -> Iterator[None]:
    """Turn the error of a thread that cannot begin inside the block into `ThreadStartError`.

    Raises
    ------
    ThreadStartError
        The system refuses another thread.
    """
    try:
        yield
    except RuntimeError as error:
        # Python has no class of its own for it, and no errno.
        if "can't start new thread" not in str(error):
            raise
        raise ThreadStartError(
            "the system lets this process start no further thread: give fewer (threads=, OMP_NUM_THREADS), or raise "
            "the limit of processes (`ulimit -u`, pids.max of the control group)"
        ) from error


def run_together(
    tasks: Sequence[Callable[[], T]],
    *,
    threads: int,
    name: str,
    cancel: Callable[[], object] = lambda: None,
) -> list[T]:
    """Return what each of ``tasks`` returns, run on at most ``threads`` threads, which have ended when this does.

    A signal, or a task that fails, ends it behind the tasks that are running.

    Parameters
    ----------
    tasks : what is called, in this order
    threads : how many of them run at a time
    name : of the threads, before their numbers
    cancel : called before the tasks that are running are waited for, so that long ones can end early

    Raises
    ------
    ThreadStartError
        The system allows no more threads.
    BaseException
        What the first of the tasks that failed raised.
    """
    changed = SignalSafeCondition()
    numbers = iter(range(len(tasks)))  # shared: each thread takes the next one
    is_cut = False
    done: dict[int, T] = {}
    failed: dict[int, BaseException] = {}

    def run() -> None:
        for number in numbers:
            if is_cut or failed:
                return
            try:
                done[number] = tasks[number]()
            except BaseException as error:  # noqa: BLE001 - raised below, whatever its type
                failed[number] = error
            with changed.lock:
                changed.notify_all()

    begun: list[threading.Thread] = []
    try:
        with thread_errors(), uninterrupted():
            for number in range(min(threads, len(tasks))):
                begun.append(_begin(run, f"{name}-{number}"))  # noqa: PERF401 - those that began, where one cannot
        changed.when(lambda: failed or len(done) == len(tasks), lambda: None)
    finally:
        with uninterrupted():
            is_cut = True
            cancel()
            while begun:
                begun.pop().join()  # and dropped: Python swallows a Ctrl-C that arrives while it forgets a thread
    if failed:
        try:
            raise failed[min(failed)]
        finally:
            failed.clear()  # an error that is kept would hold itself through this frame, and what the tasks hold
    return [done[number] for number in range(len(tasks))]


def _begin(run: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
