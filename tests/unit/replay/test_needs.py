"""An epoch's need of each resource and thread, without work that an earlier epoch or a pause can do."""

from __future__ import annotations

import pytest

from gloader.errors import ReplayError
from gloader.replay.floor import find_floor, floor_of, needs_of, without_reads
from gloader.replay.replay import replay
from gloader.replay.work import (
    NOTHING,
    BatchWork,
    Demands,
    Machine,
    PassWork,
    PipelineShape,
    RunWork,
    SuperbatchWork,
)

TWO_CORES = Machine(cores=2.0)
RAM = PipelineShape(features="ram")
SSD = PipelineShape(features="ssd")


def batches(count: int, *, epochs: int = 1, **demands: Demands) -> tuple[BatchWork, ...]:
    return tuple(
        BatchWork(epoch=number // (count // epochs), index=number % (count // epochs), **demands)
        for number in range(count)
    )


def test_the_floor_of_a_single_stage_is_its_replay() -> None:
    for demands in (
        {"compute": Demands(cpu_s=0.5)},
        {"gather": Demands(cpu_s=0.25)},
        {"sample": Demands(cpu_s=0.125)},
        {"gather": Demands(disk_s=0.5, lag_s=0.25)},
        {"gather": Demands(cpu_s=0.5, disk_s=0.5)},
    ):
        work = RunWork(batches=batches(8, **demands))
        floor = find_floor(work, TWO_CORES, RAM)
        assert floor.seconds == pytest.approx(replay(work, TWO_CORES, RAM).epoch_s[0], rel=1e-12)


def test_each_resource_and_each_thread_is_a_need_of_its_own() -> None:
    work = RunWork(
        batches=batches(
            4,
            trace=Demands(cpu_s=1.0),
            sample=Demands(cpu_s=2.0),
            read=Demands(cpu_s=0.5, disk_s=3.0),
            gather=Demands(cpu_s=0.25, lag_s=0.125),
            compute=Demands(cpu_s=4.0, cores=2.0),
        ),
        superbatches=(SuperbatchWork(num_batches=4, inspect=Demands(cpu_s=6.0), stage=Demands(spill_s=7.0)),),
        passes=(PassWork(sweep=Demands(disk_s=5.0), completed=4, most_waiting=4),),
    )
    shape = PipelineShape(features="ssd", sampler_threads=2)
    assert needs_of(work, Machine(cores=4.0, speed={"disk": 2.0}), shape) == {
        "loop": 8.0,
        "cpu": (4 * 7.75 + 6) / 4,
        "sample threads": 6.0,
        "disk": (4 * 3 + 5) / 2,
        "read thread": 6.0,
        "gather thread": 1.5,
        "inspect thread": 6.0,
        "spill": 7.0,
        "stage thread": 7.0,
        "sweep thread": 2.5,
    }


def test_a_computation_has_no_more_cores_than_there_are() -> None:
    work = RunWork(batches=batches(4, compute=Demands(cpu_s=4.0, cores=4.0)))
    floor = find_floor(work, TWO_CORES, RAM)
    assert (floor.seconds, floor.resource) == (8.0, "loop")
    assert replay(work, TWO_CORES, RAM).seconds == pytest.approx(8.0)


def test_what_a_free_resource_takes_is_nothing() -> None:
    work = RunWork(
        batches=batches(4, gather=Demands(disk_s=1.0), compute=Demands(cpu_s=0.5), transfer=Demands(link_s=1))
    )
    free = Machine(cores=2.0, speed={"disk": float("inf")})
    assert "disk" not in needs_of(work, free, RAM)
    assert floor_of(needs_of(work, free, RAM)).seconds == 4 * 1.5


def test_an_epoch_is_charged_for_what_no_earlier_epoch_and_no_pause_can_have_done() -> None:
    slow, fast = Demands(disk_s=1.0), Demands(cpu_s=0.1)
    work = RunWork(batches=batches(400, epochs=2, gather=slow, compute=fast))
    of_both = find_floor(work, TWO_CORES, RAM)
    of_last = floor_of(needs_of(work, TWO_CORES, RAM, epochs=(1,)))
    assert (of_both.seconds, of_both.resource) == (200.0, "disk")
    # Three buffers and what waits between the stages, never a whole epoch.
    assert 180 < of_last.seconds < 200
    assert of_last.seconds <= replay(work, TWO_CORES, RAM).epoch_s[1]
    paused = [*work.batches]
    paused[200] = BatchWork(epoch=1, index=0, gather=slow, compute=fast, pause_s=150.0)
    floor = floor_of(needs_of(RunWork(batches=tuple(paused)), TWO_CORES, RAM))
    # Of 150 s of a pause the buffers let few be used.
    assert 190 < floor.seconds < 200
    assert floor.seconds <= replay(RunWork(batches=tuple(paused)), TWO_CORES, RAM).seconds / 2


def heavy_run(kind: str, *, ranks: int, is_sending: bool) -> tuple[RunWork, PipelineShape]:
    """Return two epochs of 48 batches that are bound by one kind of work, and a long pause between them."""
    count = 2 * 48 * ranks

    def of(name: str) -> Demands:
        return Demands(disk_s=1.0) if name == kind else Demands(cpu_s=0.001)

    names = ("trace", "sample", "read", "gather", "transfer", "compute")
    made = tuple(
        BatchWork(
            epoch=2 * number // count,
            index=number // ranks % 48,
            pause_s=1000.0 if 2 * number == count else 0.0,
            **{name: of(name) for name in names},
        )
        for number in range(count)
    )
    superbatch = SuperbatchWork(num_batches=8, inspect=of("inspect"), stage=of("stage"))
    passes = tuple(
        PassWork(sweep=of("sweep"), completed=end, most_waiting=16) for end in range(4, count + 4, 4)
    )
    work = RunWork(
        batches=made, superbatches=(superbatch,) * (count // 8), passes=passes if kind == "sweep" else ()
    )
    return work, PipelineShape(features="ssd", num_ranks=ranks, is_sending=is_sending)


@pytest.mark.parametrize("is_sending", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("kind", "most"),
    [
        ("trace", 9),
        ("sample", 7),
        ("read", 4),
        ("gather", 4),
        ("transfer", 4),
        ("compute", 1),
        ("inspect", 1),
        ("stage", 1),
        ("sweep", 4),
    ],
)
def test_what_can_be_done_ahead_is_hardly_more_than_what_is(
    kind: str, most: int, ranks: int, *, is_sending: bool
) -> None:
    work, shape = heavy_run(kind, ranks=ranks, is_sending=is_sending)
    machine = Machine(cores=4.0)
    took = replay(work, machine, shape).epoch_s[1]
    floor = needs_of(work, machine, shape, epochs=(1,))["disk"]
    assert took - most * ranks <= floor <= took


def test_a_pause_within_an_epoch_is_the_loops() -> None:
    made = [*batches(4, compute=Demands(cpu_s=1.0))]
    made[2] = BatchWork(epoch=0, index=2, compute=Demands(cpu_s=1.0), pause_s=3.0)
    assert needs_of(RunWork(batches=tuple(made)), TWO_CORES, RAM)["loop"] == 7.0


def test_passes_that_nobody_waits_for_are_no_need() -> None:
    sweeps = tuple(PassWork(sweep=Demands(disk_s=5.0), completed=done, most_waiting=8) for done in (2, 4, 6))
    work = RunWork(
        batches=batches(4, compute=Demands(cpu_s=1.0)),
        passes=sweeps,
        superbatches=(SuperbatchWork(num_batches=4),),
    )
    assert needs_of(work, TWO_CORES, SSD)["sweep thread"] == 10.0


def test_what_no_setting_changes_is_left_without_reads() -> None:
    work = RunWork(
        batches=batches(
            2,
            trace=Demands(cpu_s=2.0),
            sample=Demands(cpu_s=0.25),
            read=Demands(disk_s=9.0),
            gather=Demands(cpu_s=0.5),
            compute=Demands(cpu_s=1.0),
        ),
        superbatches=(SuperbatchWork(num_batches=2, inspect=Demands(cpu_s=3.0), stage=Demands(disk_s=9.0)),),
        passes=(PassWork(sweep=Demands(disk_s=9.0), completed=2, most_waiting=4),),
    )
    left = without_reads(work)
    assert [(one.trace, one.sample, one.read) for one in left.batches] == [
        (NOTHING, Demands(cpu_s=2.0), NOTHING)
    ] * 2
    assert floor_of(needs_of(left, TWO_CORES, SSD)).seconds == 4.0


def test_where_there_is_no_batch_nothing_is_needed() -> None:
    with pytest.raises(ReplayError, match="there is no batch, so there is no floor"):
        needs_of(RunWork(batches=()), TWO_CORES, RAM)
    with pytest.raises(ReplayError, match="there is no batch, so there is no floor"):
        needs_of(RunWork(batches=batches(2)), TWO_CORES, RAM, epochs=(3,))


def test_the_loop_does_nothing_while_it_pauses() -> None:
    step = Demands(cpu_s=1.0)
    made = [*batches(8, epochs=2, compute=step)]
    made[4] = BatchWork(epoch=1, index=0, compute=step, pause_s=100.0)
    work = RunWork(batches=tuple(made), superbatches=(SuperbatchWork(num_batches=4),) * 2)
    assert needs_of(work, TWO_CORES, SSD)["loop"] == 4.0
    assert needs_of(work, TWO_CORES, SSD, epochs=(1,))["loop"] == 4.0


def test_reads_for_features_in_memory_go_on_while_the_gather_waits_for_a_buffer() -> None:
    shape = PipelineShape(features="ram", has_embeddings=True, num_buffers=1, ahead=9)
    batches = tuple(
        BatchWork(
            epoch=number // 6,
            index=number % 6,
            read=Demands(lag_s=1.0),
            pause_s=100.0 if number == 6 else 0.0,
        )
        for number in range(12)
    )
    work = RunWork(batches=batches, superbatches=(SuperbatchWork(num_batches=6),) * 2)
    # Four batches are read in the pause: one is gathered, one waits for its buffer, and two wait behind it.
    took = replay(work, Machine(cores=1), shape).epoch_s[1]
    assert took == 2.0
    assert needs_of(work, Machine(cores=1), shape, epochs=[1])["read thread"] <= took
