"""A run's replay: the pipeline's stages on the clock of `engine`. Pure.

`replay` simulates a run: it takes recorded or planned work, a machine and a pipeline shape, and returns the time of
each piece of work. A replayed thread is a generator. It yields a `Job`, one piece of work with its demands, or a `Gate`
to wait. `PipelineShape.links` gives the stages' threads and the channels between them. The threads also wait for each
other at the sampler pool, the feature buffers and the ranks' barrier. These have the names that they have in
`gloader.pipeline`. They need no locks, because only one replayed thread runs at any moment, until it yields.

A stream position is a batch's number in the order of the loop, over all epochs and ranks. A trace has a batch's nodes;
it is sampled ahead, so that the batch's superbatch can be planned.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, TypeVar

from gloader.errors import ReplayError
from gloader.replay.engine import Clock, Event, Gate, Job
from gloader.replay.work import NOTHING, Demands

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Sequence

    from gloader.replay.engine import Thread
    from gloader.replay.work import Machine, PipelineShape, RunWork, StageLink

    Waits = Generator[Job | Gate, None, None]  # a part of a thread, used with ``yield from``


T = TypeVar("T")  # a channel's item


class ReplayChannel(Generic[T]):
    """A bounded queue, like `gloader.pipeline.threads.Channel`."""

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


@dataclass(slots=True, eq=False)
class Lane:
    """One of the sampler pool's two sequences of items, batches or traces, as in `gloader.pipeline.sample`."""

    stage: str  # "sample" or "trace"
    demands: list[Demands]  # by stream position
    started: int = 0  # number of items that a sampler thread has begun
    taken: int = 0  # number of items that the consumer has taken, in order
    done: set[int] = field(default_factory=set)  # positions of items that wait for the consumer


class Pool:
    """The sampler threads' work. Batches go before traces. Each lane is at most ``ahead`` items before its consumer.

    Parameters
    ----------
    clock : the replay's clock
    work : the run's work
    shape : gives ``ahead``; traces exist only if superbatches are planned
    """

    def __init__(self, clock: Clock, work: RunWork, shape: PipelineShape) -> None:
        self._ahead = shape.ahead
        self._num_batches = len(work.batches)
        self.batches = Lane("sample", [batch.sample for batch in work.batches])
        self.traces = Lane("trace", [batch.trace for batch in work.batches]) if shape.is_planned else None
        self.gate = Gate(clock)
        # Positions below this number can be sampled now. Passes over the edges raise it.
        self.num_ready = work.num_known if work.passes else self._num_batches
        self._num_known = work.num_known  # positions below this number need no pass
        # The batches known from the start, plus the batches made from passes until now; like `SweptBatches`.
        self.num_made = work.num_known

    def sampler(self) -> Thread:
        """Return one sampler thread."""
        while self.batches.started < self._num_batches:
            lane = self._claim()
            if lane is None:
                yield self.gate
                continue
            position = lane.started
            lane.started += 1
            yield Job(lane.stage, position, lane.demands[position])
            lane.done.add(position)
            self.num_made += lane is self.batches and position >= self._num_known  # a bool counts as 0 or 1
            self.gate.open()

    def take(self, lane: Lane) -> Waits:
        """Take the next item from ``lane``, waiting for it."""
        while lane.taken not in lane.done:
            yield self.gate
        lane.done.remove(lane.taken)
        lane.taken += 1
        self.gate.open()

    def _claim(self) -> Lane | None:
        """Return the lane with the next work for a sampler thread, or None if there is no work now."""
        # A batch starts after its trace was taken. Only then is it known whether the batch was kept.
        is_inspected = self.traces is None or self.batches.started < self.traces.taken
        if is_inspected and self._may_start(self.batches):
            return self.batches
        return self.traces if self.traces is not None and self._may_start(self.traces) else None

    def _may_start(self, lane: Lane) -> bool:
        """Return whether the lane's next item may be sampled now."""
        return lane.started < min(lane.taken + self._ahead, self._num_batches, self.num_ready)


