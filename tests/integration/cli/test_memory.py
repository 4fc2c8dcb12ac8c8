"""The peak memory of a training process against its budget."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gloader.cli.main import main

if TYPE_CHECKING:
    from pathlib import Path

MB = 1_000_000
LIBRARIES_BYTES = 400 * MB  # the interpreter, torch, numba and their code
NODES, DIM = 60_000, 256  # 61 MB of features
SPEC = f"synthetic:community,nodes={NODES},edges=600000,dim={DIM},classes=4,seed=1"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "graph"
    assert main(["prepare", SPEC, str(out)]) == 0
    return out


def _train(graph: Path, out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gloader", "train", "--json", "--dataset", str(graph), "--out", str(out)]
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.parametrize(
    ("budget_mb", "model", "batch_size", "features"),
    [
        (200, "graphsage", 512, "ssd"),  # a cache of some of the rows
        (450, "gat", 1024, "ssd"),  # a step takes most of it
        (450, "gcn", 1024, "ram"),
    ],
)
def test_the_peak_of_a_run_stays_within_its_budget(
    graph: Path, tmp_path: Path, budget_mb: int, model: str, batch_size: int, features: str
) -> None:
    done = _train(
        graph, tmp_path / "run", "--memory-budget", f"{budget_mb}MB", "--model", model, "--features", features,
        "--batch-size", str(batch_size), "--fanout", "10,10", "--hidden", "128", "--epochs", "1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["features"] == features
    assert result["peak_rss_bytes"] <= budget_mb * MB + LIBRARIES_BYTES
