"""A running pipeline: it begins at a position of the batch stream and continues across epochs until it is closed.

`PipelineRun` builds one of two pipelines, each step in its own thread. With features in memory the steps are
sample and gather. With features on the SSD, or with trained rows (embeddings), they are sample, inspect, stage, read
and gather. On an asynchronous device, such as a GPU, a send thread follows; otherwise the consumer sends. `run_header`
describes a loader in its timeline's header, so that `gloader.replay` can replay the run.

- A channel is a bounded queue between two threads. The consumer is the thread of the training loop.
- A superbatch is consecutive batches whose missing feature rows are planned together. A trace is a batch's rows,
  sampled far ahead for the plan.
- A rank is a training process. One process of a machine may load for all of its ranks, see `MachineRanks`.
- A ring is a set of reused host buffers for gathered batches.
- The watchdog ends a run in which a stage makes no progress for too long (a stall).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import torch

from gloader.core.signals import close_in_finalizer, uninterrupted
from gloader.observe.instruments import Instruments
from gloader.observe.watchdog import Watchdog
from gloader.pipeline.buffers import InterleavedRings
from gloader.pipeline.consumer import SENT_AHEAD, Consumer
from gloader.pipeline.edge_sweeps import EdgeSweeps
from gloader.pipeline.embed import Embed
from gloader.pipeline.flow import (
    PLANNED_AT_ONCE,
    BatchFeed,
    FirstBatchGate,
    Inspect,
    SuperbatchCollector,
    SuperbatchWindow,
)
from gloader.pipeline.gather import GatherCached, GatherWhole, ReadMisses
from gloader.pipeline.sample import (
    KeptBatches,
    ReplayBatch,
    ReplayTrace,
    SampleBatch,
    SampleOrdered,
    SamplerPool,
    SampleTrace,
)
from gloader.pipeline.send import BATCHES_AHEAD, Send, SendFeed, Transfer
from gloader.pipeline.stage import StageMisses
from gloader.pipeline.threads import Channel, Failures, Pipeline, stage_thread, weak_method
from gloader.replay.recording import RecordedEmbedding, RecordedTable, RunHeader
from gloader.replay.work import PipelineShape

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gloader.config import LoaderSettings
    from gloader.core.loader_state import LoaderState
    from gloader.dataset import Dataset
    from gloader.observe.timeline import RecentTimeline
    from gloader.pipeline.gather import HostBatch
    from gloader.pipeline.open.tiers import FeatureTier
    from gloader.pipeline.other_ranks import RowExchange
    from gloader.pipeline.row_task import RowAnswers
    from gloader.pipeline.sample import BatchSource, TraceEntry
    from gloader.pipeline.seeds import BatchStream, SeedLabels
    from gloader.pipeline.send import SentBatch
    from gloader.pipeline.superbatch import FilledBatch, PlannedSuperbatch, RunFeedback, StagedSuperbatch
    from gloader.pipeline.threads import Cancellable, Stage, StageThread


B = TypeVar("B")

# One item waits between two stages, so that neither stage is idle during a hand-over. More items would hide no more
# time, and would cost memory: another plan, the staged rows of another superbatch, or another buffer.
WAITING: Final = 1
# Capacity of the queue with this rank's batches, in effect unlimited: each batch holds a buffer of the bounded ring.
# With a smaller bound, a slow consumer would block the batches of other ranks, which come through the same channel.
_BOUND_BY_RING: Final = 2**31


class MachineRanks(Protocol):
    """The ranks of this machine. One run gathers the batches of all ranks in turn; see `gloader.distributed`."""

    @property
    def ranks(self) -> Sequence[int]:
        """The ranks with interleaved steps; the first rank is this process."""
        ...

    @property
    def ring(self) -> InterleavedRings:
        """Buffers for the ranks' batches in turn."""
        ...

    def sharing_thread(
        self, gathered: Channel[HostBatch], own: Channel[HostBatch], failures: Failures
    ) -> StageThread:
        """Return the thread that distributes gathered batches to the ranks.

        Parameters
        ----------
        gathered : the batches of all ranks in turn
        own : receives this rank's batches
        failures : receives an error immediately
        """
        ...

    def fail(self, error: BaseException) -> None:
        """Tell the other ranks that the run ended with ``error``. Idempotent."""
        ...

    def explain_stall(self, error: BaseException) -> BaseException:
        """Return ``error``, or an error that names the rank that blocks all others."""
        ...

    def watch(self, watchdog: Watchdog) -> None:
        """Report the other ranks' waits to ``watchdog``."""
        ...


