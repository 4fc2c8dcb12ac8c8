"""The findings of an analysis: what is shown of it, what is refused, and their JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from replayed_runs import findings_of_run, predicted, work_of_run

from gloader.errors import FormatError, ReplayError
from gloader.lab.analyze.findings import (
    Findings,
    bound_of,
    lines_of,
    no_help_words,
    signed,
    what_if_words,
)
from gloader.lab.analyze.predict import Prediction

FASTER = predicted("disk=2x", work=work_of_run(read_s=0.015), settings={"superbatch": 8})
ALIKE = predicted("gpu=4x", work=work_of_run(compute_s=0.0025))
SLOWER = predicted("cache=0.5x", work=work_of_run(read_s=0.045), note="twice the misses")
FASTEST = predicted("disk=10x", work=work_of_run(read_s=0.003))


def test_what_helps_is_shown_the_fastest_first_and_nothing_else() -> None:
    found = findings_of_run(FASTER, ALIKE, SLOWER, FASTEST)
    assert [one.change for one in found.shown] == ["disk=10x", "disk=2x"]
    assert [one.change for one in found.what_if] == ["disk=2x", "gpu=4x", "cache=0.5x", "disk=10x"]


def test_a_change_that_saves_two_hundredths_is_shown_and_less_is_not() -> None:
    base = predicted().replayed_s

    def taking(share: float) -> Prediction:
        return predicted(f"threads={share}", work=work_of_run(read_s=0.030 * share))

    shown = findings_of_run(taking(0.975), taking(0.985)).shown
    assert [one.change for one in shown] == ["threads=0.975"]
    assert shown[0].gain == pytest.approx(1 - shown[0].replayed_s / base)


def test_what_was_asked_is_shown_whatever_it_does_in_its_order() -> None:
    found = findings_of_run(SLOWER, ALIKE, FASTER, was_asked=True)
    assert [one.change for one in found.shown] == ["cache=0.5x", "gpu=4x", "disk=2x"]
    assert what_if_words(found.shown[0]) == "360 ms (+50%), bound by reads of the SSD then; twice the misses"
    assert what_if_words(found.shown[2]) == "120 ms (-50%), bound by reads of the SSD then"


def test_a_prediction_is_bound_by_what_most_of_an_epoch_goes_to() -> None:
    assert bound_of(predicted()) == "read"
    assert bound_of(FASTEST) == "compute"
    assert "bound by computing then" in what_if_words(findings_of_run(FASTEST).shown[0])


def test_the_lines_say_what_was_measured_and_replayed_and_where_it_went() -> None:
    lines = lines_of(findings_of_run(slower=1.05))
    assert lines["measured"] == "252 ms an epoch"
    assert lines["replayed"] == "240 ms (-4.8%); unexplained: read +5%, sample +2%"
    assert lines["where an epoch goes"].startswith("read 227 ms (94%), compute 10 ms (4%)")
    assert lines["stalls"].startswith("fetch 155 ms (65%), preparation ")
    assert lines["floor"] == "240 ms, which the SSD alone would take for the same work on this machine"
    assert "stalls, measured" not in lines


def test_small_parts_are_left_to_the_tables() -> None:
    parts = {"read": 0.2, "compute": 0.001, "start": 0.0388}
    found = findings_of_run(parts=parts, stalls={"fetch": 0.0, "network": 0.0})
    lines = lines_of(found)
    assert lines["where an epoch goes"] == "read 200 ms (83%), start 38.8 ms (16%)"
    assert lines["stalls"] == "no notable stall"
    assert found.parts == parts


def test_a_replay_that_explains_all_is_said_so_and_a_thread_may_be_the_floor() -> None:
    found = findings_of_run(unexplained={"read": 0.004, "epoch": 0.0}, floor_s=0.2, floor_of="sample threads")
    lines = lines_of(found)
    assert lines["replayed"].endswith("unexplained: no stage by 1%")
    assert lines["floor"].startswith("200 ms, which the sampling threads alone would take")


def test_verified_stalls_stand_beside_those_of_the_replay() -> None:
    verified = {"compute_s": 0.08, "warm_s": 0.09, "cold_s": 0.24, "preparation": 0.01, "fetch": 0.15}
    lines = lines_of(findings_of_run(verified=verified))
    assert lines["stalls, measured"] == (
        "preparation 10 ms, fetch 150 ms (computing alone 80 ms, all in memory 90 ms, as recorded 240 ms)"
    )
    disturbed = verified | {"compute_s": 0.2, "preparation": -0.11}
    assert lines_of(findings_of_run(verified=disturbed))["stalls, measured"].endswith(
        "; a stall below 0 shows how large the error of each stall may be: measure while nothing else runs"
    )
    cold = {name: verified[name] for name in ("compute_s", "cold_s")}
    assert lines_of(findings_of_run(verified=cold))["stalls, measured"] == (
        "none: the dataset does not fit in memory (computing alone 80 ms, as recorded 240 ms)"
    )


def test_nothing_is_predicted_from_a_replay_that_is_too_far_off() -> None:
    found = findings_of_run(FASTER, slower=1.5, verified={"compute_s": 0.1, "cold_s": 0.4})
    assert found.refused == (
        "an epoch took 50% longer than in the replay, and the replay is trusted up to 10%; of the stages read is the "
        "furthest off, and took 50% longer"
    )
    assert not found.is_trusted
    assert (found.what_if, found.parts, found.stalls, found.floor_s) == ((), {}, {}, None)
    assert list(lines_of(found)) == ["measured", "replayed", "nothing predicted", "stalls, measured"]
    body = json.loads(json.dumps(found.to_json()))
    assert (body["trusted"], body["what_if"], body["refused"]) == (False, [], found.refused)
    less = findings_of_run(slower=0.8)
    assert "an epoch took 20% less than in the replay" in less.refused


def test_a_replay_that_is_a_tenth_off_is_trusted() -> None:
    assert findings_of_run(FASTER, slower=1.0999).is_trusted


def test_waits_for_nothing_that_was_recorded_are_told_and_half_an_epoch_of_them_is_too_much() -> None:
    found = findings_of_run(FASTER, lags=0.3)
    assert found.is_trusted
    assert lines_of(found)["replayed"].endswith(
        "; 30% is waiting that the recording does not explain: it is kept as it is in every what-if"
    )
    assert "waiting" not in lines_of(findings_of_run(FASTER, lags=0.01))["replayed"]
    most = findings_of_run(FASTER, lags=0.51)
    assert most.refused == (
        "51% of an epoch is waiting that the recording does not explain (at most 50% is accepted): the loop slept, or "
        "other programs had the cores"
    )
    assert json.loads(json.dumps(most.to_json()))["lags"] == 0.51


def test_where_nothing_helps_that_is_said() -> None:
    assert no_help_words(findings_of_run(ALIKE, SLOWER)) == (
        "no tried change saves 2% of an epoch (gpu=4x, cache=0.5x)"
    )
    assert no_help_words(findings_of_run()) == "no tried change saves 2% of an epoch"


def test_no_change_has_no_sign() -> None:
    assert (signed(0.004), signed(-0.004), signed(0.0)) == ("0%", "0%", "0%")
    assert (signed(0.126), signed(-0.126), signed(-0.0004, digits=1)) == ("+13%", "-13%", "0.0%")
    assert "(0.0%)" in lines_of(findings_of_run())["replayed"]


def test_a_size_that_nobody_knows_is_none() -> None:
    def unknown(prediction: Prediction) -> int:
        raise ReplayError("the dataset of the run cannot be opened")

    found = findings_of_run(FASTER, memory_bytes=unknown)
    assert (found.memory_bytes, found.spill_bytes) == (None, None)
    assert (found.what_if[0].memory_bytes, found.what_if[0].spill_bytes) == (None, None)


def test_json_holds_what_programs_ask_for_and_can_be_read_again() -> None:
    found = findings_of_run(FASTER, SLOWER)
    body = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert body["measured_s"] == body["replayed_s"] == found.replayed_s
    assert body["unexplained"] == {"sample": 0.02, "read": 0.0, "epoch": 0.0}
    (faster, slower) = body["what_if"]
    assert (faster["change"], faster["replayed_s"]) == ("disk=2x", FASTER.replayed_s)
    assert (faster["settings"], faster["memory_bytes"]) == ({"superbatch": 8}, 10**9)
    assert (slower["note"], slower["memory_bytes"]) == ("twice the misses", 500_000_000)
    assert body["curve"][1] == {"cache_bytes": 10**6, "miss_rate": 0.4}
    assert (body["knee_bytes"], body["floor_of"], body["trusted"]) == (10**6, "disk", True)
    assert body["parts"].keys() >= {"read", "compute"}
    assert body["stalls"].keys() >= {"preparation", "fetch"}
    assert body["course"]["batches"] == [2, 3, 4]
    assert Findings.from_json(body) == found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "the analysis has version 99, this build reads version 1; make it again"),
        ({"what_if": [{"change": "disk=2x"}]}, "field 'what_if' field 'replayed_s' is missing"),
        ({"course": []}, "the analysis is malformed: .*field 'course' is "),
        ({"curve": None}, "field 'curve' is None, not a list"),
        ({"more": 1}, "field 'more' is unknown"),
    ],
)
def test_another_version_or_a_damaged_file_is_refused(change: dict[str, Any], message: str) -> None:
    body = json.loads(json.dumps(findings_of_run().to_json())) | change
    with pytest.raises(FormatError, match=message):
        Findings.from_json(body)


def test_what_is_missing_is_named() -> None:
    body = findings_of_run().to_json()
    del body["replayed_s"]
    with pytest.raises(FormatError, match="field 'replayed_s' is missing"):
        Findings.from_json(body)
