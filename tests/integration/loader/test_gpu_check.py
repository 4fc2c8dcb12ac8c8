"""The check of a GPU runs to the end without one, and says what it could not check."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[3] / "experiments" / "bench"))
import gpu_check

SCRIPT = Path(gpu_check.__file__)
# Their subjects have tests of their own: ranks, signals, the device's sampler. Compilation and training take long.
LONG = ("compile", "sampling", "ranks", "ends", "training")


def _check(tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    """Run the script without a GPU and return its findings; nothing is wrong, and nothing is left behind."""
    out, workdir = tmp_path / "gpu.json", tmp_path / "work"
    workdir.mkdir()
    done = subprocess.run(
        [
            sys.executable,
            str(SCRIPT),
            "--cpu",
            "--scale",
            "0.1",
            "--workdir",
            str(workdir),
            "--out",
            str(out),
            *words,
        ],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(workdir.iterdir()) == []
    findings: list[dict[str, Any]] = json.loads(out.read_text())["findings"]
    table = out.with_suffix(".md").read_text()
    assert all(finding["name"] in table for finding in findings)
    return findings


def test_the_check_runs_without_a_gpu_and_says_what_it_left_out(tmp_path: Path) -> None:
    wanted = [name for name in gpu_check.PARTS if name not in LONG]
    found = _check(tmp_path, "--only", ",".join(wanted))
    assert list(dict.fromkeys(finding["part"] for finding in found)) == wanted
    findings = {finding["name"]: finding for finding in found}
    for name in ("gather of cached rows", "gather of host rows", "features pinned in place"):
        assert findings[name]["verdict"] == "not checked"
        assert "there is no GPU" in findings[name]["note"]
    batches = [finding for name, finding in findings.items() if name.startswith("batches, ")]
    streams = [finding for name, finding in findings.items() if name.startswith("wrong batches of a loader")]
    assert (len(batches), len(streams)) == (6, 4)
    assert {finding["verdict"] for finding in batches + streams} == {"ok"}
    assert (
        findings["gat, float32: gradients, relative distance to float32 on the CPU"]["must_be"]
        == "at most 0.0001"
    )


@pytest.mark.long
@pytest.mark.parametrize("part", LONG)
def test_parts_that_take_their_time(tmp_path: Path, part: str) -> None:
    findings = _check(tmp_path, "--only", part)
    assert {finding["verdict"] for finding in findings} - {"not checked"} == {"ok", "for comparison"}