class PipelineRun:
    """The running stages of a loader, from the beginning of ``stream`` on. Owns the stage threads until `close`.

    A run references neither the loader nor an iterator, so that a dropped loader or iterator ends the run.

    Parameters
    ----------
    tier : the opened parts that the stages use
    stream : this rank's batches
    labels : labels for the batches
    feedback : learns from every superbatch, also for the next run
    timeline : records the work of every stage, or None
    stall_timeout_s : seconds after which a stage without progress ends the run; 0 means never
    ranks : the ranks of this machine; None for one rank
    """

    def __init__(
        self,
        tier: FeatureTier,
        stream: BatchStream,
        labels: SeedLabels | RowAnswers | None,
        *,
        feedback: RunFeedback,
        timeline: RecentTimeline | None,
        stall_timeout_s: float,
        ranks: MachineRanks | None = None,
    ) -> None:
        self._tier = tier
        self._feedback = feedback
        self._ranks = ranks
        # Buffers for the batches that this run gathers.
        self._ring = InterleavedRings([tier.ring]) if ranks is None else ranks.ring
        # The batches of all ranks that this run serves.
        self._stream = stream if ranks is None else stream.of_ranks(ranks.ranks)
        self._is_closed = False
        self._pid = os.getpid()  # a forked child must not close the run
        self._has_ended_well = True  # all threads ended at `close`
        self._gathered: Channel[HostBatch] = Channel(WAITING)  # gathered batches of all ranks
        # Gathered batches of this rank only.
        self._own: Channel[HostBatch] = self._gathered if ranks is None else Channel(_BOUND_BY_RING)
        self._sent: Channel[SentBatch] = Channel(SENT_AHEAD)  # this rank's batches on the device
        self._is_sending = tier.device.is_asynchronous  # whether a send thread follows
        # Threads hold their callbacks. Weak references let a dropped run be freed, and so closed, while threads run.
        self._failures = Failures(weak_method(self._end_with))
        self._watchdog = Watchdog(stall_timeout_s, weak_method(self._on_stall))
        self._instruments = Instruments(timeline=timeline, watchdog=self._watchdog)
        if ranks is not None:
            ranks.watch(self._watchdog)
        transfer = Transfer(tier.device_tiers, device=tier.device, types=tier.types)
        self._send = Send(transfer, labels, self._instruments)
        # The training loop receives the ring's buffers themselves only without other ranks and without a sender.
        lending = tier.ring if ranks is None and not self._is_sending else None
        self.consumer = Consumer(
            self._last,
            stream=stream,
            send=self._send,
            observer=self._ring,
            failures=self._failures,
            instruments=self._instruments,
            feedback=feedback,
            embed=Embed(tier.trained, tier.frozen, tier.device.place),
            ring=lending,
        )
        # The previous run, if any, cancelled the ring when it was closed.
        self._ring.resume(is_lending=lending is not None)
        self._sweeps = None  # passes over the edges, if they are on the SSD
        if tier.sweeps is not None:
            self._sweeps = EdgeSweeps(
                tier.sweeps,
                self._stream,
                planned=tier.plan.superbatch.num_batches,
                feedback=feedback,
                instruments=self._instruments,
                failures=self._failures,
            )
        self._exchange: RowExchange | None = None  # with other machines
        is_planned = tier.ssd is not None or tier.trained
        self._pipeline = self._planned() if is_planned else self._in_memory()
        if self._stream.has(0):
            try:
                self._watchdog.start()
                self._pipeline.start()
            except BaseException:
                self.close()
                raise
        else:  # no batch, no threads: `epochs` are over, or there are no seeds
            self._last.close()

    def fail(self, error: BaseException) -> None:
        """End the run with ``error`` immediately; batches that are on their way are dropped."""
        self._failures.add(error)
        self._end_with(error)

    def close(self, error: BaseException | None = None) -> bool:  # noqa: ARG002 - used by `HostRun.close`
        """Stop and join the stage threads; return whether all threads ended. Idempotent; does nothing in a child."""
        with uninterrupted():
            # The buffers are cancelled only once: another run may use them now.
            if self._is_closed or os.getpid() != self._pid:
                return self._has_ended_well
            self._has_ended_well = self._pipeline.close() and self._has_ended_well
            self._watchdog.close()
            if self._has_ended_well:
                self._tier.restart()  # the next run starts from the caches' current contents
            self._is_closed = True
            return self._has_ended_well

    def __del__(self) -> None:
        # If a signal comes before any reference to the run is kept, only this finalizer closes the run.
        if hasattr(self, "_pipeline"):
            close_in_finalizer(self.close)

    def drop_own(self) -> None:
        """Drop the batches that wait for this rank; other ranks continue. Idempotent."""
        self._own.cancel()
        self._last.cancel()

    @property
    def _last(self) -> Channel[HostBatch] | Channel[SentBatch]:
        """The channel from which the consumer takes batches."""
        return self._sent if self._is_sending else self._own

    def _on_stall(self, error: BaseException) -> None:
        """End the run because of a stall. The watchdog's thread calls this."""
        self._failures.stall(error if self._ranks is None else self._ranks.explain_stall(error))

    def _end_with(self, error: BaseException) -> None:
        """Pass ``error`` to the consumer and to the other ranks. `fail` and `Failures` call this, on any thread."""
        self._last.fail(error)
        if self._ranks is not None:
            self._ranks.fail(error)

    def _in_memory(self) -> Pipeline:
        """Return the threads for features in memory: sample, gather."""
        pool = self._pool(SampleOrdered(self._sample(), KeptBatches(), self._tier.topology, types=()))
        threads = [*pool.threads, stage_thread(self._gather_whole(), pool, self._gathered, self._failures)]
        return self._assemble(threads, [pool], on_joined=lambda: None)

    def _gather_whole(self) -> GatherWhole:
        """Return the gather step for features in memory."""
        tier = self._tier
        return GatherWhole(
            tier.sources,
            [device_tier.share() for device_tier in tier.device_tiers],
            tier.types,
            ring=self._ring,
            instruments=self._instruments,
        )

    def _planned(self) -> Pipeline:
        """Return the threads for features on the SSD, or trained rows: sample, inspect, stage, read, gather."""
        tier, failures, instruments, feedback = self._tier, self._failures, self._instruments, self._feedback
        ssd, trained = tier.ssd or (), tier.trained
        # The tables whose rows are planned: those on the SSD, and those of the embeddings.
        types = [*(tier.types if ssd else ()), *(embedding.number for embedding in tier.trained)]
        planned: Channel[PlannedSuperbatch] = Channel(WAITING)
        staged: Channel[StagedSuperbatch] = Channel(WAITING)
        filled: Channel[FilledBatch] = Channel(WAITING)
        first_read: Channel[None] = Channel(WAITING)
        window = SuperbatchWindow()
        kept = KeptBatches(tier.plan.keep_bytes)
        sample = self._sample()
        # Two tasks for the sampler threads: a trace far ahead, and later the batch itself.
        trace = SampleTrace(sample, kept, types) if self._sweeps is None else ReplayTrace(self._sweeps, types)
        pool = self._pool(SampleOrdered(sample, kept, tier.topology, types), sample_trace=trace)
        unit = _unit_of(tier, 1 if self._ranks is None else len(self._ranks.ranks))
        collector = SuperbatchCollector(
            pool,
            self._stream,
            window,
            size=max(tier.plan.superbatch.num_batches, unit),
            num_tables=len(types),
            unit=unit,
            # The tables whose download enlarges the first superbatch. There are none with several machines, whose
            # superbatches must be equal, with whole steps, and with edge sweeps, which take longer than a download.
            downloaded=() if tier.exchange or self._sweeps or unit > 1 else ssd,
        )
        inspect = Inspect(ssd, instruments, trained)
        if tier.exchange is not None:
            self._exchange = tier.exchange.begin(self._stream.id_of(0), [table.slots for table in ssd])
        stage = StageMisses(
            [table.retrieval for table in ssd], feedback, instruments, self._exchange, trained
        )
        read = ReadMisses(
            self._ring if ssd else None,
            feedback=feedback,
            instruments=instruments,
            # Tables whose rows the device serves need no buffer.
            brought=[device_tier.brings_all for device_tier in tier.device_tiers] if ssd else None,
            embeddings=trained,
        )
        gather = GatherCached([table.slots for table in ssd], instruments) if ssd else self._gather_whole()
        threads = [
            *pool.threads,
            stage_thread(inspect, collector, planned, failures),
            # The window owns a superbatch before it is passed on, and releases it even if the pipeline ends then.
            stage_thread(stage, FirstBatchGate(planned, first_read), staged, failures, before_put=window.own),
            stage_thread(read, BatchFeed(staged, pool, first_read, unit=unit), filled, failures),
            # A superbatch is released before its last batch is passed on, because the consumer may delay this batch.
            stage_thread(gather, filled, self._gathered, failures, before_put=window.finish_with),
        ]
        cancels: list[Cancellable] = [pool, kept, stage, planned, staged, filled, first_read, window]
        cancels += [embedding.rows for embedding in trained]
        return self._assemble(threads, cancels, on_joined=window.close)

    def _sample(self) -> BatchSource:
        """Return the source of the batch at a position: from swept hops if edges are on the SSD, else by sampling."""
        if self._sweeps is not None:
            return ReplayBatch(self._sweeps)
        return SampleBatch(self._tier.sampler, self._stream, self._instruments)

    def _pool(
        self, sample: Stage[int, B], *, sample_trace: Stage[int, TraceEntry] | None = None
    ) -> SamplerPool[B]:
        """Return the sampler threads; ``sample`` makes batches, and ``sample_trace`` makes traces."""
        return SamplerPool(
            self._stream,
            sample,
            sample_trace=sample_trace,
            failures=self._failures,
            num_threads=self._tier.sampler_threads,
            ahead=self._tier.batches_in_flight,
            ready=None if self._sweeps is None else self._sweeps.swept,
        )

    def _assemble(
        self, threads: list[StageThread], cancels: list[Cancellable], *, on_joined: Callable[[], None]
    ) -> Pipeline:
        """Return the pipeline with the threads that both kinds have: edge sweeps, sharing and sending, if used.

        Parameters
        ----------
        threads : the threads up to the gather
        cancels : the objects whose waits must end before the threads can be joined
        on_joined : called after all threads have ended
        """
        sweeps = self._sweeps
        if sweeps is not None:
            threads, cancels = [*threads, sweeps.thread], [sweeps, *cancels]
        if self._ranks is not None:
            threads = [*threads, self._ranks.sharing_thread(self._gathered, self._own, self._failures)]
        if self._is_sending:
            feed = SendFeed(self._own, self._send)
            threads = [*threads, stage_thread(self._send, feed, self._sent, self._failures)]
        send, exchange, failures = self._send, self._exchange, self._failures

        # A local function without ``self``: the pipeline must not keep the run alive.
        def release() -> None:
            """Release the resources of the threads after they have ended."""
            send.close()
            # The exchange ends after its thread. The other machines wait for this machine, or for its error.
            if exchange is not None:
                exchange.close(failures.first)
            on_joined()
            if sweeps is not None:
                sweeps.release_all()

        return Pipeline(
            threads,
            cancels=[*cancels, self._ring, self._gathered, self._own, send.pace, self._last],
            failures=self._failures,
            on_joined=release,
        )


