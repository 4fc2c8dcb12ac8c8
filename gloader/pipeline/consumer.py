"""The consumer's end of a run: batches in order on the compute device, epoch by epoch.

A run is the work of the pipeline's threads from one position in the stream of batches on, across epochs. These threads
prepare batches; `Consumer` takes them in the thread of the user's training loop. `EpochIterator` is the object that
``iter(loader)`` returns: it ends each epoch, and the run if the loop leaves an epoch early.

- A superbatch is a group of consecutive batches whose missing rows are planned together. `RunFeedback` passes measured
  times to its next plans.
- Gathered batches are in host memory. The send step moves them to the device, in its own thread if the device is
  asynchronous, otherwise here.
- An asynchronous device, such as a GPU, executes work later than the host launches it.
- A mark is a point in a device's queue of work. By marks, `StepTimes` measures the loop's steps on the device's clock.
- A ring is the reused host buffers. Without an asynchronous device, a ring lends its buffers to the loop.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, cast

from gloader.core.signals import close_in_finalizer, uninterrupted
from gloader.errors import ChannelClosedError, ForkError, LoaderClosedError
from gloader.pipeline.send import BATCHES_AHEAD, SentBatch
from gloader.types import BatchId, Delivered, HeteroReadyBatch, LinkBatch, ReadyBatch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gloader.device import Device, Mark
    from gloader.observe.epoch_stats import EpochStats, StatsRecorder
    from gloader.observe.instruments import Instruments, Work
    from gloader.pipeline.buffers import BufferRing
    from gloader.pipeline.embed import Embed
    from gloader.pipeline.gather import HostBatch
    from gloader.pipeline.seeds import BatchStream
    from gloader.pipeline.send import Send
    from gloader.pipeline.superbatch import RunFeedback
    from gloader.pipeline.threads import Failures, Feed


@dataclass(slots=True, kw_only=True)
class _LoopStep:
    """One batch and the marks around its computation."""

    recorder: StatsRecorder  # the epoch's recorder
    superbatch: int  # number of the batch's superbatch
    ends_superbatch: bool  # whether the batch is the superbatch's last one
    requested: Mark  # after the previous step
    begun: Mark  # after the batch's transfer to the device
    ended: Mark | None = None  # after the work that the loop launched for the batch

    def marks(self) -> tuple[Mark, ...]:
        """Return all three marks; empty while the loop has the batch."""
        # A loop may continue in another thread, on another stream, so that the last mark may be reached first.
        return () if self.ended is None else (self.requested, self.begun, self.ended)


class StepTimes:
    """Measures each step's computation on the device, and the device's idle time before it.

    The host's clock shows only the launch time. It also counts the time during which the sender waits for the model
    (`Pace`) as a wait for a batch. So marks are set between the steps, and read after the device has passed them. Only
    `settle` waits for marks. For the consumer's thread.

    Parameters
    ----------
    device : the compute device, asynchronous to the host
    feedback : receives the times of every step
    """

    def __init__(self, device: Device, feedback: RunFeedback) -> None:
        self._device = device
        self._feedback = feedback
        self._requested: Mark | None = None  # set at the loop's request, until the batch is delivered
        self._steps: deque[_LoopStep] = deque()  # steps whose times are not yet known, oldest first

    def ask(self) -> None:
        """Note that the loop requests a batch."""
        if self._requested is None:
            self._requested = self._device.mark_computing()
        self._report()

    def begin(self, sent: SentBatch, recorder: StatsRecorder) -> Mark:
        """Return the mark before the computation of ``sent``, which begins now; ``recorder`` is for its epoch."""
        assert self._requested is not None  # noqa: S101 - `ask` has set it
        begun = self._device.mark_computing()
        self._steps.append(
            _LoopStep(
                recorder=recorder,
                superbatch=sent.superbatch,
                ends_superbatch=sent.ends_superbatch,
                requested=self._requested,
                begun=begun,
            )
        )
        self._requested = None
        return begun

    def end(self) -> None:
        """Note that the loop has launched all work for its last batch. Idempotent."""
        if self._steps and self._steps[-1].ended is None:
            self._requested = self._steps[-1].ended = self._device.mark_computing()

    def settle(self) -> None:
        """Wait for the device at the end of an epoch, so that the epoch's figures are complete."""
        for mark in self._steps[-1].marks() if self._steps else ():
            mark.wait()
        self._report()
        self._requested = None  # what comes before the next epoch is no wait for a batch

    def _report(self) -> None:
        """Report the times of the steps that the device has completed, without waiting."""
        while self._steps and (marks := self._steps[0].marks()) and all(mark.is_reached() for mark in marks):
            step = self._steps.popleft()
            # The wait lasts from the request to the start of the computation, the computation until the end.
            wait_s, compute_s = (max(b.seconds_since(a), 0.0) for a, b in pairwise(marks))
            step.recorder.add_seconds("wait", wait_s)
            step.recorder.add_seconds("compute", compute_s)
            self._feedback.delivered(step.superbatch, ends_superbatch=step.ends_superbatch, wait_s=wait_s)
            self._feedback.computed(compute_s)


