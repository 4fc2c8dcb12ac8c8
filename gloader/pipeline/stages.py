"""What the stage threads do with a stream of batches, from sampling to a batch in host memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gloader.cache import DeviceShare, Trace, batch_step
from gloader.errors import ChannelClosedError
from gloader.pipeline.channel import Channel
from gloader.pipeline.gather import HostBatch, gather_cached, gather_whole
from gloader.pipeline.superbatch import (
    BatchJob,
    FilledBatch,
    PlannedSuperbatch,
    SampledSuperbatch,
    StagedSuperbatch,
)
from gloader.pipeline.threads import StageThread
from gloader.ssd_store.cost.superbatch_size import ramp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.dataset.topology import Topology
    from gloader.observe.instruments import Instruments, Work
    from gloader.pipeline.buffers import Buffers
    from gloader.pipeline.feedback import RunReports
    from gloader.pipeline.open_tiers import SsdTier
    from gloader.pipeline.positions import BatchStream
    from gloader.pipeline.sampler_pool import OrderedBatch, SamplerPool
    from gloader.pipeline.threads import Failures
    from gloader.types import FeatureSource, SampledBatch

T = TypeVar("T")

_PLANNED_AT_ONCE = 2  # superbatches whose plans and packs exist: the one being executed and the next


class InMemoryStages:
    """The way of a batch whose features are in memory: sampled, gathered.

    Parameters
    ----------
    pool : delivers sampled batches in order
    ready : takes gathered batches
    share : the rows that the device brings
    """

    def __init__(
        self,
        *,
        pool: SamplerPool[SampledBatch],
        ready: Channel[HostBatch],
        source: FeatureSource,
        share: DeviceShare,
        topology: Topology,
        ring: Buffers,
        instruments: Instruments,
        failures: Failures,
    ) -> None:
        self._pool = pool
        self._ready = ready
        self._source = source
        self._share = share
        self._topology = topology
        self._ring = ring
        self._instruments = instruments
        self._failures = failures

    @property
    def threads(self) -> Sequence[StageThread]:
        """The threads beside the samplers."""
        return (StageThread(name="gloader-gather", run=self._gather_all),)

    def _gather_all(self) -> None:
        try:
            while True:
                self._ready.put(self._gather(self._pool.next_batch()))
        except BaseException as error:  # noqa: BLE001 - every failure must reach the consumer, whatever its type
            end_stream(self._ready, error, self._failures)

    def _gather(self, batch: SampledBatch) -> HostBatch:
        self._topology.check()
        num_rows, share = len(batch.nodes), self._share
        brings_all = share.reaches_all or share.holds_all
        x = self._ring.acquire(0 if brings_all else num_rows)
        with self._instruments.working("gather", batch.id) as work:
            if not brings_all:
                gather_whole(batch.nodes, x, self._source, positions=share.positions_left(batch.nodes))
            held = share.num_held(batch.nodes)
            work.note(rows=num_rows - held)
            degree = self._topology.graph.in_degrees(batch.nodes).astype(np.float32)
        self._instruments.recorder(batch.id.epoch).add_gather(
            rows=num_rows, hits=num_rows - held, read=None, device_hits=held
        )
        return HostBatch(sampled=batch, x=x, src_degree=degree, superbatch=0, ends_superbatch=False)


class OutOfCoreStages:
    """The way of a batch whose features are on the SSD, in superbatches: sampled, planned, staged, read, gathered.

    Superbatch k + 1 is planned once the trace of k + 2 is there and the plan of k - 1 is no longer needed, and
    staged while k is executed. The first one, of one batch, is planned without looking ahead and has the disk to
    itself, since everybody waits for it. Owns the staged superbatches until `close`.

    Parameters
    ----------
    pool : delivers traces and sampled batches, both in order
    ready : takes gathered batches
    """

    def __init__(
        self,
        *,
        pool: SamplerPool[OrderedBatch],
        stream: BatchStream,
        ready: Channel[HostBatch],
        ssd: SsdTier,
        superbatch_size: int,
        topology: Topology,
        ring: Buffers,
        instruments: Instruments,
        failures: Failures,
        reports: RunReports,
    ) -> None:
        self._pool = pool
        self._stream = stream
        self._ready = ready
        self._ssd = ssd
        self._size = superbatch_size
        self._topology = topology
        self._ring = ring
        self._instruments = instruments
        self._failures = failures
        self._reports = reports
        self._planned: Channel[PlannedSuperbatch] = Channel(1)
        self._staged: Channel[StagedSuperbatch] = Channel(1)
        self._filled: Channel[FilledBatch] = Channel(1)
        self._first_read: Channel[None] = Channel(1)
        self._permits: Channel[None] = Channel(_PLANNED_AT_ONCE)
        for _ in range(_PLANNED_AT_ONCE):
            self._permits.put(None)
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._alive: list[StagedSuperbatch] = []

    @property
    def threads(self) -> Sequence[StageThread]:
        """The threads beside the samplers."""
        return (
            StageThread(name="gloader-inspect", run=self._inspect_all),
            StageThread(name="gloader-stage", run=self._stage_all),
            StageThread(name="gloader-read", run=self._read_all),
            StageThread(name="gloader-gather", run=self._gather_all),
        )

    def cancel(self) -> None:
        """Wake and end every stage. Idempotent."""
        self._cancelled.set()
        for channel in (self._planned, self._staged, self._filled, self._first_read, self._permits):
            channel.cancel()

    def close(self) -> None:
        """Release what was staged, once every thread has ended. Idempotent."""
        with self._lock:
            alive, self._alive = self._alive, []
        for staged in alive:
            staged.misses.close()

    # --- inspect: traces in, plans out

    def _inspect_all(self) -> None:
        try:
            position = 0
            pending: SampledSuperbatch | None = None
            for number, size in enumerate(ramp(self._size)):
                sampled, end = self._collect(number, position, size)
                position += size
                if pending is not None:
                    self._plan(pending, sampled.trace)
                pending = sampled
                if number == 0 or end is not None:  # the first batch does not wait for those after it
                    if len(pending.trace):
                        self._plan(pending, Trace())
                    pending = None
                if end is not None:
                    end_stream(self._planned, end, self._failures)
                    return
        except BaseException as error:  # noqa: BLE001 - every failure must reach the consumer, whatever its type
            end_stream(self._planned, error, self._failures)

    def _collect(
        self, number: int, position: int, size: int
    ) -> tuple[SampledSuperbatch, BaseException | None]:
        """Return the next ``size`` batches, or those before the end of the stream and what ended it."""
        trace = Trace()
        end: BaseException | None = None
        try:
            for _ in range(size):
                entry = self._pool.next_trace()
                trace.append_code(entry.code, entry.count)
        except ChannelClosedError as closed:
            end = ChannelClosedError(
                str(closed)
            )  # the one that was raised would hold this frame, and it this object
        except BaseException as error:  # noqa: BLE001 - delivered behind the batches before it
            end = error
        first = self._stream.id_of(position) if self._stream.has(position) else self._stream.id_of(0)
        return SampledSuperbatch(number=number, first=first, trace=trace), end

    def _plan(self, sampled: SampledSuperbatch, lookahead: Trace) -> None:
        self._permits.get()
        batches = len(sampled.trace)
        with self._instruments.working("inspect", sampled.first, batches=batches) as work:
            plan = self._ssd.planner.plan(sampled.trace, lookahead)
            self._ssd.miss_sample.offer(sampled.trace)
            work.note(superbatch=sampled.number, hits=plan.num_hits, misses=plan.num_misses)
        self._planned.put(PlannedSuperbatch(number=sampled.number, first=sampled.first, plan=plan))

    # --- stage: plans in, misses that can be fetched out

    def _stage_all(self) -> None:
        try:
            while True:
                planned = self._planned.get()
                # A sweep would take the disk from the first batch, which is waited for.
                if planned.number == 1:
                    self._first_read.get()
                staged = self._stage(planned)
                with self._lock:
                    self._alive.append(staged)
                self._staged.put(staged)
        except BaseException as error:  # noqa: BLE001 - every failure must reach the consumer, whatever its type
            end_stream(self._staged, error, self._failures)

    def _stage(self, planned: PlannedSuperbatch) -> StagedSuperbatch:
        batches = len(planned.misses)
        with (
            self._instruments.working("stage", planned.first, batches=batches) as work,
            self._reports.device.using() as use,
        ):
            staged = self._ssd.stager.stage(
                planned, self._reports.calibration, is_cancelled=lambda: self._is_cancelled(work)
            )
            cost = staged.misses.cost
            work.add_bytes(read=cost.read.bytes_read, written=cost.bytes_written)
            work.note(superbatch=planned.number, strategy=staged.choice.strategy)
        self._instruments.recorder(planned.first.epoch).add_staged(
            bytes_read=cost.read.bytes_read, bytes_written=cost.bytes_written, requests=cost.read.requests
        )
        self._reports.begin(staged, stage_s=use.seconds)
        return staged

    def _is_cancelled(self, work: Work) -> bool:
        """Return whether a sweep has to end; that it asks shows that it makes progress."""
        work.beat()
        return self._cancelled.is_set()

    # --- read: the missing rows of each batch into a buffer

    def _read_all(self) -> None:
        try:
            while True:
                staged = self._staged.get()
                for index in range(staged.num_batches):
                    batch = self._pool.next_batch()
                    self._filled.put(self._read(BatchJob(superbatch=staged, index=index, batch=batch)))
                if staged.number == 0:
                    self._first_read.put(None)
        except BaseException as error:  # noqa: BLE001 - every failure must reach the consumer, whatever its type
            end_stream(self._filled, error, self._failures)

    def _read(self, job: BatchJob) -> FilledBatch:
        self._topology.check()
        superbatch, batch = job.superbatch, job.batch
        x = self._ring.acquire(len(batch.ascending))
        with self._instruments.working("read", batch.sampled.id) as work:
            step = batch_step(superbatch.plan.batch_actions(job.index), batch.ascending, batch.order)
            with self._reports.device.using() as use:
                read = superbatch.misses.read_into(job.index, step.miss_row, x, at=step.miss_pos)
            superbatch.misses.release(job.index)
            work.add_bytes(read=read.bytes_read)
            work.note(superbatch=superbatch.number, misses=len(step.miss_row))
        recorder = self._instruments.recorder(batch.sampled.id.epoch)
        hits, misses = len(step.hit_pos), len(step.miss_row)
        held = len(batch.order) - hits - misses
        recorder.add_gather(rows=len(batch.order), hits=hits, read=read, device_hits=held)
        self._reports.add_read(superbatch.number, use.seconds)
        return FilledBatch(job=job, step=step, x=x)

    # --- gather: hits out of the slots, admissions into them

    def _gather_all(self) -> None:
        try:
            while True:
                self._ready.put(self._gather(self._filled.get()))
        except BaseException as error:  # noqa: BLE001 - every failure must reach the consumer, whatever its type
            end_stream(self._ready, error, self._failures)

    def _gather(self, filled: FilledBatch) -> HostBatch:
        job = filled.job
        batch = job.batch.sampled
        with self._instruments.working("gather", batch.id) as work:
            gather_cached(filled, self._ssd.slots)
            degree = self._topology.graph.in_degrees(batch.nodes).astype(np.float32)
            work.note(superbatch=job.superbatch.number, hits=len(filled.step.hit_pos))
        if job.is_last:
            self._finish(job.superbatch)
        return HostBatch(
            sampled=batch,
            x=filled.x,
            src_degree=degree,
            superbatch=job.superbatch.number,
            ends_superbatch=job.is_last,
        )

    def _finish(self, superbatch: StagedSuperbatch) -> None:
        """Release an executed superbatch and let the next one but one be planned."""
        with self._lock:
            self._alive = [staged for staged in self._alive if staged is not superbatch]
        superbatch.misses.close()
        self._permits.put(None)


def end_stream(channel: Channel[T], error: BaseException, failures: Failures) -> None:
    """End ``channel`` behind its items, with ``error`` unless that is the end of the stream itself."""
    failures.add(error)
    channel.close(None if isinstance(error, ChannelClosedError) else error)
