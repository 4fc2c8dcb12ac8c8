"""`gloader propagate` as a command: what it shows, what it leaves, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import gloader
from gloader.cli.main import main
from gloader.dataset import Dataset


@pytest.fixture(scope="module", name="digits")
def _digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "digits"
    assert main(["prepare", "builtin:digits", str(out)]) == 0
    return out


def test_the_columns_are_shown_before_and_their_cost_afterwards(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "hops"
    assert main(["propagate", str(digits), str(out), "--hops", "2", "--stats", "mean,max"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "columns 320, norm gcn: x 64, in1.mean 64, in1.max 64, in2.mean 64, in2.max 64" in shown
    assert "rows 1,797 of 1,797 nodes" in shown
    assert "predicted" in shown
    assert f"train on it: gloader train --dataset {out} --model sign" in shown
    assert main(["verify", str(out)]) == 0
    assert main(["info", str(out)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "hop columns x 64, in1.mean 64, in1.max 64, in2.mean 64, in2.max 64" in shown
    assert "made by hops 2, norm gcn, directions in, stats mean, max, nodes all, source" in shown


def test_classes_are_predicted_from_hop_columns(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hops, run = tmp_path / "hops", tmp_path / "run"
    assert main(["propagate", str(digits), str(hops), "--hops", "1"]) == 0
    given = ["--epochs", "6", "--memory-budget", "1GB", "--batch-size", "128"]
    assert main(["train", "--dataset", str(hops), "--model", "sign", *given, "--out", str(run)]) == 0
    found = tmp_path / "classes.npy"
    words = ["--checkpoint", str(run), "--memory-budget", "1GB", "--out", str(found)]
    assert main(["infer", "--dataset", str(hops), *words]) == 0
    made = Dataset.open(hops)
    assert (np.load(found) == made.labels)[made.test].mean() > 0.9
    capsys.readouterr()
    assert main(["infer", "--dataset", str(digits), *words[:-1], str(tmp_path / "other.npy")]) == 2
    assert "maps 128 features to 10 classes" in capsys.readouterr().err


def test_json_says_what_was_predicted_and_measured(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "t.parquet"
    words = [
        "--out",
        str(out),
        "--hops",
        "1",
        "--nodes",
        "labelled",
        "--dtype",
        "float16",
        "--labels",
        "--json",
    ]
    assert main(["propagate", str(digits), *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["columns"] == [["x", 64], ["in1.mean", 64], ["label.in1", 10]]
    assert found["num_columns"] == pq.read_table(out).num_columns - 3
    assert found["predicted"].keys() == found["measured"].keys()
    assert found["path"] == str(out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give one output: a folder for a dataset"),
        (["hops", "--out", "t.csv"], "give one output: a folder for a dataset"),
        (["t.csv"], "t.csv has the name of a table; write it with --out t.csv"),
        (["--out", "t.npy"], "--out t.npy is no .csv and no .parquet file"),
        (["hops", "--norm", "ppr"], "write ppr:0.15"),
        (["hops", "--directions", "in,up"], "directions: 'up' is unknown; allowed: in, out"),
        (["hops", "--hops", "0"], "--hops is 0; it must be 1 or more"),
        (["s3://bucket/hops"], "gloader propagate writes a folder"),
        (["hops", "--memory-budget", "1MB"], "Give --memory-budget"),
        (["hops", "--stat", "mean"], "Did you mean --stats"),
    ],
)
def test_mistakes_are_named(
    digits: Path,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["propagate", str(digits), *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_used_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    gloader.Dataset.from_numpy(
        tmp_path / "d",
        features=random.normal(size=(50, 2)).astype(np.float32),
        labels=random.integers(0, 2, 50),
        edge_index=random.integers(0, 50, (2, 100)),
        edge_time=np.arange(100),
        edge_features=random.normal(size=(100, 2)).astype(np.float32),
    )
    assert main(["propagate", str(tmp_path / "d"), str(tmp_path / "hops")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count("not used") == 1
    assert "edge times: hop columns see every edge, also the later ones; edge features" in shown


@pytest.mark.parametrize(
    "entry", [3, {"columns": 7}, {"columns": [["x", 0]]}, {"columns": [["x", "a", "b"]]}, []]
)
def test_an_entry_of_another_program_is_no_hop_column(
    tmp_path: Path, entry: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with Dataset.create(
        tmp_path / "d", name="d", num_nodes=3, num_classes=2, metadata={"hops": entry}
    ) as writer:
        writer.indptr().append(np.zeros(4, np.int64))
        writer.indices(0, "int32").close()
        writer.features(1, "float32").append(np.zeros((3, 1), np.float32))
        writer.labels(np.zeros(3, np.int64))
        writer.splits(train=np.arange(1), valid=np.arange(1, 2), test=np.arange(2, 3))
    assert main(["info", str(tmp_path / "d")]) == 0
    assert "hop columns" not in capsys.readouterr().out


# A command that says when its columns are finished, and then waits where the dataset is written.
WAITING = """
import sys, time
from gloader.cli.main import main
from gloader.training.propagation import hop_plan, propagate_dataset

def wait(*_, **__):
    print("finished", flush=True)
    time.sleep(60)

hop_plan._KEPT_FROM_S = 0.0
propagate_dataset.write_hop_dataset = wait
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_command_goes_on(
    digits: Path, tmp_path: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["propagate", str(digits), str(tmp_path / "hops"), "--hops", "2"]
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(gloader.__path__[0]).parent)},
    ) as child:
        assert child.stdout is not None
        assert any(line == "finished\n" for line in child.stdout)
        time.sleep(0.05)
        child.send_signal(number)
        _, said = child.communicate(timeout=30)
    work = tmp_path / ".hops.propagate"
    assert [path.name for path in tmp_path.iterdir()] == [work.name]
    assert work.stat().st_mode & 0o777 == 0o700
    if number != signal.SIGKILL:
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        word = "interrupted" if number == signal.SIGINT else "terminated"
        assert lines == [
            f"error: {word} (stopped; {work} keeps the finished columns; go on: the same command)"
        ]
    capsys.readouterr()
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "with the columns that an interrupted run has left" in shown
    assert shown.count(" for the whole run") == 2
    straight = gloader.propagate(digits, tmp_path / "straight", hops=2)
    assert isinstance(straight, Dataset)
    assert Dataset.open(tmp_path / "hops").fingerprint == straight.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hops", "straight"]
