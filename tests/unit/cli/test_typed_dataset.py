"""`gloader info` and `gloader verify` show each type and relation of a dataset of several types."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader import Dataset
from gloader.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    Dataset.from_numpy_hetero(
        tmp_path / "d",
        num_nodes={"paper": 1000, "author": 400, "venue": 0},
        features={"paper": rng.random((1000, 16), np.float32)},
        edges={
            WRITES: np.stack([rng.integers(0, 400, 2500), rng.integers(0, 1000, 2500)]),
            CITES: rng.integers(0, 1000, (2, 4000)),
        },
        edge_weight={CITES: rng.random(4000, np.float32)},
        labels={"paper": rng.integers(0, 7, 1000)},
        num_classes=7,
        train=np.arange(60),
        valid=np.arange(60, 80),
        test=np.arange(80, 100),
    )
    return tmp_path / "d"


def said(capsys: pytest.CaptureFixture[str], *words: str | Path, status: int = 0) -> str:
    capsys.readouterr()
    assert main([*map(str, words)]) == status
    return capsys.readouterr().out


def rows(text: str) -> dict[str, str]:
    """Return the lines of a table of two columns."""
    pairs = (line.strip().split("  ", 1) for line in text.splitlines() if "  " in line.strip())
    return {name: value.strip() for name, value in pairs}


def test_info_says_what_each_type_and_relation_has(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = rows(said(capsys, "info", path))
    assert shown["nodes"] == "1,400 of 3 types"
    assert shown["type paper"] == "1,000, 16 x float32, 64 B a row, 64 KB, labels"
    assert shown["type author"] == "400, no features"
    assert shown["type venue"] == "0, no features"
    assert shown["edges"] == "6,500 of 2 relations, 58 KB"
    assert shown["author:writes:paper"] == "2,500 (2.5 into each paper), 18 KB"
    assert shown["paper:cites:paper"] == "4,000 (4.0 into each paper), 40 KB, weights"
    assert shown["classes"] == "7, of paper"
    assert shown["splits"] == "train 60, valid 20, test 20"
    assert "node types" not in shown


def test_info_says_the_same_to_programs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = json.loads(said(capsys, "info", path, "--json"))
    assert (info["kind"], info["num_nodes"], info["num_edges"]) == ("hetero", 1400, 6500)
    assert [each["name"] for each in info["node_types"]] == ["paper", "author", "venue"]
    assert info["node_types"][0]["feature_dim"] == 16
    assert info["node_types"][1] == {
        "name": "author",
        "num_nodes": 400,
        "feature_dim": 0,
        "feature_dtype": None,
        "feature_bytes": 0,
        "has_labels": False,
    }
    assert info["relations"][0] == {
        "relation": "author:writes:paper",
        "num_edges": 2500,
        "mean_degree": 2.5,
        "topology_bytes": 8 * 1001 + 4 * 2500,
        "has_edge_weights": False,
        "has_edge_times": False,
        "time_bytes": 0,
        "edge_feature_dim": 0,
        "edge_feature_dtype": None,
        "edge_feature_bytes": 0,
    }
    assert "feature_dim" not in info


def test_verify_says_which_type_or_relation_is_damaged(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = said(capsys, "verify", path)
    assert rows(fine)["type paper"] == "5 arrays, 72.8 KB, ok"
    assert rows(fine)["relation author:writes:paper"] == "2 arrays, 18 KB, ok"
    with (path / "relations" / "paper__cites__paper" / "indices.npy").open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff")
    shown = said(capsys, "verify", path, status=1)
    assert rows(shown)["relation paper:cites:paper"].endswith("damaged, problems: 1")
    assert "damaged: relations/paper__cites__paper/indices.npy: page 0" in shown
    report = json.loads(said(capsys, "verify", path, "--json", status=1))
    assert {table["table"]: table["num_problems"] for table in report["tables"]} == {
        "type paper": 0,
        "type author": 0,
        "type venue": 0,
        "relation author:writes:paper": 0,
        "relation paper:cites:paper": 1,
    }


def test_verify_says_that_the_record_itself_is_damaged(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (path / "dataset.json").open("r+b") as file:
        file.seek(30)
        file.write(b"x")
    report = json.loads(said(capsys, "verify", path, "--json", status=1))
    assert (report["tables"], report["problems"][0]["file"]) == ([], "dataset.json")
