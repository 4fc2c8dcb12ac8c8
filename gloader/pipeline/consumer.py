"""The consumer's end of a run: batches in order on the compute device, epoch by epoch.

`StepTimes` measures the steps of the training loop with the clock of a device that works behind the host.
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
    from gloader.pipeline.gather import HostBatch
    from gloader.pipeline.seeds import BatchStream
    from gloader.pipeline.send import Send
    from gloader.pipeline.superbatch import RunFeedback
    from gloader.pipeline.threads import Failures, Feed


@dataclass(slots=True, kw_only=True)
class _Step:
    """One batch in the loop's hands."""

    recorder: StatsRecorder  # of its epoch
    superbatch: int
    ends_superbatch: bool
    asked: Mark  # behind the step before it
    begun: Mark  # behind what brings the batch
    ended: Mark | None = None  # behind what the loop launched for it

    def marks(self) -> tuple[Mark, ...]:
        """Return all of them; none while the loop has the batch."""
        # A loop may go on in another thread, on another stream: then the last is reached before the others.
        return () if self.ended is None else (self.asked, self.begun, self.ended)


class StepTimes:
    """Measures what the device computes, and for how long it stands still before; for the consumer's thread.

    The host's clock shows how long launching takes, and a wait for a batch is one for the model where the sender keeps
    its distance. So marks are put between the steps, and read when the device has passed them: nothing waits for it.

    Parameters
    ----------
    device : works behind the host
    feedback : told of every step
    """

    def __init__(self, device: Device, feedback: RunFeedback) -> None:
        self._device = device
        self._feedback = feedback
        self._asked: Mark | None = None
        self._steps: deque[_Step] = deque()

    def ask(self) -> None:
        """Note that the loop asks for a batch."""
        if self._asked is None:
            self._asked = self._device.mark_computing()
        self._report()

    def begin(self, sent: SentBatch, recorder: StatsRecorder) -> Mark:
        """Return the mark before the computation of ``sent``, which begins; ``recorder`` is that of its epoch."""
        assert self._asked is not None  # noqa: S101 - by `ask`
        begun = self._device.mark_computing()
        self._steps.append(
            _Step(
                recorder=recorder,
                superbatch=sent.superbatch,
                ends_superbatch=sent.ends_superbatch,
                asked=self._asked,
                begun=begun,
            )
        )
        self._asked = None
        return begun

    def end(self) -> None:
        """Note that nothing more is launched for the batch that the loop got last. Idempotent."""
        if self._steps and self._steps[-1].ended is None:
            self._asked = self._steps[-1].ended = self._device.mark_computing()

    def settle(self) -> None:
        """Wait for the device at the end of an epoch, whose figures are then complete."""
        for mark in self._steps[-1].marks() if self._steps else ():
            mark.wait()
        self._report()
        self._asked = None  # what comes before the next epoch is no wait for a batch

    def _report(self) -> None:
        while self._steps and (marks := self._steps[0].marks()) and all(mark.is_reached() for mark in marks):
            step = self._steps.popleft()
            wait_s, compute_s = (max(b.seconds_since(a), 0.0) for a, b in pairwise(marks))
            step.recorder.add_seconds("wait", wait_s)
            step.recorder.add_seconds("compute", compute_s)
            self._feedback.delivered(step.superbatch, ends_superbatch=step.ends_superbatch, wait_s=wait_s)
            self._feedback.computed(compute_s)


B = TypeVar("B", ReadyBatch, HeteroReadyBatch, LinkBatch)

# Batches between the thread that sends and the loop: as many as `Pace` lets be there, so that it never waits here,
# where it would hold host memory that the device has read.
SENT_AHEAD: Final = BATCHES_AHEAD


class WaitObserver(Protocol):
    """Knows whether the consumer waits: a ring of buffers, or the connection to the rank that loads."""

    def consumer_waits(self) -> AbstractContextManager[None]:
        """Mark the time during which the consumer waits for a batch."""
        ...


