"""The parts of an epoch, and its stalls: parts add up, and each belongs to work that the epoch waited for."""

from __future__ import annotations

import pytest
from replay_oracles import batches_of, superbatches_of

from gloader.replay.replay import replay
from gloader.replay.stalls import CORES, find_stalls, lag_share, mean_parts, parts_of_epoch
from gloader.replay.work import Demands, Machine, PipelineShape, RunWork

RAM = PipelineShape(features="ram", sampler_threads=1, ahead=3, num_buffers=3)
SSD = PipelineShape(features="ssd", sampler_threads=1, ahead=3, num_buffers=3)
MANY = Machine(cores=100)


def in_memory(**demands: Demands) -> RunWork:
    return RunWork(batches=batches_of(20, epochs=2, **demands))


def on_ssd(*, stage: float = 0.0, **demands: Demands) -> RunWork:
    planned = superbatches_of(*([4] * 10), stage=Demands(disk_s=stage))
    return RunWork(batches=batches_of(20, epochs=2, **demands), superbatches=planned)


def test_a_loop_that_never_waits_spends_everything_on_its_computation() -> None:
    found = replay(
        in_memory(sample=Demands(cpu_s=0.001), gather=Demands(cpu_s=0.001), compute=Demands(cpu_s=0.01)),
        MANY,
        RAM,
    )
    assert parts_of_epoch(found, 1) == pytest.approx({"compute": 0.2})


@pytest.mark.parametrize("slow", ["sample", "gather"])
def test_a_slow_stage_is_what_an_epoch_is_spent_on(slow: str) -> None:
    demands = {name: Demands(cpu_s=0.002) for name in ("sample", "gather", "compute")} | {
        slow: Demands(cpu_s=0.01)
    }
    found = replay(in_memory(**demands), MANY, RAM)
    parts = parts_of_epoch(found, 1)
    assert next(iter(parts)) == slow
    assert parts[slow] > 0.9 * found.epoch_s[1]
    assert sum(parts.values()) == pytest.approx(found.epoch_s[1])


def test_reads_and_sweeps_are_apart() -> None:
    reading = replay(on_ssd(read=Demands(disk_s=0.02), compute=Demands(cpu_s=0.001)), MANY, SSD)
    assert next(iter(parts_of_epoch(reading, 1))) == "read"
    sweeping = replay(on_ssd(stage=0.1, read=Demands(disk_s=0.001), compute=Demands(cpu_s=0.001)), MANY, SSD)
    assert next(iter(parts_of_epoch(sweeping, 1))) == "sweep"


def test_what_work_takes_longer_as_others_want_the_cores_is_apart() -> None:
    work = in_memory(sample=Demands(cpu_s=0.01), gather=Demands(cpu_s=0.01), compute=Demands(cpu_s=0.01))
    found = replay(work, Machine(cores=1), RAM)
    parts = parts_of_epoch(found, 1)
    assert sum(parts.values()) == pytest.approx(found.epoch_s[1])
    assert found.epoch_s[1] == pytest.approx(0.6, rel=0.1)
    assert parts[CORES] == pytest.approx(0.4, rel=0.15)
    assert CORES not in parts_of_epoch(replay(work, MANY, RAM), 1)


def test_time_for_which_others_hold_work_up_is_that_of_others_and_a_lag() -> None:
    work = in_memory(sample=Demands(cpu_s=0.001), compute=Demands(cpu_s=0.01, held_up=0.5))
    found = replay(work, MANY, RAM)
    parts = parts_of_epoch(found, 1)
    assert parts["compute"] == pytest.approx(20 * 0.01)
    assert 15 * 0.0005 <= parts[CORES] * (1 + 1e-9) <= 20 * 0.0005  # the last five were sampled before
    assert lag_share(found, (1,)) == pytest.approx(parts[CORES] / found.epoch_s[1])


def test_parts_of_several_epochs_are_their_mean() -> None:
    found = replay(in_memory(sample=Demands(cpu_s=0.02), compute=Demands(cpu_s=0.01)), MANY, RAM)
    both = [parts_of_epoch(found, epoch) for epoch in (0, 1)]
    for name, seconds in mean_parts(found, (0, 1)).items():
        assert seconds == pytest.approx(sum(part.get(name, 0.0) for part in both) / 2)


def test_stalls_are_what_preparing_and_fetching_add() -> None:
    work = on_ssd(
        trace=Demands(cpu_s=0.001),
        sample=Demands(cpu_s=0.02),
        read=Demands(disk_s=0.05),
        gather=Demands(cpu_s=0.001),
        compute=Demands(cpu_s=0.01),
    )
    found = find_stalls(work, MANY, SSD, epochs=(1,))
    # A batch takes 10 ms to compute, 20 to sample where everything is in memory, and 50 to read as it is.
    assert found["preparation"] == pytest.approx(20 * 0.01, rel=0.1)
    assert found["fetch"] == pytest.approx(20 * 0.03, rel=0.1)
    assert found["transfer"] == found["network"] == found["interconnect"] == 0.0


def test_the_stall_of_a_transfer_is_that_of_its_link() -> None:
    work = in_memory(transfer=Demands(link_s=0.03), compute=Demands(cpu_s=0.01))
    assert find_stalls(work, MANY, RAM, epochs=(1,))["transfer"] == pytest.approx(20 * 0.03, rel=0.1)


def test_ranks_that_wait_for_each_other_stall() -> None:
    shape = PipelineShape(features="ram", sampler_threads=8, ahead=20, num_buffers=8, num_ranks=2)
    batches = []
    for number, batch in enumerate(batches_of(10, epochs=2, ranks=2, compute=Demands(cpu_s=0.01))):
        slow = (number // 2 + number) % 2  # one rank, then the other
        batches.append(
            batch.__class__(epoch=batch.epoch, index=batch.index, compute=Demands(cpu_s=0.01 + 0.02 * slow))
        )
    found = find_stalls(RunWork(batches=tuple(batches)), MANY, shape, epochs=(1,))
    assert found["interconnect"] == pytest.approx(10 * 0.01, rel=0.2)


def test_the_lags_of_the_critical_path_are_a_share_of_the_epochs() -> None:
    slept = Demands(cpu_s=0.01, lag_s=0.03)
    found = replay(in_memory(gather=Demands(cpu_s=0.001, lag_s=0.02), compute=slept), MANY, RAM)
    # What is gathered meanwhile lags too, and nobody waits for it.
    assert lag_share(found, (1,)) == pytest.approx(0.75)
    assert lag_share(found, (0, 1), but=("compute",)) == pytest.approx(0.02 / sum(found.epoch_s.values()))
    assert lag_share(found, (1,), but=("compute",)) == 0.0
