"""`gloader train` over several node types, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from gloader import Dataset
from gloader.cli.main import main

FLAGS = ["--hidden", "8", "--batch-size", "16", "--memory-budget", "400MB", "--threads", "1", "--epochs", "2"]


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 papers with features, and 20 authors without."""
    random = np.random.default_rng(0)
    writes = np.stack([random.integers(0, 20, 120), random.integers(0, 60, 120)])
    path = tmp_path_factory.mktemp("papers") / "dataset"
    Dataset.from_numpy_hetero(
        path,
        name="papers",
        num_nodes={"paper": 60, "author": 20},
        features={"paper": random.normal(size=(60, 4)).astype(np.float32)},
        edges={("author", "writes", "paper"): writes, ("paper", "by", "author"): writes[::-1].copy()},
        labels={"paper": np.arange(60) % 3},
        train=np.arange(40),
        valid=np.arange(40, 50),
        test=np.arange(50, 60),
    )
    return path


def test_a_typed_run_is_repeated_by_its_resolved_configuration(
    papers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fanouts = "author:writes:paper=3,2;*=2,1"
    words = ["train", "--dataset", str(papers), "--model", "rgcn", "--fanout", fanouts, *FLAGS, "--json"]
    assert main([*words, "--out", str(tmp_path / "run"), "--runs", "2"]) == 0
    first = json.loads(capsys.readouterr().out)
    config = tmp_path / "run" / "config.yaml"
    assert yaml.safe_load(config.read_text())["loader"]["fanouts"] == fanouts
    again = [
        "train",
        "--dataset",
        str(papers),
        "--config",
        str(config),
        "--out",
        str(tmp_path / "again"),
        "--json",
    ]
    assert main(again) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["test_acc"] == first["test_acc"]
    losses = [
        [
            json.loads(line)["loss"]
            for line in (tmp_path / name / "run-1" / "metrics.jsonl").read_text().splitlines()
        ]
        for name in ("run", "again")
    ]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--model", "gcn"],
            "model 'gcn' is for graphs of one node type, and dataset papers has 2: paper, author",
        ),
        (["--model", "rgcn", "--compare-mlp"], "--compare-mlp is for datasets of one node type"),
        (["--model", "rgcn", "--compile"], "--compile is for models of graphs of one node type"),
        (["--model", "rgcn", "--fanout", "author:writes:book=3,2;*=2,2"], "author:writes:book"),
        (["--model", "rgcn", "--fanout", "author:writes:paper=3,2"], "paper:by:author"),
    ],
)
def test_what_is_not_for_several_types_is_refused_in_one_line(
    papers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    out = tmp_path / "run"
    assert main(["train", "--dataset", str(papers), *words, *FLAGS, "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not (out / "config.yaml").exists()


@pytest.mark.parametrize(
    "words", [["--model", "gcn"], ["--model", "rgcn", "--fanout", "*=3,2;author:writes:book=1,1"]]
)
def test_what_is_refused_is_refused_before_kernels_are_compiled(
    papers: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
) -> None:
    monkeypatch.setattr(
        "gloader.cli.train.compile_first", lambda *_, **__: pytest.fail("kernels are compiled")
    )
    assert main(["train", "--dataset", str(papers), *words, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_an_epoch_of_several_types_is_measured(papers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--fanout", "3,2", "--batch-size", "20", "--epochs", "1", "--threads", "1", "--json"]
    assert main(["bench", "epoch", "--dataset", str(papers), *words]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["workload"]["batches"] == 2  # 40 training papers
    assert report["seeds_per_second"] == pytest.approx(40 / report["seconds_per_epoch"])
    assert report["rows_per_second"] > 0


@pytest.mark.parametrize("words", [["inspect"], ["inspect", "--topology"]])
def test_commands_for_one_type_say_so_in_one_line(
    papers: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main([*words, "--dataset", str(papers)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(
        "error: gloader inspect is for datasets of one node type, and papers has 2 (paper, author); gloader train"
    )


@pytest.mark.parametrize(
    ("features", "more", "line"),
    [
        (
            {"author": np.ones((20, 3), np.float32)},
            [],
            "features on the SSD, 20 rows of author (100.0%) cached",
        ),
        ({}, [], "no features: no node type has any"),
        ({}, ["--embed", "author=4"], "no features, trained rows alone: 4 columns of author"),
    ],
    ids=["of-one-type", "of-none", "trained"],
)
def test_a_run_says_which_types_have_features(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    features: dict[str, np.ndarray],
    more: list[str],
    line: str,
) -> None:
    path, out = tmp_path / "dataset", tmp_path / "run"
    edges = np.stack([np.arange(20), np.arange(20)])
    Dataset.from_numpy_hetero(
        path, num_nodes={"paper": 60, "author": 20}, features=features, labels={"paper": np.arange(60) % 3},
        edges={("author", "writes", "paper"): edges}, train=np.arange(40),
        valid=np.arange(40, 50), test=np.arange(50, 60),
    )  # fmt: skip
    words = [
        "--dataset",
        str(path),
        "--model",
        "rgcn",
        "--fanout",
        "3",
        "--features",
        "ssd",
        "--out",
        str(out),
    ]
    assert main(["train", *words, *FLAGS, *more]) == 0
    assert line in capsys.readouterr().out
