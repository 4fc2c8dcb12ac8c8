"""Lanes of a run and of its replay: the same names, and the course of three batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replayed_runs import BATCHES, SUPERBATCH, predicted, recording_of, work_of_run

from gloader.errors import ReplayError
from gloader.lab.analyze.lanes import (
    course_of,
    lane_order,
    measured_slices,
    middle_batches,
    replayed_slices,
)
from gloader.replay.recording import Recording

BASE = predicted()
RECORDING = recording_of(BASE)
LANES = {"sample 1", "sample 2", "inspect", "read", "gather", "compute"}


def test_both_have_lanes_of_the_same_names_in_the_order_of_the_stages() -> None:
    measured = {one.lane for one in measured_slices(RECORDING)}
    replayed = {one.lane for one in replayed_slices(BASE)}
    assert replayed == LANES
    assert measured == LANES | {"stage", "wait"}
    assert sorted(LANES, key=lane_order) == ["sample 1", "sample 2", "inspect", "read", "gather", "compute"]
    assert lane_order("no stage of ours")[0] > lane_order("wait")[0]


def test_what_a_replay_did_is_what_its_run_recorded() -> None:
    def spans(slices, stage):
        return sorted(
            (one.epoch, one.batch, one.batches, one.is_ahead, one.started_s, one.ended_s)
            for one in slices
            if one.stage == stage
        )

    measured, replayed = measured_slices(RECORDING), replayed_slices(BASE)
    for stage in ("sample", "inspect", "read", "gather", "compute"):
        assert spans(measured, stage) == spans(replayed, stage)
    inspected = [one for one in replayed if one.stage == "inspect"]
    assert {one.batches for one in inspected} == {SUPERBATCH}
    # Each batch is sampled for its trace, and then itself.
    sampled = [one.is_ahead for one in replayed if (one.stage, one.epoch, one.batch) == ("sample", 1, 2)]
    assert sampled == [True, False]


def test_the_middle_is_that_of_an_epoch_that_counts() -> None:
    assert middle_batches(RECORDING) == (2, (2, 3, 4))
    short = replace(RECORDING, events=tuple(one for one in RECORDING.events if one.batch < 2))
    short = replace(short, header=replace(short.header, num_batches=2))
    assert middle_batches(short) == (2, (0, 1))


def test_without_a_computation_there_is_no_middle() -> None:
    events = tuple(one for one in RECORDING.events if one.stage != "compute")
    with pytest.raises(ReplayError, match="no batch was computed"):
        middle_batches(Recording(header=RECORDING.header, events=events))


def test_the_course_runs_from_the_first_sample_to_the_last_step() -> None:
    slices = replayed_slices(BASE)
    course = course_of(slices, 1, (2, 3, 4))
    (first,) = [
        one.started_s
        for one in slices
        if (one.stage, one.epoch, one.batch, one.is_ahead) == ("sample", 1, 2, False)
    ]
    (last,) = [one.ended_s for one in slices if (one.stage, one.epoch, one.batch) == ("compute", 1, 4)]
    assert min(one.started_s for one in course) == 0.0
    assert max(one.ended_s for one in course) == pytest.approx(last - first)
    own = {(one.stage, one.batch) for one in course if one.epoch == 1 and not one.is_ahead}
    stages = ("sample", "read", "gather", "compute")
    assert {(stage, batch) for stage in stages for batch in (2, 3, 4)} <= own
    assert all(one.started_s < one.ended_s for one in course)


def test_waits_and_pauses_are_no_work_and_other_batches_have_no_course() -> None:
    work = work_of_run()
    paused = [replace(one, pause_s=0.5) if one.index == 0 else one for one in work.batches]
    prediction = predicted(work=replace(work, batches=tuple(paused)))
    assert {one.stage for one in replayed_slices(prediction)} >= {"pause"}
    # The pause before the next epoch lies within the course of these.
    course = course_of(replayed_slices(prediction), 1, (BATCHES - 1,))
    crossing = course_of(measured_slices(recording_of(prediction)), 2, (0, 1))
    assert {one.stage for one in (*course, *crossing)}.isdisjoint({"wait", "pause"})
    assert course_of(replayed_slices(prediction), 7, (0,)) == []
