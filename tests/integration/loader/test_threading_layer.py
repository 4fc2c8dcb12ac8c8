"""numba's workqueue layer aborts the process when parallel kernels run in two threads: there must be none."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Written

ROOT = Path(__file__).parents[3]
PACKAGES = ("gloader", "samplers", "cache", "ssd_store")
EPOCH = """
import sys, gloader
dataset = gloader.Dataset.open(sys.argv[1])
with gloader.Loader(dataset, fanouts=[4, 3], batch_size=8, threads=4, features="ssd") as loader:
    print(sum(batch.num_seeds for batch in loader))
"""


def _parallel_kernels(path: Path) -> list[str]:
    tree = ast.parse(path.read_text("utf-8"))
    keywords = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "parallel"]
    return [f"{path}:{keyword.value.lineno}" for keyword in keywords]


@pytest.mark.reliability("D12")
def test_no_kernel_of_the_package_is_parallel() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 100
    assert [place for path in files for place in _parallel_kernels(path)] == []


@pytest.mark.reliability("D12")
def test_an_epoch_of_concurrent_kernels_runs_under_the_workqueue_layer(tiny: Written) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EPOCH, str(tiny.path)],
        env=os.environ | {"NUMBA_THREADING_LAYER": "workqueue"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "100"
