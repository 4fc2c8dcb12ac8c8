"""The commands that people type first answer at once: they import no torch."""

from __future__ import annotations

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
    edges, rows = np.array([[0, 1, 2], [1, 2, 0]]), np.ones((3, 4), np.float32)
    path, split = tmp_path / "dataset", np.arange(3)
    if is_typed:
        Dataset.from_numpy_hetero(
            path, num_nodes={"paper": 3}, edges={("paper", "cites", "paper"): edges}, features={"paper": rows},
            labels={"paper": split}, train=split[:1], valid=split[1:2], test=split[2:],
        ).close()  # fmt: skip
    else:
        Dataset.from_numpy(
            path, edge_index=edges, features=rows, labels=split, train=split[:1], valid=split[1:2],
            test=split[2:],
        ).close()  # fmt: skip
    words = ["train", "--dataset", str(path), "--model", model, "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", FIRST_RUN, *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "False\n", done.stderr
