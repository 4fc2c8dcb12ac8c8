"""The commands that people type first answer at once: they import no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gloader import Dataset

HEAVY = ("torch", "numba", "scipy", "sklearn", "pyarrow", "dgl", "ogb")
COMMANDS = ["--help", "--version", "train --help", "prepare --help", "info --help"]
PROBE = """
import sys
from gloader.cli.main import main
for words in {commands!r}:
    try:
        status = main(words.split())
    except SystemExit as exit:
        status = exit.code
    assert status == 0, (words, status)
    print("heavy:", words, *[name for name in {heavy!r} if name in sys.modules])
"""

FIRST_RUN = """
import sys
from gloader.cli import main, train
def compile_first(*_, **__):
    print("torch" in sys.modules)
    sys.exit(0)
train.compile_first = compile_first
main.main(sys.argv[1:])
"""
COMPILES = """
import sys
from numba.core import event
from gloader.cli import main

class Listener(event.Listener):
    def on_start(self, found):
        kernel = found.data["dispatcher"].py_func
        print("compiled:", kernel.__module__, kernel.__name__, file=sys.stderr)

    def on_end(self, found):
        pass

event.register("numba:compile", Listener())
sys.exit(main.main(sys.argv[1:]))
"""


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(commands=COMMANDS, heavy=HEAVY)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("heavy:")]
    assert said == [f"heavy: {words}" for words in COMMANDS]


@pytest.mark.parametrize(("model", "is_typed"), [("graphsage", False), ("rsage", True)])
def test_a_run_has_no_torch_while_its_kernels_are_compiled(
    tmp_path: Path, model: str, is_typed: bool
) -> None:
    """A first run of several types had torch and its models beside the processes that compile: 296 MB of 240."""
    words = ["train", "--dataset", str(_written(tmp_path, is_typed=is_typed)), "--model", model]
    done = subprocess.run(
        [sys.executable, "-c", FIRST_RUN, *words, "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "False\n", done.stderr


@pytest.mark.long
@pytest.mark.parametrize("topology", ["ram", "sweep", "direct"])
@pytest.mark.parametrize(("model", "is_typed"), [("graphsage", False), ("rsage", True)])
def test_a_first_run_compiles_no_kernel_in_its_own_memory(
    tmp_path: Path, model: str, is_typed: bool, topology: str
) -> None:
    """Edges that are swept or read directly left some to the run, whose memory LLVM's 37 MB then were."""
    path = _written(tmp_path, is_typed=is_typed, num_nodes=3000)
    words = ["train", "--dataset", str(path), "--model", model, "--out", str(tmp_path / "run")]
    words += [
        "--topology",
        topology,
        "--features",
        "ssd",
        "--fanout",
        "3,3",
        "--batch-size",
        "64",
        "--epochs",
        "1",
    ]
    done = subprocess.run(
        [sys.executable, "-c", COMPILES, *words, "--memory-budget", "500MB"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")},
    )
    assert done.returncode == 0, done.stderr
    assert "first run" in done.stderr + done.stdout
    assert [line for line in done.stderr.splitlines() if line.startswith("compiled: gloader")] == []


def _written(folder: Path, *, is_typed: bool, num_nodes: int = 3) -> Path:
    """Write a dataset whose nodes have three edges each, of several types one with a small relation, too."""
    ids, path = np.arange(num_nodes), folder / "dataset"
    edges = np.stack([np.tile(ids, 3), np.concatenate([(ids + by) % num_nodes for by in (1, 2, 3)])])
    rows, third = np.ones((num_nodes, 4), np.float32), num_nodes // 3
    splits = {"train": ids[:third], "valid": ids[third : 2 * third], "test": ids[2 * third :]}
    if is_typed:
        Dataset.from_numpy_hetero(
            path,
            num_nodes={"paper": num_nodes, "field": 2},
            edges={("paper", "cites", "paper"): edges, ("field", "of", "paper"): np.array([[0, 1], [0, 1]])},
            features={"paper": rows},
            labels={"paper": ids % 3},
            **splits,
        ).close()
    else:
        Dataset.from_numpy(path, edge_index=edges, features=rows, labels=ids % 3, **splits).close()
    return path
