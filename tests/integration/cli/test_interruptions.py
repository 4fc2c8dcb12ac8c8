"""Runs that are stopped at any moment: how they end, what they leave, and that they can be continued."""

from __future__ import annotations

import json
import random
import re
import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest
from run_server import RunServer

from gloader.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_TRAIN = [
    "--fanout", "3,3", "--hidden", "8", "--batch-size", "128", "--epochs", "3", "--checkpoint-every", "2",
    "--features", "ssd", "--cache", "10%", "--memory-budget", "400MB", "--threads", "2", "--superbatch", "4",
]  # fmt: skip
_FIELDS = ("epoch", "loss", "train_acc", "valid_acc", "lr")
_PROMPT_S = 5.0


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "digits"
    assert main(["prepare", "builtin:digits", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server") / "first"


@pytest.fixture(scope="module")
def server(digits: Path, trained: Path) -> Iterator[RunServer]:
    with RunServer(
        ["train", "--dataset", str(digits), *_TRAIN, "--out", str(trained)], log=trained.with_name("log")
    ) as runs:
        yield runs


@pytest.fixture
def spill(tmp_path: Path) -> Path:
    folder = tmp_path / "spill"
    folder.mkdir()
    return folder


def _words(digits: Path, out: Path, spill: Path, *more: str) -> list[str]:
    return ["train", "--dataset", str(digits), *_TRAIN, "--spill-dir", str(spill), "--out", str(out), *more]


def _history(out: Path) -> list[list[object]]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [[line[field] for field in _FIELDS] for line in lines]


def _unfinished(out: Path) -> list[str]:
    return [path.name for path in out.glob("*") if path.name.startswith((".", "gloader-"))]


def _require_one_line(text: str, number: signal.Signals) -> None:
    """Check that a run says in one line that it ended: how to go on, or that there is nothing to go on with."""
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in text
    assert len(errors) <= 1  # none where the signal came before or behind the command
    word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    for line in errors:
        assert re.fullmatch(
            rf"error: {word}(: no result was written; .*| \(stopped .*; go on: .*\))", line
        ), line


def _interrupt(
    server: RunServer,
    digits: Path,
    folder: Path,
    spill: Path,
    *,
    count: int,
    number: signal.Signals,
    seed: int = 0,
) -> None:
    status = {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
    whole = server.run(_words(digits, folder / "whole", spill))
    assert whole.status == 0
    moments = random.Random(seed)  # noqa: S311 - moments, not secrets
    num_stopped, longest_s = 0, whole.seconds
    for turn in range(count):
        out = folder / f"run-{number.name}-{turn}"
        ended = server.run(_words(digits, out, spill), after_s=moments.uniform(0.0, longest_s), number=number)
        assert ended.status in (0, status), f"run {turn}"
        assert ended.seconds < _PROMPT_S
        _require_one_line(ended.text, number)
        assert list(spill.iterdir()) == []
        assert _unfinished(out) == []
        num_stopped += ended.status == status
        # This run was over before its moment came: the first one was slower, perhaps beside other work.
        longest_s = longest_s if ended.status else longest_s / 2
    assert num_stopped > count // 2


def _kill_and_resume(
    server: RunServer, digits: Path, folder: Path, spill: Path, *, count: int, seed: int = 1
) -> None:
    whole = server.run(_words(digits, folder / "whole", spill))
    assert whole.status == 0
    expected = json.loads((folder / "whole" / "result.json").read_text())
    moments = random.Random(seed)  # noqa: S311 - moments, not secrets
    for turn in range(count):
        out = folder / f"killed-{turn}"
        server.run(
            _words(digits, out, spill),
            after_s=moments.uniform(0.0, whole.seconds),
            number=signal.SIGKILL,
        )
        assert len(list(spill.iterdir())) <= 1
        assert server.run(_words(digits, out, spill, "--resume")).status == 0
        assert _history(out) == _history(folder / "whole"), f"run {turn}"
        assert json.loads((out / "result.json").read_text())["test_acc"] == expected["test_acc"]
        assert list(spill.iterdir()) == []
        assert _unfinished(out) == []


@pytest.mark.reliability("D4")
def test_ctrl_c_at_any_moment_ends_a_run_at_once_and_leaves_nothing(server, digits, tmp_path, spill) -> None:
    _interrupt(server, digits, tmp_path, spill, count=8, number=signal.SIGINT)


@pytest.mark.reliability("D5")
def test_sigterm_at_any_moment_does_the_same(server, digits, tmp_path, spill) -> None:
    _interrupt(server, digits, tmp_path, spill, count=6, number=signal.SIGTERM)


@pytest.mark.reliability("F2")
def test_a_killed_run_is_continued_as_if_nothing_had_happened(server, digits, tmp_path, spill) -> None:
    _kill_and_resume(server, digits, tmp_path, spill, count=5)


@pytest.mark.reliability("J12")
def test_a_killed_inference_leaves_the_file_that_was_there_and_the_next_one_removes_the_rest(
    server, digits, trained, tmp_path
) -> None:
    out = tmp_path / "classes.npy"
    out.write_bytes(b"what was there")
    words = ["infer", "--dataset", str(digits), "--checkpoint", str(trained), "--out", str(out)]
    assert server.run(words, kill_at="file.after_fsync").status == -signal.SIGKILL
    assert out.read_bytes() == b"what was there"
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".npy", ".tmp"]
    assert server.run(words).status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["classes.npy"]
    assert np.load(out).shape == (1797,)


# Twenty-five at a time: the test runner takes a test of more than 15 minutes for one that hangs.
@pytest.mark.long
@pytest.mark.reliability("D4")
@pytest.mark.parametrize("seed", range(2, 42))
def test_thousand_interruptions(server, digits, tmp_path, spill, seed: int) -> None:
    _interrupt(server, digits, tmp_path, spill, count=25, number=signal.SIGINT, seed=seed)


@pytest.mark.long
@pytest.mark.reliability("F2")
@pytest.mark.parametrize("seed", range(2, 42))
def test_thousand_kills(server, digits, tmp_path, spill, seed: int) -> None:
    _kill_and_resume(server, digits, tmp_path, spill, count=25, seed=seed)
