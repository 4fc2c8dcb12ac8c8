"""Rows A1 and A7 with real processes: creators that are killed, creators that race."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import gloader

DRIVER = Path(__file__).with_name("kill_driver.py")


def drive(*arguments):
    checkout = str(Path(gloader.__path__[0]).parent)
    paths = os.pathsep.join(filter(None, [checkout, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(DRIVER), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(name="folder")
def _folder():
    """A folder in memory where there is one: what a kill leaves does not depend on the device."""
    memory = "/dev/shm"  # noqa: S108 - a private folder is made in it
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield folder


def check_random_kills(found, count):
    assert found.pop("cut while the folder existed") > count / 4
    assert found == dict.fromkeys(("killed", "fine", "recreated", "clean"), count)


@pytest.mark.reliability("A1")
def test_sigkill_at_random_times(folder):
    check_random_kills(drive("random", folder, 0, 50), 50)


@pytest.mark.long
@pytest.mark.reliability("A1")
def test_sigkill_at_thousands_of_random_times(folder):
    check_random_kills(drive("random", folder, 1, 3000), 3000)


@pytest.mark.reliability("A1")
def test_sigkill_at_every_named_point(folder):
    found = drive("points", folder)
    assert len(found) > 15
    committed = {"publish.after_rename new", "publish.after_exchange over", "new_directory.after_commit new"}
    committed.add("new_directory.after_commit over")
    for name, (end, state, again) in found.items():
        before = "1" if name.endswith("over") else "absent"
        assert end == "killed", name
        assert state == ("2" if name in committed else before), name
        assert again == "999 []", name


@pytest.mark.reliability("A7")
def test_of_several_creators_one_wins(folder):
    found = drive("race", folder, 10)
    losers = found.pop("locked", 0) + found.pop("exists", 0)
    assert losers == 20
    assert found == {"one winner": 10, "right rows": 10, "clean": 10}
