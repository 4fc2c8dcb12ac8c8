"""Blocks that Ctrl-C and SIGTERM do not cut short: where threads start and end, where descriptors and folders open.

Python runs the handler of a signal between any two lines of the main thread, and its exception goes on from there:
also out of the middle of `threading`, whose locks are then held for ever, or given back twice, and from between the
call that opened something and the line that keeps it. docs/adr/0014-signals.md says what else was tried.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
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
