"""Replays with closed solutions, by a virtual clock: who waits for whom in a pipeline, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay_oracles import batches_of, ends, events_of, lags, starts, superbatches_of

from gloader.errors import ReplayError
from gloader.replay.replay import Replayed, replay
from gloader.replay.work import NOTHING, BatchWork, Demands, Machine, PassWork, PipelineShape, RunWork
from gloader.ssd_store.cost.strategy import ramp

ANY = Machine(cores=1)  # of work that takes time alone
RAM = PipelineShape(features="ram", sampler_threads=1, ahead=100, num_buffers=100)
SSD = PipelineShape(features="ssd", sampler_threads=100, ahead=100, num_buffers=100)


def ram(
    num: int, shape: PipelineShape = RAM, *, epochs: int = 1, pause_s: float = 0.0, **seconds: float
) -> Replayed:
    """Replay batches in memory that are all alike, and take time alone."""
    batches = batches_of(num, epochs=epochs, ranks=shape.num_ranks, pause_s=pause_s, **lags(**seconds))
    return replay(RunWork(batches=batches), ANY, shape)


def ssd(
    sizes: list[int],
    shape: PipelineShape = SSD,
    *,
    inspect: float = 0.0,
    stage: float = 0.0,
    **seconds: float,
) -> Replayed:
    """Replay superbatches that are all alike, and take time alone."""
    planned = superbatches_of(*sizes, **lags(inspect=inspect, stage=stage))
    batches = batches_of(sum(sizes) // shape.num_ranks, ranks=shape.num_ranks, **lags(**seconds))
    return replay(RunWork(batches=batches, superbatches=planned), ANY, shape)


# --- stages in a row


@pytest.mark.parametrize(
    ("sample", "gather", "compute"), [(3.0, 1.0, 1.0), (1.0, 3.0, 1.0), (1.0, 1.0, 3.0), (1.0, 2.0, 3.0)]
)
def test_stages_in_a_row_take_the_slowest_and_the_way_there(
    sample: float, gather: float, compute: float
) -> None:
    found = ram(10, sample=sample, gather=gather, compute=compute)
    slowest = max(sample, gather, compute)
    assert found.epoch_s == {0: sample + gather + compute + 9 * slowest}
    # Item n of a D/D/1 queue: behind the one before it, or as it arrives.
    assert ends(found, "sample") == [(n + 1) * sample for n in range(10)]


@pytest.mark.parametrize("threads", [1, 2, 3, 10])
def test_sampler_threads_are_as_many_servers(threads: int) -> None:
    found = ram(10, replace(RAM, sampler_threads=threads), sample=6.0, gather=1.0)
    assert starts(found, "sample") == [6.0 * (n // threads) for n in range(10)]
    assert len({event.thread for event in events_of(found, "sample")}) == threads
    # Batches go on in their order, one after another.
    expected, at = [], 0.0
    for end in ends(found, "sample"):
        at = max(at, end) + 1.0
        expected.append(at)
    assert ends(found, "gather") == expected


def test_a_batch_that_is_late_keeps_those_behind_it() -> None:
    sample = [9.0, 1.0, 1.0, 1.0]
    batches = tuple(
        BatchWork(epoch=0, index=n, sample=Demands(lag_s=sample[n]), gather=Demands(lag_s=1.0))
        for n in range(4)
    )
    found = replay(RunWork(batches=batches), ANY, replace(RAM, sampler_threads=2, ahead=3))
    # Three may be sampled and not taken: the fourth begins as the first is.
    assert starts(found, "sample") == [0.0, 0.0, 1.0, 9.0]
    assert starts(found, "gather") == [9.0, 10.0, 11.0, 12.0]


@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_samplers_are_at_most_so_far_ahead(ahead: int) -> None:
    found = ram(8, replace(RAM, ahead=ahead), sample=1.0, gather=5.0)
    taken = [1.0 + 5.0 * n for n in range(8)]
    assert starts(found, "gather") == taken
    for n, start in enumerate(starts(found, "sample")):
        assert start == max(float(n), taken[n - ahead] if n >= ahead else 0.0)


# --- bounded channels and buffers: blocking after service


@pytest.mark.parametrize("waiting", [1, 2, 3])
def test_a_stage_waits_where_there_is_no_room_for_what_it_made(waiting: int) -> None:
    found = ram(9, replace(RAM, waiting=waiting), gather=1.0, compute=4.0)
    computed = [1.0 + 4.0 * n for n in range(9)]
    assert starts(found, "compute") == computed
    # A gather begins once the batch before it was handed over: as there was room for it.
    expected = [0.0]
    for n in range(8):
        expected.append(max(expected[n] + 1.0, computed[n - waiting] if n >= waiting else 0.0))
    assert starts(found, "gather") == expected
    assert found.epoch_s == {0: 37.0}


@pytest.mark.parametrize(
    ("buffers", "gathers", "seconds"),
    [
        # With one, a batch is gathered while nobody computes.
        (1, [0.0, 5.0, 10.0, 15.0, 20.0], 25.0),
        # With two, the loop holds one until it has the next: a gather begins as a computation does.
        (2, [0.0, 2.0, 5.0, 8.0, 11.0], 17.0),
        # With three, one more waits; then it is the channel that holds gathers up.
        (3, [0.0, 2.0, 4.0, 6.0, 8.0], 17.0),
        (4, [0.0, 2.0, 4.0, 6.0, 8.0], 17.0),
    ],
)
def test_buffers_bound_what_is_gathered_ahead(buffers: int, gathers: list[float], seconds: float) -> None:
    found = ram(5, replace(RAM, num_buffers=buffers), gather=2.0, compute=3.0)
    assert starts(found, "gather") == gathers
    assert found.epoch_s == {0: seconds}


@pytest.mark.parametrize(("buffers", "third"), [(2, 3.5), (3, 2.0)])
def test_a_loop_holds_a_buffer_until_it_has_the_next_batch(buffers: int, third: float) -> None:
    found = ram(3, replace(RAM, num_buffers=buffers), gather=1.0, transfer=1.0, compute=0.5)
    # The first batch is taken at 1, there at 2 and computed on until 2.5, when the next one is taken. That is there at
    # 3.5: only then is the first one's buffer free.
    assert starts(found, "compute") == [2.0, 3.5, {2: 5.5, 3: 5.0}[buffers]]
    assert starts(found, "gather")[2] == third


def test_asking_for_a_batch_gives_the_only_buffer_back() -> None:
    found = ram(3, replace(RAM, num_buffers=1), gather=1.0, transfer=1.0, compute=2.0)
    assert starts(found, "gather") == [0.0, 4.0, 8.0]


@pytest.mark.parametrize("buffers", [1, 2])
def test_a_loop_lets_go_of_its_last_batch_at_the_end_of_an_epoch(buffers: int) -> None:
    """What comes between two epochs is for the pipeline to get ahead in."""
    found = ram(2, replace(RAM, num_buffers=buffers), epochs=2, pause_s=10.0, gather=2.0, compute=1.0)
    first = {1: 2 + 1 + 2 + 1, 2: 2 + 2 + 1}[buffers]  # the end of the first epoch
    assert starts(found, "compute")[2:] == [first + 10.0, {1: first + 10.0 + 1 + 2, 2: first + 11.0}[buffers]]
    gathers = {1: [0.0, 3.0, 6.0, 17.0], 2: [0.0, 2.0, 4.0, 6.0]}[buffers]
    assert starts(found, "gather") == gathers
    assert found.epoch_s == {0: first, 1: {1: 4.0, 2: 2.0}[buffers]}


# --- the stages of superbatches


def test_superbatch_k_is_planned_once_the_traces_of_the_one_behind_it_are_there() -> None:
    found = ssd([1, 2, 4, 4], replace(SSD, sampler_threads=1, ahead=20), trace=1.0)
    # The first does not look ahead. The second waits for 1 + 2 + 4 traces; the samples between cost nothing.
    assert starts(found, "inspect") == [1.0, 7.0, 11.0, 11.0]


def test_two_superbatches_are_planned_at_a_time() -> None:
    found = ssd([1, 2, 2, 2, 1], gather=5.0)
    # Superbatch k + 2 is planned as the last batch of k was gathered.
    assert starts(found, "inspect") == [0.0, 0.0, 5.0, 15.0, 25.0]
    found = ssd([1, 2, 2, 2, 1], replace(SSD, planned_at_once=1), gather=5.0)
    assert starts(found, "inspect") == [0.0, 5.0, 15.0, 25.0, 35.0]


def test_a_plan_is_made_while_the_one_before_it_is_staged() -> None:
    found = ssd([1, 2, 4], inspect=2.0, stage=3.0, read=1.0)
    assert starts(found, "inspect") == [0.0, 2.0, 6.0]
    # Superbatch 1 is not staged before the first batch was read.
    assert starts(found, "stage") == [2.0, 6.0, 9.0]
    assert starts(found, "read") == [5.0, 9.0, 10.0, 12.0, 13.0, 14.0, 15.0]


@pytest.mark.parametrize(("unit", "second"), [(1, 4.0), (2, 7.0), (3, 10.0)])
def test_superbatch_1_is_not_staged_before_the_first_step_was_read(unit: int, second: float) -> None:
    found = ssd([3, 3], replace(SSD, unit=unit), stage=1.0, read=3.0)
    assert starts(found, "stage") == [0.0, second]
    # And the one behind it does not wait.
    found = ssd([3, 3, 3], replace(SSD, unit=unit), stage=1.0, read=3.0)
    assert starts(found, "stage")[2] == max(second + 1.0, ends(found, "gather")[2])


def test_a_first_superbatch_of_less_than_a_step_holds_nobody_up() -> None:
    found = ssd([1, 3], replace(SSD, unit=2), stage=1.0, read=3.0)
    assert starts(found, "stage") == [0.0, 4.0]


def test_staged_superbatches_wait_for_the_one_that_is_read() -> None:
    found = ssd([1, 1, 1, 1], stage=1.0, read=4.0)
    # Staged: 0 at once, 1 behind the first read, 2 and 3 as plans are done with.
    assert starts(found, "stage") == [0.0, 5.0, 6.0, 10.0]
    assert starts(found, "read") == [1.0, 6.0, 10.0, 14.0]


def test_one_superbatch_is_staged_beside_the_one_that_is_read() -> None:
    found = ssd([1] * 6, replace(SSD, planned_at_once=5), stage=1.0, read=10.0)
    # At 14 superbatch 3 is staged, and waits for the place of superbatch 2, which is read from 22 on.
    assert starts(found, "stage") == [0.0, 11.0, 12.0, 13.0, 22.0, 32.0]


def test_reads_gathers_and_computations_are_a_row_of_stages() -> None:
    found = ssd([6], read=1.0, gather=2.0, compute=3.0)
    assert found.epoch_s == {0: 1.0 + 2.0 + 6 * 3.0}
    # One waits before the gather, one before the loop.
    assert starts(found, "gather") == [1.0, 3.0, 5.0, 7.0, 9.0, 12.0]
    assert starts(found, "read") == [0.0, 1.0, 2.0, 3.0, 5.0, 7.0]


def test_samplers_make_batches_first_and_then_traces() -> None:
    shape = replace(SSD, sampler_threads=1, ahead=2)
    found = ssd([1, 2, 2], shape, trace=1.0, sample=10.0)
    order = [f"{event.stage} {event.batch}" for event in found.events if event.stage in ("trace", "sample")]
    # A thread goes on before whoever it wakes takes what it made: so trace 1 comes before sample 0. And sample 3 waits
    # until sample 1 was taken: two may be there.
    assert order == [
        *("trace 0", "trace 1", "sample 0", "sample 1", "trace 2", "trace 3", "sample 2", "trace 4"),
        *("sample 3", "sample 4"),
    ]
    assert ends(found, "trace") == [1.0, 2.0, 23.0, 24.0, 35.0]
    assert ends(found, "sample") == [12.0, 22.0, 34.0, 45.0, 55.0]


def test_batches_sampled_for_a_trace_wait_for_who_plans() -> None:
    found = ssd([1, 1, 1, 6], replace(SSD, ahead=2), trace=1.0, inspect=5.0)
    # Two traces may be there; the thread that plans until 6 takes one before, and two behind that.
    assert starts(found, "trace")[:5] == [0.0, 0.0, 1.0, 6.0, 6.0]


def test_superbatches_that_grow_are_as_the_loader_makes_them() -> None:
    sizes = [size for size, _ in zip(ramp(4), range(5), strict=False)]
    found = ssd(sizes, stage=1.0)
    assert [event.batch for event in found.events if event.stage == "stage"] == [0, 1, 3, 7, 11]


# --- trained rows


def test_a_batch_is_read_when_few_enough_steps_are_left() -> None:
    shape = replace(SSD, has_embeddings=True)
    work = RunWork(
        batches=tuple(
            replace(batch, open_steps=opened)
            for batch, opened in zip(
                batches_of(5, **lags(read=1.0, gather=1.0, compute=4.0)), [None, 0, 1, 9, 0], strict=True
            )
        ),
        superbatches=superbatches_of(5),
    )
    found = replay(work, ANY, shape)
    # Batch 1 waits for step 0, batch 2 too, batch 3 for none, and batch 4 for step 3.
    assert starts(found, "compute") == [2.0, 8.0, 12.0, 16.0, 22.0]
    assert starts(found, "read") == [0.0, 6.0, 7.0, 8.0, 20.0]


def test_the_steps_of_ranks_are_steps_of_all_of_them() -> None:
    shape = replace(SSD, has_embeddings=True, num_ranks=2, unit=2)
    batches = tuple(
        replace(batch, open_steps=0, compute=Demands(lag_s=[1.0, 3.0][number % 2]))
        for number, batch in enumerate(batches_of(2, ranks=2))
    )
    found = replay(RunWork(batches=batches, superbatches=superbatches_of(4)), ANY, shape)
    assert starts(found, "read") == [0.0, 0.0, 3.0, 3.0]


def test_features_in_memory_are_read_without_a_buffer() -> None:
    """Only the gather needs one: so more batches are loaded ahead."""
    found = {
        features: ssd(
            [1, 5], replace(SSD, features=features, has_embeddings=True, num_buffers=1), compute=1.0
        )
        for features in ("ram", "ssd")
    }
    assert starts(found["ssd"], "read") == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert starts(found["ram"], "read") == [0.0, 0.0, 0.0, 0.0, 1.0, 2.0]


# --- resources that stages share


def test_two_stages_share_the_cores() -> None:
    busy = {"gather": Demands(cpu_s=1.0), "compute": Demands(cpu_s=1.0)}
    work = RunWork(batches=batches_of(10, **busy))
    assert replay(work, Machine(cores=2), RAM).seconds == pytest.approx(11.0)
    # On one core both take all of it together: 20 s of work in 20 s.
    one = replay(work, Machine(cores=1), RAM)
    assert one.seconds == pytest.approx(20.0)
    assert [event.ended_s - event.started_s for event in events_of(one, "compute")[:-1]] == pytest.approx(
        [2.0] * 9
    )


def test_three_threads_share_two_cores() -> None:
    busy = {name: Demands(cpu_s=1.0) for name in ("sample", "gather", "compute")}
    work = RunWork(batches=batches_of(10, **busy))
    found = replay(work, Machine(cores=2), RAM)
    # 1 s for the first sample, 1 s for two, then three of them in 1.5 s each, and the same at the end.
    assert found.seconds == pytest.approx(1 + 1 + 8 * 1.5 + 1 + 1)


def test_a_computation_on_two_cores_leaves_others_their_share() -> None:
    work = RunWork(batches=batches_of(10, gather=Demands(cpu_s=1.0), compute=Demands(cpu_s=2.0, cores=2.0)))
    # Alone on two cores it takes 1 s, as the gather does; together they are 3 s of work on 2 cores.
    found = replay(work, Machine(cores=2), RAM)
    assert found.seconds == pytest.approx(1 + 9 * 1.5 + 1)
    assert found.step_s[0] == pytest.approx((9 * 1.5 + 1) / 10)
    assert replay(work, Machine(cores=3), RAM).seconds == pytest.approx(11.0)


def test_sweeps_and_reads_share_the_disk() -> None:
    sizes = [1, 4, 4]
    planned = superbatches_of(*sizes, stage=Demands(disk_s=4.0))
    work = RunWork(batches=batches_of(9, read=Demands(disk_s=1.0)), superbatches=planned)
    found = replay(work, ANY, SSD)
    # Superbatch 1 is staged alone, from 5 to 9. Then four reads beside the sweep of superbatch 2: 8 s of disk in 8 s.
    assert starts(found, "stage") == pytest.approx([0.0, 5.0, 9.0])
    assert ends(found, "stage") == pytest.approx([4.0, 9.0, 17.0])
    assert ends(found, "read")[1:5] == pytest.approx([11.0, 13.0, 15.0, 17.0])
    assert found.seconds == pytest.approx(21.0)
    # On a disk of its own the sweep is no hindrance.
    apart = replace(work, superbatches=superbatches_of(*sizes, stage=Demands(spill_s=4.0)))
    assert replay(apart, ANY, SSD).seconds == pytest.approx(4 + 1 + 4 + 4 + 4)
    fast = Machine(cores=1, speed={"disk": 2.0})
    assert replay(work, fast, SSD).seconds == pytest.approx(21.0 / 2)


def test_what_a_faster_disk_gains_is_what_is_not_hidden() -> None:
    work = RunWork(
        batches=batches_of(10, read=Demands(disk_s=2.0), compute=Demands(device_s=1.0)),
        superbatches=superbatches_of(10),
    )
    found = [replay(work, Machine(cores=1, speed={"disk": speed}), SSD).seconds for speed in (1.0, 2.0, 8.0)]
    assert found == pytest.approx([21.0, 11.0, 10.25])


# --- passes over the edges


def passes(*completed: int, most: int = 100, seconds: float = 10.0) -> tuple[PassWork, ...]:
    return tuple(
        PassWork(sweep=Demands(lag_s=seconds), completed=one, most_waiting=most) for one in completed
    )


def swept(
    num: int, *made: PassWork, known: int = 0, shape: PipelineShape = RAM, **seconds: float
) -> Replayed:
    return replay(
        RunWork(batches=batches_of(num, **lags(**seconds)), passes=made, num_known=known), ANY, shape
    )


def test_batches_are_sampled_behind_the_passes_that_they_need() -> None:
    found = swept(5, *passes(1, 3, 5), sample=1.0)
    assert starts(found, "sample") == [10.0, 20.0, 21.0, 30.0, 31.0]
    assert [event.batch for event in found.events if event.stage == "sweep"] == [0, 1, 3]


def test_batches_that_are_known_wait_for_no_pass() -> None:
    found = swept(5, *passes(2, 3, 5), known=2, sample=1.0)
    assert starts(found, "sample") == [0.0, 1.0, 20.0, 30.0, 31.0]
    assert [event.batch for event in found.events if event.stage == "sweep"] == [2, 2, 3]


def test_a_pass_takes_nothing_back() -> None:
    # Two are known, and the first pass says one: the second is sampled as the first is done all the same.
    found = swept(4, *passes(1, 4), known=2, sample=15.0)
    assert starts(found, "sample") == [0.0, 15.0, 30.0, 45.0]


def test_traces_wait_for_passes_too() -> None:
    work = RunWork(
        batches=batches_of(3, **lags(trace=1.0, sample=2.0)),
        superbatches=superbatches_of(1, 2),
        passes=passes(1, 3),
    )
    found = replay(work, ANY, SSD)
    assert starts(found, "trace") == [10.0, 20.0, 20.0]
    assert starts(found, "sample") == [11.0, 21.0, 21.0]


def test_a_pass_waits_until_there_is_room_for_what_it_brings() -> None:
    found = swept(6, *passes(2, 4, 6, most=4, seconds=1.0), sample=10.0)
    # The third would make six that are swept: two of them have to be made first.
    assert [event.started_s for event in found.events if event.stage == "sweep"] == [0.0, 1.0, 21.0]
    # Batches that were known before count for nothing: what was made of them was not swept.
    found = swept(6, *passes(2, 4, 6, most=4, seconds=1.0), known=2, sample=10.0)
    assert [event.started_s for event in found.events if event.stage == "sweep"] == [0.0, 1.0, 2.0]
    found = swept(6, *passes(2, 4, 6, most=3, seconds=1.0), known=2, sample=10.0)
    assert [event.started_s for event in found.events if event.stage == "sweep"] == [0.0, 1.0, 30.0]


def test_a_pass_that_completes_nothing_needs_no_room() -> None:
    found = swept(3, *passes(0, 0, 3, most=3, seconds=1.0), sample=1.0)
    assert [event.started_s for event in found.events if event.stage == "sweep"] == [0.0, 1.0, 2.0]
    # Though it would be behind all that could be made.
    found = swept(4, *passes(2, 2, 4, most=2, seconds=1.0), known=2, sample=9.0)
    assert [event.started_s for event in found.events if event.stage == "sweep"] == [0.0, 1.0, 2.0]


def test_passes_beyond_the_last_batch_delay_nobody() -> None:
    found = swept(2, *passes(2, 7), sample=1.0)
    assert found.seconds == 12.0
    assert [event.batch for event in found.events if event.stage == "sweep"] == [0]
    # They are of no batch that there is: the last one stands for it.
    found = swept(2, *passes(2, 7, seconds=0.5), sample=1.0)
    assert [event.batch for event in found.events if event.stage == "sweep"] == [0, 1]


# --- a device with a thread that sends


SENDING = replace(RAM, is_sending=True)


def test_a_device_computes_while_the_next_batch_is_sent() -> None:
    found = ram(6, SENDING, transfer=2.0, compute=3.0)
    assert found.epoch_s == {0: 2.0 + 6 * 3.0}
    assert {event.thread for event in events_of(found, "transfer")}.isdisjoint(
        event.thread for event in events_of(found, "compute")
    )
    slow = ram(6, SENDING, transfer=3.0, compute=2.0)
    assert slow.epoch_s == {0: 6 * 3.0 + 2.0}
    # On the loop's own thread nothing is hidden.
    assert ram(6, RAM, transfer=2.0, compute=3.0).epoch_s == {0: 6 * 5.0}


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_so_many_batches_are_sent_ahead_of_the_computation(ahead: int) -> None:
    found = ram(7, replace(SENDING, sent_ahead=ahead), transfer=1.0, compute=4.0)
    computed = [1.0 + 4.0 * n for n in range(7)]
    assert starts(found, "compute") == computed
    # The n-th is sent once the device has begun with the one so far before it.
    expected = [max(1.0 * n, computed[n - ahead] if n >= ahead else 0.0) for n in range(7)]
    assert starts(found, "transfer") == expected


def test_a_buffer_is_free_when_its_batch_was_sent() -> None:
    found = ram(4, replace(SENDING, num_buffers=1), gather=1.0, transfer=2.0, compute=1.0)
    assert starts(found, "gather") == [0.0, 3.0, 6.0, 9.0]
    # Whatever the loop holds: it has copies.
    found = ram(4, replace(SENDING, num_buffers=1), gather=1.0, transfer=2.0, compute=4.0)
    assert starts(found, "gather") == [0.0, 3.0, 6.0, 9.0]
    assert starts(found, "transfer") == [1.0, 4.0, 7.0, 10.0]


# --- ranks


def ranks_of(seconds: list[float], shape: PipelineShape, *, steps: int) -> Replayed:
    """Replay ranks that compute for so long, the first one's first."""
    ranks = len(seconds)
    batches = tuple(
        BatchWork(epoch=0, index=n // ranks, compute=Demands(lag_s=seconds[n % ranks]))
        for n in range(steps * ranks)
    )
    return replay(RunWork(batches=batches), ANY, replace(shape, num_ranks=ranks))


def test_ranks_meet_after_each_step() -> None:
    found = ranks_of([1.0, 3.0], RAM, steps=4)
    assert starts(found, "compute") == [0.0, 0.0, 3.0, 3.0, 6.0, 6.0, 9.0, 9.0]
    assert found.epoch_s == {0: 12.0}
    # A step is over for all of them at once, and the epoch ended as the slowest did.
    assert found.step_s == {0: 3.0}
    assert found.events[found.last_event[0]].batch == 7
    apart = ranks_of([1.0, 3.0], replace(RAM, is_synchronous=False), steps=4)
    assert (apart.epoch_s, apart.step_s) == ({0: 4.0}, {0: 1.0})
    assert apart.events[apart.last_event[0]].batch == 6


def test_ranks_get_batches_in_turn() -> None:
    found = ram(3, replace(RAM, num_ranks=2), gather=1.0, compute=0.25)
    # Both of a step are there at 2, and the gather never waits.
    assert starts(found, "gather") == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert starts(found, "compute") == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert found.epoch_s == {0: 6.25}


def test_a_rank_that_is_slow_holds_its_own_buffers_alone() -> None:
    shape = replace(RAM, num_ranks=2, num_buffers=2, is_synchronous=False)
    batches = tuple(
        BatchWork(epoch=0, index=n // 2, gather=Demands(lag_s=0.5), compute=Demands(lag_s=[1.0, 10.0][n % 2]))
        for n in range(8)
    )
    found = replay(RunWork(batches=batches), ANY, shape)
    # Batch 5 is the other rank's third, whose first is given back as it gets the second, at 11; those behind it wait.
    assert starts(found, "gather") == [0.0, 0.5, 1.0, 1.5, 2.0, 11.0, 11.5, 21.0]


def test_batches_that_wait_for_a_slow_rank_are_in_nobody_s_way() -> None:
    shape = replace(RAM, num_buffers=4, is_synchronous=False)
    found = ranks_of([100.0, 1.0], shape, steps=6)
    # All four buffers of the slow rank are taken before the other one waits for it.
    assert starts(found, "compute")[1::2] == [0.0, 1.0, 2.0, 3.0, 100.0, 200.0]


def test_each_rank_s_sender_keeps_its_own_pace() -> None:
    found = ram(4, replace(SENDING, num_ranks=2, sent_ahead=1), transfer=1.0, compute=4.0)
    assert starts(found, "transfer") == [0.0, 0.0, 1.0, 1.0, 5.0, 5.0, 9.0, 9.0]


def test_a_rank_with_one_buffer_could_never_go_on() -> None:
    """Nobody empties a batch that another process gathered."""
    with pytest.raises(ReplayError, match=r"^the threads of the replay wait for each other$"):
        ram(2, replace(RAM, num_ranks=2, num_buffers=1), compute=1.0)
    assert ram(2, replace(SENDING, num_ranks=2, num_buffers=1), compute=1.0).seconds == 2.0


# --- epochs


def test_epochs_are_counted_from_where_the_loop_asks() -> None:
    found = ram(3, epochs=2, pause_s=5.0, sample=1.0, compute=2.0)
    # The second epoch's batches are there before it asks for them.
    assert found.epoch_s == {0: 1.0 + 3 * 2.0, 1: 3 * 2.0}
    assert found.seconds == 13.0
    assert found.step_s == {0: 2.0, 1: 2.0}
    assert [event.started_s for event in found.events if event.stage == "pause"] == [7.0]
    assert {epoch: found.events[number].batch for epoch, number in found.last_event.items()} == {0: 2, 1: 5}


def test_nothing_waits_at_the_border_of_an_epoch() -> None:
    found = ram(3, epochs=3, sample=1.0, compute=1.0)
    assert starts(found, "compute") == [1.0 + n for n in range(9)]
    assert found.epoch_s == {0: 4.0, 1: 3.0, 2: 3.0}


def test_a_pause_may_come_in_the_middle_of_an_epoch() -> None:
    batches = [*batches_of(4, **lags(compute=1.0))]
    batches[2] = replace(batches[2], pause_s=5.0)
    found = replay(RunWork(batches=tuple(batches)), ANY, RAM)
    assert starts(found, "compute") == [0.0, 1.0, 7.0, 8.0]
    assert found.epoch_s == {0: 9.0}
    assert found.step_s == {0: 1.0}  # neither the pause nor a wait is of a step


def test_the_last_event_of_an_epoch_is_the_loop_s_whatever_ends_with_it() -> None:
    # The gather of the next epoch's batch ends with the last step of this one.
    found = ram(2, replace(RAM, num_buffers=3), epochs=2, gather=1.0, compute=1.0)
    assert [found.events[number].stage for number in found.last_event.values()] == ["compute", "compute"]
    assert [found.events[number].batch for number in found.last_event.values()] == [1, 3]


def test_a_transfer_that_is_none_leaves_no_event() -> None:
    assert events_of(ram(2, compute=1.0), "transfer") == []
    assert len(events_of(ram(2, transfer=1.0), "transfer")) == 2


# --- what cannot be


def test_what_no_pipeline_can_be_is_refused() -> None:
    two = batches_of(2)
    with pytest.raises(ReplayError, match=r"^there is no batch to replay$"):
        replay(RunWork(batches=()), ANY, RAM)
    for sizes in ([1], [2, 1], []):
        with pytest.raises(ReplayError, match=r"^the superbatches are not those of the batches$"):
            replay(RunWork(batches=two, superbatches=superbatches_of(*sizes)), ANY, SSD)
    with pytest.raises(ReplayError, match=r"^3 batches are not the same number for each of 2 ranks$"):
        replay(RunWork(batches=batches_of(3)), ANY, replace(RAM, num_ranks=2))
    for shape in (
        replace(RAM, sampler_threads=0),
        replace(RAM, num_buffers=0),
        replace(RAM, waiting=0),
        replace(RAM, ahead=0),
    ):
        with pytest.raises(ReplayError, match=r"^the threads of the replay wait for each other$"):
            replay(RunWork(batches=two), ANY, shape)
    with pytest.raises(ReplayError, match=r"^the threads of the replay wait for each other$"):
        replay(RunWork(batches=two, superbatches=superbatches_of(2)), ANY, replace(SSD, planned_at_once=0))
    with pytest.raises(ReplayError, match=r"^the threads of the replay wait for each other$"):
        swept(2, *passes(1))


def test_work_that_needs_nothing_takes_no_time() -> None:
    found = replay(RunWork(batches=batches_of(3)), ANY, RAM)
    assert found.seconds == 0.0
    assert len(events_of(found, "compute")) == 3
    assert {event.demands for event in found.events} == {NOTHING}
