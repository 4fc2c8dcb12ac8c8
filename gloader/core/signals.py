"""Threads, locks and blocks that Ctrl-C and SIGTERM do not cut short.

Python runs the handler of a signal between any two lines of the main thread, and its exception goes on from there:
also out of the middle of `threading`, whose locks are then held for ever, or given back twice, and from between the
call that opened something and the line that keeps it. docs/adr/0014-signals.md says what else was tried.

`SignalSafeCondition` is a lock that threads can wait on and that a signal cannot break (docs/adr/0014-signals.md).
`run_together` starts and joins threads, and raises `ThreadStartError` where the system allows no more of them.
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
from typing import TYPE_CHECKING, Any, TypeVar

from gloader.errors import ThreadStartError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence
    from types import FrameType


_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
)  # those that end a run, and that Python code may turn into exceptions
_AGAIN_S = 0.02  # long enough for the finalizer to return
_ATTEMPTS = 8  # whoever presses Ctrl-C more often than this does not want to wait
_last_acts: dict[Hashable, Callable[[], object]] = {}


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep Ctrl-C and SIGTERM back inside the block, which ends soon; after it the first that came is handled.

    It does nothing outside the main thread, which alone handles signals, inside another such block, and for a signal
    that Python does not handle. The eighth signal is not kept back: a disk may hang.
    """
    note = _SignalNote()
    try:
        with note:
            yield
    finally:
        # Here the former handlers are back. Sent again, the signal meets them as it would have without the block.
        if note.arrived:
            signal.raise_signal(note.arrived[0])


@contextmanager
def interruption_first() -> Iterator[None]:
    """Raise what Ctrl-C or SIGTERM raised inside the block at its end, whatever became of it there.

    For code of others that catches everything. It does nothing outside the main thread.
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
    """Call ``close`` uninterrupted in a finalizer, whose exceptions Python ignores; a signal is sent again later."""
    note = _SignalNote()
    try:
        with note:
            close()
    finally:
        # What a handler raises in a finalizer is lost, so it must run after this one: a timer sends the signal. At the
        # end of the process, when no thread can begin, its handler does not raise.
        if note.arrived and signal.getsignal(note.arrived[0]) is _end_at_the_next:
            signal.raise_signal(note.arrived[0])
        elif note.arrived:
            threading.Timer(_AGAIN_S, os.kill, (os.getpid(), note.arrived[0])).start()


def act_at_sigterm(key: Hashable, act: Callable[[], object]) -> None:
    """Have ``act`` called when SIGTERM is about to end the process, which then ends as it would have without.

    Only while SIGTERM has no other handler: a process that handles it closes what it has opened. ``act`` takes no
    lock, since the main thread may hold any. Inherited by no child.

    Parameters
    ----------
    key : for `forget_sigterm`
    act : called on the main thread, between two lines of whatever that does
    """
    if _is_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _act_and_end)
    _last_acts[key] = act


def forget_sigterm(key: Hashable) -> None:
    """Take back `act_at_sigterm` of ``key``. Idempotent."""
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
    """Have Ctrl-C, once the main thread is done, ignored the first time and end the process at once the second time.

    Python runs the handler of a signal while it ends, too: in finalizers of this package and of others, where its
    exception is printed ("Exception ignored in ...") and the rest of the finalizer is lost. Idempotent; changes nothing
    before the process ends, and then nothing where Ctrl-C has a handler of the user's.
    """
    # `atexit` comes later, behind the threads that Python joins, and in an order in which others may come first.
    with suppress(RuntimeError):  # it is ending already
        getattr(threading, "_register_atexit", atexit.register)(_ignore_once)


def _ignore_once() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler and _is_main_thread():
        signal.signal(signal.SIGINT, _end_at_the_next)


def _end_at_the_next(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)


def is_signal_pending() -> bool:
    """Return whether a signal is kept back: a wait inside `uninterrupted` that may take long should end then."""
    handlers = map(signal.getsignal, _SIGNALS)
    return any(isinstance(handler, _SignalNote) and handler.arrived for handler in handlers)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class _SignalNote:
    """A handler that notes signals; it takes the place of the real ones from ``__enter__`` to ``__exit__``."""

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
                    # Kept first: a signal between the two lines meets the real handler, and __exit__ restores it.
                    self._handlers[number] = handler
                    signal.signal(number, self)
        except BaseException:  # one that is not kept back yet
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        # One handler a call: the exception of one must not keep the other from coming back.
        if self._handlers:
            number, handler = self._handlers.popitem()
            if (
                handler is _act_and_end and not _last_acts
            ):  # what it was there for was closed inside the block
                handler = signal.SIG_DFL
            try:
                signal.signal(number, handler)
            finally:  # whose exception may come as soon as its handler is back
                self.__exit__()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.arrived.append(signal.Signals(number))
        if len(self.arrived) >= _ATTEMPTS:
            self._handlers[signal.Signals(number)](number, frame)


T = TypeVar("T")


class SignalSafeCondition:
    """A condition for the main thread too: it does what `threading.Condition` does, and Ctrl-C may come at any moment.

    A condition takes its lock, and takes it again after a wait, in Python code: an exception between two lines of that
    leaves the lock held for ever, or given back twice. Here the lock is only used as ``with condition.lock``, which no
    signal can divide, and nothing is held during a wait.

    Attributes
    ----------
    lock : reentrant, because what is dropped while it is held may close whatever uses it; guards what is waited for
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._bells: list[queue.SimpleQueue[None]] = []

    def when(self, is_ready: Callable[[], object], act: Callable[[], T], timeout_s: float | None = None) -> T:
        """Wait until ``is_ready`` is true, then call ``act``, both under the lock; return what ``act`` returns.

        Parameters
        ----------
        is_ready : quick, asked at the start and after every `notify_all`
        act : called once, with the lock still held, so that nothing changes between the two
        timeout_s : seconds after which ``act`` is called in any case; None: waits for ever
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self.lock:
                if is_ready() or time.monotonic() >= deadline:
                    return act()
                bell: queue.SimpleQueue[None] = queue.SimpleQueue()
                # Registered before the lock is let go, so that a change that comes now rings it.
                self._bells.append(bell)
            try:
                # In C, with nothing held: a signal that raises here breaks nothing.
                bell.get(timeout=None if timeout_s is None else max(deadline - time.monotonic(), 0))
            except queue.Empty:
                continue

    def notify_all(self) -> None:
        """Let whoever waits look again; with the lock held, after what is waited for has changed."""
        # Bells of waits that timed out or were interrupted are among them: ringing one nobody hears is harmless.
        for bell in self._bells:
            bell.put(None)
        self._bells.clear()


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
