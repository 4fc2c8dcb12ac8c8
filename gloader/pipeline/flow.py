"""The flow of superbatches between the threads: the waits in front of channels, and the stage `Inspect`.

`gloader.pipeline.run` connects these parts if features are on the SSD. The sample step yields traces, from which
`SuperbatchCollector` forms superbatches. `Inspect` plans the cache for each superbatch. The stage step (`StageMisses`)
reads missing rows of a superbatch ahead. Then `BatchFeed` splits superbatches into batches, which are read and
gathered. The feeds here also wait for conditions outside their channel; their docstrings give the reasons.

- A trace is the distinct rows of each batch, per table. A table is the feature rows of a node type or of a relation.
  The trained rows of a node type (an embedding) have traces too, behind those of the tables.
- A superbatch is S consecutive batches that are planned and read together.
- A look-ahead is the trace of the next superbatch: a plan keeps the rows that are used again soonest.
- Staged rows are missing rows that were read ahead, into memory or into packs (files with one batch's rows each).
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Final, Protocol

from gloader.cache import Trace
from gloader.pipeline.superbatch import BatchJob, InspectJob, PlannedSuperbatch, SampledSuperbatch
from gloader.pipeline.threads import Channel
from gloader.ssd_store.cost.strategy import ramp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.observe.instruments import Instruments
    from gloader.pipeline.gather import HostBatch
    from gloader.pipeline.open.tiers import SsdTable
    from gloader.pipeline.sample import TraceEntry
    from gloader.pipeline.seeds import BatchStream
    from gloader.pipeline.superbatch import OrderedBatch, StagedSuperbatch
    from gloader.pipeline.threads import Feed
    from gloader.pipeline.trained_embedding import TrainedEmbedding


# Superbatches with plans, packs and staged rows: the executed superbatch and the next. A third superbatch would hide
# nothing more, and would need more memory and disk.
PLANNED_AT_ONCE: Final = 2
# Share of a download's time during which superbatch 0 collects more batches. A tenth delays the first batch little.
_LATER: Final = 0.1


class Traces(Protocol):
    """The stream's traces, batch by batch; see `SamplerPool`."""

    def has_trace(self) -> bool:
        """Wait for the next trace; return False if `next_trace` would raise."""
        ...

    def next_trace(self) -> TraceEntry:
        """Wait for the next trace, and return it; raises the error that ended the stream."""
        ...


class SuperbatchWindow:
    """Bounds the number of planned superbatches, and owns their staged rows. Thread-safe.

    A superbatch holds a permit from its planning until its last batch is gathered.

    Parameters
    ----------
    size : number of permits
    """

    def __init__(self, size: int = PLANNED_AT_ONCE) -> None:
        self._permits: Channel[None] = Channel(size)  # a counting semaphore that can be cancelled
        for _ in range(size):
            self._permits.put(None)
        self._lock = threading.Lock()  # guards `_staged`
        self._staged: dict[int, StagedSuperbatch] = {}  # by number

    def wait_for_room(self) -> None:
        """Wait until another superbatch may be planned.

        Raises
        ------
        ChannelClosedError
            The window was cancelled.
        """
        self._permits.get()

    def own(self, staged: StagedSuperbatch) -> None:
        """Own ``staged`` until its execution, or the end of the pipeline."""
        with self._lock:
            self._staged[staged.number] = staged

    def finish_with(self, batch: HostBatch) -> None:
        """Release a superbatch after its last batch, and allow another plan."""
        if batch.ends_superbatch:
            with self._lock:
                staged = self._staged.pop(batch.superbatch)
            staged.close()  # before the permit: the next superbatch may need the room of these packs
            self._permits.put(None)

    def cancel(self) -> None:
        """End all waits for room. Idempotent."""
        self._permits.cancel()

    def close(self) -> None:
        """Release the staged rows after all threads have ended. Idempotent."""
        with self._lock:
            left, self._staged = self._staged, {}
        for staged in left.values():
            staged.close()


