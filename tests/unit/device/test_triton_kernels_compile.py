"""The kernel is compiled for real GPUs on a machine without one: it must be legal, move 16 bytes at a time,
and be compiled once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gloader.device import has_triton

SCRIPT = Path(__file__).with_name("compile_kernel.py")


@pytest.mark.parametrize(
    ("capability", "dim", "table", "host", "is_by_id"),
    [
        pytest.param(80, 128, "fp32", "fp32", False, marks=pytest.mark.long),
        pytest.param(90, 100, "fp16", "fp32", False, marks=pytest.mark.long),
        (90, 128, "i8", "i8", True),
    ],
)
def test_rows_move_in_words_of_sixteen_bytes(
    tmp_path: Path, capability: int, dim: int, table: str, host: str, is_by_id: bool
) -> None:
    if not has_triton():
        pytest.skip(
            "the kernel is not compiled: Triton is missing (pip install -e '.[gpu]' -c constraints.txt)"
        )
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps([capability, dim, table, host]), json.dumps(is_by_id)],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    found, compilations = map(json.loads, done.stdout.splitlines())
    assert {kind for kind in found if kind.startswith("st")} == {"st.global.v4.b32"}
    assert "ld.global.v4.b32" in found
    assert compilations == 1  # whatever the number of rows