class Consumer:
    """Takes the batches of one rank in order, each on the compute device; measures waits and what is done between.

    For the thread of the user's loop.

    Parameters
    ----------
    source : the channel that the run ends in: of sent batches, or of gathered ones, which are then sent here
    stream : the batches of this rank
    send : the way of gathered batches to the device
    observer : told while this waits
    failures : whose other errors become notes of the one that is raised
    instruments : measure it
    feedback : told of every wait and computation
    ring : whose buffers the loop gets, where they are handed out as they are; None: they are not
    """

    def __init__(
        self,
        source: Feed[HostBatch | SentBatch],
        *,
        stream: BatchStream,
        send: Send,
        observer: WaitObserver,
        failures: Failures,
        instruments: Instruments,
        feedback: RunFeedback,
        ring: BufferRing | None = None,
    ) -> None:
        self._source = source
        self._ring = ring
        self._stream = stream
        self._send = send
        self._observer = observer
        self._failures = failures
        self._instruments = instruments
        self._feedback = feedback
        self._computing: Work | None = None
        # None where the host is the device: its clock is the device's.
        self._times = StepTimes(send.device, feedback) if send.device.is_asynchronous else None
        self.num_taken = 0  # batches handed out

    @property
    def next_id(self) -> BatchId:
        """The batch that `next_batch` returns next."""
        return self._stream.id_of(self.num_taken)

    def has_next(self) -> bool:
        """Return whether there is another batch before the end of the stream."""
        return self._stream.has(self.num_taken)

    def begin_epoch(self, epoch: int) -> StatsRecorder:
        """Return the sums of ``epoch``, which begins: those of earlier ones are dropped."""
        self._instruments.forget_before(epoch)
        return self._instruments.recorder(epoch)

    def next_batch(self) -> Delivered:
        """Return the next batch on the compute device, waiting for it.

        Raises
        ------
        ChannelClosedError
            The stream is over.
        BaseException
            Whatever a stage raised, with a note that names stage, epoch and batch.
        """
        batch_id = self.next_id
        times = self._times
        if self._ring is not None:
            self._ring.take_back()
        if times is not None:
            times.ask()
        with self._instruments.working("wait", batch_id, is_counted=times is None) as waiting:
            found = self._take()
        # Where no thread sends, the host is the device: nothing could be hidden behind the computation.
        sent = found if isinstance(found, SentBatch) else self._send.process(found)
        ready = sent.receive()
        if self._ring is not None:
            self._ring.lend(sent.features)
        self.num_taken += 1
        if times is None:
            self._feedback.delivered(
                sent.superbatch, ends_superbatch=sent.ends_superbatch, wait_s=waiting.seconds
            )
        else:
            self._send.pace.begun(times.begin(sent, self._instruments.recorder(batch_id.epoch)))
        self._computing = self._instruments.working("compute", batch_id, is_counted=times is None).begin()
        return ready

    def came_back(self) -> None:
        """Note that the loop asks for another batch: what it launched since it got the last one is its computation."""
        self.end_compute()
        if self._times is not None:
            self._times.end()

    def end_compute(self) -> None:
        """Note that the loop is done with the batch it got last. Idempotent."""
        if self._computing is not None:
            self._computing.end()
            if self._times is None:
                self._feedback.computed(self._computing.seconds)
            self._computing = None

    def settle(self) -> None:
        """Complete the figures of an epoch that is over: wait for what the device still computes."""
        if self._times is not None:
            self._times.settle()

    def _take(self) -> HostBatch | SentBatch:
        try:
            with self._observer.consumer_waits():
                return self._source.get()
        except ChannelClosedError:
            raise
        except BaseException as error:
            self._failures.annotate(error)
            raise


class Run(Protocol):
    """Threads that prepare the batches of a rank, over the borders of epochs."""

    @property
    def consumer(self) -> Consumer:
        """The end that batches are taken from."""
        ...

    def close(self, error: BaseException | None = None) -> bool:
        """End the run for this rank; return whether nothing stays behind. Idempotent.

        Other ranks that take part in the run hear of the ``error`` that the loop ends with.
        """
        ...


def require_same_process(pid: int) -> None:
    """Raise ForkError unless this process is ``pid``, which built the loader."""
    # The threads that a child would wait for are its parent's, and so is what holds its locks.
    if os.getpid() != pid:
        raise ForkError(
            "this loader belongs to the process that built it; start workers with 'spawn' and build it there"
        )


class OnEnd(Protocol):
    """Told once how an epoch ended."""

    def __call__(self, stats: EpochStats, *, is_complete: bool) -> None:
        """Take the statistics and whether every batch was handed out."""


