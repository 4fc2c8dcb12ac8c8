"""The clock against exact fractions: who shares a resource with whom, and who has enough when."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_oracles import needs_of, shared_times

from gloader.replay.engine import Clock, Job
from gloader.replay.work import RESOURCES, Demands, Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.replay.engine import Event, Thread

SECONDS = st.sampled_from([0.0, 0.0, 0.125, 0.3, 1.0, 2.5])
DEMANDS = st.builds(
    lambda needs, cores, held_up: Demands(needs[0], cores, *needs[1:], held_up),
    st.tuples(*[SECONDS] * 7),
    st.sampled_from([0.5, 1.0, 1.0, 2.0, 3.0]),
    st.sampled_from([0.0, 0.0, 0.25, 1.0]),
)
THREADS = st.lists(st.lists(DEMANDS, min_size=1, max_size=5), min_size=1, max_size=5)
SPEEDS = st.dictionaries(st.sampled_from(RESOURCES), st.sampled_from([0.25, 2.0, 3.0]))
MACHINES = st.builds(
    lambda cores, speed: Machine(cores=cores, speed=speed), st.sampled_from([1.0, 1.5, 2.0, 4.0]), SPEEDS
)


def run(threads: Sequence[Sequence[Demands]], machine: Machine) -> list[Event]:
    """Return what becomes of threads that wait for nobody, in the order in which it ended."""

    def thread(number: int) -> Thread:
        for at, demands in enumerate(threads[number]):
            yield Job(f"thread {number}", at, demands)

    clock = Clock(machine)
    for number in range(len(threads)):
        clock.start(thread(number))
    clock.run(awaited=len(threads))
    return clock.events


@given(THREADS, MACHINES)
def test_jobs_share_resources_as_exact_fractions_say(threads: list[list[Demands]], machine: Machine) -> None:
    events = run(threads, machine)
    for number, expected in enumerate(shared_times(threads, machine)):
        mine = sorted((one for one in events if one.thread == number), key=lambda one: one.batch)
        found = [moment for one in mine for moment in (one.started_s, one.ended_s)]
        assert found == pytest.approx([float(moment) for pair in expected for moment in pair], abs=1e-9)
        assert [one.demands for one in mine] == threads[number]


@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=8), st.integers(1, 8))
def test_jobs_that_begin_together_end_as_the_formula_of_processor_sharing_says(
    seconds: list[float], cores: int
) -> None:
    # The k-th to end has got as much as all that are left since the one before it ended.
    at, before, left = 0.0, 0.0, len(seconds)
    expected = []
    for needed in sorted(seconds):
        at += (needed - before) * max(left / cores, 1.0)
        before, left = needed, left - 1
        expected.append(at)
    events = run([[Demands(cpu_s=needed)] for needed in seconds], Machine(cores=cores))
    assert [event.ended_s for event in events] == pytest.approx(expected, rel=1e-9)
    assert [event.demands.cpu_s for event in events] == sorted(seconds)


@given(THREADS, MACHINES)
def test_a_thread_alone_takes_what_its_demands_say(threads: list[list[Demands]], machine: Machine) -> None:
    alone = run(threads[:1], machine)
    at = 0.0
    for event in alone:
        needs = [
            seconds / machine.speed_of(name)
            for name, seconds in zip(RESOURCES, needs_of(event.demands), strict=True)
        ]
        needs[0] /= min(event.demands.cores, machine.cores)
        at += max(needs) + event.demands.lag_s
        assert event.ended_s == pytest.approx(at, abs=1e-9)


@given(THREADS, MACHINES)
def test_others_never_make_a_resource_faster_than_it_is(
    threads: list[list[Demands]], machine: Machine
) -> None:
    events = run(threads, machine)
    for began in {event.started_s for event in events}:
        for ended in {event.ended_s for event in events}:
            within = [event for event in events if began <= event.started_s and event.ended_s <= ended]
            for number, name in enumerate(RESOURCES):
                used = sum(needs_of(event.demands)[number] for event in within) / machine.speed_of(name)
                capacity = machine.cores if name == "cpu" else 1.0
                assert used <= capacity * max(ended - began, 0.0) + 1e-9


@given(THREADS, st.sampled_from([1.0, 2.0]), st.sampled_from([0.25, 2.0, 7.0]))
def test_twice_as_fast_in_all_is_half_the_time(
    threads: list[list[Demands]], cores: float, factor: float
) -> None:
    busy = [[demands._replace(lag_s=0.0) for demands in thread] for thread in threads]
    before = run(busy, Machine(cores=cores))
    after = run(busy, Machine(cores=cores, speed=dict.fromkeys(RESOURCES, factor)))
    assert [event.ended_s for event in after] == pytest.approx(
        [event.ended_s / factor for event in before], abs=1e-9
    )


@given(THREADS)
def test_what_is_free_takes_no_time(threads: list[list[Demands]]) -> None:
    free = Machine(cores=1.0, speed=dict.fromkeys(RESOURCES, math.inf))
    for event in run(threads, free):
        assert event.ended_s - event.started_s == pytest.approx(event.demands.lag_s, abs=1e-12)


@given(THREADS)
def test_more_cores_than_all_could_use_are_of_no_use(threads: list[list[Demands]]) -> None:
    wanted = sum(max(demands.cores for demands in thread) for thread in threads)
    assert run(threads, Machine(cores=wanted)) == run(threads, Machine(cores=math.inf))