class Ring:
    """One rank's feature buffers, and whether its training loop holds one.

    The loop's variable holds a batch, and so the batch's buffer, until the next batch replaces it or the loop's
    function returns. With only one buffer, the request for a batch returns the last batch's buffer. With several ranks
    this is not done, because another process gathered the batches.
    """

    def __init__(self, clock: Clock, shape: PipelineShape) -> None:
        self._left = shape.num_buffers  # free buffers
        self._gate = Gate(clock)
        # Whether a request returns the buffer.
        self._is_emptied = shape.num_buffers == 1 and shape.num_ranks == 1
        self._is_lent = False  # whether the loop holds a buffer

    def acquire(self) -> Waits:
        """Take a buffer, waiting for one."""
        while not self._left:
            yield self._gate
        self._left -= 1

    def release(self) -> None:
        """Return a buffer."""
        self._left += 1
        self._gate.open()

    def lend(self) -> None:
        """Give the loop a buffer in place of its last one."""
        self.take_back()
        self._is_lent = True

    def ask(self) -> None:
        """Record that the loop requests a batch."""
        if self._is_emptied:
            self.take_back()

    def take_back(self) -> None:
        """Return the loop's buffer, if it holds one."""
        if self._is_lent:
            self._is_lent = False
            self.release()


class StepBarrier:
    """The barrier at each step's end, where the ranks sum their gradients."""

    def __init__(self, clock: Clock, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._arrived = 0  # ranks that wait for the present step's end
        self._ended = 0  # steps that have ended
        self._gate = Gate(clock)

    def meet(self) -> Waits:
        """Wait until every rank has arrived."""
        step = self._ended
        self._arrived += 1
        if self._arrived == self._num_ranks:
            self._arrived = 0
            self._ended += 1
            self._gate.open()
        yield from self.reach((step + 1) * self._num_ranks)

    def reach(self, num_batches: int) -> Waits:
        """Wait until the steps of ``num_batches`` batches have ended."""
        while self._ended * self._num_ranks < num_batches:
            yield self._gate


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A replay's result."""

    events: tuple[Event, ...]  # ordered by end
    # By epoch: mean seconds of a step, which is a computation and the wait for other ranks after it.
    step_s: dict[int, float]
    epoch_s: dict[int, float]  # by epoch: from the request for the first batch to the last step
    last_event: dict[int, int]  # by epoch: number of the event that ended it

    @property
    def seconds(self) -> float:
        """Seconds over all epochs."""
        return sum(self.epoch_s.values())

    def mean_s(self, epochs: Collection[int]) -> float:
        """Return the mean seconds per epoch, over ``epochs``."""
        return sum(self.epoch_s[epoch] for epoch in epochs) / len(epochs)


def replay(work: RunWork, machine: Machine, shape: PipelineShape) -> Replayed:
    """Return the replay of ``work`` on a machine, in a pipeline with this shape. Pure.

    Parameters
    ----------
    work : the run's work
    machine : the cores and the resources' speeds
    shape : the threads, and the limits for items between them

    Raises
    ------
    ReplayError
        There is no batch, the superbatches do not cover exactly the batches, ranks have different numbers of batches,
        or no pipeline can have this shape.
    """
    if not work.batches:
        raise ReplayError("there is no batch to replay")
    if shape.is_planned and sum(one.num_batches for one in work.superbatches) != len(work.batches):
        raise ReplayError("the superbatches are not those of the batches")
    if len(work.batches) % shape.num_ranks:
        raise ReplayError(
            f"{len(work.batches):,} batches are not the same number for each of {shape.num_ranks} ranks"
        )
    return _ReplayRun(work, machine, shape).run()


class _ReplayRun:
    """One replay: its threads, and the channels, rings and gates between them.

    With several ranks, the batch at stream position p belongs to rank p modulo the number of ranks. The thread of
    `_share` hands gathered batches to the ranks. A channel's items are stream positions, or numbers of superbatches.
    """

    def __init__(self, work: RunWork, machine: Machine, shape: PipelineShape) -> None:
        clock = self._clock = Clock(machine)
        self._work = work
        self._shape = shape
        self._pool = Pool(clock, work, shape)
        # One permit per superbatch that may be planned now. The last gather of a superbatch returns its permit.
        self._permits: ReplayChannel[None] = ReplayChannel(clock, float("inf"))
        self._channels: dict[str, ReplayChannel[int]] = {
            link.puts: ReplayChannel(clock, shape.waiting) for link in shape.links
        }
        self._gathered = self._channels["gathered"]
        # The stage "stage" waits here before superbatch 1, until the first batches of superbatch 0 have been read.
        self._first_read: ReplayChannel[None] = ReplayChannel(clock, shape.waiting)
        sizes = [one.num_batches for one in work.superbatches]
        # The position of each superbatch's first batch.
        self._firsts = [end - size for end, size in zip(accumulate(sizes), sizes, strict=True)]
        # Batches read before superbatch 1 is staged.
        self._num_first = min(shape.unit, sizes[0]) if sizes else 0
        self._splits = {*self._firsts, len(work.batches)}  # positions where superbatches begin and end
        self._collected = 0  # number of superbatches whose traces were all taken
        ranks = range(shape.num_ranks)
        # By rank: channels for the rank's gathered batches, and for its batches on the device.
        self._dealt: list[ReplayChannel[int]] = [ReplayChannel(clock, float("inf")) for _ in ranks]
        self._sent: list[ReplayChannel[int]] = [ReplayChannel(clock, shape.sent_ahead) for _ in ranks]
        self._rings = [Ring(clock, shape) for _ in ranks]
        self._begun = [0 for _ in ranks]  # by rank: number of batches whose computation has started
        self._pace = [Gate(clock) for _ in ranks]  # by rank: opened at the start of each computation
        self._steps = StepBarrier(clock, shape.num_ranks if shape.is_synchronous else 1)
        self._step_s: dict[int, list[float]] = defaultdict(list)
        self._epoch_s: dict[int, float] = {}
        self._last_event: dict[int, int] = {}

    def run(self) -> Replayed:
        """Start all threads, run the clock until the loops have ended, and return the times."""
        clock, shape = self._clock, self._shape
        # The loops start first, because the other threads serve them.
        for rank in range(shape.num_ranks):
            clock.start(self._loop(rank))
        for _ in range(shape.sampler_threads):
            clock.start(self._pool.sampler())
        if self._work.passes:
            clock.start(self._sweep())
        if shape.is_planned:
            for _ in range(shape.planned_at_once):
                list(self._permits.put(None))  # runs the generator to its end: this channel is never full
        for link in shape.links:
            clock.start(self._stage(link))
        if shape.num_ranks > 1:
            clock.start(self._share())
        if shape.is_sending:
            for rank in range(shape.num_ranks):
                clock.start(self._send(rank))
        clock.run(awaited=shape.num_ranks)
        return Replayed(
            events=tuple(clock.events),
            step_s={epoch: sum(steps) / len(steps) for epoch, steps in self._step_s.items()},
            epoch_s=self._epoch_s,
            last_event=self._last_event,
        )

    def _sweep(self) -> Thread:
        """Make one pass over the edges after another. A pass that is too far ahead of the samplers waits."""
        pool, last = self._pool, len(self._work.batches) - 1
        for edge_pass in self._work.passes:
            while edge_pass.completed - pool.num_made > edge_pass.most_waiting:
                yield pool.gate
            yield Job("sweep", min(pool.num_ready, last), edge_pass.sweep)
            pool.num_ready = max(pool.num_ready, edge_pass.completed)
            pool.gate.open()

    def _stage(self, link: StageLink) -> Thread:
        """Work on one item after another, like `gloader.pipeline.threads.stage_thread`."""
        work, out = self._work, self._channels[link.puts]
        items = work.superbatches if link.is_of_superbatches else work.batches
        positions = self._firsts if link.is_of_superbatches else range(len(items))
        for number, (position, item) in enumerate(zip(positions, items, strict=True)):
            for wait in self._waits(link, number):
                yield from wait
            yield Job(link.stage, position, getattr(item, link.stage))
            if "filled" in link.takes and number + 1 in self._splits:  # the last batch of a superbatch
                yield from self._permits.put(None)
            yield from out.put(number)

    def _waits(self, link: StageLink, number: int) -> list[Generator[Job | Gate, None, object]]:
        """Return an item's waits in order, as in `gloader.pipeline.flow`: inputs, a permit, a buffer, steps, the disk.

        Parameters
        ----------
        link : the stage
        number : the item's number: a batch's stream position, or a superbatch's number
        """
        waits: list[Generator[Job | Gate, None, object]] = []
        # The first batches were read, so superbatch 1 may have the disk.
        if link.stage == "read" and number == self._num_first:
            waits.append(self._first_read.put(None))
        for name in link.takes:
            if name == "traces":
                waits += (self._collect(number), self._permits.get())
            elif name == "sampled":
                waits.append(self._pool.take(self._pool.batches))
            # A superbatch is taken from "staged" only with its first batch.
            elif name != "staged" or number in self._splits:
                waits.append(self._channels[name].get())
        if link.stage == self._shape.filling:
            waits.append(self._ring_of(number).acquire())
        if link.stage == "read" and (open_steps := self._work.batches[number].open_steps) is not None:
            ranks = self._shape.num_ranks
            waits.append(self._steps.reach((number // ranks - open_steps) * ranks))
        if link.stage == "stage" and number == 1:
            waits.append(self._first_read.get())
        return waits

    def _collect(self, number: int) -> Waits:
        """Wait for the traces that the plan of superbatch ``number`` needs.

        These are its own traces and, except for the first superbatch, the next superbatch's traces.
        """
        superbatches, traces = self._work.superbatches, self._pool.traces
        num_needed = min(number + 2, len(superbatches)) if number else 1
        while self._collected < num_needed and traces is not None:
            for _ in range(superbatches[self._collected].num_batches):
                yield from self._pool.take(traces)
            self._collected += 1

    def _share(self) -> Thread:
        """Hand each gathered batch to its rank, if there are several ranks."""
        for position in range(len(self._work.batches)):
            yield from self._gathered.get()
            yield from self._dealt[position % self._shape.num_ranks].put(position)

    def _send(self, rank: int) -> Thread:
        """Send a rank's batches to its device, at most ``sent_ahead`` batches before their computations."""
        source = self._source(rank)
        for number, position in enumerate(self._positions(rank)):
            yield from source.get()
            while (
                number >= self._shape.sent_ahead and self._begun[rank] < number + 1 - self._shape.sent_ahead
            ):
                yield self._pace[rank]
            yield Job("transfer", position, self._work.batches[position].transfer)
            self._rings[rank].release()
            yield from self._sent[rank].put(position)

    def _loop(self, rank: int) -> Thread:
        """Take a rank's batches and compute, as the training loop does. Rank 0's times are the run's times."""
        clock, epoch, began_s = self._clock, None, 0.0
        for position in self._positions(rank):
            batch = self._work.batches[position]
            if batch.epoch != epoch:
                self._rings[rank].take_back()  # before a pause between two epochs
            if batch.pause_s:
                yield Job("pause", position, Demands(lag_s=batch.pause_s))
            if batch.epoch != epoch:
                epoch, began_s = batch.epoch, clock.now_s
            yield from self._receive(rank, position)
            self._begun[rank] += 1
            self._pace[rank].open()
            step_began_s = clock.now_s
            yield Job("compute", position, batch.compute)
            yield from self._steps.meet()
            if rank == 0:
                self._step_s[epoch].append(clock.now_s - step_began_s)
                self._epoch_s[epoch] = clock.now_s - began_s
                self._last_event[epoch] = clock.cause

    def _receive(self, rank: int, position: int) -> Waits:
        """Wait for a batch. Without a sender thread, the loop's own thread sends it to the device."""
        if self._shape.is_sending:
            yield from self._sent[rank].get()
            return
        self._rings[rank].ask()
        yield from self._source(rank).get()
        transfer = self._work.batches[position].transfer
        if transfer is not NOTHING:
            yield Job("transfer", position, transfer)
        self._rings[rank].lend()

    def _source(self, rank: int) -> ReplayChannel[int]:
        """Return the channel with a rank's gathered batches."""
        return self._gathered if self._shape.num_ranks == 1 else self._dealt[rank]

    def _ring_of(self, position: int) -> Ring:
        return self._rings[position % self._shape.num_ranks]

    def _positions(self, rank: int) -> Sequence[int]:
        """Return the stream positions of a rank's batches."""
        return range(rank, len(self._work.batches), self._shape.num_ranks)
