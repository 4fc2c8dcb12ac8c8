"""Rows E3 and E4 with real processes: owners that are killed, owners that live side by side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gloader
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.spill.claim import remove_dead_spills
from gloader.ssd_store.spill.folder import SpillFolder

DRIVER = Path(__file__).with_name("spill_driver.py")


def environment() -> dict[str, str]:
    checkout = str(Path(gloader.__path__[0]).parent)
    paths = os.pathsep.join(filter(None, [checkout, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": paths}


def drive(seed: int, kills: int, rounds: int) -> dict[str, Any]:
    memory = "/dev/shm"  # noqa: S108 - what a kill leaves does not depend on the device, and memory is quick
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as parent:
        done = subprocess.run(
            [sys.executable, str(DRIVER), parent, *map(str, (seed, kills, rounds))],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=1000,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return drive(seed=0, kills=40, rounds=4)


@pytest.mark.reliability("E3")
def test_sigkill_at_every_named_point(found: dict[str, Any]) -> None:
    """What is left, what the next start removes at once, and what it removes when that is old: nothing more."""
    files = ["00000000.spill", "00000001.spill", "00000002.spill"]
    left_and_removed = {
        "spill.after_mkdtemp": [[[]], 1, 0],
        "spill.after_lock": [[[]], 1, 0],
        "owner.after_write": [[["owner.json.tmp"]], 1, 0],
        "owner.after_fsync": [[["owner.json.tmp"]], 1, 0],
        "owner.after_rename": [[["owner.json"]], 1, 0],
        "owner.after_folder_fsync": [[["owner.json"]], 1, 0],
        "pack.in_sweep": [[[*files, "owner.json"]], 1, 0],
        "pack.after_sweep": [[[*files, "owner.json"]], 1, 0],
        "spill.after_files_removed": [[["owner.json"]], 1, 0],
        "spill.after_owner_removed": [[[]], 1, 0],
    }
    assert found["points"] == {point: ["killed", *row, []] for point, row in left_and_removed.items()}


def check_random_kills(found: dict[str, int], count: int) -> None:
    assert found.pop("left a folder") > count / 4
    assert found == {"killed": count, "removed": count, "live owner untouched": count, "clean": 1}


@pytest.mark.reliability("E3")
def test_sigkill_at_random_times(found: dict[str, Any]) -> None:
    check_random_kills(found["random"], 40)


@pytest.mark.reliability("E4")
def test_owners_side_by_side_never_collide(found: dict[str, Any]) -> None:
    assert found["race"] == {"exit 0": 16, "clean": 4}


@pytest.mark.long
@pytest.mark.reliability("E3")
@pytest.mark.reliability("E4")
def test_thousands_of_random_kills_and_hundreds_of_races() -> None:
    many = drive(seed=1, kills=3000, rounds=200)
    check_random_kills(many["random"], 3000)
    assert many["race"] == {"exit 0": 800, "clean": 200}


OWNER = """
import sys
import numpy as np
from gloader.core.signals import NEVER
from gloader.ssd_store import FeatureStore, Packer
from gloader.ssd_store.spill.folder import SpillFolder
rows = np.arange(0, 300, int(sys.argv[1]))
with (
    FeatureStore.open("store") as store,
    SpillFolder(budget_bytes=10**7) as spill,
    Packer(store, spill) as packer,
):
    pack = packer.pack([rows], superbatch=0, cancellation=NEVER)
    print(spill.path, flush=True)
    sys.stdin.readline()
    out = np.zeros((len(rows), store.dim), np.float32)
    pack.read_into(0, rows, out, at=np.arange(len(rows)))
    assert (out == rows[:, None]).all()
    print("right", flush=True)
"""


def start_owner(number: int, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, str(number)],
        env={**environment(), "GLOADER_SPILL_DIR": "spills"},
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.reliability("E3")
@pytest.mark.reliability("E4")
def test_two_programs_in_one_folder_one_of_which_is_killed(tmp_path: Path) -> None:
    parent = tmp_path / "spills"
    parent.mkdir()
    rows = np.repeat(np.arange(300, dtype=np.float32)[:, None], 100, axis=1)
    FeatureStore.create(tmp_path / "store", rows).close()
    with start_owner(1, tmp_path) as first, start_owner(2, tmp_path) as second:
        try:
            paths = [Path(owner.stdout.readline().strip()) for owner in (first, second)]
            assert len(set(paths)) == 2
            assert sorted(parent.iterdir()) == sorted(paths)
            assert remove_dead_spills(parent) == []  # both run
            first.send_signal(signal.SIGKILL)
            first.wait()
            assert sorted(parent.iterdir()) == sorted(paths)
            with SpillFolder(parent, budget_bytes=10**7) as spill:  # the next start
                assert sorted(parent.iterdir()) == sorted([paths[1], spill.path])
            assert second.communicate("go\n") == ("right\n", None)
            assert second.returncode == 0
        finally:
            first.kill()
            second.kill()
    assert list(parent.iterdir()) == []
