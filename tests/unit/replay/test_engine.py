"""The clock of a replay: who shares what, what follows, what is the cause of what, and threads that are stuck."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from gloader.errors import ReplayError
from gloader.replay.engine import Clock, Event, Gate, Job
from gloader.replay.work import RESOURCES, Demands, Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.replay.engine import Thread

CPU, DISK, SPILL, LINK, DEVICE, NETWORK = range(len(RESOURCES))
NONE = len(RESOURCES)


def work(stage: str, *demands: Demands) -> Thread:
    for number, one in enumerate(demands):
        yield Job(stage, number, one)


def run(machine: Machine, *threads: Thread) -> list[Event]:
    clock = Clock(machine)
    for thread in threads:
        clock.start(thread)
    clock.run(awaited=len(threads))
    return clock.events


def times(machine: Machine, *demands: Demands) -> list[float]:
    """Return when pieces of work end that begin together, each in a thread of its own."""
    events = run(machine, *(work(str(number), one) for number, one in enumerate(demands)))
    return [event.ended_s for event in sorted(events, key=lambda event: int(event.stage))]


def test_work_alone_takes_what_it_needs_most_of_and_its_lag() -> None:
    demands = Demands(cpu_s=2.0, cores=2.0, disk_s=3.0, network_s=0.5, lag_s=0.25)
    assert demands.alone_s == 3.25
    (event,) = run(Machine(cores=2), work("read", demands))
    assert event == Event("read", 0, 0, 0.0, 3.25, demands, DISK, -1)


@pytest.mark.parametrize(
    ("cores", "wanted", "expected"),
    [
        (1, [1, 1], [4.0, 4.0]),  # half a core each
        (2, [1, 1], [2.0, 2.0]),
        (2, [1, 1, 1], [3.0, 3.0, 3.0]),  # two thirds each
        (2, [2, 1], [1.5, 2.5]),  # three threads get two thirds of a core each; then one is alone
        (4, [2, 1], [1.0, 2.0]),  # nobody uses more than they can
        (1, [2, 2], [4.0, 4.0]),
        (1.5, [1, 1], [8 / 3, 8 / 3]),
        (2, [0.5, 1], [4.0, 2.0]),  # one that keeps half a core busy
        (math.inf, [1, 1, 1], [2.0, 2.0, 2.0]),
    ],
)
def test_cores_are_shared_by_those_who_want_to_run(
    cores: float, wanted: Sequence[float], expected: list[float]
) -> None:
    found = times(Machine(cores=cores), *(Demands(cpu_s=2.0, cores=one) for one in wanted))
    assert found == pytest.approx(expected, rel=1e-12)


def test_three_jobs_of_different_length_on_two_cores() -> None:
    # 1.5 s until the shortest has its 1 s; then a core for each of the others.
    found = times(Machine(cores=2), Demands(cpu_s=1.0), Demands(cpu_s=2.0), Demands(cpu_s=3.0))
    assert found == pytest.approx([1.5, 2.5, 3.5], rel=1e-12)


@pytest.mark.parametrize("name", RESOURCES[1:])
def test_there_is_one_of_everything_else(name: str) -> None:
    # Half each until the first has enough, all of it then.
    short, long = Demands(**{f"{name}_s": 1.0}), Demands(**{f"{name}_s": 3.0})
    assert times(Machine(cores=9), short, long) == [2.0, 4.0]
    assert times(Machine(cores=9, speed={name: 2.0}), short, long) == [1.0, 2.0]


def test_who_comes_later_shares_from_then_on() -> None:
    late = work("late", Demands(lag_s=1.0), Demands(disk_s=1.0))
    events = run(Machine(cores=1), work("sweep", Demands(disk_s=3.0)), late)
    # The sweep alone for 1 s, both for 2 s, the sweep alone for its last 1 s.
    assert [(e.stage, e.started_s, e.ended_s) for e in events] == [
        ("late", 0.0, 1.0),
        ("late", 1.0, 3.0),
        ("sweep", 0.0, 4.0),
    ]


def test_resources_are_used_at_the_same_time_and_apart() -> None:
    # One is done with the disk while the processor is still shared.
    both, one = Demands(cpu_s=2.0, disk_s=1.0), Demands(cpu_s=1.0)
    events = run(Machine(cores=1), work("both", both), work("one", one))
    assert [(e.stage, e.ended_s, e.limit) for e in events] == [("one", 2.0, CPU), ("both", 3.0, CPU)]


@pytest.mark.parametrize(
    ("demands", "limit"),
    [
        (Demands(cpu_s=2.0, disk_s=1.0), CPU),
        (Demands(cpu_s=1.0, disk_s=2.0), DISK),
        (Demands(spill_s=1.0, lag_s=9.0), SPILL),
        (Demands(link_s=1.0, device_s=1.5, network_s=1.25), DEVICE),
        (Demands(cpu_s=1.0, cores=4.0, network_s=0.5), NETWORK),
        (Demands(lag_s=1.0), NONE),
        (Demands(), NONE),
    ],
)
def test_the_limit_is_what_was_had_last_before_the_lag(demands: Demands, limit: int) -> None:
    (event,) = run(Machine(cores=4), work("x", demands))
    assert event.limit == limit
    assert event.ended_s == demands.alone_s


def test_a_lag_follows_and_is_nobody_s() -> None:
    demands = Demands(cpu_s=1.0, lag_s=2.0)
    events = run(Machine(cores=1), work("a", demands), work("b", demands), work("c", Demands(lag_s=2.0)))
    assert [(e.stage, e.ended_s) for e in events] == [("c", 2.0), ("a", 4.0), ("b", 4.0)]


def test_work_is_held_up_for_what_others_use_while_it_is_at_work() -> None:
    held_up = Demands(cpu_s=1.0, lag_s=0.25, held_up=0.5)
    (alone,) = run(Machine(cores=2), work("x", held_up))
    assert (alone.ended_s, alone.meanwhile_s, alone.lag_s) == (1.25, 0.0, 0.25)
    others = Demands(cpu_s=8.0, cores=2.0)
    beside = run(Machine(cores=3), work("x", held_up), work("others", others))[0]
    assert (beside.ended_s, beside.meanwhile_s, beside.lag_s) == (2.25, 2.0, 1.25)
    # On one core it takes longer, and others use two thirds of that.
    shared = run(Machine(cores=1), work("x", held_up), work("others", others))[0]
    assert (shared.ended_s, shared.meanwhile_s) == (pytest.approx(4.25), pytest.approx(2.0))
    # Others that wait for the disk hold nobody up, nor does work that needs nothing of a resource wait for anybody.
    reads = work("reads", Demands(disk_s=8.0))
    assert run(Machine(cores=2), work("x", held_up), reads)[0].ended_s == 1.25
    idle = work("x", Demands(lag_s=0.5, held_up=0.5))
    assert run(Machine(cores=2), idle, work("others", others))[0].ended_s == 0.5


@pytest.mark.parametrize("disk", ["disk_s", "spill_s"])
def test_work_stands_in_line_where_others_are_at_its_disk_as_it_comes(disk: str) -> None:
    reads = Demands(lag_s=0.25, in_line_s=2.0)._replace(**{disk: 1.0})
    (alone,) = run(Machine(cores=2), work("x", reads))
    assert (alone.ended_s, alone.in_line, alone.in_line_s) == (1.25, False, 0.0)
    sweep = Demands()._replace(**{disk: 8.0})
    beside = run(Machine(cores=2), work("sweep", sweep), work("x", reads))[0]
    # Half of the disk, and then the line.
    assert (beside.ended_s, beside.in_line, beside.in_line_s, beside.lag_s) == (4.25, True, 2.0, 0.25)
    # Whoever comes later stands behind it; work that needs other things stands nowhere.
    first = run(Machine(cores=2), work("x", reads), work("sweep", sweep))[0]
    assert (first.ended_s, first.in_line) == (2.25, False)
    elsewhere = work("x", reads._replace(disk_s=0.0, spill_s=0.0, cpu_s=1.0))
    assert run(Machine(cores=2), work("sweep", sweep), elsewhere)[0].ended_s == 1.25


def test_a_resource_that_is_free_takes_no_time_and_keeps_nobody() -> None:
    free = Machine(cores=1, speed={"disk": math.inf})
    assert times(free, Demands(disk_s=5.0, lag_s=1.0), Demands(disk_s=5.0, cpu_s=2.0)) == [1.0, 2.0]
    all_free = Machine(cores=1, speed=dict.fromkeys(RESOURCES, math.inf))
    (event,) = run(all_free, work("x", Demands(3.0, 1.0, 3.0, 3.0, 3.0, 3.0, 3.0)))
    assert (event.ended_s, event.limit) == (0.0, NONE)


def test_a_faster_machine_is_faster_by_as_much() -> None:
    machine = Machine(cores=1, speed={"cpu": 2.0, "disk": 4.0})
    assert times(machine, Demands(cpu_s=1.0), Demands(cpu_s=1.0), Demands(disk_s=3.0)) == [1.0, 1.0, 0.75]
    assert (machine.speed_of("cpu"), machine.speed_of("link")) == (2.0, 1.0)


def test_work_that_ends_together_goes_on_in_the_order_in_which_it_began() -> None:
    first = [Demands(disk_s=1.0), Demands(cpu_s=1.0), Demands(lag_s=1.0), Demands(link_s=1.0)]
    events = run(Machine(cores=1), *(work(str(number), one) for number, one in enumerate(first)))
    assert [event.stage for event in events] == ["0", "1", "2", "3"]


def test_rounding_does_not_make_an_end_of_its_own() -> None:
    assert 0.1 + 0.1 + 0.1 != 0.3
    events = run(
        Machine(cores=1), work("steps", *[Demands(disk_s=0.1)] * 3), work("once", Demands(cpu_s=0.3))
    )
    assert [event.ended_s for event in events if event.batch == 2 or event.stage == "once"] == [0.3, 0.3]
    # Nor late in a long run, where a last digit is worth more.
    later = Demands(lag_s=1e6)
    steps, once = work("steps", later, *[Demands(disk_s=0.1)] * 3), work("once", later, Demands(cpu_s=0.3))
    *_, last, second = run(Machine(cores=1), steps, once)
    assert {last.stage, second.stage} == {"steps", "once"}
    assert last.ended_s == second.ended_s == pytest.approx(1e6 + 0.3, rel=1e-12)
    long = [Demands(disk_s=1000.1)] * 50
    events = run(Machine(cores=1), work("a", *long), work("b", *long))
    assert events[-1].ended_s == pytest.approx(100_010.0, rel=1e-12)
    assert len({event.ended_s for event in events}) == 50


def test_a_resource_that_was_idle_begins_anew() -> None:
    events = run(Machine(cores=1), work("x", Demands(disk_s=0.1), Demands(lag_s=1e6), Demands(disk_s=1e-3)))
    assert events[-1].ended_s - events[-1].started_s == pytest.approx(1e-3, rel=1e-6)


def test_the_cause_of_work_is_what_its_thread_did_before() -> None:
    events = run(Machine(cores=1), work("a", *[Demands(lag_s=1.0)] * 3), work("b", Demands(lag_s=1.5)))
    assert [(e.stage, e.cause) for e in events] == [("a", -1), ("b", -1), ("a", 0), ("a", 2)]


def test_the_cause_of_work_behind_a_gate_is_what_opened_it() -> None:
    clock = Clock(Machine(cores=1))
    gate, done = Gate(clock), []

    def opens() -> Thread:
        yield Job("slow", 0, Demands(lag_s=2.0))
        done.append(True)
        gate.open()

    def waits() -> Thread:
        yield Job("quick", 0, Demands(lag_s=1.0))
        while not done:
            yield gate
        yield Job("behind", 0, Demands(lag_s=1.0))

    def too_early() -> Thread:
        yield Job("early", 0, Demands(lag_s=1.5))
        gate.open()

    for thread in (opens(), waits(), too_early()):
        clock.start(thread)
    clock.run(awaited=3)
    assert [(e.stage, e.started_s, e.cause) for e in clock.events] == [
        ("quick", 0.0, -1),
        ("early", 0.0, -1),
        ("slow", 0.0, -1),
        ("behind", 2.0, 2),  # not "early", after which it looked in vain
    ]


def test_those_who_wait_go_on_in_the_order_in_which_they_came() -> None:
    clock = Clock(Machine(cores=1))
    gate = Gate(clock)

    def waits(name: str) -> Thread:
        yield gate
        yield Job(name, 0, Demands(lag_s=1.0))

    def opens() -> Thread:
        yield Job("opens", 0, Demands(lag_s=1.0))
        gate.open()

    for thread in (waits("first"), waits("second"), opens()):
        clock.start(thread)
    clock.run(awaited=3)
    assert [event.stage for event in clock.events] == ["opens", "first", "second"]


def test_a_gate_that_nobody_waits_at_is_opened_for_nobody() -> None:
    clock = Clock(Machine(cores=1))
    gate = Gate(clock)

    def late() -> Thread:
        gate.open()
        yield Job("x", 0, Demands(lag_s=1.0))
        yield gate

    clock.start(late())
    with pytest.raises(ReplayError, match=r"^the threads of the replay wait for each other$"):
        clock.run(awaited=1)


def test_threads_that_nobody_waits_for_may_be_anywhere() -> None:
    clock = Clock(Machine(cores=1))
    clock.start(work("awaited", Demands(lag_s=1.0)))
    clock.start(work("other", Demands(lag_s=0.5), Demands(lag_s=5.0)))
    clock.run(awaited=1)
    assert [event.stage for event in clock.events] == ["other", "awaited"]
    assert clock.now_s == 1.0
    assert clock.cause == -1  # no thread is under way
