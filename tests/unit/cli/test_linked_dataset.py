"""`gloader info` and `gloader verify` show the link tables of a dataset, and the features and times of its edges."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from linked import BOUGHT, BUYS, link_arrays, write_linked, write_linked_types

from gloader import Dataset
from gloader.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path


def said(capsys: pytest.CaptureFixture[str], *words: str | Path, status: int = 0) -> str:
    capsys.readouterr()
    assert main([*map(str, words)]) == status
    return capsys.readouterr().out


def rows(text: str) -> dict[str, str]:
    """Return the lines of a table of two columns; a value that goes on in the next lines is one."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition("  ")
        if name:
            last = name
        found[last] = f"{found.get(last, '')} {value.strip()}".strip()
    return found


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    train = link_arrays(1000, num_destinations=40, num_reverses=300)
    train.pairs[:, 2] = np.where(np.arange(1000) < 812, 5, -1)
    bare = replace(link_arrays(0, num_destinations=40, labels=None, k=0), times=None)
    return write_linked(tmp_path / "d", {"train": train, "valid": bare}, dtype="int8").root


def test_info_says_what_a_link_table_and_edges_have(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = rows(said(capsys, "info", path))
    expected = "1,000, 812 of them in the graph, labels float32, times, 3 negatives each, 56 KB"
    assert shown["links train"] == expected
    assert shown["links valid"] == "0, 0 of them in the graph, 0 B"
    assert shown["edges"] == "300 (7.5 a node), 1.53 KB, times"
    assert shown["edge features"] == "3 x int8, 3 B a row, 900 B"
    assert shown.keys().isdisjoint({"relation", "reverse", "in graph", "links"})


def test_info_says_the_same_of_several_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = write_linked_types(tmp_path / "d", {"train": (BUYS, BOUGHT, link_arrays(10, k=0))})
    shown = rows(said(capsys, "info", dataset.root))
    assert shown["links train"].startswith("10 of user:buys:item, ")
    assert "3 x float32, 12 B a row, 3.6 KB" in shown["user:buys:item"]
    info = json.loads(said(capsys, "info", dataset.root, "--json"))
    assert info["link_tables"] == [
        {
            "name": "train",
            "relation": "user:buys:item",
            "reverse_relation": "item:rev_buys:user",
            "num_rows": 10,
            "in_graph": dataset.link_table("train").in_graph,
            "label_dtype": "float32",
            "has_times": True,
            "negatives_per_row": 0,
            "num_bytes": 440,
        }
    ]
    relation = info["relations"][0]
    assert (relation["edge_feature_dim"], relation["edge_feature_dtype"]) == (3, "float32")
    assert (relation["edge_feature_bytes"], relation["has_edge_times"], relation["time_bytes"]) == (
        3600,
        True,
        2400,
    )


@pytest.mark.parametrize("is_typed", [False, True])
def test_info_says_that_there_are_no_labels_where_edges_alone_are_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_typed: bool
) -> None:
    pairs, none = np.arange(40).reshape(2, 20), np.empty(0, np.int64)
    labels = np.full(40, -1)
    splits = {"train": none, "valid": none, "test": none}

    def show(name: str, **given: Any) -> tuple[dict[str, str], Any]:
        if is_typed:
            edges = {("user", "knows", "user"): pairs}
            Dataset.from_numpy_hetero(
                tmp_path / name, edges=edges, **{**splits, **given, "labels": {"user": labels}}
            )
        else:
            features = np.ones((40, 1), np.float32)
            Dataset.from_numpy(
                tmp_path / name, edge_index=pairs, features=features, labels=labels, **{**splits, **given}
            )
        return rows(said(capsys, "info", tmp_path / name)), json.loads(
            said(capsys, "info", tmp_path / name, "--json")
        )

    shown, info = show("links", edge_split=(0.8, 0.1, 0.1))
    assert shown["labels"] == "none"
    assert shown.keys().isdisjoint({"classes", "splits"})
    assert [each["has_labels"] for each in info["node_types"]] == [False]
    assert shown.get("type user", "none").endswith("no features" if is_typed else "none")
    # Classes that nodes have are told, beside link tables too; and so it is without link tables.
    for number, given in enumerate(
        [{"edge_split": (0.8, 0.1, 0.1), "num_classes": 3}, {"edge_split": (0.8, 0.1, 0.1), "test": [4]}, {}]
    ):
        shown, info = show(f"nodes{number}", **given)
        assert "labels" not in shown
        assert shown["classes"].startswith(str(given.get("num_classes", 1)))
        assert shown["splits"] == f"train 0, valid 0, test {len(given.get('test', []))}"
        assert [each["has_labels"] for each in info["node_types"]] == [True]


@pytest.mark.reliability("M1")
def test_verify_says_which_link_table_is_damaged(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rows(said(capsys, "verify", path))["links train"] == "4 arrays, 56 KB, ok"
    with (path / "links" / "train" / "times.npy").open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff\xff")
    shown = said(capsys, "verify", path, status=1)
    assert rows(shown)["links train"].endswith("damaged, problems: 1")
    assert "damaged: links/train/times.npy: page 0" in " ".join(shown.split())
    report = json.loads(said(capsys, "verify", path, "--json", status=1))
    assert {table["table"]: table["num_problems"] for table in report["tables"]} == {
        "links train": 1,
        "links valid": 0,
    }
    assert [problem["file"] for problem in report["problems"]] == ["links/train/times.npy"]
