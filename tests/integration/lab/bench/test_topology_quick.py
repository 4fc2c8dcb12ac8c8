"""`topology.py --quick` from the shell to the page, every night, so that the edge benchmark cannot rot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[4]
TOPOLOGY = CHECKOUT / "experiments" / "bench" / "topology.py"
pytestmark = pytest.mark.long


def test_every_way_has_figures_and_only_mappings_map(tmp_path: Path) -> None:
    out = tmp_path / "topology.json"
    done = subprocess.run(
        [sys.executable, TOPOLOGY, "--quick", "--workdir", tmp_path / "work", "--out", out],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list((tmp_path / "work").glob("gloader-topology-*"))
    result = json.loads(out.read_text())
    ways = {part: sorted(summary["rows"]) for part, summary in result["summary"].items()}
    assert ways == {
        "sampling": ["direct", "mapped", "memmap", "ram", "sweep"],
        "epoch": ["ram", "sweep"],
    }, done.stdout
    rows = result["summary"]["sampling"]["rows"]
    assert {way for way, row in rows.items() if row["mapped_files"]} == {"mapped", "memmap"}
    assert rows["sweep"]["topology_superbatch"] >= 1
    assert 0 < rows["sweep"]["full_passes"]["bytes_read"] <= 1.05 * result["graph"]["edge_bytes"] + 4096
    page = out.with_suffix(".md").read_text()
    assert "| direct / sweep, a batch | at least 20 |" in page
    assert "| epoch with features, sweep / ram | at most 1.25 |" in page