class EpochIterator(Iterator[B], Generic[B]):
    """What ``iter(loader)`` returns: the batches of one epoch from the place where the run stands.

    At the end of the epoch the run goes on in the background; when a stage fails, or when the iterator is dropped
    before the end, the run ends. Thread-safe: threads that share it take turns, and each batch goes to one of them,
    whole; an error is raised in one, and ends the epoch for the others. Not for a forked child.

    Parameters
    ----------
    run : its consumer delivers the batches
    epoch : which epoch
    num_left : batches of it that are left
    on_batch, on_end : told of every batch handed out, and of the end
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
        self._recorder = run.consumer.begin_epoch(epoch)
        self._num_left = num_left
        self._on_batch = on_batch
        self._turn = threading.Lock()  # of the thread that takes a batch
        self._pid = os.getpid()
        self._open: _OpenEpoch | None = _OpenEpoch(run, self._recorder, on_end)

    @property
    def is_running(self) -> bool:
        """Whether there may be another batch."""
        return self._open is not None

    @property
    def stats(self) -> EpochStats:
        """What the epoch moved so far."""
        return self._recorder.snapshot()

    def __next__(self) -> B:
        """Return the next batch; an error of any stage is raised here, with a note on where it happened.

        Raises
        ------
        ForkError
            In a forked child.
        LoaderClosedError
            Another thread closed the loader, or the epoch, meanwhile.
        """
        require_same_process(self._pid)
        with self._turn:
            return cast("B", self._next())  # a loader's run has batches of its kind alone

    def _next(self) -> Delivered:
        # Once: `close` may come from another thread meanwhile.
        if (current := self._open) is None:
            raise StopIteration
        consumer = current.run.consumer
        # Else an epoch that ends below is dropped only as this returns, where signals are not kept back.
        del current
        batch = None
        try:
            consumer.came_back()
            if self._num_left:
                batch = consumer.next_batch()
            else:
                consumer.settle()
        except BaseException as error:
            # Closed meanwhile, by another thread: whoever waits is told by whom, not by what it waited on.
            if self._open is None and isinstance(error, ChannelClosedError):
                raise LoaderClosedError(
                    "the loader, or this epoch, was closed while a batch was waited for"
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
        """Stop the epoch where it is. Idempotent."""
        self._finish(is_complete=False)

    def _finish(self, *, is_complete: bool, error: BaseException | None = None) -> None:
        with uninterrupted():
            self._end(is_complete=is_complete, error=error)

    def _end(self, *, is_complete: bool, error: BaseException | None) -> None:
        # Apart from `_finish`, so that the last name of what has ended is gone while signals are still kept back.
        ended, self._open = self._open, None
        if ended is not None:
            ended.end(is_complete=is_complete, error=error)


def _num_predicted(batch: Delivered) -> int:
    """Return how many seeds a batch has, or edges whose ends are its seeds."""
    if isinstance(batch, LinkBatch):
        return batch.num_positives
    seeds = batch.num_seeds
    return seeds if isinstance(seeds, int) else sum(seeds.values())


class _OpenEpoch:
    """An epoch under way, which ends when it is dropped. Starts the clock."""

    # Apart from its iterator, which has no finalizer: one in Python would run whenever a loop drops its iterator, and
    # a Ctrl-C that arrives inside of it is printed and lost. This object is gone before that, while signals are kept
    # back, unless the loop left its iterator in the middle.

    def __init__(self, run: Run, recorder: StatsRecorder, on_end: OnEnd) -> None:
        self.run = run
        self._recorder = recorder
        self._on_end = on_end
        self._is_over = False
        self._pid = os.getpid()
        recorder.start()

    def end(self, *, is_complete: bool, error: BaseException | None = None) -> None:
        """Stop the clock, and the run where it is not complete; tell how it ended. Idempotent, nothing in a child."""
        if self._is_over or os.getpid() != self._pid:
            return
        self._is_over = True
        self.run.consumer.end_compute()
        self._recorder.stop()
        if not is_complete:
            self.run.close(error)
        self._on_end(self._recorder.snapshot(), is_complete=is_complete)

    def __del__(self) -> None:
        # When Python ends, the loader has closed what it held, and nobody asks for the statistics.
        if not getattr(self, "_is_over", True) and not sys.is_finalizing():
            close_in_finalizer(lambda: self.end(is_complete=False))
