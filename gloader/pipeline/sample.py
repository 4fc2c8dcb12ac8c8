"""Sample: the pipeline's first step, which draws each batch's nodes and edges.

A loader's batches form one stream across epochs; a batch's position is its index in this stream. Features on the SSD
need each batch twice. Far ahead of its execution, a batch is sampled for its trace, from which `Inspect` plans the
cache. Just before its execution, the batch is taken from `KeptBatches`, or sampled again. `SamplerPool` runs the
sampler threads for both.

- A table is the feature rows of a node type or a relation. Tables are numbered: node types first, then relations.
- A batch's rows are the row ids in a table that the batch reads. A place is an index into these rows.
- A trace entry is a batch's distinct rows in each table, compressed.
- Swept hops are a batch's edges that passes over the edges on the SSD drew, see `gloader.pipeline.edge_sweeps`. To
  replay a batch is to make it from its swept hops.
- A lane is one of the pool's two sequences: batches, or traces.

Shapes: U rows of a batch in a table, V of them distinct.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

import numpy as np

from gloader.cache import encode_ids
from gloader.core.signals import SignalSafeCondition
from gloader.errors import ChannelClosedError
from gloader.pipeline.superbatch import OrderedBatch, OrderedRows
from gloader.pipeline.threads import StageThread
from gloader.samplers import HeteroGraph
from gloader.samplers.graph import float_in_degrees
from gloader.samplers.sweeping import swept_nodes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.observe.instruments import Instruments, Work
    from gloader.pipeline.edge_sweeps import EdgeSweeps, SweptBatches
    from gloader.pipeline.seeds import BatchStream
    from gloader.pipeline.threads import Failures, Stage
    from gloader.samplers import Topology
    from gloader.types import AnyBatch, AnySampler, IdArray, LocalArray


_LOW_BITS = 32  # bits of a place in a (row, place) sort key; the row has the bits above


def is_of_edges(batch: AnyBatch, number: int) -> bool:
    """Return whether table ``number`` holds edge features. Pure."""
    return number >= len(batch.node_arrays)


def rows_of(batch: AnyBatch, number: int) -> IdArray:
    """Return a batch's rows (U,) in table ``number``. Pure.

    Edge rows are edge positions, in the block order of `AnyBatch.edges_of`; they may repeat.
    """
    nodes = batch.node_arrays
    if number < len(nodes):
        return nodes[number]
    return np.concatenate([block.edge_ids for block in batch.edges_of(number - len(nodes))])


def count_rows(batch: AnyBatch, number: int) -> int:
    """Return U, the number of rows that `rows_of` returns. Pure."""
    nodes = batch.node_arrays
    if number < len(nodes):
        return len(nodes[number])
    return sum(block.num_edges for block in batch.edges_of(number - len(nodes)))


def distinct_rows(batch: AnyBatch, number: int) -> IdArray:
    """Return a batch's distinct rows (V,) in table ``number``, ascending. Pure."""
    ascending = np.sort(rows_of(batch, number))
    return ascending[_is_first(ascending)] if _may_repeat(batch, number) else ascending


def ordered_rows(batch: AnyBatch, number: int, places: LocalArray | None = None) -> OrderedRows:
    """Return a batch's rows in table ``number`` in ascending order, each row once. Pure.

    Parameters
    ----------
    batch : the sampled batch
    number : the table's number
    places : (U,) the place of each ascending row, if the rows are distinct and were sorted before; None otherwise
    """
    rows = rows_of(batch, number)
    if places is not None:
        return OrderedRows(rows=rows, ascending=rows[places], order=places.astype(np.int64))
    ascending, order = _ascending(rows)
    if _may_repeat(batch, number):
        is_first = _is_first(ascending)
        if not is_first.all():
            # The sort is by row and place, so that the first place of equal rows comes first.
            first = order[is_first]
            distinct_index = np.cumsum(is_first) - 1
            is_repeat = ~is_first
            repeats = np.stack([order[is_repeat], first[distinct_index[is_repeat]]])
            return OrderedRows(rows=rows, ascending=ascending[is_first], order=first, repeats=repeats)
    return OrderedRows(rows=rows, ascending=ascending, order=order)


