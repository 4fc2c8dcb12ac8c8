"""The end of a run that the consumer sees: batches in order, on the compute device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gloader.pipeline.transfer import SentBatch, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.device import DeviceTier
    from gloader.observe.epoch_stats import StatsRecorder
    from gloader.observe.instruments import Instruments, Work
    from gloader.pipeline.feedback import RunReports
    from gloader.pipeline.gather import HostBatch
    from gloader.pipeline.positions import BatchStream
    from gloader.types import BatchId, IdArray, ReadyBatch


class Delivery:
    """Hands the batches of one rank out, and measures its waits and what the consumer does between them.

    Parameters
    ----------
    stream : the batches of this rank
    labels : (n,) int64, of the seeds of the stream's order
    tier : the device that the batches go to, and what is held there
    """

    def __init__(
        self,
        *,
        stream: BatchStream,
        labels: IdArray,
        tier: DeviceTier,
        instruments: Instruments,
        reports: RunReports,
    ) -> None:
        self._stream = stream
        self._labels = labels
        self.transfer = Transfer(tier)
        self._instruments = instruments
        self._reports = reports
        self._computing: Work | None = None
        self.taken = 0  # batches handed out

    @property
    def next_id(self) -> BatchId:
        """The batch that `next_batch` returns next."""
        return self._stream.id_of(self.taken)

    def has_next(self) -> bool:
        """Return whether there is another batch before the end of the stream."""
        return self._stream.has(self.taken)

    def recorder(self, epoch: int) -> StatsRecorder:
        """Return the sums of ``epoch``, which begins: those of earlier ones are dropped."""
        self._instruments.forget_before(epoch)
        return self._instruments.recorder(epoch)

    def labels_at(self, position: int) -> IdArray:
        """Return the labels (B,) of the batch at ``position`` of the stream."""
        return self._labels[self._stream.seed_positions(position)]

    def next_batch(self, get: Callable[[], HostBatch | SentBatch]) -> ReadyBatch:
        """Return the next batch on the compute device; ``get`` waits for it in host memory, or on its way there."""
        batch_id = self.next_id
        with self._instruments.working("wait", batch_id) as waiting:
            found = get()
        if isinstance(found, SentBatch):
            ready = found.receive()
        else:
            with self._instruments.working("transfer", batch_id):
                ready = self.transfer.send(found, self.labels_at(self.taken)).receive()
                self.transfer.wait()  # nobody else would see to it that the batch's buffer is kept until it is read
        self.taken += 1
        self._reports.delivered(found, wait_s=waiting.seconds)
        self._computing = self._instruments.working("compute", batch_id).begin()
        return ready

    def came_back(self) -> None:
        """Note that the consumer is done with the batch it got last. Idempotent."""
        if self._computing is not None:
            self._computing.end()
            self._reports.computed(self._computing.seconds)
            self._computing = None
