"""Measurement of the stages' work for statistics, timeline and watchdog.

A stage is a step in the preparation of batches. It wraps each piece of its work, such as the sampling of a batch, in a
`Work`. At the end of the work, its time is added to the epoch's sums, and an event to the timeline. During the work the
watchdog sees it, and reports a stage that hangs. All stages of a loader share one `Instruments`. The consumer is the
thread of the training loop, whose waits and computation are measured too.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns, process_time_ns
from typing import TYPE_CHECKING, Self

from gloader.core.thread_times import thread_ns
from gloader.errors import ChannelClosedError
from gloader.observe.epoch_stats import StatsRecorder
from gloader.observe.timeline import RecentTimeline, Used

if TYPE_CHECKING:
    from types import TracebackType

    from gloader.observe.epoch_stats import WorkName
    from gloader.observe.timeline import NoteValue, TimelineRecorder
    from gloader.observe.watchdog import Watchdog
    from gloader.types import BatchId

# Stages without a time limit: a slow model is no stall in the loader.
_NO_STALL = frozenset({"compute"})
# Stages of the consumer. An error that passes through them happened in another stage and already has a note.
_OF_THE_CONSUMER = frozenset({"compute", "wait"})


class Instruments:
    """Measures the stages in one loader, which share it. Thread-safe.

    Parameters
    ----------
    timeline : records each piece of work. None means no record.
    watchdog : receives the current work. None means no watchdog. The caller starts and closes it.
    watches_waits : whether the watchdog sees a waiting consumer. False if the consumer waits for another process, which
        has a watchdog of its own.
    """

    def __init__(
        self,
        *,
        timeline: TimelineRecorder | RecentTimeline | None = None,
        watchdog: Watchdog | None = None,
        watches_waits: bool = True,
    ) -> None:
        self.timeline = timeline
        self.watchdog = watchdog
        # The stages whose work the watchdog does not see.
        self.unwatched = _NO_STALL if watches_waits else _OF_THE_CONSUMER
        self._recorders: dict[int, StatsRecorder] = {}  # by epoch
        self._lock = threading.Lock()

    def recorder(self, epoch: int) -> StatsRecorder:
        """Return ``epoch``'s sums, created at zero by the first call."""
        # Each piece of work calls this: a lookup without the lock comes first, and only a new epoch takes the lock.
        recorder = self._recorders.get(epoch)
        if recorder is None:
            with self._lock:
                recorder = self._recorders.setdefault(epoch, StatsRecorder(epoch))
        return recorder

    def forget_before(self, epoch: int) -> None:
        """Drop the sums of the epochs before ``epoch``, which begins. Later work for them is not counted."""
        if isinstance(self.timeline, RecentTimeline):
            self.timeline.begin_epoch()
        with self._lock:
            for old in [known for known in self._recorders if known < epoch]:
                del self._recorders[old]

    def working(self, stage: WorkName, batch: BatchId, *, batches: int = 1, is_counted: bool = True) -> Work:
        """Return a context for a stage's work. An exception that leaves the context gets a note with stage and batch.

        Parameters
        ----------
        stage : the stage
        batch : the batch, or the first one; the time counts for its epoch
        batches : number of batches
        is_counted : add the work's time to the epoch's sums. False if another clock measures it.
        """
        return Work(self, stage, batch, batches, is_counted=is_counted)


