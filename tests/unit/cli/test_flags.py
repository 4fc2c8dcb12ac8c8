"""The command line as it is typed."""

from __future__ import annotations

import re

import pytest

from gloader.cli.main import main, normalise


def test_underscores_become_hyphens_in_flags_only() -> None:
    words = ["train", "--memory_budget", "a_b", "--batch_size=1_0", "out_dir", "--", "--keep_this"]
    assert normalise(words) == [
        "train",
        "--memory-budget",
        "a_b",
        "--batch-size=1_0",
        "out_dir",
        "--",
        "--keep_this",
    ]


def test_symmetrize_stands_alone_before_a_source_or_a_path() -> None:
    assert normalise(["prepare", "--symmetrize", "npy:a", "out"]) == [
        "prepare",
        "npy:a",
        "out",
        "--symmetrize",
    ]
    assert normalise(["prepare", "npy:a", "--symmetrize", "data/out"])[-1] == "--symmetrize"
    words = ["prepare", "pyg:a", "out", "--symmetrize", "cites", "--symmetrize", "a:b:a"]
    assert normalise(words) == words


def test_the_help_of_train_begins_with_the_ten_flags_that_most_runs_need(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "--help"]) == 0
    first = capsys.readouterr().out.split("─ Start with these")[1].split("╰")[0]
    flags = re.findall(r"^│ [* ]?\s*(--[a-z-]+)", first, re.MULTILINE)
    assert flags == [
        *("--dataset", "--out", "--resume", "--model", "--hidden"),
        *("--epochs", "--fanout", "--batch-size", "--memory-budget", "--features"),
    ]


def test_a_time_strategy_names_the_task_that_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--dataset", "builtin:digits", "--time-strategy", "last"]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "--time-strategy is for --task link, whose tables say when each edge asks" in said
