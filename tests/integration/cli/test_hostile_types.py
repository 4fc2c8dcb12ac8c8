"""Hostile descriptions and records of typed graphs, from the command line: one line, and nothing is run or written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from gloader import Dataset
from gloader.cli.main import main
from gloader.ssd_store.format.format import DATASET_MANIFEST

FLAGS = ["--hidden", "8", "--batch-size", "8", "--fanout", "2,2", "--epochs", "1", "--model", "rgcn"]
MARK = "was-run"
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
NODES = "nodes:\n  paper: {features: paper.npy, labels: labels.npy}\n  author: {num_nodes: 9}\n"
EDGES = "edges:\n  author:writes:paper: writes.npy\n"
DESCRIPTIONS = {
    "code": f"name: !!python/object/apply:os.mkdir ['{MARK}']\n{NODES}{EDGES}",
    "laughs": LAUGHS + NODES + EDGES,
    "laughing nodes": LAUGHS + "nodes: *i\n" + EDGES,
    "depth": "nodes: " + "[" * 5000,
    "two of a key": NODES + "  paper: {num_nodes: 3}\n" + EDGES,
    "escaping relation": NODES + "edges:\n  author:../../x:paper: writes.npy\n",
    "escaping type": NODES + "  ../x: {num_nodes: 3}\n" + EDGES,
    "a colon too many": NODES + "edges:\n  author:a:b:paper: writes.npy\n",
    "nul": NODES + 'edges:\n  author:writes:paper: "a\\0b"\n',
    "pipe": NODES + "edges:\n  author:writes:paper: pipe.npy\n",
    "folder": NODES + "edges:\n  author:writes:paper: folder.npy\n",
    "pickle": NODES + "edges:\n  author:writes:paper: pickle.npy\n",
    "negative ids": NODES + "edges:\n  author:writes:paper: negative.npy\n",
    "ids out of range": NODES + "edges:\n  author:writes:paper: large.npy\n",
    "a number too large": "nodes:\n  paper: {features: paper.npy, labels: labels.npy}\n  author: {num_nodes: 1e300}\n"
    + EDGES,
    "a number of digits": NODES.replace("9}", "9" * 6000 + "}") + EDGES,
    "terminal, no relation": NODES + 'edges:\n  "author:\\e[2Jx": writes.npy\n',
    "array of a pipe": NODES.replace("paper.npy", "pipe.npy") + EDGES,
    "labels of a pipe": NODES.replace("labels.npy", "pipe.npy") + EDGES,
    "table of a pipe": NODES + "edges:\n  author:writes:paper: pipe.csv\n",
    "missing": NODES + "edges:\n  author:writes:paper: absent.npy\n",
    "terminal": NODES + 'edges:\n  "author:\\e[2Jx:paper": writes.npy\n',
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    found = tmp_path / "tables"
    found.mkdir()
    rng = np.random.default_rng(0)
    np.save(found / "paper.npy", rng.random((12, 3), np.float32))
    np.save(found / "labels.npy", np.arange(12) % 3)
    for name, last in (("writes", 8), ("large", 9), ("negative", -1)):
        np.save(found / f"{name}.npy", np.array([[0, 3, last], [0, 4, 11]]))
    np.save(found / "pickle.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (found / "folder.npy").mkdir()
    os.mkfifo(found / "pipe.npy")
    os.mkfifo(found / "pipe.csv")
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line that a command is refused with."""
    capsys.readouterr()
    assert main([*words]) in {1, 2}
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert line.isprintable()
    return line


@pytest.mark.reliability("L14")
@pytest.mark.parametrize("kind", DESCRIPTIONS)
def test_a_hostile_description_is_refused_in_a_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    (folder / "graph.yaml").write_text(DESCRIPTIONS[kind])
    before = sorted(tmp_path.rglob("*"))
    line = refused(capsys, "prepare", f"tables:{folder}", str(tmp_path / "out"))
    assert len(line) < 2000
    assert str(folder) in line
    assert sorted(tmp_path.rglob("*")) == before
    refused(capsys, "train", "--dataset", f"tables:{folder}", *FLAGS, "--out", str(tmp_path / "run"))
    assert not (tmp_path / MARK).exists()
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.reliability("L14")
def test_a_description_that_is_a_pipe_is_not_waited_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(folder / "graph.yaml")
    line = refused(capsys, "prepare", f"tables:{folder}", str(tmp_path / "out"))
    assert f"{folder}/graph.yaml is not a file" in line


def _write(path: Path) -> Path:
    rng = np.random.default_rng(0)
    Dataset.from_numpy_hetero(
        path,
        num_nodes={"paper": 60, "author": 20},
        features={"paper": rng.random((60, 4), np.float32), "author": rng.random((20, 3), np.float32)},
        edges={("author", "writes", "paper"): np.stack([rng.integers(0, 20, 120), rng.integers(0, 60, 120)])},
        labels={"paper": np.arange(60) % 3},
        train=np.arange(40),
        valid=np.arange(40, 50),
        test=np.arange(50, 60),
    )
    return path


@pytest.mark.reliability("L14")
@pytest.mark.parametrize(
    "harm",
    ["edited", "other folder", "cut", "no file", "damaged type"],
)
def test_a_hostile_record_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: str
) -> None:
    path = _write(tmp_path / "d")
    record = path / DATASET_MANIFEST
    text = record.read_text()
    if harm == "edited":
        record.write_text(text.replace('"author"', '"auth0r"', 1))
    elif harm == "other folder":
        record.write_text(text.replace("nodes/author/features", "../author/features"))
    elif harm == "cut":
        record.write_text(text[: len(text) // 2])
    elif harm == "no file":
        (path / "relations" / "author__writes__paper" / "indptr.npy").unlink()
    else:
        (path / "nodes" / "author" / "features.npy").write_bytes(b"\0" * 5000)
    assert json.loads(text)
    line = refused(
        capsys,
        "train",
        "--dataset",
        str(path),
        *FLAGS,
        "--memory-budget",
        "400MB",
        "--out",
        str(tmp_path / "run"),
    )
    assert str(path) in line
