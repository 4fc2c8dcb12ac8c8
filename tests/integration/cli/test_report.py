"""`gloader report` of a real run and a real inspection."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gloader.cli.main import main

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
        "run-epochs.png",
        "run-timeline.png",
        "digits-misses.png",
    ]
    assert all(Path(path).read_bytes().startswith(b"\x89PNG") for path in report["pictures"])
    text = page.read_text()
    assert "<title>Mine</title>" in text
    assert text.count("data:image/png;base64,") == 3
    assert "test accuracy" in text


def test_what_cannot_be_shown_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / "no"), "--out", str(tmp_path / "page.html")]) == 2
    assert "does not exist; give the folder of a `gloader train` run" in capsys.readouterr().err
    assert main(["report", "--out", str(tmp_path / "page.html")]) == 2
    assert "there are no runs" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
