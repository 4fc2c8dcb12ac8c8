"""The command line as it is typed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from gloader.cli.main import build_app, main, normalise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cyclopts import App


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
    assert "--time-strategy needs --table, whose rows may have a time, or --task link, whose tables" in said


ONCE = {
    "--fanout": [
        "train --dataset a",
        "autotune --dataset a",
        "inspect a",
        "fit",
        "bench sampler",
        "bench epoch",
    ],
    "--eval-edges": ["train --dataset a", "autotune --dataset a"],
    "--batch-size": ["train --dataset a", "fit"],
    "--seed": ["prepare a b", "train --dataset a"],
    "--json": ["info a", "doctor"],
}


@pytest.mark.parametrize(("flag", "command"), [(flag, each) for flag in ONCE for each in ONCE[flag]])
def test_a_flag_is_given_once(flag: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    values = [] if flag == "--json" else ["5"]
    assert main([*command.split(), flag, *values, flag, *values]) == 2
    is_list = flag in {"--fanout", "--eval-edges"}
    advice = "write its values as one word, such as A,B" if is_list else "leave one out"
    assert capsys.readouterr().err == f"error: {flag} is given twice: {advice}\n"


def test_flags_that_are_meant_to_be_repeated_are_those_that_cannot_be_one_word() -> None:
    """Every other flag that takes several values splits them at commas by itself; --embed takes both forms."""

    def commands(app: App) -> Iterator[App]:
        for name in app:
            if not name.startswith("-"):
                yield from [app[name]] if app[name].default_command else commands(app[name])

    arguments = [each for app in commands(build_app()) for each in app.assemble_argument_collection()]
    several = [
        each for each in arguments if each.parse and each.name.startswith("-") and each.token_count()[1]
    ]
    assert {each.name for each in several if each.parameter.allow_repeating} == {
        *("--symmetrize", "--reverse", "--edge-table", "--what-if", "--dims", "--embed")
    }
    assert all(each.parameter.converter for each in several if not each.parameter.allow_repeating)