B = TypeVar("B", ReadyBatch, HeteroReadyBatch, LinkBatch)

# Batches between the sender thread and the loop. `Pace` allows the same number, so that the sender never waits here
# with host memory that the device has already read.
SENT_AHEAD: Final = BATCHES_AHEAD


class WaitObserver(Protocol):
    """Observes the consumer's waits: a ring of buffers, or the connection to the loading rank."""

    def consumer_waits(self) -> AbstractContextManager[None]:
        """Mark the time during which the consumer waits for a batch."""
        ...


class Consumer:
    """Delivers one rank's batches in order, each on the compute device; measures waits and computation.

    For the thread of the user's loop.

    Parameters
    ----------
    source : the run's last channel, with sent batches or with gathered batches, which are then sent here
    stream : this rank's batches
    send : moves gathered batches to the device
    observer : marks the time of each wait
    failures : the errors of all threads; if one is raised here, the others become its notes
    instruments : measure the consumer
    feedback : receives every wait and computation
    embed : puts trained rows into the batches; None without such rows
    ring : the ring whose buffers the loop receives directly; None if the loop receives copies
    """

    def __init__(  # noqa: PLR0913 - the ends of all stages meet here
        self,
        source: Feed[HostBatch | SentBatch],
        *,
        stream: BatchStream,
        send: Send,
        observer: WaitObserver,
        failures: Failures,
        instruments: Instruments,
        feedback: RunFeedback,
        embed: Embed | None = None,
        ring: BufferRing | None = None,
    ) -> None:
        self._source = source
        self._embed = embed
        self._ring = ring
        self._stream = stream
        self._send = send
        self._observer = observer
        self._failures = failures
        self._instruments = instruments
        self._feedback = feedback
        self._computing: Work | None = None  # the loop's work on the last batch
        # None if the host is the device, so that both have one clock.
        self._times = StepTimes(send.device, feedback) if send.device.is_asynchronous else None
        self.num_taken = 0  # batches handed out

    @property
    def next_id(self) -> BatchId:
        """The address of the next batch."""
        return self._stream.id_of(self.num_taken)

    def has_next(self) -> bool:
        """Return whether there is another batch before the end of the stream."""
        return self._stream.has(self.num_taken)

    def begin_epoch(self, epoch: int) -> StatsRecorder:
        """Start an epoch and return its recorder; the sums of earlier epochs are dropped."""
        self._instruments.forget_before(epoch)
        return self._instruments.recorder(epoch)

    def next_batch(self) -> Delivered:
        """Wait for the next batch, and return it on the compute device.

        Raises
        ------
        ChannelClosedError
            The stream is over.
        BaseException
            The stage's error, with a note that names stage, epoch and batch.
        """
        batch_id = self.next_id
        times = self._times
        if self._ring is not None:
            self._ring.take_back()
        if times is not None:
            times.ask()
        with self._instruments.working("wait", batch_id, is_counted=times is None) as waiting:
            taken = self._take()
        # Without a sender thread the host is the device: no transfer can overlap with the computation.
        sent = taken if isinstance(taken, SentBatch) else self._send.process(taken)
        ready = sent.receive()
        if self._ring is not None:
            self._ring.lend(sent.features)
        if self._embed is not None:
            ready = self._embed.process(sent, ready)
        self.num_taken += 1
        if times is None:
            self._feedback.delivered(
                sent.superbatch, ends_superbatch=sent.ends_superbatch, wait_s=waiting.seconds
            )
        else:
            self._send.pace.begun(times.begin(sent, self._instruments.recorder(batch_id.epoch)))
        self._computing = self._instruments.working("compute", batch_id, is_counted=times is None).begin()
        return ready

    def on_next_requested(self) -> None:
        """Note the loop's request for another batch: all work launched since the last batch is its computation."""
        self.end_compute()
        if self._times is not None:
            self._times.end()

    def require_done(self) -> None:
        """Raise StateError if the trained rows of the last batch were neither stepped nor skipped."""
        if self._embed is not None:
            self._embed.require_done()

    def end_compute(self) -> None:
        """Note that the loop is done with its last batch. Idempotent."""
        if self._computing is not None:
            self._computing.end()
            if self._times is None:
                self._feedback.computed(self._computing.seconds)
            self._computing = None

    def settle(self) -> None:
        """Complete a finished epoch's figures: wait for the device's outstanding work."""
        if self._times is not None:
            self._times.settle()

    def _take(self) -> HostBatch | SentBatch:
        """Wait for the next batch in the channel; errors as in `next_batch`."""
        try:
            with self._observer.consumer_waits():
                return self._source.get()
        except ChannelClosedError:
            raise
        except BaseException as error:
            self._failures.annotate(error)
            raise


