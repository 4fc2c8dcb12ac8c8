"""A database in RelBench's format, as a user prepares it, and MovieLens-100K where recbole is installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from relbench_folders import write_shop

from gloader import Dataset
from gloader.cli.main import main

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_receipt_names_tables_tasks_and_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shop(tmp_path / "shop")
    words = ["prepare", f"relbench:{tmp_path}/shop", str(tmp_path / "out"), "--memory-budget", "100MB"]
    assert main([*words, "--task-tables", "customer-churn,customer-buys"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "table customer-churn.train 300 rows of customers" in text
    assert "links customer-buys.train 674 of customers:customer-buys:products, 0 of them in the graph" in text
    assert "customers 60 nodes, 6 x float32 products" in text  # not: labels
    assert f"train on it: gloader train --dataset {tmp_path}/out --table customer-churn --model rsage" in text
    assert main([*words, "--task-tables", "customer-churn", "--overwrite", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["tables"]["customer-churn.test"] == "60 rows of customers"


def test_an_unknown_task_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shop(tmp_path / "shop")
    words = ["prepare", f"relbench:{tmp_path}/shop", str(tmp_path / "out"), "--task-tables", "churn"]
    assert main(words) == 2
    assert "--task-tables churn: " in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["shop"]


@pytest.mark.skipif(importlib.util.find_spec("recbole") is None, reason="recbole is not installed")
def test_movielens_is_three_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import movielens

    found = importlib.util.find_spec("recbole")
    assert found is not None
    (package,) = found.submodule_search_locations or ()
    movielens.write_movielens(tmp_path / "made", Path(package) / "dataset_example" / "ml-100k")
    assert main(["prepare", f"relbench:{tmp_path}/made", str(tmp_path / "out")]) == 0
    sys.modules.pop("movielens")
    dataset = Dataset.open(tmp_path / "out")
    counts = {name: table.num_nodes for name, table in dataset.node_tables.items()}
    assert counts == {"users": 943, "movies": 1682, "ratings": 100_000}
    tables = {name: dataset.task_table(f"rating.{name}") for name in ("train", "valid", "test")}
    assert sum(table.num_rows for table in tables.values()) == 100_000
    times = dataset.node_tables["ratings"].row_times
    assert times is not None
    assert (np.diff(times) >= 0).all()
    with tables["test"].open(max_bytes=10**8) as reader:
        rows = reader.read(np.arange(tables["test"].num_rows))
    np.testing.assert_array_equal(rows["times"], times[rows["nodes"]])
