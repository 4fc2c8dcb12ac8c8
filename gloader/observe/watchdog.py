"""Detection of a hanging pipeline, with the stage, the batch and all threads' stacks.

A stage is a step in the preparation of batches, and the consumer is the thread of the training loop. A stall is work of
a stage without progress for too long, or a consumer that waits too long while no stage works. Each activity (one piece
of a stage's work, or one wait of the consumer) has a clock, which starts again at each progress.

`gloader.observe.instruments` reports the start and the end of each activity. The watchdog's thread looks at the clocks
from time to time. It logs a stall with all stacks, and calls the run's handler, which ends the run with the error.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Protocol

from gloader.core.signals import thread_errors, uninterrupted
from gloader.core.units import format_seconds
from gloader.errors import ConfigError, StallError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.observe.epoch_stats import WorkName
    from gloader.types import BatchId

_LOG = logging.getLogger(__name__)
# Shortest time between two looks at the clocks, in seconds, even if many stages are near their deadline.
_SHORTEST_NAP_S = 0.25

# Advice in a stall's message, by stage; `_NO_ADVICE` for other stages.
_ADVICE = {
    "sweep": "the disk that holds the edges, or the spill folder's, may hang: look at the system's log and at "
    "`iostat -x`",
    "sample": "the disk that holds the edges may hang: look at the system's log and at `iostat -x`",
    "stage": "the disk may hang: look at the system's log and at `iostat -x`",
    "read": "the disk may hang: look at the system's log and at `iostat -x`",
    "gather": "the disk may hang: look at the system's log and at `iostat -x`",
    "transfer": "the device may hang: look at the system's log and at `nvidia-smi`",
}
_NO_ADVICE = "the stacks of all threads are in the log; please report them"


class Activity(Protocol):
    """A stage's current work on a batch, such as `gloader.observe.instruments.Work`."""

    stage: WorkName
    batch: BatchId
    since_ns: int  # start or last progress, by `time.perf_counter_ns`
    thread_id: int  # `threading.get_ident` of the working thread


