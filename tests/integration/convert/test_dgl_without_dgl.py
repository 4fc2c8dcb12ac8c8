"""``gloader prepare dgl:FILE`` where DGL cannot be imported."""

from __future__ import annotations

import subprocess
import sys

import dgl_files
import pytest

from gloader.dataset import Dataset

PREPARE = """
import sys
sys.modules["dgl"] = None
from gloader.cli.main import main
for name in ("pairs", "by_source", "by_destination", "typed"):
    options = ["--edge-dtype", "float32", "--memory-budget", "200MB"]
    assert main(["prepare", f"dgl:{sys.argv[1]}/{name}.bin", f"{sys.argv[1]}/{name}", *options]) == 0, name
"""


def test_a_process_without_dgl_prepares_what_dgl_finds(tmp_path):
    for name in dgl_files.NAMES:
        dgl_files.written(name, tmp_path)
    subprocess.run(
        [sys.executable, "-c", PREPARE, str(tmp_path)], check=True, capture_output=True, timeout=300
    )
    prepared = Dataset.open(tmp_path / "pairs")
    assert prepared.num_edges == dgl_files.E
    pytest.importorskip("dgl")
    from gloader.convert.sources.dgl import quiet_dgl

    for name in dgl_files.NAMES:
        with quiet_dgl("this test needs") as dgl:
            (graph,), beside = dgl.load_graphs(str(tmp_path / f"{name}.bin"))
            for key, ids in beside.items():
                mask = graph.ndata[key.replace("_idx", "_mask").replace("valid", "val")] = (
                    graph.nodes().bool() & False
                )
                mask[ids] = True
            made = Dataset.from_dgl(graph, tmp_path / f"{name}-with-dgl")
        assert made.fingerprint == Dataset.open(tmp_path / name).fingerprint, name
