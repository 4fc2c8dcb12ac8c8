"""Threads, locks and blocks that Ctrl-C and SIGTERM cannot cut short.

Python runs a signal's handler between any two lines of the main thread, and raises the handler's exception there. If
this happens inside `threading`, a lock may stay held forever or be released twice. If it happens just after a call has
opened a file, the file may never be closed. docs/adr/0014-signals.md lists other ways that were tried.

`uninterrupted` delays signals during a short block. `SignalSafeCondition` is a lock for waiting threads that a signal
cannot break. `Cancellation` ends long work on other threads. `run_together` starts and joins threads, and raises
`ThreadStartError` if the system allows no more threads. `act_at_sigterm` registers work that must be done before
SIGTERM ends the process.
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
_AGAIN_S = 0.02  # seconds until `close_in_finalizer` sends a delayed signal again; by then, the finalizer has returned
_ATTEMPTS = 8  # `uninterrupted` does not delay the eighth signal: the user does not want to wait any more
_last_acts: dict[Hashable, Callable[[], object]] = {}  # the work of `act_at_sigterm`, by key


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of a short block. Then the first signal is handled.

    This has no effect outside the main thread, because only the main thread handles signals. It has no effect inside
    another such block either, or for a signal without a handler in Python. The eighth signal is not delayed, because a
    disk may hang.
    """
    note = _SignalNote()
    try:
        with note:
            yield
    finally:
        # The original handlers are installed again, and handle the signal that is sent again here.
        if note.arrived:
            signal.raise_signal(note.arrived[0])