def ordered_tables(batch: AnyBatch, types: Sequence[int]) -> tuple[OrderedRows, ...]:
    """Return a batch's rows in each of the tables ``types`` in ascending order, see `ordered_rows`. Pure."""
    # A type with features on the SSD and with trained rows is in ``types`` twice, and its rows are sorted once.
    tables = {number: ordered_rows(batch, number) for number in types}
    return tuple(tables[number] for number in types)


def _may_repeat(batch: AnyBatch, number: int) -> bool:
    """Return whether the batch's rows in table ``number`` may repeat."""
    return batch.may_repeat or is_of_edges(batch, number)


def _is_first(ascending: IdArray) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return whether each row is the first of equal rows, (U,)."""
    is_first = np.ones(len(ascending), dtype=np.bool_)
    np.not_equal(ascending[1:], ascending[:-1], out=is_first[1:])
    return is_first


def _ascending(rows: IdArray) -> tuple[IdArray, IdArray]:
    """Return ``rows`` in ascending order, and the place of each; equal rows stay in place order. Pure."""
    count = len(rows)
    if count and int(rows.max()) < 2 ** (63 - _LOW_BITS):
        # One sort of (row, place) pairs in one word is several times faster than an indirect sort.
        pairs = (rows << _LOW_BITS) | np.arange(count)
        pairs.sort()
        return pairs >> _LOW_BITS, pairs & (2**_LOW_BITS - 1)
    order = np.argsort(rows, kind="stable").astype(np.int64)
    return rows[order], order


_NO_DEGREES: Final = np.empty(0, dtype=np.float32)  # for batches whose degrees are not looked up here


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedRows:
    """A batch's ascending rows in one table, compressed."""

    code: NDArray[np.uint8]  # result of `gloader.cache.encode_ids`
    count: int  # V

    @classmethod
    def of(cls, ascending: IdArray) -> CodedRows:
        """Compress ``ascending`` (V,), which are unique rows."""
        return cls(code=encode_ids(ascending), count=len(ascending))


TraceEntry: TypeAlias = tuple[CodedRows, ...]  # one batch's rows in each table


class SampleBatch:
    """Samples the batch at a position. Thread-safe.

    Parameters
    ----------
    sampler : draws the neighbours
    stream : the seeds and the address of each position
    instruments : measure the sampling
    """

    def __init__(self, sampler: AnySampler, stream: BatchStream, instruments: Instruments) -> None:
        self._sampler = sampler
        self._stream = stream
        self._instruments = instruments

    def working(self, position: int) -> Work:
        """Return the work on the batch at ``position``."""
        return self._instruments.working("sample", self._stream.id_of(position))

    def make(self, position: int, work: Work) -> AnyBatch:
        """Return the batch at ``position`` of the stream."""
        # The measured time includes the lookup of a link table's rows, which gives the seeds.
        return self._sampler.sample(work.batch, self._stream.seeds_at(position))


class ReplayBatch:
    """Makes the batch at a position from its swept hops, and releases these hops. Thread-safe.

    Parameters
    ----------
    sweeps : hold the swept hops
    """

    def __init__(self, sweeps: EdgeSweeps) -> None:
        self._sweeps = sweeps

    def working(self, position: int) -> Work:
        """Return the work on the batch at ``position``."""
        return self._sweeps.working(position)

    def make(self, position: int, work: Work) -> AnyBatch:
        """Return the batch at ``position`` of the stream."""
        sweeps = self._sweeps
        # The loader sampled the first batches when it opened; these have no swept hops.
        if (known := sweeps.known.pop(position, None)) is not None:
            work.note(known=True)
            return known
        seeds = sweeps.stream.seeds_at(position)
        batch = sweeps.sampler.replay(work.batch, seeds, sweeps.read(position))
        sweeps.swept.release(position)
        return batch


