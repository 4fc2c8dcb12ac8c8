"""The host's own batches of a run that all ranks of its machine take part in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.distributed.host import LoaderHost
    from gloader.pipeline.consumer import Consumer
    from gloader.pipeline.run import PipelineRun
    from gloader.types import BatchId


class HostRun:
    """The batches of this rank, out of a run that ``host`` leads.

    Parameters
    ----------
    host : serves the other ranks
    position : where the run begins, on every rank
    start : starts it, once all ranks are there

    Raises
    ------
    RankError, StateError
        As of `LoaderHost.begin`.
    """

    def __init__(self, host: LoaderHost, position: BatchId, start: Callable[[], PipelineRun]) -> None:
        self._host = host
        run = host.begin(position, start)
        self._has_left = False
        self.consumer: Consumer = run.consumer

    def close(self, error: BaseException | None = None) -> bool:
        """Leave the run to the other ranks; it ends with the last of them, or with ``error`` for all. Idempotent."""
        if error is not None:
            self._host.end_with(error)
        if not self._has_left:
            self._has_left = True
            consumer = self.consumer
            # This rank may be ahead at the end of an epoch: if it closed now, the others would lose their last batches.
            if consumer.num_taken and (not consumer.has_next() or consumer.next_id.index == 0):
                self._host.wait_for_slower_ranks(consumer.num_taken)
            self._host.leave()
        return True