@contextmanager
def interruption_first() -> Iterator[None]:
    """Raise the exception of Ctrl-C or SIGTERM again at the block's end, in case the block caught it.

    This is for foreign code that catches every exception. It has no effect outside the main thread.
    """
    raised: list[BaseException] = []  # the exceptions that handlers raised inside the block
    original = {number: signal.getsignal(number) for number in _SIGNALS if _is_main_thread()}

    def note(number: int, frame: FrameType | None) -> None:
        """Run the original handler of a signal, and keep the exception that it raises."""
        handler = original[signal.Signals(number)]
        try:
            if callable(handler):
                handler(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    for number, handler in original.items():
        if callable(handler):
            signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in original.items():
            if callable(handler):
                signal.signal(number, handler)
        if raised:
            raise raised[0]


def close_in_finalizer(close: Callable[[], object]) -> None:
    """Call ``close``, and delay signals until the calling finalizer (``__del__``) has returned.

    Python ignores exceptions in a finalizer, so the exception of a signal's handler would be lost in it.
    """
    note = _SignalNote()
    try:
        with note:
            close()
    finally:
        # A timer sends the signal again, after the finalizer. At the end of the process, no thread can start. But then
        # the handler is `_end_at_the_next`, which raises nothing, so the signal can be sent now.
        if note.arrived and signal.getsignal(note.arrived[0]) is _end_at_the_next:
            signal.raise_signal(note.arrived[0])
        elif note.arrived:
            threading.Timer(_AGAIN_S, os.kill, (os.getpid(), note.arrived[0])).start()


def act_at_sigterm(key: Hashable, act: Callable[[], object]) -> None:
    """Call ``act`` when SIGTERM is about to end the process. Afterwards the process ends as without ``act``.

    This applies only while SIGTERM has no other handler, because a process with a handler closes its own files. ``act``
    must take no lock, because the main thread may already hold the lock. A forked child does not call ``act``.

    Parameters
    ----------
    key : key for `forget_sigterm`
    act : called on the main thread, between any two lines of its code
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
    """Do all registered work, then let the signal end the process."""
    for act in list(_last_acts.values()):
        with suppress(Exception):
            act()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _leave_sigterm() -> None:
    """Restore SIGTERM's default, if its handler is `_act_and_end`."""
    if _is_main_thread() and signal.getsignal(signal.SIGTERM) is _act_and_end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _forget_in_child() -> None:
    """Drop the registered work in a forked child, because the files belong to the parent."""
    _last_acts.clear()
    _leave_sigterm()


os.register_at_fork(after_in_child=_forget_in_child)


@cache
def expect_signals_at_exit() -> None:
    """After the main thread is done, ignore the first Ctrl-C, and end the process at the second. Idempotent.

    Python runs handlers of signals also while the process ends. In a finalizer, the handler's exception is only printed
    ("Exception ignored in ..."), and the rest of the finalizer is skipped. A user's own handler for Ctrl-C is kept.
    Before the main thread is done, nothing changes.
    """
    # `atexit` would run too late, after the threads that Python joins, and in an uncertain order.
    with suppress(RuntimeError):  # the process is already ending
        getattr(threading, "_register_atexit", atexit.register)(_ignore_once)


def _ignore_once() -> None:
    """Install `_end_at_the_next` as the handler of Ctrl-C, unless the user has installed another handler."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and _is_main_thread():
        signal.signal(signal.SIGINT, _end_at_the_next)


def _end_at_the_next(number: int, _frame: FrameType | None) -> None:
    """Ignore this signal, and restore the default, by which the next signal ends the process."""
    signal.signal(number, signal.SIG_DFL)


def is_signal_pending() -> bool:
    """Return True if `uninterrupted` is delaying a signal. A long wait inside its block should then end."""
    handlers = map(signal.getsignal, _SIGNALS)
    return any(isinstance(handler, _SignalNote) and handler.arrived for handler in handlers)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class _SignalNote:
    """A handler that only records signals. It replaces the real handlers from ``__enter__`` to ``__exit__``."""

    def __init__(self) -> None:
        self.arrived: list[signal.Signals] = []  # recorded signals, in order
        self._handlers: dict[signal.Signals, Any] = {}  # the replaced handlers

    def __enter__(self) -> None:
        if not _is_main_thread():
            return
        try:
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if callable(handler) and not isinstance(handler, _SignalNote):
                    # The handler is saved before it is replaced: a signal between the two lines runs the real handler,
                    # and __exit__ restores it.
                    self._handlers[number] = handler
                    signal.signal(number, self)
        except BaseException:  # a signal between the two lines, whose real handler raised
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        # Each call restores one handler and calls itself for the next. So an exception of one handler does not prevent
        # the restoration of the others.
        if self._handlers:
            number, handler = self._handlers.popitem()
            # All work of `act_at_sigterm` was removed inside the block.
            if handler is _act_and_end and not _last_acts:
                handler = signal.SIG_DFL
            try:
                signal.signal(number, handler)
            finally:  # a restored handler may raise at once
                self.__exit__()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Record a signal. At the eighth one, call the real handler."""
        self.arrived.append(signal.Signals(number))
        if len(self.arrived) >= _ATTEMPTS:
            self._handlers[signal.Signals(number)](number, frame)


T = TypeVar("T")


class SignalSafeCondition:
    """A condition for waiting threads that Ctrl-C cannot break, unlike `threading.Condition`.

    `threading.Condition` takes its lock in Python code, at the start and after a wait. An exception between two of
    those lines leaves the lock held forever, or released twice. This class uses its lock only as ``with
    condition.lock``, which no signal can divide, and holds no lock during a wait. A waiting thread waits for an item in
    its own *bell*, a queue. `notify_all` puts an item into every bell.

    Attributes
    ----------
    lock : guards the shared state. Reentrant, because a finalizer that runs under the lock may need it too.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._bells: list[queue.SimpleQueue[None]] = []  # each waiting thread's bell; changed under the lock

    def when(self, is_ready: Callable[[], object], act: Callable[[], T], timeout_s: float | None = None) -> T:
        """Wait until ``is_ready`` is true, then return the result of ``act``. Both are called under the lock.

        Parameters
        ----------
        is_ready : quick test, called at the start and after every `notify_all`
        act : called once under the same lock, so that the state cannot change after the test
        timeout_s : seconds after which ``act`` is called even if the test fails. None means no limit.
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
                # The wait is in C, without a lock. An exception from a signal here does no harm.
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
    """A flag that tells long work to end. It is never reset. The work checks it every few milliseconds. Thread-safe.

    Parameters
    ----------
    test : called at each check; a true result cancels too
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
        """Return a cancellation that is set together with this one. Each check of it also calls ``progress``."""

        def test() -> bool:
            progress()
            return self.is_set()

        return Cancellation(test)


NEVER: Final = Cancellation()  # for work that is not cancelled


@contextmanager
def thread_errors() -> Iterator[None]:
    """Raise `ThreadStartError`, instead of Python's RuntimeError, if a thread cannot start inside the block.

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
            "the system lets this process start no further thread: use fewer threads (threads=, OMP_NUM_THREADS), or "
            "raise the limit of processes (`ulimit -u`, pids.max of the control group)"
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
    name : start of the threads' names; a number follows
    cancel : called at the end or after a failure, before the threads are joined, so that long tasks can end early

    Raises
    ------
    ThreadStartError
        The system allows no more threads.
    BaseException
        The error of the first failed task.
    """
    changed = SignalSafeCondition()
    numbers = iter(range(len(tasks)))  # shared by the threads: each takes the next number
    is_stopped = False
    done: dict[int, T] = {}  # results by task number
    failed: dict[int, BaseException] = {}  # errors by task number

    def run() -> None:
        """Run tasks until none is left, one has failed, or the caller has stopped. Each thread runs this."""
        for number in numbers:
            if is_stopped or failed:
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
            # No exception of a signal can come between the start of a thread and its entry in ``begun``.
            for number in range(min(threads, len(tasks))):
                begun.append(_begin(run, f"{name}-{number}"))  # noqa: PERF401 - keeps those that started
        changed.when(lambda: failed or len(done) == len(tasks), lambda: None)
    finally:
        with uninterrupted():
            is_stopped = True
            cancel()
            while begun:
                begun.pop().join()  # deletes the thread inside the block: Python swallows a Ctrl-C during a deletion
    if failed:
        try:
            raise failed[min(failed)]
        finally:
            failed.clear()  # an error refers to this frame; kept here, it would keep itself and the tasks alive
    return [done[number] for number in range(len(tasks))]


def _begin(run: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread. It is a daemon, so that it cannot keep the process from ending."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
