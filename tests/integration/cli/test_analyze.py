"""`gloader analyze` of a real run, as a user would run it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gloader.cli.main import main
from gloader.errors import ConfigError
from gloader.lab.analyze.analysis import verify_stalls
from gloader.lab.analyze.findings import LEAST_GAIN
from gloader.plan.memory_plan import MemoryPlan
from gloader.replay.changes import KNOBS
from gloader.replay.recording import read_recording
from gloader.training.run_loader import RunLoader

TRAIN = [
    "train", "--dataset", "builtin:digits", "--fanout", "5,5", "--hidden", "16", "--batch-size", "128", "--epochs", "3",
    "--features", "ssd", "--cache", "10%", "--memory-budget", "200MB", "--threads", "1", "--trace",
]  # fmt: skip
FILES = {"analysis.json", "analysis.html", "replay.trace.json"}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was recorded; nobody writes into it."""
    out = tmp_path_factory.mktemp("recorded") / "digits"
    assert main([*TRAIN, "--out", str(out)]) == 0
    return out


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """The same run, to be written into."""
    return Path(shutil.copytree(recorded, tmp_path / "digits"))


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the replay of a run of milliseconds, beside other tests, be as far off as it is."""
    for name in ("MOST_UNEXPLAINED", "MOST_LAGS"):
        monkeypatch.setattr(f"gloader.replay.calibrate.{name}", 10.0)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify with few steps."""
    monkeypatch.setattr("gloader.lab.analyze.analysis.MOST_BATCHES", 4)
    monkeypatch.setattr("gloader.lab.analyze.analysis.REPEATS", 1)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[MemoryPlan]:
    """The memory plans of the loaders that training runs open, in order."""
    found: list[MemoryPlan] = []
    opening = RunLoader.open

    def told(self: RunLoader) -> Any:
        opened = opening(self)
        found.append(opened[1].memory_plan)
        return opened

    monkeypatch.setattr(RunLoader, "open", told)
    return found


def _altered(run: Path, change: Any) -> None:
    """Write the trace of ``run`` again, with ``change`` made to its content."""
    body = json.loads((run / "trace.json").read_text())
    change(body)
    (run / "trace.json").write_text(json.dumps(body))


def _stretch(body: dict[str, Any]) -> None:
    """Let twice the time pass, in which nobody does anything that a record could tell of."""
    for event in body["traceEvents"]:
        if "ts" in event:
            event["ts"] *= 2


