"""The threads of a pipeline: started together, failing together, joined together."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from gloader.core.locks import SignalSafeCondition
from gloader.core.signals import uninterrupted
from gloader.errors import ChannelClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gloader.pipeline.channel import Channel

T = TypeVar("T")

logger = logging.getLogger("gloader")

# A failure far ahead of the consumer waits for its turn, but no longer than this: the caller is promised to hear of
# any failure within 5 s.
_PATIENCE_S = 4.0
_STUCK_JOIN_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StageThread:
    """One thread of a pipeline: its name, and what it runs until the stream ends or is cancelled."""

    name: str
    run: Callable[[], None]


class Failures:
    """What went wrong in any stage: the first failure is raised, the others become notes. Thread-safe."""

    def __init__(self, on_overdue: Callable[[BaseException], None]) -> None:
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []
        self._on_overdue = on_overdue
        self._timer: threading.Timer | None = None
        self._is_closed = False
        self.is_stuck = False  # a stage does not come back

    def stall(self, error: BaseException) -> None:
        """End the stream with ``error`` at once: a stage does not come back, so nobody waits for it."""
        self.is_stuck = True
        self.add(error)
        self._on_overdue(error)

    def add(self, error: BaseException) -> None:
        """Take note of ``error``; end the stream with the first one when its turn has not come in time."""
        if isinstance(error, ChannelClosedError):
            return
        with uninterrupted(), self._lock:
            if self._is_closed or any(error is known for known in self._errors):
                return
            self._errors.append(error)
            if self._timer is None and not self.is_stuck:
                self._timer = threading.Timer(_PATIENCE_S, self._on_overdue, (error,))
                self._timer.name = "gloader-failure"
                self._timer.daemon = True
                self._timer.start()

    def annotate(self, raised: BaseException) -> None:
        """Note every other failure on ``raised``."""
        with self._lock:
            others = [error for error in self._errors if error is not raised]
        for error in others:
            where = "; ".join(getattr(error, "__notes__", []))
            note = f"another stage failed too: {error!r}" + (f" ({where})" if where else "")
            if note not in getattr(raised, "__notes__", []):
                raised.add_note(note)

    def close(self) -> None:
        """Join the timer. Idempotent."""
        with self._lock:
            self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            if self._timer is not threading.current_thread():
                self._timer.join()


class Pipeline(Generic[T]):
    """Runs stage threads behind a consumer that takes ready batches in order. Owns the threads until `close`.

    Parameters
    ----------
    stages : the threads; each passes the end of the stream, or the error that ended it, on to the next
    ready : what the last stage delivers
    cancels : wake every wait of a stage, so that it can end
    failures : where stages report what went wrong
    on_joined : releases what the stages hold, once all of them have ended
    """

    def __init__(
        self,
        stages: Sequence[StageThread],
        ready: Channel[T],
        *,
        cancels: Sequence[Callable[[], None]],
        failures: Failures,
        on_joined: Callable[[], None],
    ) -> None:
        self._on_joined = on_joined
        self._ready = ready
        self._cancels = cancels
        self._failures = failures
        self._threads = [threading.Thread(target=s.run, name=s.name, daemon=True) for s in stages]
        self._begun: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        with uninterrupted():
            for thread in self._threads:
                thread.start()
                self._begun.append(thread)

    def get(self) -> T:
        """Return the next batch in order, waiting for it.

        Raises
        ------
        ChannelClosedError
            The stream is over.
        BaseException
            Whatever a stage raised, with a note that names stage, epoch and batch.
        """
        try:
            return self._ready.get()
        except ChannelClosedError:
            raise
        except BaseException as error:
            self._failures.annotate(error)
            raise

    def close(self) -> bool:
        """Stop and join every thread; return whether all of them ended. Idempotent.

        A thread that is stuck in a system call cannot be stopped; after a stall it is left behind, with a log line.
        """
        with uninterrupted():
            return self._close()

    def _close(self) -> bool:
        for cancel in self._cancels:
            cancel()
        self._ready.cancel()
        self._failures.close()
        deadline = time.monotonic() + _STUCK_JOIN_S if self._failures.is_stuck else None
        for thread in self._begun:
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0.01))
        # What has ended is dropped here: Python swallows a Ctrl-C that arrives while it forgets a thread.
        self._threads = []
        self._begun = [thread for thread in self._begun if thread.is_alive()]
        if self._begun:
            left = ", ".join(thread.name for thread in self._begun)
            logger.error("%s did not come back and stay behind until the process ends", left)
            return False
        self._on_joined()
        return True


def run_together(tasks: Sequence[Callable[[], T]], *, threads: int, name: str) -> list[T]:
    """Return what each of ``tasks`` returns, run on at most ``threads`` threads, which have ended when this does.

    A signal ends it behind the tasks that are running.

    Raises
    ------
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
            if is_cut:
                return
            try:
                done[number] = tasks[number]()
            except BaseException as error:  # noqa: BLE001 - raised below, whatever its type
                failed[number] = error
            with changed.lock:
                changed.notify_all()

    begun: list[threading.Thread] = []
    try:
        with uninterrupted():
            for number in range(min(threads, len(tasks))):
                begun.append(_begin(run, f"{name}-{number}"))  # noqa: PERF401 - those that began, where one cannot
        changed.when(lambda: len(done) + len(failed) == len(tasks), lambda: None)
    finally:
        with uninterrupted():
            is_cut = True
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


def weakly(handler: Callable[[BaseException], None]) -> Callable[[BaseException], None]:
    """Return ``handler``, a bound method, without holding its object: what is dropped is then freed at once."""
    method = weakref.WeakMethod(handler)

    def call(error: BaseException) -> None:
        found = method()
        if found is not None:
            found(error)

    return call
