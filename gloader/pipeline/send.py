"""The thread that sends gathered batches to a device while the model computes on the batch before."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from gloader.pipeline.stages import end_stream
from gloader.pipeline.threads import StageThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.observe.instruments import Instruments
    from gloader.pipeline.channel import Channel
    from gloader.pipeline.gather import HostBatch
    from gloader.pipeline.threads import Failures
    from gloader.pipeline.transfer import SentBatch, Transfer
    from gloader.types import IdArray


SENT_AHEAD: Final = 1  # batches that wait on the device for the consumer


class Sender:
    """Sends one batch after another, and gives the host's memory back as soon as the device has read it.

    Parameters
    ----------
    get : waits for the next batch in host memory
    sent : takes batches on the device
    transfer : the way there
    labels_at : the labels (B,) of the batch at a position of the stream
    """

    def __init__(
        self,
        *,
        get: Callable[[], HostBatch],
        sent: Channel[SentBatch],
        transfer: Transfer,
        labels_at: Callable[[int], IdArray],
        instruments: Instruments,
        failures: Failures,
    ) -> None:
        self._get = get
        self._sent = sent
        self._transfer = transfer
        self._labels_at = labels_at
        self._instruments = instruments
        self._failures = failures

    @property
    def thread(self) -> StageThread:
        """The thread."""
        return StageThread(name="gloader-send", run=self._send_all)

    def _send_all(self) -> None:
        try:
            for position in itertools.count():
                self._sent.put(self._send(position))
        except BaseException as error:  # noqa: BLE001 - every failure must reach the consumer, whatever its type
            end_stream(self._sent, error, self._failures)

    def _send(self, position: int) -> SentBatch:
        batch = self._get()
        with self._instruments.working("transfer", batch.sampled.id):
            sent = self._transfer.send(batch, self._labels_at(position))
            # Before it is handed on, so that the buffer is free while the consumer still computes on the last batch.
            self._transfer.wait()
        return sent
