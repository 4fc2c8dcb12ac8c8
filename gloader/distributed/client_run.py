"""A run of all ranks of a machine, as a rank that is loaded for sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gloader.core.signals import close_in_finalizer, uninterrupted
from gloader.errors import ChannelClosedError, RankError
from gloader.observe.instruments import Instruments
from gloader.observe.watchdog import Watchdog
from gloader.pipeline.channel import Channel
from gloader.pipeline.consumer import SENT_AHEAD, Consumer
from gloader.pipeline.send import Send
from gloader.pipeline.threads import Failures, Pipeline, stage_thread, weak_method
from gloader.pipeline.transfer import Transfer

if TYPE_CHECKING:
    from gloader.device import DeviceTier
    from gloader.distributed.client import LoaderClient
    from gloader.observe.timeline import TimelineRecorder
    from gloader.pipeline.feedback import RunFeedback
    from gloader.pipeline.gather import HostBatch
    from gloader.pipeline.positions import BatchStream, SeedLabels
    from gloader.pipeline.transfer import SentBatch


class ClientRun:
    """Batches of this rank, which ``client`` receives: in a thread that sends them on to a GPU, else in the consumer's.

    Owns that thread until `close`.

    Parameters
    ----------
    stream : the batches of this rank
    labels : go with them
    tier : the device of this rank, and what it holds
    stall_timeout_s : how long a transfer may take; 0 for ever
    """

    def __init__(
        self,
        client: LoaderClient,
        *,
        stream: BatchStream,
        labels: SeedLabels,
        tier: DeviceTier,
        timeline: TimelineRecorder | None,
        feedback: RunFeedback,
        stall_timeout_s: float,
    ) -> None:
        self._client = client
        inbox = _Inbox(client, stream, is_read_at_once=tier.device.is_asynchronous)
        self._sent: Channel[SentBatch] = Channel(SENT_AHEAD)
        self._failures = Failures(weak_method(self._end_with))
        self._watchdog = Watchdog(stall_timeout_s, self._failures.stall)
        # The rank that loads watches what this one waits for.
        instruments = Instruments(timeline=timeline, watchdog=self._watchdog, watches_waits=False)
        send = Send(Transfer(tier), labels, instruments)
        is_sending = tier.device.is_asynchronous
        self.consumer = Consumer(
            self._sent if is_sending else inbox,
            stream=stream,
            send=send,
            observer=client,
            failures=self._failures,
            instruments=instruments,
            feedback=feedback,
        )
        self._has_reported = False
        self._is_closed = False
        self._has_ended_well = True
        client.begin(self.consumer.next_id)
        self._pipeline = Pipeline(
            [stage_thread(send, inbox, self._sent, self._failures)] if is_sending else [],
            cancels=[client, self._sent],
            failures=self._failures,
            on_joined=client.leave,
        )
        try:
            self._watchdog.start()
            self._pipeline.start()
        except BaseException:
            self.close()
            raise

    def close(self, error: BaseException | None = None) -> bool:
        """Leave the run, and tell the other ranks of ``error``; return whether the thread ended. Idempotent."""
        with uninterrupted():
            if error is not None:
                self._report(error)
            if not self._is_closed:
                self._has_ended_well = self._pipeline.close() and self._has_ended_well
                self._watchdog.close()
                self._is_closed = True
            return self._has_ended_well

    def __del__(self) -> None:
        # A signal that arrived before anybody held the run; whoever holds one closes it.
        if hasattr(self, "_pipeline"):
            close_in_finalizer(self.close)

    def _end_with(self, error: BaseException) -> None:
        self._sent.fail(error)
        self._report(error)

    def _report(self, error: BaseException) -> None:
        """Tell the other ranks of a failure that is this one's; once."""
        if not self._has_reported and not isinstance(error, RankError | ChannelClosedError):
            self._has_reported = True
            self._client.report_failure(error)


class _Inbox:
    """The batches that arrive, one after another. Knows nothing of the run, which is then freed when it is dropped.

    Parameters
    ----------
    is_read_at_once : a batch's blocks are copied before the next one is asked for
    """

    def __init__(self, client: LoaderClient, stream: BatchStream, *, is_read_at_once: bool) -> None:
        self._client = client
        self._stream = stream
        self._is_read_at_once = is_read_at_once
        self._position = 0

    def get(self) -> HostBatch:
        """Return the next batch, waiting for it; errors as `LoaderClient.next_batch`.

        Raises
        ------
        ChannelClosedError
            The stream is over.
        """
        if not self._stream.has(self._position):
            raise ChannelClosedError("the stream is over")
        batch = self._client.next_batch(self._stream.id_of(self._position))
        self._position += 1
        if not self._is_read_at_once:
            return batch
        # The consumer gets the ids as they are, and would hold the shared memory that all the rest was copied out of.
        return replace(batch, sampled=replace(batch.sampled, nodes=batch.sampled.nodes.copy()))
