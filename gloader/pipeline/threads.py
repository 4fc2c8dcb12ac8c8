"""The threads of a pipeline, and the bounded channels between them.

- A stage is one step of the pipeline, such as "gather": it turns one item into the next. `stage_thread` returns the
  thread that takes items from a feed, applies the stage and puts the results into a sink.
- A channel is a queue with a maximum length between two threads; it is the usual feed and sink. A wait on a channel
  ends with an item, when the channel closes, or when a thread has failed.
- An error travels through the channels behind all earlier items, so that the consumer first receives the good batches.
  The error's turn is the time at which the consumer has received these batches. `Failures` ends the run earlier if the
  turn does not come in time.

`gloader.pipeline.run` builds a `Pipeline` from these parts. Its threads start together, fail together and are joined
together. The consumer, which takes the last channel's batches, is the thread of the training loop.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from gloader.core.signals import SignalSafeCondition, thread_errors, uninterrupted
from gloader.errors import ChannelClosedError, MachineLeftError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# Items of a channel; a stage's items and results.
T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")
In_contra = TypeVar("In_contra", contravariant=True)
Out_co = TypeVar("Out_co", covariant=True)

logger = logging.getLogger("gloader")

# Seconds that a failure far ahead of the consumer waits for its turn: the caller must see any failure within 5 s.
_PATIENCE_S = 4.0
# Seconds to join all threads after a stall. A thread in a blocked system call does not end; the others end sooner.
_STUCK_JOIN_S = 0.5


class Stage(Protocol[In_contra, Out_co]):
    """One stage of the pipeline; it is independent of queues.

    One thread runs it. Only the sample stages are called from several threads, see `SamplerPool`.
    """

    @property
    def name(self) -> str:
        """The stage's verb, for thread names."""
        ...

    def process(self, item: In_contra, /) -> Out_co:
        """Return the result for an item."""
        ...


class Feed(Protocol[Out_co]):
    """The source of a thread's items: a channel, or a wait for several conditions."""

    def get(self) -> Out_co:
        """Wait for the next item, and return it; raises ChannelClosedError at the end of the stream."""
        ...


class Sink(Protocol[In_contra]):
    """The target of a thread's results: one or several channels."""

    def put(self, item: In_contra, /) -> None:
        """Add the next item."""
        ...

    def close(self, error: BaseException | None = None) -> None:
        """End the stream, with ``error`` if given."""
        ...


class Cancellable(Protocol):
    """An object that threads wait for."""

    def cancel(self) -> None:
        """End all waits, now and later. Idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StageThread:
    """A pipeline's thread: its name, and the function that it runs until the stream ends or is cancelled."""

    name: str
    run: Callable[[], None]


def stage_thread(
    stage: Stage[In, Out],
    source: Feed[In],
    out: Sink[Out],
    failures: Failures,
    *,
    before_put: Callable[[Out], None] | None = None,
) -> StageThread:
    """Return the thread that runs ``stage`` on each item in order, until the stream ends or is cancelled.

    All stages use this loop. The end of a stage reaches the next stage after all earlier items, so that an error keeps
    its place.

    Parameters
    ----------
    stage : processes the items
    source : the items
    out : receives the results; ends like ``source``, or with the error of ``stage``
    failures : receives an error immediately, before the error's turn
    before_put : called with each result before ``out.put``, which may wait
    """

    def step() -> None:
        """Pass one item from the source through the stage."""
        # This is a separate function, so that no variable holds an item and its buffer during the wait for the next.
        result = stage.process(source.get())
        if before_put is not None:
            before_put(result)
        out.put(result)

    def run() -> None:
        """Pass items on until the source ends, or the stage or the sink raises an error."""
        try:
            while True:
                step()
        except BaseException as error:  # noqa: BLE001 - every failure must reach the consumer, whatever its type
            failures.add(error)
            # A ChannelClosedError is a normal end, and is not passed on: it would hold its frames.
            out.close(None if isinstance(error, ChannelClosedError) else error)

    return StageThread(name=f"gloader-{stage.name}", run=run)


class Failures:
    """The errors of all stages: the first one is raised, the others become notes. Thread-safe.

    Parameters
    ----------
    on_overdue : ends the run with an error whose turn did not come in time
    """

    def __init__(self, on_overdue: Callable[[BaseException], None]) -> None:
        self._lock = threading.Lock()
        self._errors: list[BaseException] = []  # in the order of `add`
        self._on_overdue = on_overdue
        self._timer: threading.Timer | None = None  # ends the run with the first error after `_PATIENCE_S`
        self._is_closed = False  # later errors are ignored
        self.is_stuck = False  # a stage makes no progress

    @property
    def first(self) -> BaseException | None:
        """The first failure, or None."""
        with self._lock:
            return self._errors[0] if self._errors else None

    def stall(self, error: BaseException) -> None:
        """End the stream with ``error`` immediately: a stage makes no progress, so that a wait for it is useless."""
        # The flag is set before `add`, which would otherwise start the timer that lets an error wait for its turn.
        self.is_stuck = True
        self.add(error)
        self._on_overdue(error)

    def add(self, error: BaseException) -> None:
        """Record ``error``; end the stream with the first error if its turn does not come in time."""
        if isinstance(error, ChannelClosedError):
            return
        is_overdue = False
        # Every stage that an error passes reports it; only the first report counts.
        with uninterrupted(), self._lock:
            if self._is_closed or any(error is known for known in self._errors):
                return
            self._errors.append(error)
            # After a MachineLeftError this machine will leave its loop too, perhaps before the error's turn: such an
            # error never ends the run early.
            if self._timer is not None or self.is_stuck or isinstance(error, MachineLeftError):
                return
            timer = threading.Timer(_PATIENCE_S, self._on_overdue, (error,))
            timer.name = "gloader-failure"
            timer.daemon = True
            try:
                timer.start()
                self._timer = timer
            except RuntimeError:  # without a timer, the wait for the error's turn would never end
                is_overdue = True
        if is_overdue:
            self._on_overdue(error)

    def annotate(self, raised: BaseException) -> None:
        """Add every other failure as a note to ``raised``."""
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


