"""`gloader report` of a real run and a real inspection."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gloader.cli.main import main
from gloader.observe.peak_memory import PeakMemory

DIGITS = ["--dataset", "builtin:digits", "--fanout", "5,5"]
TRAIN = [
    "--hidden",
    "16",
    "--batch-size",
    "128",
    "--epochs",
    "2",
    "--features",
    "ssd",
    "--memory-budget",
    "200MB",
]


def test_a_run_its_timeline_and_a_miss_curve_are_one_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, inspection = tmp_path / "run", tmp_path / "inspection"
    assert main(["train", *DIGITS, *TRAIN, "--trace", "--out", str(run)]) == 0
    assert main(["inspect", *DIGITS, "--batch-size", "64", "--out", str(inspection)]) == 0
    capsys.readouterr()
    page, png = tmp_path / "page.html", tmp_path / "png"
    words = [
        "report",
        str(run),
        str(inspection),
        "--out",
        str(page),
        "--png",
        str(png),
        "--title",
        "Mine",
        "--json",
    ]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sections"] == ["Training: run", "Timeline: run", "Misses: digits"]
    assert [Path(path).name for path in report["pictures"]] == [
        "run-confusion.svg",
        "run-epochs.svg",
        "loss.svg",
        "loss-seconds.svg",
        "acc.svg",
        "acc-seconds.svg",
        "memory.svg",
        "bytes.svg",
        "rows.svg",
        "run-timeline.svg",
        "digits-misses.svg",
    ]
    for path in map(Path, report["pictures"]):
        assert path.read_bytes().startswith(b"<svg"), path
    text = page.read_text()
    assert "<title>Mine</title>" in text
    assert re.search(
        rf"<p class=.source.>\d{{4}}-\d\d-\d\d \d\d:\d\d, gloader report {run} {inspection}</p>", text
    )
    assert text.count("<svg") == len(report["pictures"])
    assert "test accuracy" in text
    (figures,) = report["runs"]
    result = json.loads((run / "result.json").read_text())
    assert figures["test"] == result["test_acc"]
    assert figures["peak_anonymous_bytes"] == result["peak_anonymous_bytes"]
    assert figures["memory_budget_bytes"] == 200_000_000
    assert figures["bytes_read"] == result["bytes_read"]
    assert result["machine"]["device"] == "cpu"


def test_runs_are_a_table_on_the_screen_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train", *DIGITS, "--hidden", "8", "--batch-size", "512", "--epochs", "1", "--features", "ram"]
    assert main([*words, "--runs", "2", "--out", str(tmp_path / "seeds")]) == 0
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", "100")
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "seeds"), "--out", str(page)]) == 0
    assert "<h1>seeds/run-0, seeds/run-1</h1>" in page.read_text()
    screen = " ".join(capsys.readouterr().out.split())
    assert "seeds/run (2" in screen
    assert "median epoch waiting peak memory budget read" in screen
    assert "Runs beside each other" in screen
    # What ranks measure while they train is in the file, as the budget counts it.
    lines = (tmp_path / "seeds" / "run-0" / "metrics.jsonl").read_text().splitlines()
    memory = [json.loads(line)["memory_bytes"] for line in lines]
    assert [len(parts) for parts in memory] == [16]


def test_an_epoch_tells_of_its_own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, tell, events = PeakMemory.begin_course, PeakMemory.course, []

    def begin_course(peak: PeakMemory) -> None:
        events.append("begin")
        begin(peak)

    def course(peak: PeakMemory) -> tuple[int, ...]:
        events.append("tell")
        return tell(peak)

    monkeypatch.setattr(PeakMemory, "begin_course", begin_course)
    monkeypatch.setattr(PeakMemory, "course", course)
    words = ["train", *DIGITS, "--hidden", "8", "--batch-size", "512", "--epochs", "3", "--features", "ram"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    assert events[-6:] == ["begin", "tell"] * 3


def test_what_cannot_be_shown_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / "no"), "--out", str(tmp_path / "page.html")]) == 2
    assert "does not exist; give the folder of a `gloader train` run" in capsys.readouterr().err
    assert main(["report", "--out", str(tmp_path / "page.html")]) == 2
    assert "there are no runs" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
