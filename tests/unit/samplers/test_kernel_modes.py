"""The kernels with bounds checks and without the compiler: the same batches, no error, on tiny inputs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = [
    "tests/unit/samplers/test_neighbor.py::test_batches_are_the_same_on_every_machine_and_in_every_version",
    "tests/unit/samplers/test_node_map.py::test_both_maps_give_identical_batches",
    "tests/unit/samplers/test_hetero.py::test_few_nodes_find_many_of_another_type",
    "tests/properties/samplers/test_sampler_oracle.py",
    "tests/properties/samplers/test_hetero_oracle.py",
    "tests/properties/samplers/test_importance_oracle.py",
    "tests/properties/samplers/test_pick_rule.py",
    "tests/properties/samplers/test_link_seeds_oracle.py",
    "tests/properties/samplers/test_temporal_oracle.py",
]


# Plain Python checks the bounds of arrays as well; compiling everything once more takes half a minute.
@pytest.mark.parametrize(
    "mode", ["NUMBA_DISABLE_JIT", pytest.param("NUMBA_BOUNDSCHECK", marks=pytest.mark.long)]
)
def test_kernels_in_another_mode(mode: str, tmp_path: Path) -> None:
    environment = os.environ | {
        mode: "1",
        "NUMBA_CACHE_DIR": str(tmp_path / "numba"),  # numba does not key its cache by these modes
        "HYPOTHESIS_PROFILE": "tiny",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(ROOT),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path / 'base'}",
        *TESTS,
    ]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "20 passed" in done.stdout
