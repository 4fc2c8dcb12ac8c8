"""Calibration finds the values that a record leaves open: cores, the disk, and unaccounted time."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest
from replay_recordings import RATES, recorded

from gloader.replay.calibrate import Calibrated, Lag, Mean, calibrate
from gloader.replay.demands import Measured, measure, work_of
from gloader.replay.replay import Replayed, replay
from gloader.replay.work import BatchWork, Demands, Machine, PipelineShape, RunWork, SuperbatchWork

MACHINE = Machine(cores=2)
SSD = PipelineShape(features="ssd", sampler_threads=2, ahead=4, num_buffers=3)
RAM = PipelineShape(features="ram", sampler_threads=2, ahead=4, num_buffers=3)


def run_of(
    *,
    cores: float = 1.5,
    read_s: float = 0.01,
    lag_s: float = 0.0,
    compute_s: float = 0.03,
    epochs: int = 3,
    held_up: float = 0.0,
    sweep_s: float = 0.0,
    in_line_s: float = 0.0,
) -> RunWork:
    """Return work of epochs of 16 batches, in superbatches of 8."""
    batches = tuple(
        BatchWork(
            epoch=epoch,
            index=index,
            trace=Demands(cpu_s=0.006),
            sample=Demands(cpu_s=0.004),
            read=Demands(cpu_s=0.002, disk_s=read_s * (1 + index % 3), in_line_s=in_line_s),
            gather=Demands(cpu_s=0.003, lag_s=lag_s),
            compute=Demands(cpu_s=compute_s, cores=cores, held_up=held_up),
            pause_s=0.25 if epoch and not index else 0.0,
        )
        for epoch in range(epochs)
        for index in range(16)
    )
    one = SuperbatchWork(
        num_batches=8, inspect=Demands(cpu_s=0.005), stage=Demands(cpu_s=0.004, disk_s=sweep_s)
    )
    return RunWork(batches=batches, superbatches=(one,) * (2 * epochs))


def calibrated(
    work: RunWork, shape: PipelineShape, *, disk: float = 1.0
) -> tuple[Replayed, Measured, Calibrated]:
    run = replay(work, MACHINE, shape)
    recording = recorded(run, work, MACHINE, shape, disk=disk)
    measured = measure(recording)
    return run, measured, calibrate(work_of(recording, measured), measured, MACHINE, shape, threads=2)


@pytest.mark.parametrize("cores", [1.0, 1.5, 2.0])
def test_the_cores_of_a_computation_are_found(cores: float) -> None:
    run, measured, found = calibrated(run_of(cores=cores), SSD)
    assert found.fit.cores == pytest.approx(cores, rel=0.03)
    assert measured.epoch_s == pytest.approx(run.epoch_s, rel=1e-6)
    assert abs(found.unexplained["epoch"]) < 0.02


@pytest.mark.parametrize("disk", [0.4, 1.0, 2.5])
def test_a_disk_that_is_not_as_fast_as_measured_is_found(disk: float) -> None:
    _, _, found = calibrated(run_of(read_s=0.02), SSD, disk=disk)
    assert found.fit.disk["read"] == pytest.approx(disk, rel=0.03)
    assert abs(found.unexplained["epoch"]) < 0.01
    assert "read" not in found.fit.lag


def test_time_that_nobody_accounts_for_is_found() -> None:
    _, _, found = calibrated(run_of(lag_s=0.02), SSD)
    assert found.fit.lag["gather"].each_s == pytest.approx(0.02, rel=0.05)
    assert found.fit.lag["gather"].held_up == 0.0
    assert found.fit.lag.get("inspect", Lag()).each_s < 1e-3


@pytest.mark.parametrize("held_up", [0.2, 0.4])
def test_a_computation_that_others_hold_up_is_held_up_less_beside_less(held_up: float) -> None:
    work = run_of(cores=1.0, held_up=held_up)
    _, _, found = calibrated(work, SSD)
    assert found.fit.lag["compute"] == Lag(0.0, pytest.approx(held_up, rel=0.1))
    assert abs(found.unexplained["epoch"]) < 0.02
    # Asked what it takes without what held it up.
    little = Demands(cpu_s=1e-5)
    quick = [
        replace(one, trace=little, sample=little, read=little, gather=little) for one in found.work.batches
    ]
    left = replay(replace(found.work, batches=tuple(quick)), MACHINE, SSD)
    assert left.step_s[2] == pytest.approx(0.03, rel=0.02)


def test_reads_that_stand_in_line_behind_sweeps_do_not_where_there_is_none() -> None:
    _, _, found = calibrated(run_of(read_s=1e-4, sweep_s=0.6, in_line_s=0.05), SSD)
    assert found.fit.lag["read"] == Lag(0.0, 0.0, pytest.approx(0.05, rel=0.1))
    assert abs(found.unexplained["epoch"]) < 0.02
    quick = tuple(replace(one, stage=Demands(cpu_s=0.004)) for one in found.work.superbatches)
    left = replay(replace(found.work, superbatches=quick), MACHINE, SSD)
    assert left.epoch_s[2] == pytest.approx(replay(run_of(read_s=1e-4), MACHINE, SSD).epoch_s[2], rel=0.05)


def test_what_is_missing_beyond_what_others_can_hold_up_is_a_lag_whoever_works() -> None:
    assert Lag.of("compute", 0.0, Mean()) == Lag()
    assert Lag.of("compute", 0.25, Mean(meanwhile_s=1.0)) == Lag(0.0, 0.25)
    assert Lag.of("compute", 2.0, Mean(meanwhile_s=1.0)) == Lag(1.5, 0.5)
    assert Lag.of("compute", 2.0, Mean()) == Lag(2.0)
    assert Lag.of("sample", 0.5, Mean(meanwhile_s=2.0)) == Lag(pytest.approx(0.2), pytest.approx(0.15))
    assert Lag.of("gather", 0.5, Mean(meanwhile_s=2.0)) == Lag(0.5)


def test_nobody_stands_in_line_for_longer_than_a_sweep_takes() -> None:
    beside = Mean(in_line=0.5, longest_line_s=0.2)
    assert Lag.of("read", 0.05, beside) == Lag(0.0, 0.0, 0.1)
    assert Lag.of("read", 0.3, beside) == Lag(pytest.approx(0.2), 0.0, pytest.approx(0.2))
    assert Lag.of("read", 0.3, Mean(longest_line_s=0.2)) == Lag(0.3)
    assert Lag(0.01, 0.5, 0.1).seconds(Mean(0.0, 0.2, 0.25)) == pytest.approx(0.135)


def test_a_computation_that_waits_for_something_does_not_take_half_a_core() -> None:
    _, _, found = calibrated(run_of(cores=0.7), SSD)
    assert found.fit.cores == 1.0
    lag_s = fmean(event.lag_s for event in found.replayed.events if event.stage == "compute")
    assert lag_s == pytest.approx(0.03 / 0.7 - 0.03, rel=0.3)
    assert abs(found.unexplained["epoch"]) < 0.02


def test_features_in_memory_are_replayed() -> None:
    _, measured, found = calibrated(run_of(), RAM)
    assert not found.fit.disk
    assert abs(found.unexplained["epoch"]) < 0.01
    assert found.replayed.mean_s(measured.counted) == pytest.approx(measured.seconds, rel=0.01)


@pytest.mark.parametrize("features", ["ram", "ssd"])
@pytest.mark.parametrize("open_steps", [0, 1])
def test_the_waits_of_loads_for_steps_are_replayed(features: str, open_steps: int) -> None:
    shape = replace(SSD, features=features, has_embeddings=True)
    work = run_of(read_s=0.02, compute_s=0.04)
    batches = tuple(replace(batch, open_steps=open_steps) for batch in work.batches)
    run, measured, found = calibrated(replace(work, batches=batches), shape)
    assert measured.epoch_s == pytest.approx(run.epoch_s, rel=1e-6)
    assert abs(found.unexplained["epoch"]) < 0.02
    # Without the waits the same work is done much sooner.
    free = replay(work, MACHINE, shape)
    assert free.seconds < (0.7 if open_steps == 0 else 0.99) * run.seconds


def test_epochs_behind_the_first_count_where_there_are_any() -> None:
    _, measured, _ = calibrated(run_of(), SSD)
    assert measured.counted == (1, 2)
    _, measured, found = calibrated(run_of(epochs=1), SSD)
    assert measured.counted == (0,)
    assert measured.seconds == measured.epoch_s[0]
    assert abs(found.unexplained["epoch"]) < 0.02


def test_a_run_that_waits_for_something_unknown_is_not_explained() -> None:
    """The loop waits 50 ms before each batch, and no piece of work says why: the epoch takes longer than its work."""
    work = run_of()
    run = replay(work, MACHINE, SSD)
    known = recorded(run, work, MACHINE, SSD)
    late = []
    for event in known.events:
        behind = 0.05 * (16 * event.epoch + event.batch)
        late.append(event._replace(started_s=event.started_s + behind, ended_s=event.ended_s + behind))
    measured = measure(replace(known, events=tuple(late)))
    found = calibrate(
        work_of(replace(known, events=tuple(late)), measured), measured, MACHINE, SSD, threads=2
    )
    assert found.unexplained["epoch"] > 0.5


def test_rates_are_those_of_the_header() -> None:
    assert RATES.times.seconds(4096) == 1 / 50_000


def test_a_loop_that_sleeps_is_fitted_and_not_trusted_but_a_device_may_take_its_time() -> None:
    work = run_of(cores=1.0)
    slow = [replace(one, compute=Demands(cpu_s=0.02, lag_s=0.2)) for one in work.batches]
    run, measured, found = calibrated(replace(work, batches=tuple(slow)), RAM)
    assert abs(found.unexplained["epoch"]) < 0.02
    assert found.lags == pytest.approx(0.2 / 0.22, rel=0.05)
    assert "the loop slept, or other programs had the cores" in found.doubt
    recording = recorded(run, found.work, MACHINE, RAM)
    on_device = calibrate(work_of(recording, measured), measured, MACHINE, RAM, threads=2, device="cuda")
    assert on_device.lags < 0.05
    assert on_device.fit.lag["compute"].held_up == 0.0
    assert on_device.doubt == ""
