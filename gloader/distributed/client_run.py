"""A run of all ranks of a machine, as a rank that is loaded for sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.delivery import Delivery
from gloader.errors import ChannelClosedError, RankError
from gloader.instruments import Instruments

if TYPE_CHECKING:
    import torch

    from gloader.distributed.client import LoaderClient
    from gloader.reports import RunReports
    from gloader.stats import StatsRecorder
    from gloader.stream import BatchStream
    from gloader.trace import Tracer
    from gloader.types import BatchId, IdArray, ReadyBatch


class ClientRun:
    """Batches of this rank, which ``client`` receives."""

    def __init__(
        self,
        client: LoaderClient,
        *,
        stream: BatchStream,
        labels: IdArray,
        device: torch.device,
        tracer: Tracer | None,
        reports: RunReports,
    ) -> None:
        self._client = client
        self._delivery = Delivery(
            stream=stream,
            labels=labels,
            device=device,
            instruments=Instruments(tracer=tracer),
            reports=reports,
        )
        self._has_left = False
        client.begin(self.next_id)

    @property
    def next_id(self) -> BatchId:
        """The batch that `next_batch` returns next."""
        return self._delivery.next_id

    def has_next(self) -> bool:
        """Return whether there is another batch before the end of the stream."""
        return self._delivery.has_next()

    def recorder(self, epoch: int) -> StatsRecorder:
        """Return the sums of ``epoch``."""
        return self._delivery.recorder(epoch)

    def next_batch(self) -> ReadyBatch:
        """Return the next batch of this rank; errors as `LoaderClient.next_batch`."""
        try:
            return self._delivery.next_batch(lambda: self._client.next_batch(self.next_id))
        except (RankError, ChannelClosedError):
            raise
        except BaseException as error:
            self._client.report_failure(error)
            raise

    def came_back(self) -> None:
        """Note that the consumer is done with the batch it got last. Idempotent."""
        self._delivery.came_back()

    def close(self) -> bool:
        """Leave the run. Idempotent."""
        if not self._has_left:
            self._has_left = True
            self._client.leave()
        return True
