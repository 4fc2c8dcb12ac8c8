"""`gloader inspect` on a real graph, as a user would run it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gloader.cli.main import main

BASE = ["inspect", "--dataset", "builtin:digits", "--fanout", "5,5", "--batch-size", "32"]
WORDS = [*BASE, "--superbatch", "8"]


def test_the_table_names_every_policy_and_the_knee(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(WORDS) == 0
    shown = capsys.readouterr().out
    for word in ("belady", "S=8", "reset", "degree", "presample", "vip", "best", "lru", "sieve", "s3fifo"):
        assert word in shown
    assert "34 of 34 batches sampled; 1,797 of 1,797 rows occur" in shown
    assert "The knee is at " in shown
    table = shown[shown.index("digits: % of") : shown.index("34 of 34")]
    assert max(map(len, table.splitlines())) <= 80
    assert "…" not in table
    head = table.splitlines()[1:3]  # two lines name every policy; the third is the first size
    assert " ".join(head[1].split()) == "memory belady S=8 reset degree presample vip best lru sieve s3fifo"
    assert "KB" in table.splitlines()[3]
    assert "The first read of each row is counted, 8.6% of the accesses. Not so for static sets" in shown


def test_a_narrow_terminal_gets_tables_below_each_other_with_whole_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main([*WORDS, "--batches", "2"]) == 0
    shown = capsys.readouterr().out
    table = shown[shown.index("digits: % of") : shown.index("2 of 34")]
    assert table.count("memory") > 1
    assert max(map(len, table.splitlines())) <= 40
    assert "…" not in table
    for word in ("reset", "degree", "presample", "vip", "best", "lru", "sieve", "s3fifo"):
        assert word in table


def test_json_files_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "inspection"
    assert main([*WORDS, "--batches", "6", "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert json.loads((out / "inspect.json").read_text()) == report
    assert (report["batches"], report["epoch_batches"], report["dataset"]) == (6, 34, "digits")
    assert report["policies"]["static, best"]["preload_bytes"] == report["memory_bytes"]
    assert set(report["policies"]["belady"]["preload_bytes"]) == {0}
    assert report["settings"] == {"fanout": [5, 5], "batch_size": 32, "superbatch": 8, "seed": 0}
    assert (out / "inspect.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_numbers_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*WORDS, "--batches", "2", "--out", str(tmp_path)]) == 0
    assert "no picture: the picture needs matplotlib" in " ".join(capsys.readouterr().out.split())
    assert [path.name for path in tmp_path.iterdir()] == ["inspect.json"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batches", "0"], "there is nothing to sample"),
        (["--superbatch", "0"], "superbatch is 0"),
        (["--memory-budget", "20KB"], "--batches"),
    ],
)
def test_what_cannot_be_inspected_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*BASE, *words]) == 2
    assert message in capsys.readouterr().err
