"""Threads, locks and blocks that Ctrl-C and SIGTERM cannot cut short.

Python runs a signal's handler between any two lines of the main thread, and raises the handler's exception there. The
place may be inside `threading`, whose locks then stay held for ever or are released twice. It may also lie between a
call that opens a file and the line that keeps it. docs/adr/0014-signals.md lists the other attempts.

`SignalSafeCondition` is a lock for waiting threads that a signal cannot break. `Cancellation` ends long work on other
threads. `run_together` starts and joins threads, and raises `ThreadStartError` if the system allows no more threads.
"""

from __future__ import annotations

import atexit
import math
import os
import queue
import signal
import threading
import time
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gloader.errors import ChannelClosedError, ThreadStartError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence
    from types import FrameType


# These signals end a run, and Python code may turn them into exceptions.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_S = 0.02  # long enough for the finalizer to return
_ATTEMPTS = 8  # a user who presses Ctrl-C more often does not want to wait
_last_acts: dict[Hashable, Callable[[], object]] = {}


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of a short block. Then the first signal is handled.

    It does nothing outside the main thread, because only the main thread handles signals. It also does nothing inside
    another such block, or for a signal that Python does not handle. The eighth signal is not delayed: a disk may hang.
    """
    note = _SignalNote()
    try:
        with note:
            yield
    finally:
        # The former handlers are installed again. The signal is sent again and reaches them.
        if note.arrived:
            signal.raise_signal(note.arrived[0])


@contextmanager
def interruption_first() -> Iterator[None]:
    """Raise the exception of Ctrl-C or SIGTERM inside the block again at its end, even if the block caught it.

    This is for foreign code that catches everything. It does nothing outside the main thread.
    """
    raised: list[BaseException] = []
    former = {number: signal.getsignal(number) for number in _SIGNALS if _is_main_thread()}

    def note(number: int, frame: FrameType | None) -> None:
        handler = former[signal.Signals(number)]
        try:
            if callable(handler):
                handler(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    for number, handler in former.items():
        if callable(handler):
            signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in former.items():
            if callable(handler):
                signal.signal(number, handler)
        if raised:
            raise raised[0]


def close_in_finalizer(close: Callable[[], object]) -> None:
    """Call ``close`` uninterrupted in a finalizer, where Python ignores exceptions. A signal is sent again later."""
    note = _SignalNote()
    try:
        with note:
            close()
    finally:
        # A handler's exception in a finalizer is lost, so the handler must run after it: a timer sends the signal. At
        # the end of the process no thread can start, but the handler does not raise then.
        if note.arrived and signal.getsignal(note.arrived[0]) is _end_at_the_next:
            signal.raise_signal(note.arrived[0])
        elif note.arrived:
            threading.Timer(_AGAIN_S, os.kill, (os.getpid(), note.arrived[0])).start()


def act_at_sigterm(key: Hashable, act: Callable[[], object]) -> None:
    """Call ``act`` when SIGTERM is about to end the process. Afterwards the process ends as without ``act``.

    This applies only while SIGTERM has no other handler: a process with a handler closes its own files. ``act`` takes
    no lock, because the main thread may hold any lock. A child does not inherit it.

    Parameters
    ----------
    key : key for `forget_sigterm`
    act : called on the main thread, between any two lines
    """
    if _is_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _act_and_end)
    _last_acts[key] = act


def forget_sigterm(key: Hashable) -> None:
    """Undo `act_at_sigterm` for ``key``. Idempotent."""
    _last_acts.pop(key, None)
    if not _last_acts:
        _leave_sigterm()


def _act_and_end(number: int, _frame: FrameType | None) -> None:
    for act in list(_last_acts.values()):
        with suppress(Exception):
            act()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _leave_sigterm() -> None:
    if _is_main_thread() and signal.getsignal(signal.SIGTERM) is _act_and_end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _forget_in_child() -> None:
    _last_acts.clear()
    _leave_sigterm()


os.register_at_fork(after_in_child=_forget_in_child)


@cache
def expect_signals_at_exit() -> None:
    """Ignore the first Ctrl-C once the main thread is done, and end the process at the second.

    Python also runs a signal's handler while it ends. In a finalizer the handler's exception is printed ("Exception
    ignored in ...") and the rest of the finalizer is lost. This changes nothing before the process ends, nor then if
    Ctrl-C has a user's handler. Idempotent.
    """
    # `atexit` runs too late, after the threads that Python joins, and in an uncertain order.
    with suppress(RuntimeError):  # the process is already ending
        getattr(threading, "_register_atexit", atexit.register)(_ignore_once)


def _ignore_once() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and _is_main_thread():
        signal.signal(signal.SIGINT, _end_at_the_next)


def _end_at_the_next(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)


def is_signal_pending() -> bool:
    """Return True if a signal is pending. A long wait inside `uninterrupted` should then end."""
    handlers = map(signal.getsignal, _SIGNALS)
    return any(isinstance(handler, _SignalNote) and handler.arrived for handler in handlers)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class _SignalNote:
    """A handler that records signals, in place of the real ones from ``__enter__`` to ``__exit__``."""

    def __init__(self) -> None:
        self.arrived: list[signal.Signals] = []
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if not _is_main_thread():
            return
        try:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler) and not isinstance(handler, _SignalNote):
                    # The handler is saved first: a signal between the two lines meets the real handler, and
                    # __exit__ restores it.
                    self._handlers[number] = handler
                    signal.signal(number, self)
        except BaseException:  # a signal before the handler is installed
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        # Each call restores one handler, so that one handler's exception does not prevent another's restoration.
        if self._handlers:
            number, handler = self._handlers.popitem()
            # The handler's reason was closed inside the block.
            if handler is _act_and_end and not _last_acts:
                handler = signal.SIG_DFL
            try:
                signal.signal(number, handler)
            finally:  # an exception may come as soon as the handler is restored
                self.__exit__()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.arrived.append(signal.Signals(number))
        if len(self.arrived) >= _ATTEMPTS:
            self._handlers[signal.Signals(number)](number, frame)


T = TypeVar("T")


class SignalSafeCondition:
    """A condition with the semantics of `threading.Condition` that Ctrl-C cannot break, for the main thread too.

    A condition takes its lock in Python code, and again after a wait. An exception between two of those lines leaves
    the lock held for ever, or released twice. Here the lock is only used as ``with condition.lock``, which no signal
    can divide, and no lock is held during a wait.

    Attributes
    ----------
    lock : guards the shared state. Reentrant, because an object dropped under the lock may close its user.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._bells: list[queue.SimpleQueue[None]] = []

    def when(self, is_ready: Callable[[], object], act: Callable[[], T], timeout_s: float | None = None) -> T:
        """Wait until ``is_ready`` is true, then return the result of ``act``. Both are called under the lock.

        Parameters
        ----------
        is_ready : quick test, called at the start and after every `notify_all`
        act : called once, with the lock still held, so that the state cannot change in between
        timeout_s : seconds after which ``act`` is called in any case. None means no limit.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self.lock:
                if is_ready() or time.monotonic() >= deadline:
                    return act()
                bell: queue.SimpleQueue[None] = queue.SimpleQueue()
                # The bell is registered before the lock is released, so that an immediate change rings it.
                self._bells.append(bell)
            try:
                # The wait is in C without a lock, so that a signal that raises here breaks nothing.
                bell.get(timeout=None if timeout_s is None else max(deadline - time.monotonic(), 0))
            except queue.Empty:
                continue

    def notify_all(self) -> None:
        """Wake all waiting threads. Call it with the lock held, after the state has changed."""
        # Some bells belong to waits that timed out or were interrupted. Ringing them is harmless.
        for bell in self._bells:
            bell.put(None)
        self._bells.clear()


class Cancellation:
    """An order to end long work, for which the work looks every few milliseconds. Thread-safe. It cannot be undone.

    Parameters
    ----------
    test : called at each look; a true result cancels too
    """

    __slots__ = ("_is_set", "_test")

    def __init__(self, test: Callable[[], bool] = lambda: False) -> None:
        self._test = test
        self._is_set = False

    def set(self) -> None:
        """Cancel the work. Idempotent."""
        self._is_set = True

    def is_set(self) -> bool:
        """Return whether the work is cancelled."""
        return self._is_set or self._test()

    def raise_if_set(self, work: str) -> None:
        """Raise ChannelClosedError, which names ``work``, if the work is cancelled."""
        if self.is_set():
            raise ChannelClosedError(f"{work} was cancelled")

    def reporting(self, progress: Callable[[], object]) -> Cancellation:
        """Return this cancellation for one piece of work. Each look also calls ``progress``."""

        def test() -> bool:
            progress()
            return self.is_set()

        return Cancellation(test)


NEVER: Final = Cancellation()  # for work that is not cancelled


@contextmanager
def thread_errors() -> Iterator[None]:
    """Turn the error of a thread that cannot start inside the block into `ThreadStartError`.

    Raises
    ------
    ThreadStartError
        The system refuses another thread.
    """
    try:
        yield
    except RuntimeError as error:
        # Python has no exception class and no errno for this failure.
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
    """Run ``tasks`` on at most ``threads`` threads and return their results. The threads have ended on return.

    After a signal or a failed task, no further task starts.

    Parameters
    ----------
    tasks : the tasks, in the order of their start
    threads : number of threads
    name : the thread's names, before their numbers
    cancel : called before the wait for running tasks, so that long tasks can end early

    Raises
    ------
    ThreadStartError
        The system allows no more threads.
    BaseException
        The error of the first failed task.
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
                begun.append(_begin(run, f"{name}-{number}"))  # noqa: PERF401 - keeps those that started
        changed.when(lambda: failed or len(done) == len(tasks), lambda: None)
    finally:
        with uninterrupted():
            is_cut = True
            cancel()
            while begun:
                begun.pop().join()  # deletes the thread here, because Python swallows a Ctrl-C during a deletion
    if failed:
        try:
            raise failed[min(failed)]
        finally:
            failed.clear()  # a kept error would keep itself alive through this frame, with the tasks' objects
    return [done[number] for number in range(len(tasks))]


def _begin(run: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
