"""A run with embeddings that is killed at any change of the disk resumes, and ends with the bits of a whole run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parent / "embed_driver.py"


def killed(step: int, folder: Path, *calls: str) -> dict:
    command = [sys.executable, str(DRIVER), str(folder), str(step), *calls]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def check(found: dict, *, least: int) -> None:
    assert found["kills"] >= least
    assert found["wrong"] == []
    assert found["rest"] == []


def test_a_killed_run_resumes_with_the_same_bits(tmp_path: Path) -> None:
    """Where the files of one moment take the place of those of another."""
    check(killed(7, tmp_path, "replace", "unlink"), least=4)


@pytest.mark.long
def test_a_run_killed_at_every_change_resumes_with_the_same_bits(tmp_path: Path) -> None:
    check(killed(1, tmp_path), least=150)
