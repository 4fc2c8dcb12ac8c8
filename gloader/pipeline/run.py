"""A pipeline under way: from one position of the stream on, over the borders of epochs, until it is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gloader.core.signals import close_in_finalizer, uninterrupted
from gloader.observe.instruments import Instruments
from gloader.observe.watchdog import Watchdog
from gloader.pipeline.channel import Channel
from gloader.pipeline.delivery import Delivery
from gloader.pipeline.positions import BatchStream
from gloader.pipeline.sampler_pool import SamplerPool, ordered
from gloader.pipeline.send import SENT_AHEAD, Sender
from gloader.pipeline.stages import InMemoryStages, OutOfCoreStages
from gloader.pipeline.threads import Failures, Pipeline, weakly

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gloader.core.order import EpochOrder
    from gloader.observe.epoch_stats import StatsRecorder
    from gloader.observe.timeline import Tracer
    from gloader.observe.watchdog import Activity
    from gloader.pipeline.buffers import Buffers
    from gloader.pipeline.feedback import RunReports
    from gloader.pipeline.gather import HostBatch
    from gloader.pipeline.open_tiers import FeatureTier
    from gloader.pipeline.threads import StageThread
    from gloader.pipeline.transfer import SentBatch
    from gloader.types import BatchId, IdArray, ReadyBatch, SampledBatch

B = TypeVar("B")

_READY_AHEAD = 1  # gathered batches that wait for the consumer; each holds a buffer of the ring
_BOUND_BY_BUFFERS = 2**31  # gathered batches that wait in a channel that the ring of buffers bounds already


class Outlets(Protocol):
    """Hands the gathered batches of a run to the ranks of this machine; see `gloader.distributed`."""

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks whose steps are interleaved; the first of them is this process."""
        ...

    @property
    def ring(self) -> Buffers:
        """Buffers for one rank's batch after another."""
        ...

    def stage(self, gathered: Channel[HostBatch], own: Channel[HostBatch], failures: Failures) -> StageThread:
        """Return the thread that takes ``gathered`` apart and puts this rank's batches into ``own``."""
        ...

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks that the run ended with ``error``. Idempotent."""
        ...

    def explain_stall(self, error: BaseException) -> BaseException:
        """Return ``error``, or one that says which rank all others wait for."""
        ...

    def watch(self, enter: Callable[[Activity], None], leave: Callable[[Activity, int], None]) -> None:
        """Report the waits of the other ranks to a watchdog."""
        ...


class PipelineRun:
    """The stages behind a loader's consumer, at work from batch ``first`` on. Owns their threads until `close`.

    Holds neither the loader nor an iterator, so that dropping those ends it.

    Parameters
    ----------
    labels : (n,) int64, of the seeds of ``order``
    end_epoch : nothing of this epoch or later is prepared; no end where None
    outlets : the ranks of this machine; None where this one is alone
    """

    def __init__(
        self,
        *,
        tier: FeatureTier,
        order: EpochOrder,
        labels: IdArray,
        first: BatchId,
        num_samplers: int,
        end_epoch: int | None,
        reports: RunReports,
        tracer: Tracer | None,
        stall_timeout_s: float,
        outlets: Outlets | None = None,
    ) -> None:
        self._tier = tier
        self._reports = reports
        self._outlets = outlets
        self._ring: Buffers = tier.ring if outlets is None else outlets.ring
        ranks = None if outlets is None else outlets.ranks
        self._stream = BatchStream(order, first, end_epoch=end_epoch, ranks=ranks)
        self._is_closed = False
        self._has_ended_well = True
        self._gathered: Channel[HostBatch] = Channel(_READY_AHEAD)  # of all ranks
        self._ready: Channel[HostBatch] = self._gathered if outlets is None else Channel(_BOUND_BY_BUFFERS)
        self._last: Channel[Any] = self._ready  # what the consumer takes from
        if tier.device.device.is_asynchronous:
            self._last = Channel(SENT_AHEAD)
        self._failures = Failures(weakly(self._end_with))
        self._watchdog = Watchdog(stall_timeout_s, weakly(self._on_stall))
        self._instruments = Instruments(tracer=tracer, watchdog=self._watchdog)
        if outlets is not None:
            outlets.watch(self._watchdog.enter, self._watchdog.leave)
        self._delivery = Delivery(
            stream=BatchStream(order, first, end_epoch=end_epoch),
            labels=labels,
            tier=tier.device,
            instruments=self._instruments,
            reports=reports,
        )
        self._ring.resume()
        self._pipeline = (
            self._in_memory(num_samplers) if tier.ssd is None else self._out_of_core(num_samplers)
        )
        if self._stream.has(0):
            try:
                self._watchdog.start()
                self._pipeline.start()
            except BaseException:
                self.close()
                raise
        else:
            self._last.close()

    @property
    def next_id(self) -> BatchId:
        """The batch that `next_batch` returns next."""
        return self._delivery.next_id

    @property
    def num_taken(self) -> int:
        """Batches handed out."""
        return self._delivery.taken

    def has_next(self) -> bool:
        """Return whether there is another batch before the end of the stream."""
        return self._delivery.has_next()

    def recorder(self, epoch: int) -> StatsRecorder:
        """Return the sums of ``epoch``."""
        return self._delivery.recorder(epoch)

    def next_batch(self) -> ReadyBatch:
        """Return the next batch on the compute device, waiting for it.

        Raises
        ------
        ChannelClosedError
            The stream is over.
        BaseException
            Whatever a stage raised.
        """
        return self._delivery.next_batch(self._get)

    def came_back(self) -> None:
        """Note that the consumer is done with the batch it got last. Idempotent."""
        self._delivery.came_back()

    def fail(self, error: BaseException) -> None:
        """End the run with ``error`` at once: what it is needed for is gone."""
        self._failures.add(error)
        self._end_with(error)

    def close(self) -> bool:
        """Stop and join the stage threads; return whether all of them ended. Idempotent."""
        with uninterrupted():
            if self._is_closed:  # the buffers may be another run's by now: they are cancelled once
                return self._has_ended_well
            self._has_ended_well = self._pipeline.close() and self._has_ended_well
            self._watchdog.close()
            if self._has_ended_well:
                self._tier.restart()  # the next run counts on what the caches hold now
            self._is_closed = True
            return self._has_ended_well

    def __del__(self) -> None:
        # A signal that arrived before anybody held the run; whoever holds one closes it.
        if hasattr(self, "_pipeline"):
            close_in_finalizer(self.close)

    def drop_own(self) -> None:
        """Drop the batches that wait for this rank, while the others go on. Idempotent."""
        self._ready.cancel()
        self._last.cancel()

    def _get(self) -> HostBatch | SentBatch:
        with self._ring.consumer_waits():
            return self._pipeline.get()

    def _on_stall(self, error: BaseException) -> None:
        self._failures.stall(error if self._outlets is None else self._outlets.explain_stall(error))

    def _end_with(self, error: BaseException) -> None:
        self._last.fail(error)
        if self._outlets is not None:
            self._outlets.fail(error)

    def _in_memory(self, num_samplers: int) -> Pipeline[HostBatch | SentBatch]:
        pool: SamplerPool[SampledBatch] = self._pool(num_samplers, lambda batch: batch, has_traces=False)
        stages = InMemoryStages(
            pool=pool,
            ready=self._gathered,
            source=self._tier.source,
            share=self._tier.device.share(),
            topology=self._tier.topology,
            ring=self._ring,
            instruments=self._instruments,
            failures=self._failures,
        )
        return self._assemble([*pool.threads, *stages.threads], [pool.cancel], on_joined=lambda: None)

    def _out_of_core(self, num_samplers: int) -> Pipeline[HostBatch | SentBatch]:
        pool = self._pool(num_samplers, ordered, has_traces=True)
        stages = OutOfCoreStages(
            pool=pool,
            stream=self._stream,
            ready=self._gathered,
            ssd=self._tier.require_ssd(),
            superbatch_size=self._tier.plan.superbatch.num_batches,
            topology=self._tier.topology,
            ring=self._ring,
            instruments=self._instruments,
            failures=self._failures,
            reports=self._reports,
        )
        threads = [*pool.threads, *stages.threads]
        return self._assemble(threads, [pool.cancel, stages.cancel], on_joined=stages.close)

    def _pool(
        self, num_samplers: int, arrange: Callable[[SampledBatch], B], *, has_traces: bool
    ) -> SamplerPool[B]:
        tier, instruments = self._tier, self._instruments

        def sample(batch_id: BatchId, seeds: IdArray) -> SampledBatch:
            with instruments.working("sample", batch_id):
                return tier.sampler.sample(batch_id, seeds)

        return SamplerPool(
            self._stream,
            sample,
            arrange=arrange,
            on_error=self._failures.add,
            num_threads=num_samplers,
            has_traces=has_traces,
            batches_ahead=tier.batches_in_flight,
            traces_ahead=tier.batches_in_flight,
            keep_bytes=tier.plan.keep_bytes,
        )

    def _sender(self) -> Sender:
        return Sender(
            get=self._ready.get,
            sent=self._last,
            transfer=self._delivery.transfer,
            labels_at=self._delivery.labels_at,
            instruments=self._instruments,
            failures=self._failures,
        )

    def _assemble(
        self,
        threads: list[StageThread],
        cancels: list[Callable[[], None]],
        *,
        on_joined: Callable[[], None],
    ) -> Pipeline[HostBatch | SentBatch]:
        if self._outlets is not None:
            threads = [*threads, self._outlets.stage(self._gathered, self._ready, self._failures)]
        if self._last is not self._ready:
            threads = [*threads, self._sender().thread]
        return Pipeline(
            threads,
            self._last,
            cancels=[*cancels, self._ring.cancel, self._gathered.cancel, self._ready.cancel],
            failures=self._failures,
            on_joined=on_joined,
        )