BatchSource: TypeAlias = SampleBatch | ReplayBatch  # makes the batch at a position


class ReplayTrace:
    """Derives a batch's trace entry from its swept hops; makes blocks only for edge tables. Thread-safe.

    Parameters
    ----------
    sweeps : hold the swept hops
    types : the numbers of the tables
    """

    name: Final = "sample"  # the stage's name in errors and in the timeline

    def __init__(self, sweeps: EdgeSweeps, types: Sequence[int] = (0,)) -> None:
        self._sweeps = sweeps
        self._types = types
        self._has_edges = max(types, default=0) >= sweeps.num_types  # whether a table has edge features

    def process(self, position: int) -> TraceEntry:
        """Return the trace entry of the batch at ``position`` of the stream."""
        sweeps = self._sweeps
        with sweeps.working(position) as work:
            work.note(ahead=True)
            if (known := sweeps.known.get(position)) is not None:
                work.note(known=True)
                return trace_entry(known, self._types)
            seeds, drawn = sweeps.stream.seeds_at(position), sweeps.read(position)
            if self._has_edges:
                return trace_entry(sweeps.sampler.replay(work.batch, seeds, drawn), self._types)
            nodes = swept_nodes(sweeps.sampler.rule, work.batch, seeds, drawn)
            return tuple(CodedRows.of(nodes[number]) for number in self._types)


class SampleTrace:
    """Samples a batch for its trace; keeps the batch for `SampleOrdered` if ``kept`` has room. Thread-safe.

    Parameters
    ----------
    sample : makes the batch of a position
    kept : stores the batch
    types : the numbers of the tables
    """

    name: Final = "sample"

    def __init__(self, sample: BatchSource, kept: KeptBatches, types: Sequence[int] = (0,)) -> None:
        self._sample = sample
        self._kept = kept
        self._types = types

    def process(self, position: int) -> TraceEntry:
        """Return the trace entry of the batch at ``position`` of the stream."""
        with self._sample.working(position) as work:
            work.note(ahead=True)
            batch = self._sample.make(position, work)
            # `ordered_rows` also gives the places, and costs more. It pays only for a kept batch, which need not be
            # sorted again.
            if not self._kept.has_room(batch):
                return trace_entry(batch, self._types)
            tables = ordered_tables(batch, self._types)
            self._kept.offer(position, batch, tables)
            return tuple(CodedRows.of(table.ascending) for table in tables)


