"""A run of all ranks of a machine, as the rank that loads sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gloader.distributed.host import LoaderHost
    from gloader.pipeline.consumer import Consumer
    from gloader.pipeline.run import PipelineRun


class HostRun:
    """Batches of this rank out of the run that ``host`` leads."""

    def __init__(self, host: LoaderHost, run: PipelineRun) -> None:
        self._host = host
        self._has_left = False
        self.consumer: Consumer = run.consumer

    def close(self, error: BaseException | None = None) -> bool:
        """Leave the run to the other ranks; it ends with the last of them, or with ``error`` for all. Idempotent."""
        if error is not None:
            self._host.end_with(error)
        if not self._has_left:
            self._has_left = True
            consumer = self.consumer
            if consumer.num_taken and (not consumer.has_next() or consumer.next_id.index == 0):
                self._host.linger(consumer.num_taken)
            self._host.leave()
        return True