class Run(Protocol):
    """Threads that prepare a rank's batches, across epochs."""

    @property
    def consumer(self) -> Consumer:
        """The consumer's end of the pipeline."""
        ...

    def close(self, error: BaseException | None = None) -> bool:
        """End the run for this rank; return whether all threads ended. Idempotent.

        If the loop ends with ``error``, the other ranks of the run receive it.
        """
        ...


def require_same_process(pid: int) -> None:
    """Raise ForkError unless this process is ``pid``, which built the loader."""
    # A child would wait for its parent's threads and locks.
    if os.getpid() != pid:
        raise ForkError(
            "this loader belongs to the process that built it; start workers with 'spawn' and build it there"
        )


class OnEnd(Protocol):
    """A callback for the end of an epoch, called once."""

    def __call__(self, stats: EpochStats, *, is_complete: bool) -> None:
        """Receive the statistics, and whether every batch was handed out."""


class EpochIterator(Iterator[B], Generic[B]):
    """The iterator of ``iter(loader)``: the rest of one epoch, from the run's current position.

    At the end of the epoch the run continues in the background. The run ends if a stage fails, or if the iterator is
    dropped before the end. Thread-safe: threads that share the iterator take turns, and each batch goes to one thread.
    An error is raised in one thread, and ends the epoch for the others. Not for a forked child.

    Parameters
    ----------
    run : the run whose consumer delivers the batches
    epoch : number of the epoch
    num_left : remaining batches of the epoch
    on_batch, on_end : called for every batch handed out, and at the end
    """

    def __init__(
        self,
        run: Run,
        *,
        epoch: int,
        num_left: int,
        on_batch: Callable[[BatchId], None],
        on_end: OnEnd,
    ) -> None:
        self._recorder = run.consumer.begin_epoch(epoch)  # the epoch's sums
        self._num_left = num_left
        self._on_batch = on_batch
        self._turn = threading.Lock()  # held by the thread that takes a batch
        self._pid = os.getpid()
        # None after the end of the epoch.
        self._open: _OpenEpoch | None = _OpenEpoch(run, self._recorder, on_end)

    @property
    def is_running(self) -> bool:
        """True if another batch may come."""
        return self._open is not None

    @property
    def stats(self) -> EpochStats:
        """The epoch's statistics so far."""
        return self._recorder.snapshot()

    def __next__(self) -> B:
        """Return the next batch; a stage's error is raised here, with a note that names stage and batch.

        Raises
        ------
        ForkError
            In a forked child.
        LoaderClosedError
            Another thread closed the loader or the epoch.
        StateError
            The trained rows of the last batch were neither stepped nor skipped. The epoch goes on after the step.
        """
        require_same_process(self._pid)
        with self._turn:
            return cast("B", self._next())  # one loader's run delivers one kind of batch

    def _next(self) -> Delivered:
        """Return the next batch, or end the epoch. The caller holds ``_turn``."""
        # The attribute is read once, as another thread may call `close`.
        if (current := self._open) is None:
            raise StopIteration
        consumer = current.run.consumer
        # The epoch stays open, so that the loop can make the step and go on.
        consumer.require_done()
        # Without this reference, an ended epoch is freed inside `_finish`, while signals are kept back.
        del current
        batch = None
        try:
            consumer.on_next_requested()
            if self._num_left:
                batch = consumer.next_batch()
            else:
                consumer.settle()
        except BaseException as error:
            # Another thread closed the epoch: the error names the closed loader instead of the channel.
            if self._open is None and isinstance(error, ChannelClosedError):
                raise LoaderClosedError(
                    "the loader, or this epoch, was closed during the wait for a batch"
                ) from None
            self._finish(is_complete=False, error=error)
            raise
        if batch is None:
            self._finish(is_complete=True)
            raise StopIteration
        self._num_left -= 1
        self._recorder.add_batch(_num_predicted(batch))
        self._on_batch(batch.id)
        return batch

    def close(self) -> None:
        """Stop the epoch at its current position. Idempotent."""
        self._finish(is_complete=False)

    def _finish(self, *, is_complete: bool, error: BaseException | None = None) -> None:
        """End the epoch, while signals such as Ctrl-C are kept back. Idempotent."""
        with uninterrupted():
            self._end(is_complete=is_complete, error=error)

    def _end(self, *, is_complete: bool, error: BaseException | None) -> None:
        """End the epoch if it is still open."""
        # This is separate from `_finish`, so that the last reference is dropped while signals are kept back.
        ended, self._open = self._open, None
        if ended is not None:
            ended.end(is_complete=is_complete, error=error)


