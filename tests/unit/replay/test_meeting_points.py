"""The waits of a replay's threads, one by one: channels, the sampler pool, rings, steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from replay_oracles import batches_of, lags

from gloader.replay.engine import Clock, Job
from gloader.replay.replay import Pool, ReplayChannel, Ring, StepBarrier
from gloader.replay.work import Demands, Machine, PipelineShape, RunWork

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.replay.engine import Thread
    from gloader.replay.replay import Waits

RAM, SSD = PipelineShape(features="ram", num_buffers=2), PipelineShape(features="ssd", ahead=2)


def pause(seconds: float) -> Job:
    return Job("pause", 0, Demands(lag_s=seconds))


def started(clock: Clock, *threads: Thread, awaited: int | None = None) -> None:
    for thread in threads:
        clock.start(thread)
    clock.run(awaited=len(threads) if awaited is None else awaited)


@pytest.mark.parametrize(("capacity", "puts"), [(1, [0.0, 2.0, 4.0]), (2, [0.0, 0.0, 2.0])])
def test_a_channel_hands_over_in_order_and_keeps_so_many(capacity: int, puts: list[float]) -> None:
    clock = Clock(Machine(cores=1))
    channel: ReplayChannel[int] = ReplayChannel(clock, capacity)
    put, got = [], []

    def giver() -> Thread:
        for number in range(3):
            yield from channel.put(number)
            put.append(clock.now_s)

    def taker() -> Thread:
        for _ in range(3):
            yield pause(2.0)
            got.append((yield from channel.get()))

    started(clock, taker(), giver())
    assert (put, got) == (puts, [0, 1, 2])


def test_who_asks_an_empty_channel_waits() -> None:
    clock = Clock(Machine(cores=1))
    channel: ReplayChannel[str] = ReplayChannel(clock, 1)
    got = []

    def taker() -> Thread:
        for _ in range(2):
            item = yield from channel.get()
            got.append((clock.now_s, item))

    def giver() -> Thread:
        yield pause(3.0)
        yield from channel.put("first")
        yield pause(1.0)
        yield from channel.put("second")

    started(clock, taker(), giver())
    assert got == [(3.0, "first"), (4.0, "second")]


def test_a_ring_gives_as_many_buffers_as_it_has() -> None:
    clock = Clock(Machine(cores=1))
    ring, taken = Ring(clock, RAM), []

    def gather() -> Thread:
        for _ in range(3):
            yield from ring.acquire()
            taken.append(clock.now_s)

    def loop() -> Thread:
        yield pause(5.0)
        ring.release()

    started(clock, gather(), loop())
    assert taken == [0.0, 0.0, 5.0]


@pytest.mark.parametrize(
    ("buffers", "ranks", "is_free"),
    [(1, 1, True), (2, 1, False), (1, 2, False)],
)
def test_asking_empties_the_only_buffer_of_one_rank(buffers: int, ranks: int, is_free: bool) -> None:
    assert _is_free(buffers, ranks, Ring.ask) == is_free
    # At the end of an epoch it is free in any case.
    assert _is_free(buffers, ranks, Ring.take_back)


def _is_free(buffers: int, ranks: int, then: Callable[[Ring], None]) -> bool:
    """Return whether a buffer is free once all are taken and one of them was lent."""
    clock = Clock(Machine(cores=1))
    ring = Ring(clock, PipelineShape(features="ram", num_buffers=buffers, num_ranks=ranks))
    free = []

    def gather() -> Thread:
        for _ in range(buffers + 1):
            yield from ring.acquire()
        free.append(True)

    def loop() -> Thread:
        ring.lend()
        then(ring)
        then(ring)  # gives nothing twice
        yield pause(1.0)

    started(clock, loop(), gather(), awaited=1)
    return bool(free)


def test_a_loop_holds_one_buffer_at_a_time() -> None:
    clock = Clock(Machine(cores=1))
    ring, taken = Ring(clock, RAM), []

    def gather() -> Thread:
        for _ in range(4):
            yield from ring.acquire()
            taken.append(clock.now_s)

    def loop() -> Thread:
        for _ in range(3):
            yield pause(1.0)
            ring.lend()
        ring.take_back()
        ring.take_back()

    started(clock, loop(), gather(), awaited=1)
    # The first lent is held until the second is, at 2, and that one until the third is, at 3.
    assert taken == [0.0, 0.0, 2.0, 3.0]


def test_those_who_meet_go_on_together() -> None:
    clock = Clock(Machine(cores=1))
    steps, met = StepBarrier(clock, 3), []

    def rank(seconds: float) -> Thread:
        for _ in range(2):
            yield pause(seconds)
            yield from steps.meet()
            met.append((seconds, clock.now_s))

    started(clock, rank(1.0), rank(3.0), rank(2.0))
    assert sorted(met) == [(1.0, 3.0), (1.0, 6.0), (2.0, 3.0), (2.0, 6.0), (3.0, 3.0), (3.0, 6.0)]


def test_one_alone_meets_nobody() -> None:
    clock = Clock(Machine(cores=1))
    assert list(StepBarrier(clock, 1).meet()) == []


def test_a_pool_makes_traces_only_where_somebody_asks_for_them() -> None:
    work = RunWork(batches=batches_of(3, **lags(sample=1.0, trace=1.0)))
    assert Pool(Clock(Machine(cores=1)), work, RAM).traces is None
    clock = Clock(Machine(cores=1))
    pool, taken = Pool(clock, work, SSD), []
    assert pool.traces is not None

    def who_plans() -> Waits:
        yield pause(5.0)
        for _ in range(3):
            yield from pool.take(pool.traces)

    def who_reads() -> Waits:
        for _ in range(3):
            yield from pool.take(pool.batches)
            taken.append(clock.now_s)

    started(clock, who_reads(), who_plans(), pool.sampler())
    # Two traces are there at 2, and taken at 5; then batches go first.
    assert taken == [6.0, 7.0, 9.0]
    assert [(event.stage, event.batch) for event in clock.events if event.stage != "pause"] == [
        ("trace", 0),
        ("trace", 1),
        ("sample", 0),
        ("sample", 1),
        ("trace", 2),
        ("sample", 2),
    ]
    assert pool.num_made == 3
