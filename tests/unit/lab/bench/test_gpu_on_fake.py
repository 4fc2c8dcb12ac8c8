"""The parts of the GPU check that only a GPU reaches, on a fake one: every call fits, and nothing fails."""

import dataclasses
from pathlib import Path

import pytest
import torch
from fake_cuda import faked_cuda
from gpu_check import run_parts
from gpu_sizes import Sizes, sizes_of

from gloader.device import has_triton


def _sizes(folder: Path) -> Sizes:
    small = sizes_of(is_gpu=False, workdir=folder, scale=1.0)
    return dataclasses.replace(
        small, place=torch.device("cuda", 0), table_bytes=1 << 16, batch_rows=20, streamed=2
    )


@pytest.mark.parametrize(
    "part",
    ["env", "pinned", *(pytest.param(part, marks=pytest.mark.long) for part in ("contention", "rates"))],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_call_of_a_part_fits(tmp_path: Path, part: str) -> None:
    if not has_triton():
        pytest.skip("the kernel is not run: Triton is missing (pip install -e '.[gpu]')")
    with faked_cuda(1) as fake:
        findings = list(run_parts([part], _sizes(tmp_path), seconds=20))
        if part == "pinned":  # on purpose
            assert fake.faults.pop() == fake.faults.pop() == "a page is pinned twice"
    bad = [finding.line for finding in findings if finding.verdict in ("wrong", "failed")]
    assert bad == []
    assert len(findings) > 2
