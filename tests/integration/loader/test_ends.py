"""Rows D4 and P6 with real processes: training loops that are interrupted or killed at any time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gloader

from .conftest import Written
from .typed import write_typed

DRIVER = Path(__file__).with_name("ends_driver.py")


def drive(dataset: Path, spill: Path, *, seed: int, count: int) -> dict[str, Any]:
    checkout = str(Path(gloader.__path__[0]).parent)
    paths = os.pathsep.join(filter(None, [checkout, os.environ.get("PYTHONPATH")]))
    spill.mkdir()
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(dataset), str(spill), str(seed), str(count)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=30 + 10 * count,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(done.stdout))
    found["details"] = done.stderr
    return found


def check(found: dict[str, Any], count: int) -> None:
    details = found.pop("details")
    eighth = count // 8
    assert found.pop("left a spill folder", 0) > 3 * eighth / 4, (
        details
    )  # else no kill found a loader at work
    assert found.pop("resumed behind the first batches") > eighth, details
    assert found == {
        "interrupted, nothing left": 3 * eighth,
        "killed": 3 * eighth,
        "removed by the next start": 3 * eighth,
        "resumed with the same batches": 3 * eighth,
        "program ended, nothing left": 2 * eighth,
    }, details
    # "Exception ignored in ...": a Ctrl-C that was swallowed. Not one that met a program that was over: Python prints
    # that itself as it ends.
    assert "ignored in" not in details.replace("ignored in: <module 'threading'", ""), details


@pytest.mark.reliability("D4")
@pytest.mark.reliability("J12")
@pytest.mark.reliability("K5")
@pytest.mark.reliability("K9")
def test_dozens_of_loops_that_are_interrupted_or_killed(tiny: Written, tmp_path: Path) -> None:
    check(drive(tiny.path, tmp_path / "spill", seed=0, count=24), 24)


@pytest.mark.long
@pytest.mark.reliability("D4")
@pytest.mark.reliability("J12")
@pytest.mark.reliability("K5")
@pytest.mark.reliability("K9")
@pytest.mark.parametrize("seed", range(1, 51))
def test_thousands_of_loops_that_are_interrupted_or_killed(tiny: Written, tmp_path: Path, seed: int) -> None:
    check(drive(tiny.path, tmp_path / "spill", seed=seed, count=64), 64)


@pytest.mark.reliability("L6")
def test_typed_loops_that_are_interrupted_or_killed(tmp_path: Path) -> None:
    path = write_typed(tmp_path / "typed").dataset.root
    check(drive(path, tmp_path / "spill", seed=0, count=8), 8)


@pytest.mark.long
@pytest.mark.reliability("L6")
@pytest.mark.parametrize("seed", range(1, 11))
def test_many_typed_loops_that_are_interrupted_or_killed(tmp_path: Path, seed: int) -> None:
    path = write_typed(tmp_path / "typed").dataset.root
    check(drive(path, tmp_path / "spill", seed=seed, count=64), 64)