class Pipeline:
    """Runs stage threads behind a consumer that takes ready batches in order. Owns the threads until `close`.

    Parameters
    ----------
    threads : each thread passes the end of the stream, or its error, to the next thread
    cancels : all objects for which a thread or the consumer waits, in the order of cancellation
    failures : collects the stages' errors
    on_joined : releases the stages' resources after all threads have ended
    """

    def __init__(
        self,
        threads: Sequence[StageThread],
        *,
        cancels: Sequence[Cancellable],
        failures: Failures,
        on_joined: Callable[[], None],
    ) -> None:
        self._on_joined = on_joined
        self._cancels = cancels
        self._failures = failures
        self._threads = [threading.Thread(target=t.run, name=t.name, daemon=True) for t in threads]
        self._begun: list[threading.Thread] = []  # started and not yet joined

    def start(self) -> None:
        """Start the threads; raises ThreadStartError if the system allows no more."""
        with thread_errors(), uninterrupted():
            for thread in self._threads:
                thread.start()
                self._begun.append(thread)

    def close(self) -> bool:
        """Stop and join every thread; return whether all threads ended. Idempotent.

        A thread that is stuck in a system call cannot be stopped; after a stall it is left behind, with a log line.
        """
        with uninterrupted():
            return self._close()

    def _close(self) -> bool:
        """Stop and join every thread, while signals are kept back."""
        # All waits end before the join: a thread that waits for another thread would delay it.
        for waited_for in self._cancels:
            waited_for.cancel()
        self._failures.close()
        deadline = time.monotonic() + _STUCK_JOIN_S if self._failures.is_stuck else None
        for thread in self._begun:
            thread.join(None if deadline is None else max(deadline - time.monotonic(), 0.01))
        # Ended threads are dropped here: Python swallows a Ctrl-C that arrives while it forgets a thread.
        self._threads = []
        self._begun = [thread for thread in self._begun if thread.is_alive()]
        if self._begun:
            left = ", ".join(thread.name for thread in self._begun)
            logger.error("%s did not end, and are left behind until the process ends", left)
            return False
        self._on_joined()
        return True


def weak_method(handler: Callable[[BaseException], None]) -> Callable[[BaseException], None]:
    """Return ``handler``, a bound method, with a weak reference to its object, so that a dropped object is freed."""
    method = weakref.WeakMethod(handler)

    def call(error: BaseException) -> None:
        live_handler = method()
        if live_handler is not None:
            live_handler(error)

    return call


class Channel(Generic[T]):
    """A bounded first-in first-out queue between threads. Thread-safe.

    `close` ends the stream: items inside are still delivered, then `get` raises ChannelClosedError or the stream's
    error. So an error comes after all earlier items. `fail` drops the items, and ends all waits of both sides: `get`
    raises its error, and `put` ChannelClosedError. After `cancel` both raise ChannelClosedError.

    Parameters
    ----------
    capacity : maximum number of items inside
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._changed = SignalSafeCondition()  # guards the fields of the channel
        self._is_closed = False  # whether the stream has ended
        self._error: BaseException | None = None  # raised by `get` after the last item

    def put(self, item: T) -> None:
        """Add ``item``; wait while the channel is full. Raises ChannelClosedError if the channel is closed."""
        self._changed.when(
            lambda: self._is_closed or len(self._items) < self._capacity, lambda: self._append(item)
        )

    def get(self) -> T:
        """Remove and return the oldest item; wait while the channel is empty."""
        return self._changed.when(lambda: self._items or self._is_closed, self._popleft)

    def has_next(self) -> bool:
        """Return whether `get` would return an item without waiting."""
        with self._changed.lock:
            return bool(self._items)

    def close(self, error: BaseException | None = None) -> None:
        """End the stream, with ``error`` if given. Idempotent: only the first end counts."""
        with self._changed.lock:
            if not self._is_closed:
                self._is_closed = True
                self._error = error
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Drop all items and end both sides; `get` raises ``error``."""
        self._drop(error)

    def cancel(self) -> None:
        """Drop all items and end both sides. Idempotent."""
        self._drop(None)

    def _append(self, item: T) -> None:
        """Add ``item`` to a channel that has room or is closed. Hold the lock."""
        if self._is_closed:
            raise ChannelClosedError("put on a closed channel")
        self._items.append(item)
        # All waiters are notified: a single notification would be lost on a waiter that a signal has interrupted.
        self._changed.notify_all()

    def _popleft(self) -> T:
        """Return the oldest item, or raise the end of the stream. Hold the lock."""
        if self._items:
            item = self._items.popleft()
            self._changed.notify_all()
            return item
        # The error comes after the items: the batches before a failure are good, and are still delivered.
        if self._error is not None:
            raise self._error
        # A new exception each time: a stored exception would hold its frames and their objects.
        raise ChannelClosedError("the channel is closed and empty")

    def _drop(self, error: BaseException | None) -> None:
        """Drop all items and end the stream, with ``error`` if given."""
        with self._changed.lock:
            self._items.clear()
            self._is_closed = True
            self._error = error
            self._changed.notify_all()
