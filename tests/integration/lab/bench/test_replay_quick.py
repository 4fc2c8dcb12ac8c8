"""`replay.py --quick` from the shell to the page, every night, so that the benchmark of the replay cannot rot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[4]
REPLAY = CHECKOUT / "experiments" / "bench" / "replay.py"
BLKIO = Path("/sys/fs/cgroup/blkio")
pytestmark = pytest.mark.long


def _run(tmp_path: Path, *words: str) -> tuple[dict[str, Any], str]:
    out = tmp_path / "replay.json"
    command = [sys.executable, REPLAY, "--quick", "--workdir", tmp_path / "work", "--out", out, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(CHECKOUT)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text()), out.with_suffix(".md").read_text()


def test_every_kind_of_run_is_recorded_and_replayed(tmp_path: Path) -> None:
    result, page = _run(tmp_path, "--parts", "unchanged")
    runs = result["parts"]["unchanged"]["runs"]
    assert len(runs) >= 12
    for name, one in runs.items():
        (run,) = one["rounds"]
        assert "error" in run, f"{name}: {run}"
        assert f"| {name} | " in page


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(BLKIO, os.W_OK), reason="holding a disk back needs root"
)
def test_runs_of_slow_disks_are_asked_about_each_other_and_advice_is_followed(tmp_path: Path) -> None:
    result, page = _run(tmp_path, "--parts", "cross,bottlenecks", "--bases", "1", "--only", "disk")
    pairs = result["parts"]["cross"]["pairs"]
    # Figures of tiny runs may be too noisy for a prediction, and then that is what is said.
    assert [pair["axis"] for pair in pairs] == ["disk"] * 6
    assert all("error" in pair or "refused" in pair for pair in pairs)
    found = result["parts"]["bottlenecks"]["found"]
    assert [one["name"] for one in found] == ["slow disk in order", "slow disk at random"]
    assert "## cross" in page
    assert "Named right: " in page
    assert not list(BLKIO.glob("gloader-replay-[0-9]*"))
