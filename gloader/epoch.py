"""One epoch as the consumer sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from gloader.shield import close_in_finalizer, uninterrupted
from gloader.types import BatchId, ReadyBatch

if TYPE_CHECKING:
    from gloader.stats import EpochStats, StatsRecorder


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
        self._run = run
        self._recorder = run.recorder(epoch)
        self._num_left = num_left
        self._on_batch = on_batch
        self._on_end = on_end
        self.is_running = True
        self._recorder.start()

    @property
    def stats(self) -> EpochStats:
        """What the epoch moved so far."""
        return self._recorder.snapshot()

    def __next__(self) -> ReadyBatch:
        """Return the next batch; an error of any stage is raised here, with a note on where it happened."""
        if not self.is_running:
            raise StopIteration
        self._run.came_back()
        if self._num_left == 0:
            self._finish(is_complete=True)
            raise StopIteration
        try:
            batch = self._run.next_batch()
        except BaseException:
            self._finish(is_complete=False)
            raise
        self._num_left -= 1
        self._recorder.add_batch(batch.num_seeds)
        self._on_batch(batch.id)
        return batch

    def close(self) -> None:
        """Stop the epoch where it is. Idempotent."""
        if self.is_running:
            self._finish(is_complete=False)

    def _finish(self, *, is_complete: bool) -> None:
        with uninterrupted():
            self.is_running = False
            self._run.came_back()
            self._recorder.stop()
            if not is_complete:
                self._run.close()
            self._on_end(self._recorder.snapshot(), is_complete=is_complete)

    def __del__(self) -> None:
        if getattr(self, "is_running", False):
            close_in_finalizer(self.close)
