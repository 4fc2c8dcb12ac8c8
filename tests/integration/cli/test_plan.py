"""`gloader plan` of a real run, as a user would run it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from gloader.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).parents[3] / "docs" / "machines.yaml"
TRAIN = [
    "train", "--dataset", "builtin:digits", "--fanout", "5,5", "--hidden", "16", "--batch-size", "128", "--epochs", "2",
    "--features", "ssd", "--cache", "10%", "--memory-budget", "200MB", "--threads", "1", "--trace",
]  # fmt: skip
TWO = """
machines:
  - {name: slow, cores: 2, memory: 1GB, ssd: 10GB, dollars_per_hour: 1}
  - {name: fast, cores: 2, memory: 1GB, ssd: 10GB, gpu: 10x, dollars_per_hour: 1000}
  - {name: none, cores: 2, memory: 1MB, ssd: 10GB, dollars_per_hour: 0}
"""


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Tensors this small only lose by being shared between threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was recorded; nobody writes into it."""
    out = tmp_path_factory.mktemp("recorded") / "digits"
    assert main([*TRAIN, "--out", str(out)]) == 0
    return out


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the replay of a run of milliseconds, beside other tests, be as far off as it is."""
    for name in ("MOST_UNEXPLAINED", "MOST_LAGS"):
        monkeypatch.setattr(f"gloader.replay.calibrate.{name}", 10.0)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Three machines, one of which is too small."""
    path = tmp_path / "machines.yaml"
    path.write_text(TWO)
    return path


def test_machines_are_compared_and_the_cheapest_named(
    run: Path, two: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.iterdir()}
    assert main(["plan", str(run), "--machines", str(two), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert {path: path.stat().st_mtime_ns for path in run.iterdir()} == before
    assert {one["machine"] for one in body["best"]} == {"slow", "fast"}
    assert body["left_out"] == {"none": "1 MB of memory are too little"}
    assert body["predicted"] == 12
    for one in body["best"]:
        price = {"slow": 1, "fast": 1000}[one["machine"]]
        assert one["dollars_per_epoch"] == pytest.approx(one["epoch_s"] / 3600 * price)
        assert one["memory_bytes"] <= 0.8e9
        assert one["ssd_bytes"] > 1797 * 64 * 4
    assert body["chosen"]["machine"] == "slow"
    fastest = min(body["best"], key=lambda one: one["epoch_s"])
    assert fastest["machine"] == "fast"
    monkeypatch.setenv("COLUMNS", "300")
    within = str(fastest["epoch_s"] * 1.000001)
    assert main(["plan", str(run), "--machines", str(two), "--max-seconds", within]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].split() == ["machine", "an", "epoch", "memory", "SSD", "$", "an", "epoch"]
    assert "not on none: 1 MB of memory are too little" in shown
    assert "\nthe cheapest in at most " in shown
    assert ": fast with --memory-budget " in shown


@pytest.mark.parametrize(
    ("bounds", "line"),
    [
        (["--max-dollars", "1000"], "the fastest for at most $1,000.00 an epoch: fast with --memory-budget "),
        (
            ["--max-seconds", "1e-9"],
            "none in at most 1e-06 ms an epoch: the fastest is fast with --memory-budget ",
        ),
        (
            ["--max-dollars", "0", "--max-seconds", "100"],
            "none in at most 100 s an epoch and for at most $0.00 an epoch: the fastest is fast",
        ),
    ],
)
def test_what_is_within_bounds_is_named_and_what_is_nearest_where_nothing_is(
    run: Path,
    two: Path,
    bounds: list[str],
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["plan", str(run), "--machines", str(two), *bounds]) == 0
    shown = capsys.readouterr().out
    assert line in shown


def test_a_trace_alone_and_the_example_are_enough(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(run / "trace.json"), "--machines", str(EXAMPLE), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["best"]
    assert body["left_out"] == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/nowhere", "--machines", "TWO"], "/nowhere is not there; record a run with: gloader train ... --trace"),
        (["RUN"], "--machines"),
        (["RUN", "--machines", "/nowhere.yaml"], "the file of machines /nowhere.yaml cannot be read: No such file"),
        (["RUN", "--machines", "TWO", "--max-dollars", "-1"], "--max-dollars is -1.0; it must be a number of"),
        (["RUN", "--machines", "TWO", "--max-seconds", "nan"], "--max-seconds is nan; it must be a number of"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_a_sentence(
    run: Path, two: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [{"RUN": str(run), "TWO": str(two)}.get(word, word) for word in words]
    assert main(["plan", *given]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert message in error