class SampleOrdered:
    """Returns the next batch to be executed: the kept batch, or the same batch sampled again. Thread-safe.

    Sampling is a pure function of the batch's address. Sampling again costs less than writing the blocks to a disk and
    reading them back. The sampling threads also look up the degrees: there are several such threads, while the gather
    step has only one thread, which is busy.

    Parameters
    ----------
    sample : makes the batch of a position
    kept : batches that were kept after their traces
    topology : gives the in-degrees, which batches with several types do not need
    types : the numbers of the tables with rows on the SSD
    """

    name: Final = "sample"

    def __init__(
        self,
        sample: BatchSource,
        kept: KeptBatches,
        topology: Topology | HeteroGraph,
        types: Sequence[int] = (0,),
    ) -> None:
        self._sample = sample
        self._kept = kept
        self._topology = topology
        self._types = types

    def process(self, position: int) -> OrderedBatch:
        """Return the batch at ``position`` of the stream, with its nodes' order and degrees."""
        with self._sample.working(position) as work:
            kept = self._kept.take(position)
            if kept is None:
                batch = self._sample.make(position, work)
                return ordered(batch, _degrees(batch, self._topology), self._types)
            work.note(kept=True)
            tables = tuple(map(partial(ordered_rows, kept.batch), self._types, kept.places))
            return OrderedBatch(
                sampled=kept.batch, src_degree=_degrees(kept.batch, self._topology), tables=tables
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBatch:
    """A batch between its trace and its execution; its rows need not be sorted again."""

    batch: AnyBatch
    places: tuple[LocalArray | None, ...]  # each table's places, see `ordered_rows`; None if rows repeat
    num_bytes: int  # memory, including the places


class KeptBatches:
    """Sampled batches that wait in memory between their trace and their execution. Thread-safe.

    Parameters
    ----------
    max_bytes : maximum memory of all kept batches; 0 keeps none
    """

    def __init__(self, max_bytes: int = 0) -> None:
        # Reentrant: freeing a batch may run the garbage collector. It may close a run, which calls `cancel` in this
        # thread.
        self._lock = threading.RLock()
        self._batches: dict[int, KeptBatch] = {}  # by position
        self._left_bytes = max_bytes  # room for further batches

    def has_room(self, batch: AnyBatch) -> bool:
        """Return whether ``batch`` fits now; another thread may take the room before `offer`.

        A batch on the device is not kept: the device's memory is too small for so many batches.
        """
        return batch.on_device is None and _num_bytes(batch) <= self._left_bytes

    def offer(self, position: int, batch: AnyBatch, tables: Sequence[OrderedRows]) -> None:
        """Keep ``batch``, with the order of its rows in ``tables``, if there is room."""
        if not self.has_room(batch):
            return
        places = tuple(None if rows.repeats is not None else rows.order.astype(np.int32) for rows in tables)
        num_bytes = _num_bytes(batch) + sum(array.nbytes for array in places if array is not None)
        with self._lock:
            # The earliest batches are kept. Every batch is executed once, so that no other choice would save more.
            if num_bytes <= self._left_bytes:
                self._batches[position] = KeptBatch(batch=batch, places=places, num_bytes=num_bytes)
                self._left_bytes -= num_bytes

    def take(self, position: int) -> KeptBatch | None:
        """Remove and return the batch at ``position``; None if it was not kept."""
        with self._lock:
            kept = self._batches.pop(position, None)
            if kept is not None:
                self._left_bytes += kept.num_bytes
        return kept

    def cancel(self) -> None:
        """Drop all batches and keep no further ones. Idempotent."""
        with self._lock:
            # Negative room refuses every later batch.
            self._left_bytes = -1
            self._batches.clear()


def trace_entry(batch: AnyBatch, types: Sequence[int]) -> TraceEntry:
    """Return the distinct rows of ``batch`` in each of the tables with the numbers ``types``. Pure."""
    coded = {number: CodedRows.of(distinct_rows(batch, number)) for number in types}
    return tuple(coded[number] for number in types)


def ordered(batch: AnyBatch, src_degree: NDArray[np.float32], types: Sequence[int] = (0,)) -> OrderedBatch:
    """Return ``batch`` with its rows' order and its nodes' degrees. Pure.

    Parameters
    ----------
    batch : the sampled batch
    src_degree : (U,) in-degrees of the nodes, or (0,) as in `OrderedBatch`
    types : the numbers of the tables
    """
    return OrderedBatch(sampled=batch, src_degree=src_degree, tables=ordered_tables(batch, types))


def _degrees(batch: AnyBatch, topology: Topology | HeteroGraph) -> NDArray[np.float32]:
    """Return the degrees (U,) of the batch's nodes; empty if the device has them, or with several types."""
    if batch.in_degrees is not None:
        return batch.in_degrees
    if batch.on_device is not None or isinstance(topology, HeteroGraph):
        return _NO_DEGREES
    return float_in_degrees(topology.offsets, batch.node_arrays[0])


def beside_bytes(batch: AnyBatch) -> int:
    """Return the bytes of a batch's links, trees and node degrees, without nodes and edges. Pure."""
    links = batch.links
    of_links = () if links is None else (links.pairs, links.labels, links.edge_ids)
    if links is not None and links.shared is not None:
        of_links = (*of_links, links.shared)
    degrees = () if batch.in_degrees is None else (batch.in_degrees,)
    return sum(array.nbytes for array in (*batch.tree_arrays, *degrees, *of_links))


def _num_bytes(batch: AnyBatch) -> int:
    """Return the bytes of a sampled batch in memory."""
    blocks = batch.all_blocks
    weights = sum(block.edge_weight.nbytes for block in blocks if block.edge_weight is not None)
    edges = sum(block.indptr.nbytes + block.indices.nbytes + block.edge_ids.nbytes for block in blocks)
    return sum(nodes.nbytes for nodes in batch.node_arrays) + edges + weights + beside_bytes(batch)


B = TypeVar("B")
T = TypeVar("T")

_NO_END = 2**62  # a position beyond every stream


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error in a lane, in place of the item that could not be made."""

    error: BaseException


class SamplerPool(Generic[B]):
    """Threads that sample the stream twice: far ahead for the traces, and again for the batches.

    A free thread claims the next position of a lane, and makes the batch or trace. Batches to be executed go first.
    Both lanes deliver in the stream's order; an error takes its batch's place. The threads end after `cancel`.

    Parameters
    ----------
    stream : the batches
    sample : makes a batch to be executed; called from several threads
    sample_trace : makes a trace; None if no traces are needed
    failures : receives an error immediately, before the error's turn
    num_threads : number of sampler threads
    ahead : maximum number of sampled batches that wait for execution, and of traces that wait for inspection
    ready : counts the positions with swept edges; None means that all positions can be sampled
    """

    def __init__(
        self,
        stream: BatchStream,
        sample: Stage[int, B],
        *,
        sample_trace: Stage[int, TraceEntry] | None,
        failures: Failures,
        num_threads: int,
        ahead: int,
        ready: SweptBatches | None = None,
    ) -> None:
        self._stream = stream
        self._failures = failures
        self._num_threads = num_threads
        self._ready = ready
        # A thread claims only a position that is ready, and never waits for its sweep. Otherwise all threads could wait
        # for far traces, and none would make the batches whose memory the next sweep needs. So sweeps notify this
        # condition.
        self._changed = SignalSafeCondition() if ready is None else ready.changed
        self._batches: _Lane[B] = _Lane(sample, ahead=ahead)  # batches to be executed
        self._traces = None if sample_trace is None else _Lane(sample_trace, ahead=ahead)  # traces, far ahead
        self._is_closed = False

    @property
    def threads(self) -> list[StageThread]:
        """The sampler threads."""
        return [StageThread(name=f"gloader-sample-{i}", run=self._run) for i in range(self._num_threads)]

    def has_trace(self) -> bool:
        """Wait for the next trace; return False if `next_trace` would raise."""
        lane = self._require_traces()
        return self._changed.when(
            lambda: self._is_settled(lane),
            lambda: not self._is_closed and lane.is_next_good(),
        )

    def next_trace(self) -> TraceEntry:
        """Wait for the trace entry of the stream's next batch, and return it.

        Raises
        ------
        ChannelClosedError
            The stream ended, or the pool is closed.
        BaseException
            The error of the sampling; every later call raises it again.
        """
        return self._take(self._require_traces())

    def get(self) -> B:
        """Wait for the next batch to be executed, and return it; errors as in `next_trace`."""
        return self._take(self._batches)

    def cancel(self) -> None:
        """Wake and end every thread and waiter. Idempotent."""
        with self._changed.lock:
            self._is_closed = True
            self._changed.notify_all()

    def _require_traces(self) -> _Lane[TraceEntry]:
        if self._traces is None:
            raise ChannelClosedError("nothing is sampled for its trace: features are in memory")
        return self._traces

    def _is_settled(self, lane: _Lane[T]) -> bool:
        """Return whether the next item of ``lane`` is finished, or will never come. Hold the lock."""
        return self._is_closed or lane.taken in lane.done or not self._stream.has(lane.taken)

    def _take(self, lane: _Lane[T]) -> T:
        """Wait for the next item of ``lane``, and return it; errors as in `next_trace`."""
        return self._changed.when(lambda: self._is_settled(lane), lambda: self._pop(lane))

    def _pop(self, lane: _Lane[T]) -> T:
        """Return the next item of ``lane``, which is settled. Hold the lock."""
        if self._is_closed or lane.taken not in lane.done:
            raise ChannelClosedError("the stream of batches ended")
        item = lane.done[lane.taken]
        if isinstance(item, _Failure):
            raise item.error  # the item stays, so that later calls raise the same error
        del lane.done[lane.taken]
        lane.taken += 1
        self._changed.notify_all()
        return item

    def _run(self) -> None:
        """Make items until the pool is closed. Each sampler thread runs this."""
        while (claim := self._changed.when(self._has_work, self._claim)) is not None:
            lane, position = claim
            lane.sample(position, self._changed, self._failures)

    def _has_work(self) -> bool:
        return self._is_closed or self._may_sample_batch() or self._may_sample_trace()

    def _claim(self) -> tuple[_Lane[B] | _Lane[TraceEntry], int] | None:
        """Claim the next work for the calling thread, and return it; None if there is none."""
        if self._is_closed:
            return None
        lane: _Lane[B] | _Lane[TraceEntry] = self._batches
        # Batches go first: they are executed now, and a trace belongs to a later superbatch.
        if self._traces is not None and not self._may_sample_batch():
            lane = self._traces
        lane.started += 1
        return lane, lane.started - 1

    def _may_sample_batch(self) -> bool:
        """Return whether a thread may begin the next batch. Hold the lock."""
        # A batch waits for its trace to be taken: only then is it certain whether the batch was kept.
        is_inspected = self._traces is None or self._batches.started < self._traces.taken
        return is_inspected and self._may_start(self._batches)

    def _may_sample_trace(self) -> bool:
        return self._traces is not None and self._may_start(self._traces)

    def _may_start(self, lane: _Lane[T]) -> bool:
        return lane.may_start(self._stream, _NO_END if self._ready is None else self._ready.num_ready)


class _Lane(Generic[T]):
    """One of the pool's two sequences; the pool's lock guards its numbers and items.

    Always ``taken <= started <= taken + ahead``; ``done`` holds finished items that are not yet taken.
    """

    def __init__(self, stage: Stage[int, T], *, ahead: int) -> None:
        self.stage = stage
        self.ahead = ahead
        self.started = 0  # positions handed to threads
        self.taken = 0  # positions handed to the consumer
        self.end = _NO_END  # positions from here on are not started, as sampling failed before
        self.done: dict[int, T | _Failure] = {}  # by position

    def may_start(self, stream: BatchStream, num_ready: int) -> bool:
        """Return whether another position, among the first ``num_ready``, may be handed to a thread."""
        limit = min(self.taken + self.ahead, self.end, num_ready)
        return self.started < limit and stream.has(self.started)

    def is_next_good(self) -> bool:
        """Return whether the next item is finished and is not an error."""
        return self.taken in self.done and not isinstance(self.done[self.taken], _Failure)

    def sample(self, position: int, changed: SignalSafeCondition, failures: Failures) -> None:
        """Make the item at ``position``, or put the error in its place. Call it without the lock."""
        item: T | _Failure
        try:
            item = self.stage.process(position)
        except BaseException as error:  # noqa: BLE001 - every failure must reach the consumer, whatever its type
            item = _Failure(error)
            failures.add(error)
        with changed.lock:
            self.done[position] = item
            if isinstance(item, _Failure):
                self.end = min(self.end, position + 1)
            changed.notify_all()
