"""Short runs: how much is trained, and that a recording of one says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gloader
from gloader.config import LoaderSettings, ModelConfig, TrainSettings
from gloader.errors import BudgetError
from gloader.lab.analyze.trial import RunExtent, run_short, warm_up
from gloader.replay.demands import measure, work_of
from gloader.replay.recording import read_recording

CPU = torch.device("cpu")
BATCHES = 16  # of an epoch of `dataset`


def settings(**loader: Any) -> TrainSettings:
    given = {"fanouts": (4, 3), "batch_size": 32, "memory_budget": 300_000_000, "threads": 1} | loader
    return TrainSettings(
        model=ModelConfig(hidden=8),
        loader=LoaderSettings.of(**given),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("wanted", "epoch_batches", "extent"),
    [
        (64, 1000, RunExtent(num_epochs=1, num_batches=64)),
        (64, 64, RunExtent(num_epochs=1, num_batches=64)),
        (64, 63, RunExtent(num_epochs=3, num_batches=63)),
        (64, 16, RunExtent(num_epochs=5, num_batches=16)),
        (1, 1, RunExtent(num_epochs=1, num_batches=1)),
    ],
)
def test_part_of_an_epoch_or_several_behind_a_first_one(
    wanted: int, epoch_batches: int, extent: RunExtent
) -> None:
    assert RunExtent.of_about(wanted, epoch_batches=epoch_batches) == extent


def test_a_recording_says_what_was_trained_and_took_no_longer(
    dataset: gloader.Dataset, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    extent = RunExtent(num_epochs=3, num_batches=BATCHES, pause_s=0.05)
    found = run_short(dataset, settings(), device=CPU, extent=extent, trace=trace)
    assert (found.extent, found.epoch_batches) == (extent, BATCHES)
    assert found.budget.total_bytes == 300_000_000
    recording = read_recording(trace)
    recorded = measure(recording)
    assert recorded.counted == (1, 2)
    assert len(recorded.position_of) == 3 * BATCHES
    for epoch, seconds in enumerate(found.epoch_s):
        assert recorded.epoch_s[epoch] <= seconds
    assert found.seconds == pytest.approx(sum(found.epoch_s[1:]) / 2)
    again = RunExtent.of_recording(recorded, work_of(recording, recorded))
    assert (again.num_epochs, again.num_batches) == (2, BATCHES)
    assert again.pause_s >= 0.05


def test_a_part_of_an_epoch_is_recorded_as_far_as_it_went(dataset: gloader.Dataset, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    extent = RunExtent(num_epochs=1, num_batches=5)
    found = run_short(dataset, settings(features="ssd"), device=CPU, extent=extent, trace=trace)
    assert found.extent == extent
    assert found.seconds == found.epoch_s[0]
    recording = read_recording(trace)
    recorded = measure(recording)
    assert sorted(recorded.position_of) == [(0, index) for index in range(5)]
    work = work_of(recording, recorded)
    assert len(work.batches) == 5
    assert RunExtent.of_recording(recorded, work) == extent


def test_the_first_epoch_ends_where_its_time_is_over_and_no_other_begins(dataset: gloader.Dataset) -> None:
    extent = RunExtent(num_epochs=4, num_batches=BATCHES)
    found = run_short(dataset, settings(), device=CPU, extent=extent, most_s=1e-9)
    assert found.extent == RunExtent(num_epochs=1, num_batches=1)
    assert len(found.epoch_s) == 1


def test_warming_up_takes_a_step_or_two(dataset: gloader.Dataset) -> None:
    found = warm_up(dataset, settings(), device=CPU)
    assert (found.extent.num_epochs, found.extent.num_batches, found.epoch_batches) == (1, 2, BATCHES)


def test_what_does_not_fit_is_refused_and_torch_draws_as_before(wide: gloader.Dataset) -> None:
    state = torch.get_rng_state()
    one = RunExtent(num_epochs=1, num_batches=1)
    tight = settings(features="ssd", cache=0, memory_budget=150_000_000)
    run_short(wide, tight, device=CPU, extent=one)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(BudgetError, match="a host cache of 30 MB does not fit"):
        run_short(
            wide,
            settings(features="ssd", cache=30_000_000, memory_budget=150_000_000),
            device=CPU,
            extent=one,
        )
