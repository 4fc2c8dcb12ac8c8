"""Conclusions from a measurement."""

from __future__ import annotations

import pytest
from tunable_run import TunableRun

from gloader.config import TrainSettings
from gloader.lab.analyze.autotune import tune
from gloader.lab.analyze.trial import Autotuned, RunExtent, Trial


def trial(change: str, predicted_s: float, *measured_s: float) -> Trial:
    return Trial(change=change, settings=TrainSettings(), predicted_s=predicted_s, measured_s=measured_s)


def autotuned(start: Trial, best: Trial | None) -> Autotuned:
    return Autotuned(
        start=start, best=best, tuned=tune(TunableRun()), extent=RunExtent(num_epochs=2, num_batches=8)
    )


def test_a_measurement_is_the_median_of_its_repetitions() -> None:
    one = trial("threads=2", 2.0, 2.1, 9.0, 1.9)
    assert one.seconds == 2.1
    assert one.error == pytest.approx(0.05)


def test_a_measurement_that_agrees_is_kept_without_a_word() -> None:
    found = autotuned(trial("", 3.0, 3.1), trial("threads=2", 2.0, 2.19))
    assert found.contradiction == ""
    assert found.kept is found.best


def test_a_measurement_that_contradicts_is_told_and_the_faster_one_kept() -> None:
    found = autotuned(trial("", 3.0, 3.1), trial("threads=2", 2.0, 2.3))
    assert found.contradiction == (
        "the measurement contradicts the prediction: threads=2 took 2.3 s instead of 2 s (+15%)"
    )
    assert found.kept is found.best
    slower = autotuned(trial("", 3.0, 3.1), trial("threads=2", 2.0, 3.2))
    assert slower.contradiction.endswith(": threads=2 took 3.2 s instead of 2 s (+60%)")
    assert slower.kept is slower.start


def test_a_start_that_took_something_else_when_it_was_recorded_is_told() -> None:
    found = autotuned(trial("", 3.0, 2.5), None)
    assert found.kept is found.start
    said = "the start took 2.5 s instead of 3 s (-17%); another program ran during the recording, or runs now"
    assert said in found.contradiction
    both = autotuned(trial("", 3.0, 2.5), trial("threads=2", 2.0, 1.5))
    assert "threads=2 took 1.5 s instead of 2 s (-25%), the start took 2.5 s" in both.contradiction


def test_the_json_has_both_and_every_setting_that_was_tried() -> None:
    body = autotuned(trial("", 3.0, 3.1, 3.3), trial("threads=2", 2.0, 2.1)).to_json()
    assert body["start"] == {
        "change": "",
        "predicted_s": 3.0,
        "measured_s": pytest.approx(3.2),
        "repetitions_s": [3.1, 3.3],
        "error": pytest.approx(0.2 / 3),
    }
    assert (body["best"]["predicted_s"], body["kept"]) == (2.0, "threads=2")
    assert body["floor_s"] > 0
    refused = [one for one in body["tried"] if one["predicted_s"] is None]
    assert refused
    assert all("does not fit" in one["reason"] for one in refused)