def run_header(
    tier: FeatureTier, settings: LoaderSettings, state: LoaderState, dataset: Dataset, *, num_ranks: int
) -> RunHeader:
    """Return the header of a loader's timeline.

    Parameters
    ----------
    tier : the loader's opened parts
    settings : the loader's settings
    state : the loader's state at the first recorded batch
    dataset : the sampled dataset
    num_ranks : ranks that the loader serves
    """
    plan, facts = tier.plan, tier.facts
    return RunHeader(
        cores=len(os.sched_getaffinity(0)),
        torch_threads=torch.get_num_threads(),
        device=str(settings.device.device),
        shape=_shape_of(tier, num_ranks),
        superbatch=plan.superbatch.num_batches,
        superbatch_unit=_unit_of(tier, num_ranks),
        sweep_batches=0 if tier.sweeps is None else tier.sweeps.num_batches,
        num_hops=len(settings.sampling.fanouts),
        policy=facts.policy,
        budget_bytes=plan.budget_bytes,
        spill_bytes=tier.spill_bytes,
        staging_bytes=sum(table.retrieval.staging_bytes for table in tier.ssd or ()),
        tables=_tables_of(tier),
        embeddings=tuple(
            RecordedEmbedding(
                name=each.name,
                num_rows=each.rows.table.num_rows,
                row_bytes=4 * each.rows.table.width,
                slots=each.rows.capacity,
            )
            for each in tier.trained
        ),
        rates=facts.rates,
        state=state.to_json(),
        sample_s=tier.load.demand.work.sample_s,
        num_batches=tier.order.num_batches,
        # A replay may run in another working folder.
        dataset=str(dataset.root.absolute()) if dataset.mirrored is None else dataset.location,
        fingerprint=dataset.fingerprint,
        # ``epochs`` is no flag, so that `recorded` omits it. It is added: superbatch sizes depend on the run's length.
        settings=settings.recorded() | {"epochs": settings.stages.epochs},
    )


