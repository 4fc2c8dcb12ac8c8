"""The sampler threads: batches for their traces, far ahead, and batches to be executed, just in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from gloader.cache import encode_ids
from gloader.core.locks import SignalSafeCondition
from gloader.errors import ChannelClosedError
from gloader.pipeline.threads import StageThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gloader.pipeline.positions import BatchStream
    from gloader.types import BatchId, IdArray, SampledBatch

B = TypeVar("B")
T = TypeVar("T")

_LOW_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedBatch:
    """A sampled batch and its nodes in ascending order, which is the order in which plans and stores count."""

    sampled: SampledBatch
    ascending: IdArray  # (U,) node ids
    order: NDArray[np.int64]  # (U,) position in ``sampled.nodes`` of each of ``ascending``


def ordered(batch: SampledBatch) -> OrderedBatch:
    """Return ``batch`` with the order of its nodes. Pure."""
    count = len(batch.nodes)
    if count and int(batch.nodes.max()) < 2 ** (63 - _LOW_BITS):
        # One sort of (id, position) pairs in one word is several times faster than an indirect sort.
        pairs = (batch.nodes << _LOW_BITS) | np.arange(count)
        pairs.sort()
        return OrderedBatch(sampled=batch, ascending=pairs >> _LOW_BITS, order=pairs & (2**_LOW_BITS - 1))
    order = np.argsort(batch.nodes, kind="stable").astype(np.int64)
    return OrderedBatch(sampled=batch, ascending=batch.nodes[order], order=order)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEntry:
    """The ascending node ids of one batch, coded."""

    code: NDArray[np.uint8]
    count: int  # U


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


class SamplerPool(Generic[B]):
    """Threads that sample the stream twice: once for the trace, far ahead, and once for the batch itself.

    A batch sampled for its trace is kept where ``keep_bytes`` allows, else it is sampled again when its turn
    comes: sampling is a pure function of the batch's address, and costs less than writing the blocks to
    a disk and reading them back. Batches to be executed go first. Both come in the order of the stream; an
    error keeps the place of its batch. Its threads end after `cancel`.

    Parameters
    ----------
    stream : which batches
    sample : samples one batch; called from several threads, like the next
    arrange : what is delivered of a batch to be executed
    on_error : told of a failure when it happens
    has_traces : whether traces are asked for at all
    batches_ahead : sampled batches that may wait to be executed
    traces_ahead : traces that may wait to be inspected
    keep_bytes : of sampled batches kept between their trace and their execution
    """

    def __init__(
        self,
        stream: BatchStream,
        sample: Callable[[BatchId, IdArray], SampledBatch],
        *,
        arrange: Callable[[SampledBatch], B],
        on_error: Callable[[BaseException], None],
        num_threads: int,
        has_traces: bool,
        batches_ahead: int,
        traces_ahead: int,
        keep_bytes: int,
    ) -> None:
        self._stream = stream
        self._sample = sample
        self._arrange = arrange
        self._on_error = on_error
        self._changed = SignalSafeCondition()
        self._traces: _Lane[TraceEntry] = _Lane(traces_ahead if has_traces else 0)
        self._batches: _Lane[B] = _Lane(batches_ahead)
        self._has_traces = has_traces
        self._kept: dict[int, SampledBatch] = {}
        self._kept_bytes = 0
        self._keep_bytes = keep_bytes
        self._is_closed = False
        self._num_threads = num_threads

    @property
    def threads(self) -> list[StageThread]:
        """The sampler threads."""
        return [StageThread(name=f"gloader-sample-{i}", run=self._run) for i in range(self._num_threads)]

    def next_trace(self) -> TraceEntry:
        """Return the nodes of the next batch of the stream, waiting for them.

        Raises
        ------
        ChannelClosedError
            The stream ended, or the pool is closed.
        BaseException
            Whatever sampling raised.
        """
        return self._take(self._traces)

    def next_batch(self) -> B:
        """Return the next batch to be executed, waiting for it; errors as `next_trace`."""
        return self._take(self._batches)

    def cancel(self) -> None:
        """Wake and end every thread and waiter. Idempotent."""
        with self._changed.lock:
            self._is_closed = True
            self._kept.clear()
            self._changed.notify_all()

    def _take(self, lane: _Lane[T]) -> T:
        return self._changed.when(
            lambda: self._is_closed or lane.taken in lane.done or not self._stream.has(lane.taken),
            lambda: self._pop(lane),
        )

    def _pop(self, lane: _Lane[T]) -> T:
        if self._is_closed or lane.taken not in lane.done:
            raise ChannelClosedError("the stream of batches ended")
        item = lane.done[lane.taken]
        if isinstance(item, _Failure):
            raise item.error
        del lane.done[lane.taken]
        lane.taken += 1
        self._changed.notify_all()
        return item

    def _run(self) -> None:
        while (task := self._changed.when(self._has_task, self._next_task)) is not None:
            task()

    def _has_task(self) -> bool:
        return self._is_closed or self._may_batch() or self._may_start(self._traces)

    def _next_task(self) -> Callable[[], None] | None:
        if self._is_closed:
            return None
        if self._may_batch():
            return self._task(self._batches, self._batch)
        return self._task(self._traces, self._trace)

    def _task(self, lane: _Lane[T], make: Callable[[int], T]) -> Callable[[], None]:
        position = lane.started
        lane.started += 1
        return lambda: self._deliver(lane, position, make)

    def _deliver(self, lane: _Lane[T], position: int, make: Callable[[int], T]) -> None:
        item: T | _Failure
        try:
            item = make(position)
        except BaseException as error:  # noqa: BLE001 - every failure must reach the consumer, whatever its type
            item = _Failure(error)
            self._on_error(error)
        with self._changed.lock:
            lane.done[position] = item
            if isinstance(item, _Failure):
                lane.end = min(lane.end, position + 1)
            self._changed.notify_all()

    def _may_start(self, lane: _Lane[T]) -> bool:
        return lane.started < min(lane.taken + lane.ahead, lane.end) and self._stream.has(lane.started)

    def _may_batch(self) -> bool:
        """Return whether the next batch may be made: it is kept or given up once its trace was delivered."""
        is_inspected = not self._has_traces or self._batches.started < self._traces.taken
        return is_inspected and self._may_start(self._batches)

    def _trace(self, position: int) -> TraceEntry:
        batch = self._sampled(position)
        size = _num_bytes(batch)
        with self._changed.lock:
            if self._kept_bytes + size <= self._keep_bytes and not self._is_closed:
                self._kept[position] = batch
                self._kept_bytes += size
        return TraceEntry(code=encode_ids(np.sort(batch.nodes)), count=len(batch.nodes))

    def _batch(self, position: int) -> B:
        with self._changed.lock:
            batch = self._kept.pop(position, None)
            if batch is not None:
                self._kept_bytes -= _num_bytes(batch)
        return self._arrange(self._sampled(position) if batch is None else batch)

    def _sampled(self, position: int) -> SampledBatch:
        return self._sample(self._stream.id_of(position), self._stream.seeds_at(position))


class _Lane(Generic[T]):
    """One of the two sequences that the pool delivers."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.started = 0  # positions handed to threads
        self.taken = 0  # positions handed to the consumer
        self.end = 2**62  # nothing at or behind it is started: sampling failed before it
        self.done: dict[int, T | _Failure] = {}


def _num_bytes(batch: SampledBatch) -> int:
    weights = sum(block.edge_weight.nbytes for block in batch.blocks if block.edge_weight is not None)
    blocks = sum(block.indptr.nbytes + block.indices.nbytes + block.edge_ids.nbytes for block in batch.blocks)
    return batch.nodes.nbytes + blocks + weights
