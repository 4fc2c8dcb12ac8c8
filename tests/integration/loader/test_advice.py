"""A loader advises only changes that help in a replay of its last epoch, with the gain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_recordings import recorded

import gloader
from gloader import Loader
from gloader.errors import ConfigError
from gloader.observe.timeline import MOST_BATCHES, RecentTimeline, Used
from gloader.pipeline.advisor import Advisor
from gloader.pipeline.open.load_plan import plan_tiers
from gloader.replay.demands import measure
from gloader.replay.recording import Recording
from gloader.replay.replay import replay
from gloader.replay.work import BatchWork, Demands, Machine, PipelineShape, RunWork, SuperbatchWork
from gloader.types import BatchId

from .conftest import Written
from .streams import ROW, SAMPLING

SSD: dict[str, Any] = {
    "features": "ssd",
    "cache": 30 * ROW,
    "superbatch": 1,
    "io_strategy": "direct",
    "memory_budget": "200MB",
    "threads": 1,
    "epochs": 3,
}


def opened(tiny: Written, folder: Path, **settings: Any) -> Loader:
    return Loader(tiny.dataset, **SAMPLING, spill_dir=folder, **(SSD | settings))


def recording_of(loader: Loader, *, read_s: float, compute_s: float = 0.001) -> Recording:
    """Return what a run of ``loader`` would have left, with a disk and a model of such seconds."""
    step = loader.memory_plan.step
    rows, misses = 100, max(round(sum(step.misses)), 1)
    batches = tuple(
        BatchWork(
            epoch=epoch,
            index=index,
            trace=Demands(cpu_s=1e-4),
            sample=Demands(cpu_s=1e-4),
            read=Demands(cpu_s=1e-4, disk_s=read_s),
            gather=Demands(cpu_s=1e-4),
            compute=Demands(cpu_s=compute_s),
        )
        for epoch in range(2)
        for index in range(len(loader))
    )
    one = SuperbatchWork(num_batches=1, inspect=Demands(cpu_s=1e-4), stage=Demands(cpu_s=1e-4))
    work = RunWork(batches=batches, superbatches=(one,) * len(batches))
    machine, shape = (
        Machine(cores=4),
        PipelineShape(features="ssd", sampler_threads=1, ahead=3, num_buffers=3),
    )
    found = recorded(
        replay(work, machine, shape), work, machine, shape, num_batches=len(loader), superbatch=1
    )
    notes = {
        "inspect": {"hits": rows - misses, "misses": misses},
        "stage": {"misses": misses},
        "read": {"misses": misses},
        "gather": {"hits": rows - misses, "admitted": 10},
    }
    return replace(
        found,
        events=tuple(
            event._replace(notes={**event.notes, **notes.get(event.stage, {})}) for event in found.events
        ),
    )


def advisor_of(loader: Loader, tiny: Written, folder: Path) -> Advisor:
    tier = loader._held.tier
    return Advisor(tier.load, tier.plan, loader._settings)  # type: ignore[union-attr]


def test_a_slow_disk_makes_what_reads_less_worth_it(tiny: Written, tmp_path: Path) -> None:
    with opened(tiny, tmp_path) as loader:
        found = advisor_of(loader, tiny, tmp_path).advise(recording_of(loader, read_s=0.05))
    assert "would make it" in found
    assert "(-" in found


def test_a_model_that_computes_is_helped_by_nothing(tiny: Written, tmp_path: Path) -> None:
    with opened(tiny, tmp_path) as loader:
        found = advisor_of(loader, tiny, tmp_path).advise(recording_of(loader, read_s=1e-5, compute_s=0.05))
    assert found == "no setting within this budget would help"


def test_the_same_is_not_advised_again_once_it_was_followed(tiny: Written, tmp_path: Path) -> None:
    """A cache that is large enough stays: it was advised within the budget, with everything else planned anew."""
    with opened(tiny, tmp_path, cache=None, superbatch=None, io_strategy="auto") as loader:
        recording = recording_of(loader, read_s=0.05)
        found = advisor_of(loader, tiny, tmp_path).advise(recording)
    assert "no cache=" not in found
    assert 'io_strategy="auto"' not in found


def test_what_is_advised_is_planned_as_a_loader_plans_it(tiny: Written, tmp_path: Path) -> None:
    with opened(tiny, tmp_path) as loader:
        tier = loader._held.tier
        settings = loader._settings.changed(cache=None)
        plan = plan_tiers(
            tier.load.demand,  # type: ignore[union-attr]
            settings,
            tier.load.files,  # type: ignore[union-attr]
            tier.load.tiers,  # type: ignore[union-attr]
            budget_bytes=tier.plan.budget_bytes,
        )
    with opened(tiny, tmp_path, cache=None) as followed:
        assert followed.memory_plan.cache_rows == plan.cache_rows
        assert followed.memory_plan.superbatch == plan.superbatch


def test_a_replay_that_explains_too_little_advises_nothing(tiny: Written, tmp_path: Path) -> None:
    with opened(tiny, tmp_path) as loader:
        recording = recording_of(loader, read_s=0.05)
        late = [
            event._replace(
                started_s=event.started_s + 0.2 * event.batch + 50 * event.epoch,
                ended_s=event.ended_s + 0.2 * event.batch + 50 * event.epoch,
            )
            for event in recording.events
        ]
        found = advisor_of(loader, tiny, tmp_path).advise(replace(recording, events=tuple(late)))
    assert found == ""


def test_a_loader_advises_after_its_second_epoch_and_records_what_it_needs(
    tiny: Written, tmp_path: Path
) -> None:
    with opened(tiny, tmp_path) as loader:
        assert loader.advice() == ""
        for _ in loader:
            pass
        assert loader.advice() == ""  # the first epoch begins with nothing prepared
        for _ in loader:
            pass
        assert isinstance(loader.advice(), str)
        state = {**loader.state_dict(), "next": [0, 0]}
        header = gloader.pipeline.run.run_header(
            loader._held.tier,  # type: ignore[arg-type]
            loader._settings,
            replace(loader._state, next=BatchId(epoch=0, index=0)),
            tiny.dataset,
            num_ranks=1,
        )
        assert header.state["next"] == state["next"]
        measured = measure(loader._timeline.recording(header))
        assert set(measured.epoch_s) == {0, 1}
        assert measured.epoch_s[1] == pytest.approx(loader.stats.seconds, rel=0.2, abs=0.05)
        assert loader.bottleneck()


def test_epochs_before_the_last_two_are_forgotten() -> None:
    found = RecentTimeline()
    for epoch in range(6):
        found.begin_epoch()
        found.record("gather", BatchId(epoch=epoch, index=0), 1, 0, 1, Used())
        found.record("gather", BatchId(epoch=epoch, index=MOST_BATCHES), 1, 0, 1, Used())
    kept = np.concatenate([record.table for one in found._recorders for record in one.records()])
    assert sorted(kept[:, 1].tolist()) == [3, 4, 5]
    assert not kept[:, 2].any()  # no batch beyond the first ones


def test_only_a_loader_that_was_asked_to_writes_a_trace(tiny: Written, tmp_path: Path) -> None:
    with (
        opened(tiny, tmp_path) as loader,
        pytest.raises(ConfigError, match="build the loader with trace=True"),
    ):
        loader.write_trace(tmp_path / "trace.json")
