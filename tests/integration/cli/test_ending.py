"""A command ends with one line, the right status and no traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gloader.cli import main as cli
from gloader.cli.failure import describe, exit_status
from gloader.errors import BudgetError, ChecksumError, ConfigError, GraphError, StoreOpenError, StoreReadError
from gloader.observe.instruments import note_where
from gloader.types import BatchId

# A command that waits inside its work, where a signal finds it.
WAITING = """
import sys, time
from gloader.cli import main as cli

def doctor() -> None:
    print("ready", flush=True)
    try:
        time.sleep(60)
    finally:
        print("released", flush=True)

cli.doctor.doctor = doctor
sys.exit(cli.main(["doctor"]))
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_unwinds_and_sets_the_status(number: signal.Signals, status: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.05)
        child.send_signal(number)
        stdout, stderr = child.communicate(timeout=30)
    assert child.returncode == status
    assert stdout == "released\n"
    assert "Traceback" not in stderr
    assert stderr.count("\n") <= 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("x"), 2),
        (BudgetError("x"), 2),
        (GraphError("x"), 2),
        (StoreOpenError("x"), 2),
        (ChecksumError("x"), 1),
        (StoreReadError("x"), 1),
        (MemoryError(), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_status_tells_whose_mistake_it_is(error: BaseException, status: int) -> None:
    assert exit_status(error) == status


def test_description_carries_the_notes() -> None:
    error = ChecksumError("page 3\n  does not match")
    error.add_note("in stage gather, epoch 1, batch 17")
    assert describe(error) == "page 3 does not match (in stage gather, epoch 1, batch 17)"
    named = BudgetError("too little", advice='Give memory_budget="1.05GB" or more')
    assert describe(named, cli.build_app()["train"]) == "too little. Give --memory-budget 1.05GB or more"
    assert "smaller --memory-budget" in describe(MemoryError())


@pytest.mark.parametrize("is_hidden", [False, True])
def test_an_end_by_a_signal_does_not_blame_the_batch_that_it_found(
    is_hidden: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def doctor() -> None:
        stop: BaseException = SystemExit(143)
        if is_hidden:  # leaving a block can raise something else
            stop, stop.__context__ = RuntimeError("left"), stop
        note_where(stop, "transfer", BatchId(epoch=2, index=0))
        stop.add_note("stopped in epoch 3; go on: the same command with --resume")
        raise stop

    monkeypatch.setattr(cli.doctor, "doctor", doctor)
    assert cli.main(["doctor"]) == 143
    said = "error: terminated (stopped in epoch 3; go on: the same command with --resume)\n"
    assert capsys.readouterr().err == said


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StoreOpenError):
        cli.main(["info", "/nowhere", "--debug"])
    assert cli.main(["info", "/nowhere"]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -m gloader --help | true"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""


@pytest.mark.reliability("D5")
@pytest.mark.parametrize(
    ("number", "status"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.long), (signal.SIGTERM, 143)]
)
def test_training_ends_by_a_signal_with_one_line_and_no_residue(
    tmp_path: Path, number: signal.Signals, status: int
) -> None:
    """Through the interpreter's own end, which `test_interruptions` goes around."""
    spill, out = tmp_path / "spill", tmp_path / "run"
    spill.mkdir()
    words = ["--fanout", "3,3", "--hidden", "8", "--epochs", "1000", "--features", "ssd", "--cache", "10%"]
    command = [sys.executable, "-m", "gloader", "train", "--dataset", "builtin:digits", *words]
    with subprocess.Popen(
        [*command, "--spill-dir", str(spill), "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        while not (line := child.stdout.readline()).lstrip().startswith("2 "):
            assert line, child.stderr and child.stderr.read()
        child.send_signal(number)
        _, stderr = child.communicate(timeout=30)
    assert child.returncode == status
    word = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    assert stderr.startswith(f"error: {word} (stopped in epoch ")
    assert stderr.endswith(f"with --out {out} --resume)\n")
    assert list(spill.iterdir()) == []
    assert [path.name for path in out.iterdir() if path.name.startswith((".", "gloader"))] == []