@pytest.mark.usefixtures("trusted")
def test_a_run_is_explained_and_what_was_asked_is_told(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    words = ["--what-if", "gpu=4x", "--what-if", "cache=2x,superbatch=2"]
    assert main(["analyze", str(run), *words, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [one["change"] for one in body["what_if"]] != []
    assert {one["change"] for one in body["what_if"]} == {"gpu=4x", "cache=2x,superbatch=2"}
    assert body["was_asked"]
    assert body["measured_s"] == pytest.approx(body["replayed_s"] * (1 + body["unexplained"]["epoch"]))
    assert sum(body["parts"].values()) == pytest.approx(body["replayed_s"])
    assert 0 < body["floor_s"] <= body["replayed_s"] * (1 + 1e-9)
    assert all(one["memory_bytes"] > 0 and one["replayed_s"] > 0 for one in body["what_if"])
    assert {path.name for path in run.iterdir()} >= FILES
    assert json.loads((run / "analysis.json").read_text()) == body
    page = (run / "analysis.html").read_text()
    assert "<script" not in page
    assert page.count("<svg") >= 3
    events = json.loads((run / "replay.trace.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {1, 2}
    assert main(["report", str(run), "--out", str(run / "page.html"), "--json"]) == 0
    assert "Analysis: digits" in json.loads(capsys.readouterr().out)["sections"]


@pytest.mark.usefixtures("trusted")
def test_the_table_shows_what_helps_alone_and_the_files_lie_in_out(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    before = {path.name for path in recorded.iterdir()}
    out = tmp_path / "new" / "analysis"
    assert main(["analyze", str(recorded), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == FILES
    assert {path.name for path in recorded.iterdir()} == before
    for heading in ("measured", "replayed", "where an epoch goes", "stalls", "what would help", "floor"):
        assert f"\n{heading}" in shown
    body = json.loads((out / "analysis.json").read_text())
    assert not body["was_asked"]
    useful = [one for one in body["what_if"] if one["gain"] >= LEAST_GAIN]
    useful.sort(key=lambda one: one["replayed_s"])
    lines = [line.split()[0] for line in shown.splitlines() if line.startswith("  ")]
    assert lines == [one["change"] for one in useful]
    assert str(out / "analysis.html") in shown


def test_a_trace_alone_is_enough(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(recorded / "trace.json", tmp_path / "mine.json")
    assert main(["analyze", str(tmp_path / "mine.json"), "--what-if", "gpu=2x", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["run"] == str(tmp_path / "mine.json")
    assert {path.name for path in tmp_path.iterdir()} == {"mine.json", *FILES}


def test_nothing_is_predicted_where_the_replay_explains_too_little(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    _altered(run, _stretch)
    assert main(["analyze", str(run), "--what-if", "gpu=4x"]) == 1
    shown = capsys.readouterr().out
    assert "nothing predicted" in shown
    assert "longer than in the replay, and the replay is trusted up to 10%" in shown
    assert "of the stages" in shown
    for absent in ("gpu=4x", "what if", "floor", "where an epoch goes"):
        assert absent not in shown
    assert main(["analyze", str(run), "--what-if", "gpu=4x", "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert (body["what_if"], body["trusted"]) == ([], False)
    assert body["refused"].startswith("an epoch took ")
    assert "Nothing" not in (run / "analysis.html").read_text()
    assert body["refused"] in (run / "analysis.html").read_text().replace("&#x27;", "'")


def _without_header(body: dict[str, Any]) -> None:
    del body["otherData"]["gloader"]


def _dropped(body: dict[str, Any]) -> None:
    body["otherData"]["dropped_events"] = 7


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without_header, "the recording has no header: an earlier version wrote it, or a rank whose"),
        (_dropped, "7 events of the run were not recorded"),
        (lambda body: body.clear(), "this is no recording of gloader"),
        (lambda body: body["otherData"]["gloader"].update(version=99), "the recording has version 99"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_a_sentence(
    run: Path, capsys: pytest.CaptureFixture[str], change: Any, message: str
) -> None:
    _altered(run, change)
    assert main(["analyze", str(run)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert FILES.isdisjoint(path.name for path in run.iterdir())


def test_other_files_and_words_are_a_sentence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_text('{"traceEvents": [')
    for words, message in (
        ([str(tmp_path / "no")], "is not there; record a run with: gloader train ... --trace"),
        ([str(tmp_path)], "trace.json is not there"),
        ([str(damaged)], "damaged.json cannot be read as a recording"),
        ([str(run), "--what-if", "speed=2x"], "a what-if of 'speed=2x' is not understood; use one of disk="),
        ([str(run), "--what-if", "disk=fast"], "disk='fast' is not understood; it takes a factor such as 2x"),
        ([str(tmp_path / "replay.trace.json")], "is a file that gloader analyze writes; give the run"),
    ):
        assert main(["analyze", *words]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_a_target_that_is_no_file_is_refused_before_anything_is_replayed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "analysis.html").mkdir()
    assert main(["analyze", str(run)]) == 2
    assert "analysis.html: is a folder, which is never replaced by a file" in capsys.readouterr().err
    assert not (run / "analysis.json").exists()


@pytest.mark.usefixtures("quick")
def test_verify_measures_what_the_replay_says(
    run: Path, plans: list[MemoryPlan], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["analyze", str(run), "--what-if", "gpu=2x", "--verify"]) in (0, 1)
    shown = capsys.readouterr().out
    # The batches that are kept, everything in memory, and the run as it was: with the cache that it had.
    header = read_recording(run / "trace.json").header
    assert [plan.features for plan in plans] == ["ssd", "ram", "ssd"]
    assert plans[2].cache_rows == (header.tables[0].cache_rows,)
    assert "stalls, measured" in shown
    found = json.loads((run / "analysis.json").read_text())["verified"]
    assert all(found[name] > 0 for name in ("compute_s", "warm_s", "cold_s"))
    assert found["preparation"] == found["warm_s"] - found["compute_s"]
    assert found["fetch"] == found["cold_s"] - found["warm_s"]
    assert "all in memory" in (run / "analysis.html").read_text()


@pytest.mark.usefixtures("quick")
def test_what_does_not_fit_in_memory_has_no_warm_run_and_the_others_have_what_was_recorded(
    recorded: Path, plans: list[MemoryPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gloader.lab.analyze.analysis.available_memory_bytes", lambda: 1 << 20)
    header = read_recording(recorded / "trace.json").header
    # As where no budget was given: another part of the memory is free by now.
    then = replace(header, budget_bytes=header.budget_bytes - 10**6)
    assert verify_stalls(recorded, then).keys() == {"compute_s", "cold_s"}
    assert [plan.budget_bytes for plan in plans] == [then.budget_bytes] * 2


def test_only_the_folder_of_a_run_can_be_verified(recorded: Path) -> None:
    header = read_recording(recorded / "trace.json").header
    with pytest.raises(ConfigError, match="is a trace alone; give the folder of the run"):
        verify_stalls(recorded / "trace.json", header)
    shared = replace(header, shape=replace(header.shape, num_ranks=2))
    private = replace(header, state={**header.state, "global_batch_size": 2 * 128})
    for of_ranks in (shared, private):
        with pytest.raises(
            ConfigError, match="the run had 2 ranks, and only runs of one rank can be verified"
        ):
            verify_stalls(recorded, of_ranks)


def test_the_help_names_every_change(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    assert main(["analyze", "--help"]) == 0
    assert f"Names: {', '.join(KNOBS)}." in capsys.readouterr().out