class Watchdog:
    """Calls ``on_stall`` when a stage does not return, or when the consumer waits and no stage works.

    Neither a computing consumer nor a stage that waits for input or output is a stall. `enter` receives neither.
    Thread-safe. Owns its thread between `start` and `close`. Both may be repeated.

    Parameters
    ----------
    stall_timeout_s : seconds without progress that count as a stall; 0 turns the watchdog off
    on_stall : called on the watchdog's thread, once per stall. The thread holds a reference until `close`. It must not
        hold an object whose deletion calls `close`.

    Raises
    ------
    ConfigError
        The timeout is negative.
    """

    def __init__(self, stall_timeout_s: float, on_stall: Callable[[StallError], None]) -> None:
        if not stall_timeout_s >= 0:
            raise ConfigError(
                f"stall_timeout_s = {stall_timeout_s!r} is not allowed; give seconds > 0, or 0 for no watchdog"
            )
        self._timeout_s = stall_timeout_s
        self._timeout_ns = int(stall_timeout_s * 1e9)
        self._on_stall = on_stall
        # Every stage enters and leaves here with every batch. One dict operation is atomic and needs no lock.
        self._running: dict[Activity, None] = {}
        self._last_end_ns = 0  # end of the last activity
        self._lock = threading.Lock()  # guards `_thread`
        self._thread: threading.Thread | None = None  # None before `start` and after `close`
        self._is_closing = threading.Event()

    def start(self) -> None:
        """Start watching. Idempotent."""
        with uninterrupted(), self._lock:
            if self._thread is not None or not self._timeout_s:
                return
            self._is_closing = threading.Event()
            thread = threading.Thread(
                target=self._watch, args=(self._is_closing,), name="gloader-watchdog", daemon=True
            )
            with thread_errors():
                thread.start()
            self._thread = thread  # started, so that `close` can join it

    def close(self) -> None:
        """Stop watching and join the thread. Idempotent. `on_stall` may call it."""
        with uninterrupted():
            self._close()

    def _close(self) -> None:
        """Stop the thread, and join it. A handler calls this on the thread itself, which cannot join itself."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._is_closing.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def enter(self, activity: Activity) -> None:
        """Record that ``activity`` starts."""
        self._running[activity] = None

    def leave(self, activity: Activity, ended_ns: int) -> None:
        """Record that ``activity`` ends, at ``ended_ns`` from `time.perf_counter_ns`."""
        self._running.pop(activity, None)
        self._last_end_ns = ended_ns

    def _watch(self, is_closing: threading.Event) -> None:
        """Look at the clocks until ``is_closing`` is set. Runs on the watchdog's thread."""
        reported: set[Activity] = set()
        floor_ns = time.perf_counter_ns()  # see `_look`
        nap_s = self._timeout_s
        while True:
            due_ns = time.perf_counter_ns() + int(nap_s * 1e9)
            if is_closing.wait(nap_s):
                return
            now_ns = time.perf_counter_ns()
            if now_ns - due_ns > self._timeout_ns // 2:
                # This thread was also delayed, so the process was stopped, not one of its stages.
                floor_ns = now_ns
            next_ns = self._look(now_ns, floor_ns, reported)
            nap_s = max((next_ns - now_ns) / 1e9, min(_SHORTEST_NAP_S, self._timeout_s))

    def _look(self, now_ns: int, floor_ns: int, reported: set[Activity]) -> int:
        """Report new stalls; return the time of the next look in ns.

        Parameters
        ----------
        now_ns : the time of this look
        floor_ns : clocks that started earlier count from this time, because the whole process was stopped before
        reported : activities whose stall was reported; updated
        """
        running = list(self._running)
        reported &= set(running)
        next_ns = now_ns + self._timeout_ns  # work that begins later is not due before
        for activity, since_ns in self._clocks_of(running):
            stalled_ns = now_ns - max(since_ns, floor_ns)
            if activity in reported:
                continue
            if stalled_ns >= self._timeout_ns:
                reported.add(activity)
                self._report(activity, stalled_ns / 1e9)
            else:
                next_ns = min(next_ns, now_ns + self._timeout_ns - stalled_ns)
        return next_ns

    def _clocks_of(self, running: list[Activity]) -> list[tuple[Activity, int]]:
        """Return the work that can stall, with its clock's start: the stages' work, else a waiting consumer's."""
        # The consumer's wait is normal while a stage works. Its clock starts again when the last piece of work ends.
        working = [(activity, activity.since_ns) for activity in running if activity.stage != "wait"]
        return working or [(wait, max(wait.since_ns, self._last_end_ns)) for wait in running]

    def _report(self, activity: Activity, seconds: float) -> None:
        """Log a stall of ``seconds`` and call the handler."""
        error = StallError(_describe(activity, seconds, self._timeout_s))
        _LOG.error("%s\n%s", error, _all_stacks())
        try:
            self._on_stall(error)
        except Exception:  # noqa: BLE001 - the watchdog outlives an error of its handler
            _LOG.exception("the handler of the stall failed")


def _describe(activity: Activity, seconds: float, timeout_s: float) -> str:
    """Return a stall's text: stage, duration and advice. Pure except for the thread's name."""
    batch = f"epoch {activity.batch.epoch}, batch {activity.batch.index}"
    allowed = (
        f"stall_timeout_s is {timeout_s:g}; raise it where the work is only slow, 0 turns the watchdog off"
    )
    if activity.stage == "wait":
        return (
            f"no stage has worked for {format_seconds(seconds)} while the loop waits for {batch}: the pipeline is "
            f"stuck; {_NO_ADVICE} ({allowed})"
        )
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    thread = names.get(activity.thread_id, "that has ended")
    return (
        f"stage {activity.stage} of {batch} has not returned for {format_seconds(seconds)} (thread {thread}); "
        f"{_ADVICE.get(activity.stage, _NO_ADVICE)} ({allowed})"
    )


def _all_stacks() -> str:
    """Return every other thread's stack as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame)).rstrip()}"
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 - the documented way to every stack
        if ident != own
    )
