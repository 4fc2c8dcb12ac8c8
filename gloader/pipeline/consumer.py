"""One epoch as the consumer sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from gloader.core.signals import close_in_finalizer, uninterrupted
from gloader.types import BatchId, ReadyBatch

if TYPE_CHECKING:
    from gloader.observe.epoch_stats import EpochStats, StatsRecorder


class Run(Protocol):
    """Delivers the batches of a rank, over the borders of epochs."""

    @property
    def next_id(self) -> BatchId:
        """The batch that `next_batch` returns next."""
        ...

    def has_next(self) -> bool:
        """Return whether there is another batch before the end of the stream."""
        ...

    def recorder(self, epoch: int) -> StatsRecorder:
        """Return the sums of ``epoch``."""
        ...

    def next_batch(self) -> ReadyBatch:
        """Return the next batch, waiting for it; raises what ended the run."""
        ...

    def came_back(self) -> None:
        """Note that the consumer is done with the batch it got last. Idempotent."""
        ...

    def close(self) -> bool:
        """End the run for this rank; return whether nothing stays behind. Idempotent."""
        ...


class OnEnd(Protocol):
    """Told once how an epoch ended."""

    def __call__(self, stats: EpochStats, *, is_complete: bool) -> None:
        """Take the statistics and whether every batch was handed out."""


class EpochIterator(Iterator[ReadyBatch]):
    """What ``iter(loader)`` returns: the batches of one epoch from the place where the run stands.

    At the end of the epoch the run goes on in the background; when a stage fails, or when the iterator is dropped
    before the end, the run ends.

    Parameters
    ----------
    run : delivers the batches
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
        self._recorder = run.recorder(epoch)
        self._num_left = num_left
        self._on_batch = on_batch
        self._open: _OpenEpoch | None = _OpenEpoch(run, self._recorder, on_end)

    @property
    def is_running(self) -> bool:
        """Whether there may be another batch."""
        return self._open is not None

    @property
    def stats(self) -> EpochStats:
        """What the epoch moved so far."""
        return self._recorder.snapshot()

    def __next__(self) -> ReadyBatch:
        """Return the next batch; an error of any stage is raised here, with a note on where it happened."""
        if self._open is None:
            raise StopIteration
        run = self._open.run
        run.came_back()
        if self._num_left == 0:
            self._finish(is_complete=True)
            raise StopIteration
        try:
            batch = run.next_batch()
        except BaseException:
            self._finish(is_complete=False)
            raise
        self._num_left -= 1
        self._recorder.add_batch(batch.num_seeds)
        self._on_batch(batch.id)
        return batch

    def close(self) -> None:
        """Stop the epoch where it is. Idempotent."""
        self._finish(is_complete=False)

    def _finish(self, *, is_complete: bool) -> None:
        with uninterrupted():
            self._end(is_complete=is_complete)

    def _end(self, *, is_complete: bool) -> None:
        # Apart from `_finish`, so that the last name of what has ended is gone while signals are still kept back.
        ended, self._open = self._open, None
        if ended is not None:
            ended.end(is_complete=is_complete)


class _OpenEpoch:
    """An epoch under way, which ends when it is dropped. Starts the clock.

    Apart from its iterator, so that the finalizer of an epoch that has ended is done with before a Ctrl-C can arrive
    inside of it, where Python would swallow it.
    """

    def __init__(self, run: Run, recorder: StatsRecorder, on_end: OnEnd) -> None:
        self.run = run
        self._recorder = recorder
        self._on_end = on_end
        self._is_over = False
        recorder.start()

    def end(self, *, is_complete: bool) -> None:
        """Stop the clock, and the run where it is not complete; tell how it ended. Idempotent."""
        if self._is_over:
            return
        self._is_over = True
        self.run.came_back()
        self._recorder.stop()
        if not is_complete:
            self.run.close()
        self._on_end(self._recorder.snapshot(), is_complete=is_complete)

    def __del__(self) -> None:
        if not getattr(self, "_is_over", True):
            close_in_finalizer(lambda: self.end(is_complete=False))
