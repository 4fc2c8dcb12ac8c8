"""The one place where a stage says what it is doing; statistics, timeline and watchdog listen."""

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

# Work that may take for ever: a slow model is no stall of the loader.
_NO_STALL = frozenset({"compute"})
# What the consumer does itself. An error that passes there happened elsewhere, and says so already.
_OF_THE_CONSUMER = frozenset({"compute", "wait"})


class Instruments:
    """Measures the stages of one loader. Thread-safe; shared by all of its stages.

    Parameters
    ----------
    timeline : records each piece of work; None: nobody does
    watchdog : told what is under way; None: nobody is. The caller starts and closes it
    watches_waits : tell it of a consumer that waits; false if that waits for another process, which is watched there
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
        self.unwatched = _NO_STALL if watches_waits else _OF_THE_CONSUMER
        self._recorders: dict[int, StatsRecorder] = {}
        self._lock = threading.Lock()

    def recorder(self, epoch: int) -> StatsRecorder:
        """Return the sums of ``epoch``, zero when they are first asked for."""
        # Asked for with every piece of work: one atomic look first, the lock only where an epoch is new.
        recorder = self._recorders.get(epoch)
        if recorder is None:
            with self._lock:
                recorder = self._recorders.setdefault(epoch, StatsRecorder(epoch))
        return recorder

    def forget_before(self, epoch: int) -> None:
        """Drop the sums of all epochs before ``epoch``, which begins; work for them under way counts no longer."""
        if isinstance(self.timeline, RecentTimeline):
            self.timeline.begin_epoch()
        with self._lock:
            for old in [known for known in self._recorders if known < epoch]:
                del self._recorders[old]

    def working(self, stage: WorkName, batch: BatchId, *, batches: int = 1, is_counted: bool = True) -> Work:
        """Return a context in which a stage works; an exception that leaves it gets a note on where it happened.

        Parameters
        ----------
        stage : which one
        batch : what it works on, or the first of several; the time counts for its epoch
        batches : how many
        is_counted : add its time to the epoch's; false where another clock measures it
        """
        return Work(self, stage, batch, batches, is_counted=is_counted)


class Work:
    """One piece of work of one stage: a context manager, or `begin` and `end` where a block cannot hold it.

    Parameters
    ----------
    instruments : where it is counted
    stage, batch, batches, is_counted : as of `Instruments.working`
    """

    # Written by hand: a context manager made of a generator would cost as much as the measuring does. And without a
    # finalizer, since one is dropped with every batch: Python swallows a Ctrl-C that arrives inside of it.

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
        self._recorder = instruments.recorder(batch.epoch)
        self._notes: dict[str, NoteValue] | None = None
        self._bytes_read = 0
        self._bytes_written = 0
        self._requests = 0
        self.seconds = 0.0  # wall time, once it ended

    def begin(self) -> Self:
        """Start the clock, on the thread that works."""
        self.thread_id = threading.get_ident()
        self._started_ns = self.since_ns = perf_counter_ns()
        if self._instruments.timeline is not None:
            self._cpu_began_ns = self._cpu_ns()
        watchdog = self._instruments.watchdog
        if watchdog is not None and self.stage not in self._instruments.unwatched:
            watchdog.enter(self)
        return self

    def end(self, error: BaseException | None = None) -> None:
        """Stop the clock; ``error`` is what ended the work early and gets a note on where it happened."""
        instruments = self._instruments
        # Read within the time that it is of: no thread uses more of a processor than time goes by.
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
        """Show in the timeline what this work moved from and to the SSD; the sums take theirs from the recorder.

        A sign of life, as `beat`.

        Parameters
        ----------
        read, written : bytes
        requests : reads that the disk saw
        """
        self._bytes_read += read
        self._bytes_written += written
        self._requests += requests
        self.beat()

    def note(self, **notes: NoteValue) -> None:
        """Attach facts that the timeline shows beside the work, such as ``superbatch=3, rows=240_000``."""
        if self._instruments.timeline is not None:
            self._notes = {**(self._notes or {}), **notes}

    def beat(self) -> None:
        """Show the watchdog that long work makes progress."""
        self.since_ns = perf_counter_ns()

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(error)

    def _cpu_ns(self) -> int:
        """Return the processor time so far of this thread; of a computation that of the process."""
        # The model works with threads that nobody here knows.
        return process_time_ns() if self.stage == "compute" else thread_ns()

    def _note_on(self, error: BaseException) -> None:
        if isinstance(error, ChannelClosedError) or self.stage in _OF_THE_CONSUMER:
            return
        self.note(error=type(error).__name__)
        note_where(error, self.stage, self.batch, self.batches)


def note_where(error: BaseException, stage: WorkName, batch: BatchId, batches: int = 1) -> None:
    """Note on ``error`` where it happened, unless work within that work, which says it better, did so already.

    Parameters
    ----------
    error : raised by a stage
    stage : which one
    batch, batches : what it worked on, or the first of several and how many
    """
    if any(note.startswith("in stage ") for note in getattr(error, "__notes__", ())):
        return
    others = f" and the {batches - 1} after it" if batches > 1 else ""
    error.add_note(f"in stage {stage}, epoch {batch.epoch}, batch {batch.index}{others}")
