"""Tests that need a GPU: the parts of `gpu_check.py` that can be wrong, with the compiled kernels.

Without one, `tests/integration/loader/test_gpu_check.py` runs the same parts on small inputs, with a CPU that goes the
way of a GPU.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu_check import run_parts
from gpu_sizes import Sizes, sizes_of

from gloader.models.attention import attention_kernels

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="there is no GPU: compiled kernels, streams and pinned memory need one",
)

ROOT = Path(__file__).parents[2]
# The others measure rates, which depend on the machine.
CHECKED = (
    "pinned",
    "bits",
    "race",
    "streams",
    "ahead",
    "models",
    "compile",
    "inference",
    "sampling",
    "ranks",
    "ends",
    "auto",
    "training",
    "loader",
)
SECONDS = 100.0  # of a part; pytest ends a test after 120
MAY_BE_SHORT = ("auto", "loader")  # of a bound that depends on the machine


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> Sizes:
    return sizes_of(is_gpu=True, workdir=tmp_path_factory.mktemp("graphs"), scale=0.1)


@pytest.mark.parametrize("part", CHECKED)
def test_the_gpu_does_what_the_cpu_does(sizes: Sizes, part: str) -> None:
    findings = list(run_parts([part], sizes, seconds=SECONDS))
    allowed = {"ok", "for comparison"} | ({"short of it"} if part in MAY_BE_SHORT else set())
    assert [finding.line for finding in findings if finding.verdict not in allowed] == []


def test_kernels_are_compiled_here() -> None:
    assert os.environ.get("TRITON_INTERPRET", "0") != "1"
    assert attention_kernels(torch.device("cuda", 0)) is not None


def test_without_a_compiler_training_goes_on_and_each_fallback_says_so_in_one_line(tmp_path: Path) -> None:
    """Triton compiles its launcher with a C compiler; rows are gathered by torch where there is none."""
    left_out = ("CC", "PYTHONPATH", "TRITON_CACHE_DIR")
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "bare_machine.py"), "cuda"],
        env=environment
        | {
            "PATH": "",
            "PYTHONPATH": str(ROOT),
            "GLOADER_HOME": str(tmp_path),
            "TRITON_CACHE_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 2, done.stderr  # its command line lacks packages
    *fallbacks, lacking = done.stderr.splitlines()
    starts = [line.split(" on ")[0] for line in fallbacks]
    assert starts == ["gloader's gather kernel does not run", "batches are sampled"][: len(starts)]
    assert starts
    assert lacking.startswith("error: No module named 'cyclopts'")
