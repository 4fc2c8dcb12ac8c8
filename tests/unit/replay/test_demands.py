"""Demands of a recording: what was used, and nothing of what was waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replay_recordings import RATES, recorded

from gloader.errors import ReplayError
from gloader.replay.demands import disk_demands, measure, work_of
from gloader.replay.recording import Recording
from gloader.replay.replay import replay
from gloader.replay.work import BatchWork, Demands, Machine, PipelineShape, RunWork, SuperbatchWork

MACHINE = Machine(cores=1)  # so that everything takes longer than it would alone
SHAPE = PipelineShape(features="ssd", sampler_threads=1, ahead=3, num_buffers=3)


def work(epochs: int = 2) -> RunWork:
    batches = tuple(
        BatchWork(
            epoch=epoch,
            index=index,
            trace=Demands(cpu_s=0.006 + index / 1000),
            sample=Demands(cpu_s=0.004),
            read=Demands(cpu_s=0.002, disk_s=0.01),
            gather=Demands(cpu_s=0.003),
            compute=Demands(cpu_s=0.02 + index / 100),
            pause_s=0.5 if epoch and not index else 0.0,
        )
        for epoch in range(epochs)
        for index in range(8)
    )
    one = SuperbatchWork(num_batches=4, inspect=Demands(cpu_s=0.005), stage=Demands(cpu_s=0.004, disk_s=0.02))
    return RunWork(batches=batches, superbatches=(one,) * (2 * epochs))


def recording(**values: object) -> Recording:
    return recorded(replay(work(), MACHINE, SHAPE), work(), MACHINE, SHAPE, **values)


def without(found: Recording, stage: str, *, batch: int, epoch: int = 1) -> Recording:
    kept = [e for e in found.events if (e.stage, e.epoch, e.batch) != (stage, epoch, batch)]
    return replace(found, events=tuple(kept))


def test_what_was_used_is_found_whatever_was_waited_for() -> None:
    known = recording()
    found = work_of(known, measure(known))
    for mine, theirs in zip(found.batches, work().batches, strict=True):
        assert (mine.epoch, mine.index) == (theirs.epoch, theirs.index)
        for stage in ("trace", "sample", "read", "gather"):
            assert getattr(mine, stage).cpu_s == pytest.approx(getattr(theirs, stage).cpu_s)
        assert mine.read.disk_s == pytest.approx(theirs.read.disk_s, rel=1e-6)
    assert [one.num_batches for one in found.superbatches] == [4] * 4
    assert found.superbatches[1].inspect.cpu_s == pytest.approx(0.005)
    assert found.superbatches[1].stage.disk_s == pytest.approx(0.02, rel=1e-6)


def test_a_computation_has_what_the_process_used_without_the_other_threads() -> None:
    known = recording()
    assert any(e.cpu_s > 0.03 + e.batch / 100 for e in known.events if e.stage == "compute")
    found = work_of(known, measure(known))
    for mine, theirs in zip(found.batches, work().batches, strict=True):
        assert mine.compute.cpu_s == pytest.approx(theirs.compute.cpu_s, rel=1e-6)


def test_an_epoch_is_from_the_loop_asking_to_the_end_of_its_last_step() -> None:
    run = replay(work(), MACHINE, SHAPE)
    known = recorded(run, work(), MACHINE, SHAPE)
    measured = measure(known)
    assert measured.epoch_s == pytest.approx(run.epoch_s)
    assert measured.seconds == pytest.approx(run.epoch_s[1])


def test_what_the_loop_did_between_epochs_is_a_pause() -> None:
    known = recording()
    found = work_of(known, measure(known))
    assert [batch.pause_s for batch in found.batches if batch.pause_s] == pytest.approx([0.5])
    assert found.batches[8].pause_s > 0


def test_a_batch_that_is_missing_is_told() -> None:
    with pytest.raises(
        ReplayError, match="goes on with epoch 1, batch 4, where epoch 1, batch 3 would follow"
    ):
        measure(without(recording(), "compute", batch=3))


def test_a_recording_without_a_batch_is_refused() -> None:
    known = recording()
    with pytest.raises(ReplayError, match="no batch was computed"):
        measure(replace(known, events=()))


def test_superbatches_that_are_missing_are_told() -> None:
    known = without(recording(), "inspect", batch=4)
    with pytest.raises(ReplayError, match="the superbatches of 4 batches were not recorded"):
        work_of(known, measure(known))


def test_a_superbatch_that_was_planned_before_the_recording_took_nothing() -> None:
    known = recording()
    later = [e for e in known.events if e.epoch == 1 and not (e.stage == "inspect" and e.batch == 0)]
    cut = replace(known, header=replace(known.header, state={"next": [1, 0]}), events=tuple(later))
    found = work_of(cut, measure(cut))
    assert [one.num_batches for one in found.superbatches] == [4, 4]
    assert found.superbatches[0].inspect == Demands()
    assert found.superbatches[1].inspect.cpu_s == pytest.approx(0.005)


def test_packs_are_read_back_at_the_rate_of_the_spill_folder() -> None:
    rates = replace(RATES, pack_read_bytes_per_s=5e8, write_bytes_per_s=2e8)
    back = disk_demands(rates, cpu_s=0.1, requests=3, bytes_read=5e8, is_pack=True)
    assert (back.disk_s, back.spill_s) == (1.0, 0.0)
    packing = disk_demands(rates, cpu_s=0.1, requests=4000, bytes_read=1e9, bytes_written=2e8)
    assert packing.disk_s == pytest.approx(rates.read_seconds(4000, 1e9) + 1.0)
    # Of a device that reads while it writes, the longer of both.
    both = replace(rates, mixed_writes=2.0)
    packing = disk_demands(both, cpu_s=0.1, requests=4000, bytes_read=1e9, bytes_written=2e8)
    assert packing.disk_s == pytest.approx(max(rates.read_seconds(4000, 1e9), 1.0))
    apart = replace(rates, is_one_device=False)
    assert disk_demands(apart, cpu_s=0.1, bytes_read=5e8, is_pack=True) == Demands(cpu_s=0.1, spill_s=1.0)


def test_reads_that_nobody_counted_are_long_ones() -> None:
    found = disk_demands(RATES, cpu_s=0.0, bytes_read=1e9)
    assert found.disk_s == pytest.approx(1.0, rel=0.01)


def test_the_strategy_of_a_superbatch_says_what_its_batches_read() -> None:
    known = recording(strategy="packed")
    found = work_of(known, measure(known))
    event = next(e for e in known.events if e.stage == "read")
    assert found.batches[0].read.disk_s == pytest.approx(event.bytes_read / RATES.pack_read_bytes_per_s)
