"""`compare.py --quick` from the shell to the page: a minute, so it runs every night, that the comparison cannot rot."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gloader.cli.main import main

CHECKOUT = Path(__file__).parents[4]
COMPARE = CHECKOUT / "experiments" / "bench" / "compare.py"
pytestmark = pytest.mark.long
HAS_DGL = importlib.util.find_spec("dgl") is not None


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JSON of a quick comparison."""
    folder = tmp_path_factory.mktemp("compare")
    done = subprocess.run(
        [sys.executable, COMPARE, "--quick", "--workdir", folder / "work", "--out", folder / "compare.json"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT), "GLOADER_HOME": str(folder / "home")},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in (folder / "work").iterdir() if "gloader-compare-" in path.name] == []
    return folder / "compare.json"


def test_every_contender_has_figures_or_says_why_not(out: Path) -> None:
    result = json.loads(out.read_text())
    (comparison,) = result["comparisons"]
    rows: dict[str, dict[str, Any]] = {row["name"]: row for row in comparison["rows"]}
    assert list(rows) == [
        "gloader", "gloader-ginex", "gloader-memory", "dgl-memory", "dgl-memmap-random", "pyg-memory",
    ]  # fmt: skip
    for name, row in rows.items():
        can_fail = name.startswith("pyg") or (name.startswith("dgl") and not HAS_DGL)
        assert row["outcome"] == "done" or (can_fail and row["outcome"].startswith("cannot run: Missing")), (
            row
        )
        if row["outcome"] == "done":
            assert row["later_epoch_s"]["median"] > 0
            assert row["peak_resident_bytes"] > 0
            assert len(row["accuracy"]) == 2
    assert comparison["target_accuracy"] == pytest.approx(0.99 * max(rows["gloader-memory"]["accuracy"]))
    assert 0 < rows["gloader"]["hit_rate"] < 1
    assert rows["gloader-memory"]["hit_rate"] == 1
    assert rows["gloader-ginex"]["hit_rate"] <= rows["gloader"]["hit_rate"]
    assert result["machine"]["cores"] >= 1
    assert {"torch", "numpy", "pyg-lib"} <= result["versions"].keys()


def test_batches_of_gloader_train_the_same_wherever_its_features_are(out: Path) -> None:
    (comparison,) = json.loads(out.read_text())["comparisons"]
    losses = {
        name: [epoch["loss"] for epoch in runs[0]["epochs"]]
        for name, runs in comparison["runs"].items()
        if name.startswith("gloader")
    }
    assert losses["gloader"] == losses["gloader-ginex"] == losses["gloader-memory"]


def test_a_table_and_a_picture_come_with_it_and_a_page_shows_them(out: Path, tmp_path: Path) -> None:
    table = out.with_suffix(".md").read_text()
    assert table.startswith("rmat: 100,000 nodes, 1,000,000 edges")
    assert "| gloader-ginex | ssd |" in table
    assert out.with_name("compare-rmat.png").read_bytes().startswith(b"\x89PNG")
    page = tmp_path / "page.html"
    assert main(["report", str(out), "--out", str(page), "--png", str(tmp_path / "png")]) == 0
    assert "Comparison on rmat" in page.read_text()
    assert [path.name for path in (tmp_path / "png").iterdir()] == ["compare-rmat.png"]