class Work:
    """One piece of a stage's work: a context manager, or `begin` and `end` if a block cannot enclose it.

    Parameters
    ----------
    instruments : instruments that count the work
    stage, batch, batches, is_counted : see `Instruments.working`
    """

    # `Work` is a class, because a context manager from a generator would cost as much as the measurement. It has no
    # finalizer: each batch drops one object, and Python swallows a Ctrl-C that arrives inside a finalizer. It is an
    # `Activity` of the watchdog: `since_ns` is the time of its start or last progress, read by the watchdog's thread.

    __slots__ = (
        "_bytes_read",
        "_bytes_written",
        "_cpu_began_ns",
        "_instruments",
        "_is_counted",
        "_notes",
        "_recorder",
        "_requests",
        "_started_ns",
        "batch",
        "batches",
        "seconds",
        "since_ns",
        "stage",
        "thread_id",
    )

    def __init__(
        self, instruments: Instruments, stage: WorkName, batch: BatchId, batches: int, *, is_counted: bool
    ) -> None:
        self.stage = stage
        self.batch = batch
        self.batches = batches
        self._instruments = instruments
        self._is_counted = is_counted
        self._recorder = instruments.recorder(batch.epoch)  # the epoch's sums
        self._notes: dict[str, NoteValue] | None = None  # facts for the timeline, see `note`
        self._bytes_read = 0
        self._bytes_written = 0
        self._requests = 0
        self.seconds = 0.0  # wall time, set by `end`

    def begin(self) -> Self:
        """Start the clock, on the working thread."""
        self.thread_id = threading.get_ident()
        self._started_ns = self.since_ns = perf_counter_ns()
        if self._instruments.timeline is not None:
            self._cpu_began_ns = self._cpu_ns()
        watchdog = self._instruments.watchdog
        if watchdog is not None and self.stage not in self._instruments.unwatched:
            watchdog.enter(self)
        return self

    def end(self, error: BaseException | None = None) -> None:
        """Stop the clock. An ``error`` that ended the work early gets a note with stage and batch."""
        instruments = self._instruments
        # Processor time is read before the clock stops, so that it never exceeds wall time.
        cpu_ns = 0 if instruments.timeline is None else self._cpu_ns() - self._cpu_began_ns
        ended_ns = perf_counter_ns()
        if instruments.watchdog is not None:
            instruments.watchdog.leave(self, ended_ns)
        self.seconds = (ended_ns - self._started_ns) / 1e9
        if self._is_counted:
            self._recorder.add_seconds(self.stage, self.seconds)
        if error is not None:
            self._note_on(error)
        if instruments.timeline is not None:
            instruments.timeline.record(
                self.stage,
                self.batch,
                self.batches,
                self._started_ns,
                ended_ns,
                Used(cpu_ns, self._requests, self._bytes_read, self._bytes_written),
                self._notes,
            )

    def add_bytes(self, *, read: int = 0, written: int = 0, requests: int = 0) -> None:
        """Show the bytes that this work moved from and to the SSD in the timeline.

        The epoch's sums count the bytes elsewhere. Counts as progress, like `beat`.

        Parameters
        ----------
        read, written : bytes read from and written to the SSD
        requests : reads issued to the disk
        """
        self._bytes_read += read
        self._bytes_written += written
        self._requests += requests
        self.beat()

    def note(self, **notes: NoteValue) -> None:
        """Attach facts that the timeline shows with the work, such as ``superbatch=3, rows=240_000``."""
        if self._instruments.timeline is not None:
            self._notes = {**(self._notes or {}), **notes}

    def beat(self) -> None:
        """Report progress of long work to the watchdog."""
        self.since_ns = perf_counter_ns()

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(error)

    def _cpu_ns(self) -> int:
        """Return this thread's processor time so far, or the process's for a computation."""
        # The model's own threads are unknown here, so the process's time counts for a computation.
        return process_time_ns() if self.stage == "compute" else thread_ns()

    def _note_on(self, error: BaseException) -> None:
        """Add a note to ``error``, unless the stage was only cancelled or the error comes from another stage."""
        if isinstance(error, ChannelClosedError) or self.stage in _OF_THE_CONSUMER:
            return
        self.note(error=type(error).__name__)
        note_where(error, self.stage, self.batch, self.batches)


def note_where(error: BaseException, stage: WorkName, batch: BatchId, batches: int = 1) -> None:
    """Add a note with stage and batch to ``error``, unless inner work already added a more precise one.

    Parameters
    ----------
    error : the error that a stage raised
    stage : the stage
    batch, batches : the first batch of the work, and the number of batches
    """
    if any(note.startswith("in stage ") for note in getattr(error, "__notes__", ())):
        return
    others = f" and the {batches - 1} after it" if batches > 1 else ""
    error.add_note(f"in stage {stage}, epoch {batch.epoch}, batch {batch.index}{others}")
