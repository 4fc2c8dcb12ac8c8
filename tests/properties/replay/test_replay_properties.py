"""The replay of random works: against a twin that knows only who waits for whom, and what must hold of any."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_oracles import Waits, changed, ends, needs_of, starts

from gloader.replay.replay import Replayed, replay
from gloader.replay.work import (
    NOTHING,
    RESOURCES,
    BatchWork,
    Demands,
    Machine,
    PassWork,
    PipelineShape,
    RunWork,
    SuperbatchWork,
)

STAGES = ("trace", "sample", "read", "gather", "transfer", "compute")
OF_THE_DISK = ("trace", "read")
# Exact in binary, and so are sums of them.
LAGS = st.sampled_from([0.0, 0.0, 0.125, 0.5, 1.0, 3.0]).map(
    lambda seconds: Demands(lag_s=seconds) if seconds else NOTHING
)
SECONDS = st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0])
DEMANDS = st.builds(
    lambda needs, cores: Demands(needs[0], cores, *needs[1:]) if any(needs) else NOTHING,
    st.tuples(*[SECONDS] * 7),
    st.sampled_from([0.5, 1.0, 1.0, 2.0]),
)
Run = tuple[RunWork, PipelineShape]


@st.composite
def shapes(draw: st.DrawFn) -> PipelineShape:
    ranks, is_sending = draw(st.sampled_from([1, 1, 2, 3])), draw(st.booleans())
    return PipelineShape(
        features=draw(st.sampled_from(["ram", "ssd", "ssd"])),
        has_embeddings=draw(st.booleans()),
        sampler_threads=draw(st.integers(1, 3)),
        ahead=draw(st.integers(1, 4)),
        num_buffers=draw(st.integers(1 if ranks == 1 or is_sending else 2, 4)),
        planned_at_once=draw(st.sampled_from([1, 2, 2, 3, 5])),
        waiting=draw(st.integers(1, 2)),
        unit=draw(st.sampled_from([1, 1, 2])),
        num_ranks=ranks,
        is_synchronous=draw(st.booleans()),
        is_sending=is_sending,
        sent_ahead=draw(st.integers(1, 3)),
    )


@st.composite
def runs(draw: st.DrawFn, demands: st.SearchStrategy[Demands], *, alike: bool = False) -> Run:
    """Draw a run; with ``alike`` each batch is sampled for as long as any other, so that samples end in order."""
    shape = draw(shapes())
    num, epochs = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    count = num * epochs * shape.num_ranks
    kinds = {name: draw(st.lists(demands, min_size=1, max_size=3)) for name in (*STAGES, "inspect", "stage")}
    if alike:
        kinds["sample"] = kinds["sample"][:1]
    opened: list[int | None] = [None]
    if shape.has_embeddings and (shape.is_synchronous or shape.num_ranks == 1):
        opened = draw(st.lists(st.sampled_from([None, 0, 1, 2, 4]), min_size=1, max_size=3))
    batches = tuple(
        BatchWork(
            epoch=number // (num * shape.num_ranks),
            index=number // shape.num_ranks % num,
            **{name: kinds[name][number % len(kinds[name])] for name in STAGES},
            pause_s=draw(st.sampled_from([0.0, 0.0, 0.0, 2.0])),
            open_steps=opened[number % len(opened)],
        )
        for number in range(count)
    )
    sizes = [min(shape.unit, count)]
    while sum(sizes) < count:
        sizes.append(draw(st.integers(1, min(4, count - sum(sizes)))))
    superbatches = tuple(
        SuperbatchWork(
            num_batches=size,
            inspect=kinds["inspect"][number % len(kinds["inspect"])],
            stage=kinds["stage"][number % len(kinds["stage"])],
        )
        for number, size in enumerate(sizes)
    )
    work = RunWork(batches=batches, superbatches=superbatches if shape.is_planned else ())
    if draw(st.booleans()):
        work = draw(swept(work, demands))
    return work, shape


@st.composite
def swept(draw: st.DrawFn, work: RunWork, demands: st.SearchStrategy[Demands]) -> RunWork:
    count, known = len(work.batches), draw(st.integers(0, min(3, len(work.batches))))
    size = draw(st.integers(1, 4))
    most = 2 * (size + max((one.num_batches for one in work.superbatches), default=1))
    completed = [known, known]  # the wave fills
    while completed[-1] < count:
        completed.append(min(completed[-1] + draw(st.integers(1, size)), count))
    passes = tuple(PassWork(sweep=draw(demands), completed=one, most_waiting=most) for one in completed)
    return replace(work, passes=passes, num_known=known)


def unshared(run: Run) -> Run:
    """Return a run in which nobody waits for a sampler thread."""
    work, shape = run
    return work, replace(shape, sampler_threads=2 * len(work.batches) + 1)


def machines() -> st.SearchStrategy[Machine]:
    speeds = st.dictionaries(st.sampled_from(RESOURCES), st.sampled_from([0.5, 2.0, float("inf")]))
    return st.builds(
        lambda cores, speed: Machine(cores=cores, speed=speed), st.sampled_from([1.0, 2.0, 4.0]), speeds
    )


@given(runs(LAGS, alike=True).map(unshared))
def test_everything_begins_when_what_it_waits_for_is_there(run: Run) -> None:
    work, shape = run
    found, times = replay(work, Machine(cores=1), shape), Waits(work, shape)
    positions = range(len(work.batches))
    assert starts(found, "sample") == [times.sample_start(one) for one in positions]
    assert ends(found, "gather") == [times.gather_end(one) for one in positions]
    assert starts(found, "compute") == [times.computes(one) for one in positions]
    if shape.is_planned:
        numbers = range(len(work.superbatches))
        assert starts(found, "trace") == [times.trace_start(one) for one in positions]
        assert starts(found, "inspect") == [times.inspect_start(one) for one in numbers]
        assert starts(found, "stage") == [times.stage_start(one) for one in numbers]
        assert starts(found, "read") == [times.read_start(one) for one in positions]
    if shape.is_sending:
        assert starts(found, "transfer") == [times.transfer_start(one) for one in positions]
    sweeps = [event.started_s for event in found.events if event.stage == "sweep"]
    assert sweeps == [times.pass_start(number) for number in range(len(sweeps))]
    assert found.epoch_s == times.epoch_s()


@given(runs(DEMANDS), machines())
def test_each_piece_of_work_is_done_once_and_in_order(run: Run, machine: Machine) -> None:
    work, shape = run
    found = replay(work, machine, shape)
    ranks, count = shape.num_ranks, len(work.batches)
    for rank in range(ranks):
        computed = [e.batch for e in found.events if e.stage == "compute" and e.batch % ranks == rank]
        assert computed == list(range(rank, count, ranks))
    stages = ["sample", "gather"]
    if shape.is_planned:
        stages += ["trace", "read"]
        first = [
            sum(one.num_batches for one in work.superbatches[:at]) for at in range(len(work.superbatches))
        ]
        for stage in ("inspect", "stage"):
            assert [event.batch for event in found.events if event.stage == stage] == first
    for stage in stages:
        done = [event.batch for event in found.events if event.stage == stage]
        assert sorted(done) == list(range(count))
        assert done == sorted(done) or (stage in ("trace", "sample") and shape.sampler_threads > 1)
    for event in found.events:
        if event.stage in STAGES:
            assert event.demands == getattr(work.batches[event.batch], event.stage)
    assert set(found.epoch_s) == set(range(work.num_epochs))


@given(runs(DEMANDS), machines())
def test_threads_do_one_thing_at_a_time(run: Run, machine: Machine) -> None:
    work, shape = run
    found = replay(work, machine, shape)
    for thread in {event.thread for event in found.events}:
        mine = [event for event in found.events if event.thread == thread]
        for before, after in pairwise(mine):
            assert before.started_s <= before.ended_s <= after.started_s
    assert [event.ended_s for event in found.events] == sorted(event.ended_s for event in found.events)


@given(runs(DEMANDS), machines())
def test_nothing_takes_less_than_it_does_alone_nor_an_epoch_less_than_any_of_its_threads(
    run: Run, machine: Machine
) -> None:
    work, shape = run
    found = replay(work, machine, shape)
    busy: dict[int, float] = {}
    for event in found.events:
        needs = [
            seconds / machine.speed_of(name)
            for name, seconds in zip(RESOURCES, needs_of(event.demands), strict=True)
        ]
        needs[0] /= min(event.demands.cores, machine.cores)
        alone = max(needs) + event.demands.lag_s
        assert event.ended_s - event.started_s >= alone - 1e-9
        busy[event.thread] = busy.get(event.thread, 0.0) + alone
    assert max(ends(found, "compute")) >= max(busy.values()) - 1e-9


@given(runs(DEMANDS), machines())
def test_no_resource_is_used_above_its_capacity_and_all_is_served(run: Run, machine: Machine) -> None:
    work, shape = run
    found = replay(work, machine, shape)
    capacities = np.array([machine.speed_of(name) for name in RESOURCES])
    capacities[0] *= machine.cores
    started, ended = (np.array([getattr(e, name) for e in found.events]) for name in ("started_s", "ended_s"))
    needs = np.array([needs_of(event.demands) for event in found.events])
    for at in np.unique(started):
        # What began since then and has ended by now took no more than there was: in each resource.
        used = np.cumsum(needs * (started >= at)[:, None], axis=0)
        room = np.maximum(ended - at, 0.0)[:, None] * capacities[capacities < np.inf]
        assert np.all(used[:, capacities < np.inf] <= room + 1e-9)
    done = [one for event in found.events if event.stage != "sweep" for one in needs_of(event.demands)]
    asked = [getattr(batch, stage) for batch in work.batches for stage in _stages(shape)]
    asked += [demands for one in work.superbatches for demands in (one.inspect, one.stage)]
    assert sum(done) == pytest.approx(sum(one for demands in asked for one in needs_of(demands)))


def _stages(shape: PipelineShape) -> list[str]:
    return [name for name in STAGES if shape.is_planned or name not in OF_THE_DISK]


@given(runs(DEMANDS), machines())
def test_each_piece_of_work_begins_as_another_ends_back_to_where_its_epoch_began(
    run: Run, machine: Machine
) -> None:
    work, shape = run
    found = replay(work, machine, shape)
    for event in found.events:
        if event.cause < 0:
            assert event.started_s == 0.0
        else:
            assert found.events[event.cause].ended_s == event.started_s
    assert list(found.last_event) == list(found.epoch_s)
    for epoch, number in found.last_event.items():
        last = found.events[number]
        assert last.stage == "compute"
        assert work.batches[last.batch].epoch == epoch
        assert last.ended_s == max(
            event.ended_s
            for event in found.events
            if event.stage == "compute"
            and work.batches[event.batch].epoch == epoch
            and (shape.is_synchronous or event.batch % shape.num_ranks == 0)
        )
        begin = last.ended_s - found.epoch_s[epoch]
        assert _chain_begins(found, number) <= begin + 1e-9


def _chain_begins(found: Replayed, number: int) -> float:
    """Return when the chain of causes behind an event began, which has no gaps."""
    at = found.events[number].ended_s
    while number >= 0:
        assert found.events[number].ended_s == at
        at, number = found.events[number].started_s, found.events[number].cause
    return at


@given(runs(DEMANDS), machines())
def test_the_same_run_again_is_the_same(run: Run, machine: Machine) -> None:
    work, shape = run
    assert replay(work, machine, shape) == replay(work, machine, shape)


@given(
    runs(LAGS, alike=True).map(unshared),
    st.sampled_from(["num_buffers", "planned_at_once", "waiting", "ahead"]),
)
def test_more_room_never_costs_time_where_nobody_shares(run: Run, bound: str) -> None:
    work, shape = run
    roomier = replace(shape, **{bound: getattr(shape, bound) + 1})
    before, after = (replay(work, Machine(cores=1), one) for one in (shape, roomier))
    assert max(ends(after, "compute")) <= max(ends(before, "compute"))


@given(runs(LAGS, alike=True).map(unshared), st.sampled_from(STAGES))
def test_a_faster_stage_never_costs_time_where_nobody_shares(run: Run, stage: str) -> None:
    work, shape = run
    faster = changed(work, **{stage: NOTHING})
    before, after = (replay(one, Machine(cores=1), shape) for one in (work, faster))
    assert max(ends(after, "compute")) <= max(ends(before, "compute"))


@given(runs(DEMANDS), st.sampled_from([0.5, 4.0]))
def test_twice_as_fast_in_all_is_half_the_time(run: Run, factor: float) -> None:
    def busy(demands: Demands) -> Demands:
        return demands._replace(lag_s=0.0)

    work, shape = run
    work = replace(
        work,
        batches=tuple(
            replace(one, pause_s=0.0, **{name: busy(getattr(one, name)) for name in STAGES})
            for one in work.batches
        ),
        superbatches=tuple(
            replace(one, inspect=busy(one.inspect), stage=busy(one.stage)) for one in work.superbatches
        ),
        passes=tuple(replace(one, sweep=busy(one.sweep)) for one in work.passes),
    )
    before = replay(work, Machine(cores=2), shape)
    after = replay(work, Machine(cores=2, speed=dict.fromkeys(RESOURCES, factor)), shape)
    assert list(after.epoch_s.values()) == pytest.approx(
        [seconds / factor for seconds in before.epoch_s.values()], abs=1e-9
    )


@given(runs(DEMANDS))
def test_more_cores_than_all_threads_could_use_are_of_no_use(run: Run) -> None:
    work, shape = run
    threads = shape.sampler_threads + 2 * shape.num_ranks + 6
    few, many = (replay(work, Machine(cores=cores), shape) for cores in (2.0 * threads, float("inf")))
    assert few.events == many.events
