"""A run of all ranks of a machine, as the rank that loads sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gloader.distributed.host import LoaderHost
    from gloader.observe.epoch_stats import StatsRecorder
    from gloader.pipeline.run import PipelineRun
    from gloader.types import BatchId, ReadyBatch


class HostRun:
    """Batches of this rank out of the run that ``host`` leads."""

    def __init__(self, host: LoaderHost, run: PipelineRun) -> None:
        self._host = host
        self._run = run
        self._has_left = False

    @property
    def next_id(self) -> BatchId:
        """The batch that `next_batch` returns next."""
        return self._run.next_id

    def has_next(self) -> bool:
        """Return whether there is another batch before the end of the stream."""
        return self._run.has_next()

    def recorder(self, epoch: int) -> StatsRecorder:
        """Return the sums of ``epoch``."""
        return self._run.recorder(epoch)

    def next_batch(self) -> ReadyBatch:
        """Return the next batch of this rank; an error of any stage or rank is raised here."""
        try:
            return self._run.next_batch()
        except BaseException as error:
            self._host.end_with(error)
            raise

    def came_back(self) -> None:
        """Note that the consumer is done with the batch it got last. Idempotent."""
        self._run.came_back()

    def close(self) -> bool:
        """Leave the run to the other ranks; it ends with the last of them. Idempotent."""
        if not self._has_left:
            self._has_left = True
            if self._run.num_taken and (not self.has_next() or self.next_id.index == 0):
                self._host.linger(self._run.num_taken)
            self._host.leave()
        return True