def _num_predicted(batch: Delivered) -> int:
    """Return a batch's number of seeds, or of predicted edges or rows."""
    if isinstance(batch, LinkBatch):
        return batch.num_positives
    if batch.row_ids is not None:
        return len(batch.row_ids)
    seeds = batch.num_seeds
    return seeds if isinstance(seeds, int) else sum(seeds.values())


class _OpenEpoch:
    """An epoch under way; dropping this object ends the epoch. Starts the clock."""

    # The iterator has no finalizer: Python would run it whenever a loop drops its iterator, and would print and lose a
    # Ctrl-C inside it. This separate object is freed earlier, while signals are kept back, unless the loop left its
    # iterator in the middle.

    def __init__(self, run: Run, recorder: StatsRecorder, on_end: OnEnd) -> None:
        self.run = run
        self._recorder = recorder
        self._on_end = on_end
        self._is_over = False  # whether `end` was called
        self._pid = os.getpid()
        recorder.start()

    def end(self, *, is_complete: bool, error: BaseException | None = None) -> None:
        """Stop the clock and an incomplete run, and report the end. Idempotent; does nothing in a child."""
        if self._is_over or os.getpid() != self._pid:
            return
        self._is_over = True
        self.run.consumer.end_compute()
        self._recorder.stop()
        if not is_complete:
            self.run.close(error)
        self._on_end(self._recorder.snapshot(), is_complete=is_complete)

    def __del__(self) -> None:
        # At Python's exit the loader has already closed its parts, and the statistics are of no use.
        if not getattr(self, "_is_over", True) and not sys.is_finalizing():
            close_in_finalizer(lambda: self.end(is_complete=False))