class SuperbatchCollector:
    """Collects traces into superbatches, each with the trace of the next superbatch as its look-ahead.

    Superbatches grow up to the full size. Superbatch 0 has ``unit`` batches and is planned without look-ahead, as all
    stages wait for it. If its rows must be downloaded, superbatch 0 also gets the batches that are sampled in a tenth
    of the download's time: the same download serves them too. Superbatch k + 1 is planned after the trace of k + 2 is
    complete and superbatch k - 1 has been gathered. For one thread.

    If seeds are shuffled in windows (`EpochOrder`), a superbatch ends with a window, and superbatch 0 is a window: the
    rows of a window are neighbours, which are read fastest together.

    Parameters
    ----------
    traces : the stream's traces
    stream : the batches' addresses
    window : bounds the number of plans
    size : maximum S
    num_tables : number of tables and embeddings
    unit : superbatch sizes are multiples of this number. In an exchange with other machines it is the number of
        batches per step, as all machines count in steps
    downloaded : tables whose missing rows come from a URL, by a download that could also serve many other batches; ()
        without downloads
    """

    def __init__(
        self,
        traces: Traces,
        stream: BatchStream,
        window: SuperbatchWindow,
        *,
        size: int,
        num_tables: int = 1,
        unit: int = 1,
        downloaded: Sequence[SsdTable] = (),
    ) -> None:
        self._size = size
        self._downloaded = downloaded
        self._num_tables = num_tables
        self._traces = traces
        self._stream = stream
        self._window = window
        first = min(max(stream.window // unit, 1), size // unit)
        self._sizes = enumerate(unit * steps for steps in ramp(size // unit, first))
        self._position = 0  # position of the next superbatch's first batch
        self._next: SampledSuperbatch | None = None  # collected as the previous look-ahead
        self._has_ended = False  # whether the stream has no further trace

    def get(self) -> InspectJob:
        """Wait until the next superbatch may be planned, and return it.

        Raises
        ------
        ChannelClosedError
            The stream is over.
        BaseException
            The error of the sampling, after all earlier batches.
        """
        superbatch, self._next = self._next or self._collect(), None
        if not superbatch.num_batches:
            self._traces.next_trace()  # raises the error that ended the stream; a stored error would hold its frames
        lookaheads = self._no_traces()
        if superbatch.number > 0 and not self._has_ended:  # the first batch does not wait for later ones
            self._next = self._collect()
            lookaheads = self._next.traces
        # The traces come first, so that samplers are not idle while two plans are in use.
        self._window.wait_for_room()
        return InspectJob(superbatch=superbatch, lookaheads=lookaheads)

    def _collect(self) -> SampledSuperbatch:
        """Return the next superbatch; it is shorter, or empty, if the stream ends or fails."""
        number, size = next(self._sizes)
        size = self._stream.whole_windows(self._position, size)
        traces = self._no_traces()
        self._take(traces, size)
        if number == 0 and traces[0] and self._downloaded:
            longest_s = max(
                table.retrieval.download_s(trace)
                for table, trace in zip(self._downloaded, traces, strict=False)  # embeddings come last
            )
            deadline = time.monotonic() + _LATER * longest_s
            self._take(traces, self._size, until=deadline)
            size = len(traces[0])
            # The next superbatches double from the enlarged size on.
            self._sizes = enumerate(ramp(self._size, min(2 * size, self._size)), 1)
        # After the stream's end the superbatch is empty, and its address is not used.
        first = self._stream.id_of(self._position if self._stream.has(self._position) else 0)
        self._position += size
        return SampledSuperbatch(number=number, first=first, traces=traces)

    def _take(self, traces: tuple[Trace, ...], size: int, *, until: float = math.inf) -> None:
        """Fill ``traces`` up to ``size`` batches, or fewer if the time is over, or if the stream ends or fails."""
        while len(traces[0]) < size and not self._has_ended and time.monotonic() < until:
            if self._traces.has_trace():
                for trace, rows in zip(traces, self._traces.next_trace(), strict=True):
                    trace.append_code(rows.code, rows.count)
            else:
                self._has_ended = True

    def _no_traces(self) -> tuple[Trace, ...]:
        """Return an empty trace for each table."""
        return tuple(Trace() for _ in range(self._num_tables))


class FirstBatchGate:
    """Delays the staging of superbatch 1 until the first batches are read. For the staging thread.

    Staging would compete for the disk with the first batch, for which all stages wait.

    Parameters
    ----------
    planned : the planned superbatches
    first_read : holds an item after the first batches are read
    """

    def __init__(self, planned: Channel[PlannedSuperbatch], first_read: Channel[None]) -> None:
        self._planned = planned
        self._first_read = first_read

    def get(self) -> PlannedSuperbatch:
        """Return the next superbatch to be staged; errors as in `Channel.get`."""
        planned = self._planned.get()
        if planned.number == 1:
            self._first_read.get()
        return planned


class BatchFeed:
    """Splits staged superbatches into batches, and adds the sampled batches. For the reading thread.

    Parameters
    ----------
    staged : the staged superbatches
    batches : the stream's sampled batches
    first_read : receives an item after the first batches are read
    unit : number of first batches, which are read before superbatch 1 is staged; at most the size of superbatch 0
    """

    def __init__(
        self,
        staged: Channel[StagedSuperbatch],
        batches: Feed[OrderedBatch],
        first_read: Channel[None],
        *,
        unit: int = 1,
    ) -> None:
        self._unit = unit
        self._staged = staged
        self._batches = batches
        self._first_read = first_read
        self._superbatch: StagedSuperbatch | None = None  # the superbatch whose batches are being read
        self._index = 0  # the next batch's index in its superbatch

    def get(self) -> BatchJob:
        """Return the next batch to be read; the call also means that the previous batch was read.

        Raises
        ------
        ChannelClosedError
            The stream is over.
        BaseException
            The error that ended the stream.
        """
        superbatch = self._superbatch
        if superbatch is not None and superbatch.number == 0 and self._index == self._unit:
            self._first_read.put(None)
        if superbatch is None or self._index == superbatch.num_batches:
            superbatch = self._superbatch = None  # frees the plan while this thread waits
            superbatch = self._superbatch = self._staged.get()
            self._index = 0
        job = BatchJob(superbatch=superbatch, index=self._index, batch=self._batches.get())
        self._index += 1
        return job


class Inspect:
    """Plans superbatches in order; each plan starts with the rows that the previous plan leaves in the cache.

    Parameters
    ----------
    tables : the tables whose planners decide every hit, miss and admission
    instruments : measure the planning
    embeddings : the embeddings whose planners decide the slots of trained rows
    """

    name: Final = "inspect"  # the stage's name in errors and in the timeline

    def __init__(
        self,
        tables: Sequence[SsdTable],
        instruments: Instruments,
        embeddings: Sequence[TrainedEmbedding] = (),
    ) -> None:
        self._tables = tables
        self._embeddings = embeddings
        self._instruments = instruments

    def process(self, job: InspectJob) -> PlannedSuperbatch:
        """Return the superbatch of ``job`` with its plans."""
        sampled = job.superbatch
        with self._instruments.working("inspect", sampled.first, batches=sampled.num_batches) as work:
            traces = list(zip(sampled.traces, job.lookaheads, strict=True))
            plans = [table.planner.plan(*trace) for table, trace in zip(self._tables, traces, strict=False)]
            writes = [
                embedding.plan(*trace)
                for embedding, trace in zip(self._embeddings, traces[len(plans) :], strict=True)
            ]
            hits, misses = sum(plan.num_hits for plan in plans), sum(plan.num_misses for plan in plans)
            admitted = sum(int(plan.admissions.sum()) for plan in plans)
            work.note(superbatch=sampled.number, hits=hits, misses=misses, admitted=admitted)
            if writes:
                work.note(loads=sum(plan.num_loads for plan in writes))
        return PlannedSuperbatch(
            number=sampled.number, first=sampled.first, plans=tuple(plans), writes=tuple(writes)
        )
