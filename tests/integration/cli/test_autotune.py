"""`gloader autotune` of a real run, as a user would run it."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import yaml

from gloader.cli.failure import EXIT_USAGE
from gloader.cli.main import main
from gloader.errors import ConfigError
from gloader.ssd_store.spill.claim import SpillOwner

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = [
    "--fanout", "5,5", "--hidden", "16", "--batch-size", "128", "--features", "ssd", "--cache", "10%",
    "--memory-budget", "200MB", "--threads", "1",
]  # fmt: skip
TRAIN = ["train", "--dataset", "builtin:digits", *SETTINGS, "--epochs", "3", "--trace"]


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


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the replay of a run of milliseconds, beside other tests, be as far off as it is."""
    for name in ("MOST_UNEXPLAINED", "MOST_LAGS"):
        monkeypatch.setattr(f"gloader.replay.calibrate.{name}", 10.0)


@pytest.fixture
def searching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the search try every knob, however near the floor it begins."""
    monkeypatch.setattr("gloader.lab.analyze.autotune.search.__kwdefaults__", {"close": -1.0})


@pytest.mark.usefixtures("trusted", "searching")
def test_a_run_is_tuned_measured_and_written_down(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.iterdir()}
    recipe = tmp_path / "tuned.yaml"
    assert main(["autotune", str(run), "--out", str(recipe), "--rounds", "1", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert {path: path.stat().st_mtime_ns for path in run.iterdir()} == before
    start = body["start"]
    assert min(start["predicted_s"], start["measured_s"], body["floor_s"], body["search_s"]) > 0
    assert (body["memory_budget_bytes"], body["recipe"]) == (200_000_000, str(recipe))
    assert (body["epochs"], body["batches"]) == (2, 9)
    knobs = {word.partition("=")[0] for one in body["tried"] for word in one["change"].split(",")}
    assert knobs >= {"superbatch", "cache", "strategy", "threads"}
    written = yaml.safe_load(recipe.read_text())
    assert written["memory-budget"] == 200_000_000
    assert (written["fanout"], written["batch-size"], written["epochs"]) == ([5, 5], 128, 3)
    for word in filter(None, body["kept"].split(",")):
        name, _, value = word.partition("=")
        assert str(written[{"strategy": "io-strategy"}.get(name, name)]) == {"0B": "0"}.get(value, value)
    # The recipe is one: a run follows it.
    out = tmp_path / "followed"
    assert main(["train", "--config", str(recipe), "--epochs", "1", "--out", str(out), "--json"]) == 0
    followed = yaml.safe_load((out / "config.yaml").read_text())["loader"]
    assert followed["memory_budget_bytes"] == 200_000_000
    assert followed["batch_size"] == 128


@pytest.mark.usefixtures("trusted")
def test_a_dataset_is_recorded_first_and_leaves_nothing_but_the_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    words = ["--dataset", "builtin:digits", *SETTINGS, "--batches", "20", "--rounds", "1", "--epochs", "7"]
    assert main(["autotune", *words]) == 0
    shown = capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]
    text = (tmp_path / "recipe.yaml").read_text()
    assert text.startswith("# gloader autotune of digits: ")
    written = yaml.safe_load(text)
    assert (written["dataset"], written["epochs"], written["hidden"]) == ("builtin:digits", 7, 16)
    assert written["memory-budget"] == 200_000_000
    (header, start, *_) = shown.splitlines()
    assert header.split() == ["an", "epoch", "predicted", "measured"]
    assert start.startswith("as it was")
    for line in (
        "other settings replayed in ",
        "floor ",
        "memory budget as it was: 200 MB",
        "recipe in recipe.yaml",
    ):
        assert line in shown


@pytest.mark.reliability("E3")
def test_what_a_killed_run_recorded_goes_with_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the recording says whose it is, as that of a killed run does, which is removed."""
    killed = tmp_path / "gloader-autotune-dead"
    killed.mkdir(mode=0o700)
    owner = replace(SpillOwner.this_process(), pid=2**22 + 1)
    (killed / "owner.json").write_text(owner.to_json())
    seen: list[list[str]] = []

    def recording(_dataset: object, _given: object, folder: Path, *_: object, **__: object) -> None:
        seen.append([path.name for path in tmp_path.iterdir()])
        assert SpillOwner.read(folder / "owner.json") == SpillOwner.this_process()
        raise ConfigError("far enough")

    monkeypatch.setattr("gloader.cli.autotune._record", recording)
    words = ["autotune", "--dataset", "builtin:digits", *SETTINGS, "--spill-dir", str(tmp_path)]
    assert main([*words, "--out", str(tmp_path / "recipe.yaml")]) == EXIT_USAGE
    assert "far enough" in capsys.readouterr().err
    assert len(seen[0]) == 1
    assert killed.name not in seen[0]
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("trusted")
def test_of_a_long_epoch_a_part_is_measured_and_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    out = tmp_path / "recipe.yaml"
    words = ["--dataset", "builtin:digits", *SETTINGS, "--batches", "4", "--rounds", "1"]
    assert main(["autotune", *words, "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith("the first 4 of 9 batches")
    assert "the first 4 of 9 batches" in out.read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing is given to tune: give the folder of a recorded run, or --dataset"),
        (
            ["RUN", "--batch-size", "64"],
            "only --out and --rounds are allowed, the rest is as in RUN; leave other flags out",
        ),
        (["RUN", "--dataset", "builtin:digits"], "only --out and --rounds are allowed, the rest is as in RUN"),
        (["RUN", "--batches", "5"], "only --out and --rounds are allowed, the rest is as in RUN"),
        (["/nowhere"], "/nowhere is not there; record a run with: gloader train ... --trace"),
        (["RUN/trace.json"], "needs its folder, and RUN/trace.json is no folder; give the run's folder"),
        (["--dataset", "digits"], "'digits' is neither a folder nor a source"),
        (["--dataset", "builtin:digits", "--device", "cuda:99"], "cuda:99"),
        (["--dataset", "builtin:digits", "--memory-budget", "1MB"], "memory budget"),
        (["RUN", "--rounds", "0"], "--rounds is 0; it must be 1 or more"),
        (["RUN", "--out", "/"], "/"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_a_sentence(
    run: Path,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["autotune", *(word.replace("RUN", str(run)) for word in words)]) == 2
    error = capsys.readouterr().err.strip()
    assert message.replace("RUN", str(run)) in error
    assert error.startswith("error: ")
    assert list(tmp_path.iterdir()) == []


def _recorded_with(run: Path, tmp_path: Path, **changes: Any) -> Path:
    """Return the run with another header."""
    other = Path(shutil.copytree(run, tmp_path / "other"))
    body = json.loads((other / "trace.json").read_text())
    for name, value in changes.items():
        of = body["otherData"]["gloader"]
        of[name] = {**of[name], **value} if isinstance(value, dict) else value
    (other / "trace.json").write_text(json.dumps(body))
    return other


@pytest.mark.usefixtures("trusted")
def test_a_run_whose_dataset_has_changed_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = _recorded_with(run, tmp_path, fingerprint="other")
    assert main(["autotune", str(other), "--out", str(tmp_path / "recipe.yaml")]) == 2
    assert "is not the dataset that the run was recorded on" in capsys.readouterr().err


def test_torchrun_and_a_missing_solver_are_refused_before_anything_is_done(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "scipy.optimize", None)
        assert main(["autotune", str(run), "--out", str(tmp_path / "recipe.yaml")]) == 2
    assert "needs scipy; install it in your clone of gloader with" in capsys.readouterr().err
    for name, value in (
        ("RANK", 0),
        ("LOCAL_RANK", 0),
        ("WORLD_SIZE", 2),
        ("MASTER_ADDR", "here"),
        ("MASTER_PORT", 1),
    ):
        monkeypatch.setenv(name, str(value))
    assert main(["autotune", str(run), "--out", str(tmp_path / "recipe.yaml")]) == 2
    assert "trains in one process; start it without torchrun" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
