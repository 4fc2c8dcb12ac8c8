"""A GPU machine without a C compiler trains all the same, and a process that ends unpins what it pinned."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gloader.device import has_triton

SCRIPT = Path(__file__).with_name("bare_machine.py")


def test_without_a_c_compiler_torch_gathers_and_one_line_says_so(tmp_path: Path) -> None:
    if not has_triton():
        pytest.skip("Triton cannot miss a compiler: it is missing itself (pip install -e '.[gpu]')")
    environment = {key: value for key, value in os.environ.items() if key != "CC"} | {
        "PATH": "",
        "PYTHONPATH": os.pathsep.join(sys.path),
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(tmp_path),
        "TRITON_LIBCUDA_PATH": str(tmp_path),  # Triton asks for the driver first
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = [json.loads(line) for line in done.stdout.splitlines()]
    (log,) = [text for name, text in said if name == "log"]
    assert "gather kernel does not run on cuda:0 (RuntimeError: Failed to find C compiler" in log
    assert "apt-get install gcc python3-dev" in log
    assert [(name, value) for name, value in said if name != "log"] == [
        ("pins features", False),
        ("has the right rows", True),
        ("has the right rows", True),
        ("pinned while the loader closes", 1),
        ("pinned at the end", 0),
    ]
