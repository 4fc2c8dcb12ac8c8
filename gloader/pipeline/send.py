"""Send: a gathered batch to the compute device."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, Protocol

import torch

from gloader.pipeline.pace import Pace

if TYPE_CHECKING:
    from gloader.device import Device
    from gloader.observe.instruments import Instruments
    from gloader.pipeline.gather import HostBatch
    from gloader.pipeline.positions import BatchLabels
    from gloader.pipeline.transfer import SentBatch, Transfer

logger = logging.getLogger("gloader")

# Copies under way: while the device reads one batch the next is packed and asked for, so that the link is never idle.
_SENDS: Final = 2

_CUDA_ERROR: Final = "CUDA error"
_IS_LATE: Final = (
    "CUDA reports errors late, at a later call of any thread: this one may be of the model's own kernels, such as a "
    "label beyond the classes; CUDA_LAUNCH_BLOCKING=1 in the environment shows the call that failed"
)


class GatheredBatches(Protocol):
    """Where a thread that sends takes batches from."""

    def has_next(self) -> bool:
        """Return whether `get` would return a batch at once."""
        ...

    def get(self) -> HostBatch:
        """Return the next batch, waiting for it."""
        ...


class Send:
    """Sends batches, and gives the host's memory back as soon as the device has read it.

    On a thread of its own where the device works beside the host, else on the consumer's. There up to two copies are
    under way, but none while the thread waits for anything else: nobody could give its memory back meanwhile.

    Parameters
    ----------
    transfer : the way there
    labels : go with each batch
    instruments : measure it
    """

    name: Final = "send"

    def __init__(self, transfer: Transfer, labels: BatchLabels, instruments: Instruments) -> None:
        self._transfer = transfer
        self._labels = labels
        self._instruments = instruments
        self.pace = Pace()

    @property
    def device(self) -> Device:
        """Where batches are sent to."""
        return self._transfer.device

    def process(self, batch: HostBatch) -> SentBatch:
        """Return ``batch`` on its way to the device, which may still read the host's memory."""
        try:
            return self._process(batch)
        except torch.OutOfMemoryError as error:
            error.add_note(self._transfer.advice)
            raise
        except RuntimeError as error:
            if _CUDA_ERROR in str(error):
                error.add_note(_IS_LATE)
            raise

    def _process(self, batch: HostBatch) -> SentBatch:
        is_asynchronous = self.device.is_asynchronous
        if is_asynchronous:
            if not self.pace.has_room():
                self.let_go()
            # Outside of what is measured: the model may take its time.
            self.pace.wait_for_room()
        with self._instruments.working("transfer", batch.sampled.id):
            sent = self._transfer.send(batch, self._labels.of(batch.sampled.id))
        # Only now for the batch before it: the device goes from one to the next without the host.
        self.let_go(keep=_SENDS - 1 if is_asynchronous else 0)
        return sent

    def let_go(self, *, keep: int = 0) -> None:
        """Wait until the device has read all batches but the last ``keep``, and give their memory back."""
        while self._transfer.num_sending > keep:
            # Again measured as the transfer of the batch that is waited for: an error is that one's.
            with self._instruments.working("transfer", self._transfer.oldest):
                self._transfer.wait_for_oldest()

    def close(self) -> None:
        """Wait for what is under way: only then may its memory be used again, or unpinned. Idempotent."""
        try:
            self._transfer.wait()
        except Exception:
            logger.debug("a copy that was under way at the end failed", exc_info=True)
            self._transfer.forget()


class SendFeed:
    """Gives the sender batches, after it has let go of what it holds where it would have to wait for one.

    Parameters
    ----------
    source : gives the batches
    send : lets go
    """

    def __init__(self, source: GatheredBatches, send: Send) -> None:
        self._source = source
        self._send = send

    def get(self) -> HostBatch:
        """Return the next batch, waiting for it."""
        if not self._source.has_next():
            self._send.let_go()
        return self._source.get()
