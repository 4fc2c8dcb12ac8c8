"""`gloader train --embed` and what follows it, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from gloader import Dataset, NodeEmbedding
from gloader.cli.main import main

FLAGS = [
    "--model",
    "rgcn",
    "--fanout",
    "3,2",
    "--hidden",
    "8",
    "--batch-size",
    "10",
    "--threads",
    "1",
]
FLAGS += ["--memory-budget", "1500MB"]


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 papers with features, and 90 authors without, who write in classes."""
    random = np.random.default_rng(0)
    authors = random.integers(0, 30, 240) * 3 + np.repeat(np.arange(60) % 3, 4)
    writes = np.stack([authors, np.repeat(np.arange(60), 4)])
    path = tmp_path_factory.mktemp("papers") / "dataset"
    Dataset.from_numpy_hetero(
        path,
        name="papers",
        num_nodes={"paper": 60, "author": 90},
        features={"paper": random.normal(size=(60, 4)).astype(np.float32)},
        edges={("author", "writes", "paper"): writes, ("paper", "by", "author"): writes[::-1].copy()},
        labels={"paper": np.arange(60) % 3},
        train=np.arange(40),
        valid=np.arange(40, 50),
        test=np.arange(50, 60),
    )
    return path


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_run_is_repeated_by_its_recipe_resumed_and_predicted_from(
    papers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, again, first = tmp_path / "run", tmp_path / "again", tmp_path / "first"
    words = ["train", "--dataset", str(papers), *FLAGS]
    embed = ["--embed", "8", "--embed", "paper=3", "--embed-lr", "0.2", "--embed-cache", "90%"]
    two = ["--epochs", "2"]
    assert main([*words, *embed, *two, "--out", str(run), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    recorded = yaml.safe_load((run / "config.yaml").read_text())["embeddings"]
    assert recorded == {
        "dims": {"*": 8, "paper": 3},
        "optimizer": "rowwise-adagrad",
        "lr": 0.2,
        "cache": "90%",
    }

    # The run's settings are a recipe; another cache changes nothing.
    config = ["--config", str(run / "config.yaml"), "--embed-cache", "100%"]
    assert main(["train", "--dataset", str(papers), *config, "--out", str(again)]) == 0
    assert losses(again) == losses(run)

    # A run of one epoch goes on to the second.
    assert main([*words, *embed, "--epochs", "1", "--out", str(first)]) == 0
    assert main([*words, *embed, *two, "--out", str(first), "--resume"]) == 0
    assert losses(first) == losses(run)

    capsys.readouterr()
    table = tmp_path / "predicted.csv"
    assert main(["infer", "--dataset", str(papers), "--checkpoint", str(run), "--out", str(table)]) == 0
    rows = np.loadtxt(table, delimiter=",", skiprows=1, dtype=np.int64)
    assert (rows[50:, 1] == np.arange(50, 60) % 3).mean() == result["test_acc"]

    # The rows are an embedding like any other.
    with NodeEmbedding.open(Dataset.open(papers), run / "embeddings" / "author") as embedding:
        assert (embedding.num_rows, embedding.dim, embedding.num_steps) == (90, 8, 8)
        embedding.export(tmp_path / "authors.npy")
    assert np.load(tmp_path / "authors.npy").shape == (90, 8)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--embed-optimizer", "adagrad"], "--embed-optimizer is for embeddings, and --embed names none"),
        (
            ["--embed", "paper=0"],
            "'paper=0' is no width of an embedding; write a whole number from 1 to 65,536",
        ),
        (
            ["--embed", "autor=8"],
            "--embed names the type 'autor', which papers does not have; did you mean 'author'?",
        ),
        (["--embed", "8", "--embed", "4"], "a width for all types is given twice"),
        (["--embed-lr", "0.1"], "--embed-lr is for embeddings, and --embed names none; give --embed DIM"),
        (["--embed", "8", "--embed-lr", "0"], "--embed-lr is 0.0; allowed: a positive number"),
        (["--embed", "8", "--embed-optimizer", "adagra"], 'Did you mean "adagrad"?'),
        (
            ["--embed", "8", "--embed-cache", "1KB"],
            "all rows of a batch are in memory until its step. Give it more",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    papers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    out = tmp_path / "run"
    assert main(["train", "--dataset", str(papers), *FLAGS, *words, "--out", str(out)]) in (2, 3)
    error = capsys.readouterr().err
    assert message in error
    assert not (out / "config.yaml").exists()
    assert not (out / "embeddings").exists()


def test_a_comparison_with_an_mlp_is_without_embeddings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--epochs",
        "1",
        "--threads",
        "1",
        "--memory-budget",
        "1500MB",
        "--fanout",
        "3,2",
        "--embed",
        "4",
    ]
    out = tmp_path / "run"
    assert main(["train", "--dataset", "builtin:digits", *words, "--compare-mlp", "--out", str(out)]) == 0
    assert (out / "embeddings" / "node").is_dir()
    assert not (out / "mlp" / "embeddings").exists()
    assert "embeddings" not in yaml.safe_load((out / "mlp" / "config.yaml").read_text())
    capsys.readouterr()