def _tables_of(tier: FeatureTier) -> tuple[RecordedTable, ...]:
    """Return the sizes of each table, and of its rows on the host and on the device."""
    read = tier.ssd or (None,) * len(tier.facts.tables)
    return tuple(
        RecordedTable(
            name=table.name,
            num_rows=table.num_nodes,
            row_bytes=table.row_bytes,
            cache_rows=cache_rows,
            device_rows=0 if held.cache is None else len(held.cache.plan.rows),
            # Recorded, because the device profile with these values changes with every run.
            gap_bytes=None if ssd is None else ssd.store.stored_rows.gap_bytes,
            sweep_gap_bytes=None if ssd is None else ssd.retrieval.rows.sweep_gap_bytes,
        )
        for table, cache_rows, held, ssd in zip(
            tier.facts.tables, tier.plan.cache_rows, tier.device_tiers, read, strict=True
        )
    )


def _shape_of(tier: FeatureTier, num_ranks: int) -> PipelineShape:
    """Return the number of threads in a run of ``tier``, and the bounds of the channels between them."""
    return PipelineShape(
        features=tier.plan.features,
        has_embeddings=bool(tier.trained),
        sampler_threads=tier.sampler_threads,
        ahead=tier.batches_in_flight,
        num_buffers=tier.ring.num_buffers,
        planned_at_once=PLANNED_AT_ONCE,
        waiting=WAITING,
        unit=_unit_of(tier, num_ranks),
        num_ranks=num_ranks,
        is_sending=tier.device.is_asynchronous,
        sent_ahead=BATCHES_AHEAD,
    )


def _unit_of(tier: FeatureTier, num_ranks: int) -> int:
    """Return the number that divides every superbatch size.

    All machines exchange rows for the same number of steps, and slots are planned for whole steps. A step has one batch
    for each rank of the machine.
    """
    return num_ranks if tier.exchange is not None or tier.trained else 1
