"""Send: a gathered batch to the compute device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gloader.observe.instruments import Instruments
    from gloader.pipeline.gather import HostBatch
    from gloader.pipeline.positions import SeedLabels
    from gloader.pipeline.transfer import SentBatch, Transfer


class Send:
    """Sends a batch, and gives the host's memory back as soon as the device has read it.

    On a thread of its own where the device works beside the host, else on the consumer's.

    Parameters
    ----------
    transfer : the way there
    labels : go with each batch
    instruments : measure it
    """

    name: Final = "send"

    def __init__(self, transfer: Transfer, labels: SeedLabels, instruments: Instruments) -> None:
        self._transfer = transfer
        self._labels = labels
        self._instruments = instruments

    def process(self, batch: HostBatch) -> SentBatch:
        """Return ``batch`` on its way to the device, which has read the host's memory by then."""
        with self._instruments.working("transfer", batch.sampled.id):
            sent = self._transfer.send(batch, self._labels.of(batch.sampled.id))
            # Before it is handed on, so that the buffer is free while the consumer still computes on the last batch.
            self._transfer.wait()
        return sent
