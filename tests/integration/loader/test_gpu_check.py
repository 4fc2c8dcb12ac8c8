"""The check of a GPU runs to the end without one, and says what it could not check."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "experiments" / "bench" / "gpu_check.py"


def test_the_check_runs_without_a_gpu_and_says_what_it_left_out(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    done = subprocess.run(
        [
            sys.executable,
            str(SCRIPT),
            "--cpu",
            "--scale",
            "0.1",
            "--workdir",
            str(tmp_path),
            "--out",
            str(out),
        ],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(SCRIPT.parents[2])},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    findings = {finding["name"]: finding for finding in json.loads(out.read_text())["findings"]}
    assert "wrong" not in {finding["verdict"] for finding in findings.values()}
    for name in ("gather of cached rows", "gather of host rows", "features pinned in place"):
        assert findings[name]["verdict"] == "not checked"
        assert "there is no GPU" in findings[name]["note"]
    batches = [finding for name, finding in findings.items() if name.startswith("batches")]
    assert len(batches) == 6
    assert {finding["verdict"] for finding in batches} == {"ok"}
    assert "| not checked |" in out.with_suffix(".md").read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("gloader-gpu")] == []
