"""Blocks that Ctrl-C and SIGTERM do not cut short: where threads start and end, where descriptors and folders open.

Python runs the handler of a signal between any two lines of the main thread, and its exception goes on from there:
also out of the middle of `threading`, whose locks are then held for ever, or given back twice, and from between the
call that opened something and the line that keeps it. docs/adr/0014-signals.md says what else was tried.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
)  # those that end a run, and that Python code may turn into exceptions
_AGAIN_S = 0.02  # long enough for the finalizer to return
_ATTEMPTS = 8  # whoever presses Ctrl-C more often than this does not want to wait


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


def close_in_finalizer(close: Callable[[], object]) -> None:
    """Call ``close`` uninterrupted in a finalizer, whose exceptions Python ignores; a signal is sent again later."""
    note = _SignalNote()
    try:
        with note:
            close()
    finally:
        # What a handler raises in a finalizer is lost, so it must run after this one: a timer sends the signal.
        if note.arrived:
            threading.Timer(_AGAIN_S, os.kill, (os.getpid(), note.arrived[0])).start()


def is_signal_pending() -> bool:
    """Return whether a signal is kept back: a wait inside `uninterrupted` that may take long should end then."""
    handlers = map(signal.getsignal, _SIGNALS)
    return any(isinstance(handler, _SignalNote) and handler.arrived for handler in handlers)


class _SignalNote:
    """A handler that notes signals; it takes the place of the real ones from ``__enter__`` to ``__exit__``."""

    def __init__(self) -> None:
        self.arrived: list[signal.Signals] = []
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
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
            try:
                signal.signal(number, handler)
            finally:  # whose exception may come as soon as its handler is back
                self.__exit__()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.arrived.append(signal.Signals(number))
        if len(self.arrived) >= _ATTEMPTS:
            self._handlers[signal.Signals(number)](number, frame)
