"""An embedding table after a kill, a power loss or a failed call at any point has exactly the rows of a record."""

import errno
import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from random import Random

import pytest
from embedding_story import Story, check, memory_folder

import gloader
from gloader.errors import StoreError
from gloader.ssd_store.os_io import OsIO
from gloader.testing.crash import SURVIVALS, CrashRecorder
from gloader.testing.faults import FaultyOS


@pytest.fixture(name="folder")
def _folder():
    with memory_folder() as folder:
        yield Path(folder)


DRIVER = Path(__file__).with_name("embedding_driver.py")
WRITES = {"open", "write", "fsync", "fsync_dir", "replace", "unlink", "mkdir", "listdir", "flock"}
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC}


EVERY = [6, pytest.param(1, marks=pytest.mark.long)]  # a part of the points, or all of them


@pytest.mark.parametrize("every", EVERY)
def test_a_kill_at_a_write_rename_or_fsync(folder, every):
    checkout = Path(gloader.__path__[0]).parent
    paths = os.pathsep.join(map(str, [checkout, checkout / "tests", os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(folder), str(every)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["killed"] > 200 // every


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_a_call_fails_once(folder, error, every):
    failures = warnings = 0
    for number in count(1, every):
        where = folder / str(number)
        where.mkdir()
        faulty, story = FaultyOS(fail_at=number, error=error, calls=WRITES), Story()
        try:
            story.run(where, faulty)
        except StoreError:
            failures += 1
            check(where, story.states[-2:])
        else:
            check(where, story.states[-1:])
            warnings += faulty.was_hit
        if not faulty.was_hit:
            break
    assert failures > 100 // every
    assert warnings > 0  # removals of files


class ForgetfulRecorder(CrashRecorder):
    """A recorder whose fsyncs of one kind do nothing."""

    forgets = ""

    def fsync(self, fd):
        (OsIO if self.forgets == "fsync" else CrashRecorder).fsync(self, fd)

    def fsync_dir(self, path):
        (OsIO if self.forgets == "fsync_dir" else CrashRecorder).fsync_dir(self, path)


def lose_power(folder, recorder_type, step):
    disk = folder / "disk"
    disk.mkdir()
    recorder = recorder_type(disk)
    begun_at = []
    story = Story(lambda: begun_at.append(recorder.num_ops))
    story.run(disk, recorder)
    for at in range(0, recorder.num_ops, step):
        begun = sum(begin <= at for begin in begun_at)
        for survival in SURVIVALS:
            after = folder / f"crash-{at}-{survival}"
            recorder.crash(at, after, survival=survival, random=Random(at))  # noqa: S311
            yield after, story.states[max(begun - 1, 0) : begun + 1]


@pytest.mark.parametrize("every", EVERY)
def test_a_power_loss_at_any_point(folder, every):
    tried = 0
    for after, allowed in lose_power(folder, CrashRecorder, 2 * every):
        check(after, allowed)
        tried += 1
    assert tried > 350 // every


@pytest.mark.parametrize("forgets", ["fsync", "fsync_dir"])
def test_the_simulation_sees_a_missing_fsync(folder, forgets):
    class Recorder(ForgetfulRecorder):
        pass

    Recorder.forgets = forgets

    def check_all():
        for after, allowed in lose_power(folder, Recorder, 1):
            check(after, allowed)

    with pytest.raises((AssertionError, StoreError)):
        check_all()
