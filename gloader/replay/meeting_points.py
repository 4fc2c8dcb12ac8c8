"""What the threads of a replay wait for: channels, the sampler pool, rings of buffers, the end of a step.

Each is one of `gloader.pipeline`, of the same name. They guard nothing: a thread of a replay goes on until it works or
waits.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from gloader.replay.engine import Gate, Job

if TYPE_CHECKING:
    from collections.abc import Generator

    from gloader.replay.engine import Clock, Thread
    from gloader.replay.work import Demands, PipelineShape, Work

    Waits = Generator[Job | Gate, None, None]

T = TypeVar("T")


class Channel(Generic[T]):
    """As `gloader.pipeline.channel.Channel`."""

    def __init__(self, clock: Clock, capacity: float) -> None:
        self._items: deque[T] = deque()
        self._capacity = capacity
        self._gate = Gate(clock)

    def put(self, item: T) -> Waits:
        """Hand ``item`` over, waiting while the channel is full."""
        while len(self._items) >= self._capacity:
            yield self._gate
        self._items.append(item)
        self._gate.open()

    def get(self) -> Generator[Job | Gate, None, T]:
        """Take the oldest item, waiting while the channel is empty."""
        while not self._items:
            yield self._gate
        item = self._items.popleft()
        self._gate.open()
        return item


class Lane:
    """One of the two sequences that the sampler pool makes; as in `gloader.pipeline.sampler_pool`."""

    def __init__(self, stage: str, demands: list[Demands]) -> None:
        self.stage = stage
        self.demands = demands
        self.started = 0
        self.taken = 0
        self.done: set[int] = set()


class Pool:
    """The sampler threads: batches go first, then traces, each lane at most ``ahead`` of who takes from it."""

    def __init__(self, clock: Clock, work: Work, shape: PipelineShape) -> None:
        self._ahead = shape.ahead
        self._num_batches = len(work.batches)
        self.batches = Lane("sample", [batch.sample for batch in work.batches])
        self.traces = (
            Lane("trace", [batch.trace for batch in work.batches]) if shape.features == "ssd" else None
        )
        self.gate = Gate(clock)
        self.num_ready = work.num_known if work.passes else self._num_batches
        # Of those that passes bring, behind those that need none: as `SweptBatches` counts what it gave back.
        self._num_known = self.num_made = work.num_known

    def sampler(self) -> Thread:
        """Return one of the threads."""
        while self.batches.started < self._num_batches:
            lane = self._claim()
            if lane is None:
                yield self.gate
                continue
            position = lane.started
            lane.started += 1
            yield Job(lane.stage, position, lane.demands[position])
            lane.done.add(position)
            self.num_made += lane is self.batches and position >= self._num_known
            self.gate.open()

    def take(self, lane: Lane) -> Waits:
        """Take the next item of ``lane``, waiting for it."""
        while lane.taken not in lane.done:
            yield self.gate
        lane.done.remove(lane.taken)
        lane.taken += 1
        self.gate.open()

    def _claim(self) -> Lane | None:
        """Return what a thread makes next; None: there is nothing now."""
        # Not before its trace was taken: by then it is known whether the batch was kept.
        is_inspected = self.traces is None or self.batches.started < self.traces.taken
        if is_inspected and self._may_start(self.batches):
            return self.batches
        return self.traces if self.traces is not None and self._may_start(self.traces) else None

    def _may_start(self, lane: Lane) -> bool:
        return lane.started < min(lane.taken + self._ahead, self._num_batches, self.num_ready)


class Ring:
    """Buffers of features of one rank, and whether its loop holds one.

    A loop's variable names its batch, and with it the buffer, until the next batch takes its place, or until the
    function that loops over an epoch returns. Where there is one buffer alone, asking for a batch empties the last one:
    but not a batch that another process gathered, as with several ranks.
    """

    def __init__(self, clock: Clock, shape: PipelineShape) -> None:
        self._left = shape.num_buffers
        self._gate = Gate(clock)
        self._is_emptied = shape.num_buffers == 1 and shape.num_ranks == 1
        self._is_lent = False

    def acquire(self) -> Waits:
        """Take a buffer, waiting for one."""
        while not self._left:
            yield self._gate
        self._left -= 1

    def release(self) -> None:
        """Give a buffer back."""
        self._left += 1
        self._gate.open()

    def lend(self) -> None:
        """Let the loop have a buffer in place of the one that it held."""
        self.take_back()
        self._is_lent = True

    def ask(self) -> None:
        """Note that the loop asks for a batch."""
        if self._is_emptied:
            self.take_back()

    def take_back(self) -> None:
        """Give back what the loop holds, if it holds anything."""
        if self._is_lent:
            self._is_lent = False
            self.release()


class Steps:
    """Where ranks wait for each other: they add up their gradients at the end of each step."""

    def __init__(self, clock: Clock, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._arrived = 0
        self._ended = 0
        self._gate = Gate(clock)

    def meet(self) -> Waits:
        """Wait until every rank is here."""
        step = self._ended
        self._arrived += 1
        if self._arrived == self._num_ranks:
            self._arrived = 0
            self._ended += 1
            self._gate.open()
        while self._ended == step:
            yield self._gate
