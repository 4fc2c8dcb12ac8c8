"""The sampler threads: batches for their traces, far ahead, and batches to be executed, just in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from gloader.core.locks import SignalSafeCondition
from gloader.errors import ChannelClosedError
from gloader.pipeline.threads import StageThread

if TYPE_CHECKING:
    from gloader.pipeline.positions import BatchStream
    from gloader.pipeline.sample import TraceEntry
    from gloader.pipeline.threads import Failures, Stage

B = TypeVar("B")
T = TypeVar("T")

_NO_END = 2**62  # a position that no stream reaches


class Ready(Protocol):
    """Knows which positions of the stream can be sampled; see `SweptBatches`."""

    @property
    def changed(self) -> SignalSafeCondition:
        """Told of every change of `num_ready`."""
        ...

    @property
    def num_ready(self) -> int:
        """Positions that can be sampled: all before it. To be read with the lock of ``changed`` held."""
        ...


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


class SamplerPool(Generic[B]):
    """Threads that sample the stream twice: once for the trace, far ahead, and once for the batch itself.

    Batches to be executed go first. Both come in the order of the stream; an error keeps the place of its batch.
    Its threads end after `cancel`.

    Parameters
    ----------
    stream : which batches
    sample : what is done for a batch to be executed; called from several threads
    sample_trace : what is done for a trace; None: nobody asks for traces
    failures : told of an error when it happens, before its turn comes
    num_threads : sampler threads
    ahead : sampled batches that may wait to be executed, and traces that may wait to be inspected
    ready : the positions that can be sampled by now, where they wait for the edges to be swept; None: all of them can
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
        ready: Ready | None = None,
    ) -> None:
        self._stream = stream
        self._failures = failures
        self._num_threads = num_threads
        self._ready = ready
        # A thread never waits for a position that it has claimed: those who wait for traces far ahead would keep the
        # batches from being made that the next sweep needs the room of. So what is swept is part of one condition.
        self._changed = SignalSafeCondition() if ready is None else ready.changed
        self._batches: _Lane[B] = _Lane(sample, ahead=ahead)
        self._traces = None if sample_trace is None else _Lane(sample_trace, ahead=ahead)
        self._is_closed = False

    @property
    def threads(self) -> list[StageThread]:
        """The sampler threads."""
        return [StageThread(name=f"gloader-sample-{i}", run=self._run) for i in range(self._num_threads)]

    def has_trace(self) -> bool:
        """Wait for the next trace; return whether there is one: False where `next_trace` raises."""
        lane = self._require_traces()
        return self._changed.when(
            lambda: self._is_settled(lane),
            lambda: not self._is_closed and lane.is_next_good(),
        )

    def next_trace(self) -> TraceEntry:
        """Return the nodes of the next batch of the stream, waiting for them.

        Raises
        ------
        ChannelClosedError
            The stream ended, or the pool is closed.
        BaseException
            Whatever sampling raised; again with every call.
        """
        return self._take(self._require_traces())

    def get(self) -> B:
        """Return the next batch to be executed, waiting for it; errors as `next_trace`."""
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
        """Return whether the next item of ``lane`` is there, or will never be."""
        return self._is_closed or lane.taken in lane.done or not self._stream.has(lane.taken)

    def _take(self, lane: _Lane[T]) -> T:
        return self._changed.when(lambda: self._is_settled(lane), lambda: self._pop(lane))

    def _pop(self, lane: _Lane[T]) -> T:
        if self._is_closed or lane.taken not in lane.done:
            raise ChannelClosedError("the stream of batches ended")
        item = lane.done[lane.taken]
        if isinstance(item, _Failure):
            raise item.error  # and stays: whoever asks again hears the same
        del lane.done[lane.taken]
        lane.taken += 1
        self._changed.notify_all()
        return item

    def _run(self) -> None:
        while (claim := self._changed.when(self._has_work, self._claim)) is not None:
            lane, position = claim
            lane.sample(position, self._changed, self._failures)

    def _has_work(self) -> bool:
        return self._is_closed or self._may_sample_batch() or self._may_sample_trace()

    def _claim(self) -> tuple[_Lane[B] | _Lane[TraceEntry], int] | None:
        """Return what a thread does next, which no other then does; None: nothing more."""
        if self._is_closed:
            return None
        lane: _Lane[B] | _Lane[TraceEntry] = self._batches
        # Batches go first: they are executed now, and a trace is of a superbatch that is executed later.
        if self._traces is not None and not self._may_sample_batch():
            lane = self._traces
        lane.started += 1
        return lane, lane.started - 1

    def _may_sample_batch(self) -> bool:
        # Not before its trace was taken: by then it is known whether the batch was kept or is sampled again.
        is_inspected = self._traces is None or self._batches.started < self._traces.taken
        return is_inspected and self._may_start(self._batches)

    def _may_sample_trace(self) -> bool:
        return self._traces is not None and self._may_start(self._traces)

    def _may_start(self, lane: _Lane[T]) -> bool:
        return lane.may_start(self._stream, _NO_END if self._ready is None else self._ready.num_ready)


class _Lane(Generic[T]):
    """One of the two sequences that the pool delivers; its numbers are guarded by the pool's lock."""

    def __init__(self, stage: Stage[int, T], *, ahead: int) -> None:
        self.stage = stage
        self.ahead = ahead
        self.started = 0  # positions handed to threads
        self.taken = 0  # positions handed to the consumer
        self.end = _NO_END  # nothing at or behind it is started: sampling failed before it
        self.done: dict[int, T | _Failure] = {}

    def may_start(self, stream: BatchStream, num_ready: int) -> bool:
        """Return whether another position may be handed to a thread, of the first ``num_ready``."""
        most = min(self.taken + self.ahead, self.end, num_ready)
        return self.started < most and stream.has(self.started)

    def is_next_good(self) -> bool:
        """Return whether the next item is there and no error."""
        return self.taken in self.done and not isinstance(self.done[self.taken], _Failure)

    def sample(self, position: int, changed: SignalSafeCondition, failures: Failures) -> None:
        """Make the item at ``position``, or the error in its place."""
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
