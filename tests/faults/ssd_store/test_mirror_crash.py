"""A mirror that is killed, or loses its power: what is marked is there, and the next run goes on."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from mirrored import BLOCK, FEATURES, OPENED, open_mirrored, read_range, settle, uploaded

from gloader.errors import StoreError
from gloader.ssd_store.mirror.mirrored_file import HERE
from gloader.ssd_store.os_io import OsIO
from gloader.testing.crash import SURVIVALS, CrashRecorder
from gloader.testing.faults import FaultyOS

DRIVER = Path(__file__).with_name("mirror_driver.py")
POINTS = (
    "mirror.before_publish",
    "mirror.after_publish",
    "mirror.after_block_write",
    "mirror.after_block_sync",
    "mirror.after_mark",
)
IN_FLIGHT = 4 + 6  # requests, and blocks that were asked for and not kept yet


@pytest.fixture(scope="module", name="remote")
def _remote(tmp_path_factory):
    return uploaded(tmp_path_factory.mktemp("remote"))


@pytest.fixture(autouse=True)
def _close_mirrors():
    yield
    while OPENED:
        OPENED.pop().close_mirror()


def run_killed(remote, tmp_path, points, seed=0):
    """Return what the driver says of each child: its end, and the blocks that it asked for."""
    command = [sys.executable, str(DRIVER), str(remote.folder), str(tmp_path / "mirrors"), str(seed), *points]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    found = [json.loads(line) for line in lines.splitlines()]
    assert len(found) == len(points) + 1, lines
    return found


def require_went_on(found, *, num_kills):
    """Check that everything was read in the end, and that few blocks were asked for twice."""
    assert found[-1][1] == "exit 0"
    asked = Counter(block for _, _, blocks, _ in found for block in blocks)
    again = sum(count - 1 for count in asked.values())
    assert again <= num_kills * IN_FLIGHT, again
    assert len(found[-1][3]) == 1  # nothing but the mirror is left


@pytest.mark.reliability("O10")
def test_a_killed_run_goes_on_and_asks_again_for_what_was_in_flight_alone(remote, tmp_path):
    found = run_killed(remote, tmp_path, POINTS)
    assert [end for _, end, _, _ in found[:-1]] == ["killed"] * len(POINTS)
    require_went_on(found, num_kills=len(POINTS))


@pytest.mark.reliability("O10")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_many_kills_at_any_moment(remote, tmp_path, seed):
    times = [str(int(ms)) for ms in np.random.default_rng(seed).integers(1, 120, 10)]
    found = run_killed(remote, tmp_path, times, seed)
    assert {end for _, end, _, _ in found} <= {"killed", "exit 0"}
    require_went_on(found, num_kills=len(times))


class ForgetfulRecorder(CrashRecorder):
    """A recorder that forgets to force data to the device."""

    def datasync(self, fd):
        OsIO.datasync(self, fd)


def find_after_power_losses(remote, tmp_path, recorder_type, seeds):
    """Return, for a power loss at each point, whether every block that is marked is there."""
    disk = tmp_path / "disk"
    disk.mkdir()
    recorder = recorder_type(disk)
    root, os_io, _ = open_mirrored(remote, disk / "mirrors", os_io=recorder, requests=1)
    content = remote.files[FEATURES]
    read_range(os_io, root / FEATURES, 5 * BLOCK, 100)
    read_range(os_io, root / FEATURES, 2 * BLOCK, 100)
    settle(os_io)
    os_io.mirror.keeper._evict(os_io.mirror.files.named(FEATURES), 5)
    os_io.close_mirror()
    folder, found = root.parent.relative_to(disk), []
    for at in range(recorder.num_ops):
        for survival in SURVIVALS:
            for seed in seeds if survival == "torn" else (0,):
                after = tmp_path / f"{at}-{survival}-{seed}"
                recorder.crash(at, after, survival=survival, random=Random(f"{at} {seed}"))  # noqa: S311
                mirror = after / folder
                if not mirror.exists():
                    found.append("absent")
                    continue
                marks = (mirror / "blocks" / FEATURES).read_bytes()
                data = (mirror / "files" / FEATURES).read_bytes()
                is_right = len(data) == len(content) and all(
                    data[b * BLOCK : (b + 1) * BLOCK] == content[b * BLOCK : (b + 1) * BLOCK]
                    for b, mark in enumerate(marks)
                    if mark == HERE
                )
                found.append("right" if is_right else "wrong")
                if seed == 0 and is_right:  # what is found is opened, and read on
                    again, other, _ = open_mirrored(remote, after / "mirrors")
                    assert (
                        read_range(other, again / FEATURES, 2 * BLOCK, BLOCK) == content[2 * BLOCK :][:BLOCK]
                    )
                    other.close_mirror()
    return found


@pytest.mark.reliability("O11")
def test_after_a_power_loss_what_is_marked_is_there(remote, tmp_path):
    found = find_after_power_losses(remote, tmp_path, CrashRecorder, (0,))
    assert set(found) == {"absent", "right"}
    assert found.count("right") > 30


def test_the_simulation_sees_data_that_was_not_forced_to_the_device(remote, tmp_path):
    assert "wrong" in find_after_power_losses(remote, tmp_path, ForgetfulRecorder, (0, 1, 2))


def _run(remote, mirror_dir, os_io):
    root, mirror_io, _ = open_mirrored(remote, mirror_dir, os_io=os_io, requests=1)
    content = remote.files[FEATURES]
    for start, length in ((0, 5000), (5 * BLOCK, BLOCK), (0, len(content))):
        assert read_range(mirror_io, root / FEATURES, start, length) == content[start : start + length]
    settle(mirror_io)
    mirror_io.close_mirror()


@pytest.mark.reliability("O12")
@pytest.mark.parametrize(("code", "points"), [(errno.EIO, 40), (errno.ENOSPC, 20)])
def test_a_failure_of_any_call_is_an_error_of_ours_or_costs_a_block_and_the_next_run_is_right(
    remote, tmp_path, code, points
):
    counting = FaultyOS()
    _run(remote, tmp_path / "all", counting)
    step = max(counting.num_calls // points, 1)
    for number in range(1, counting.num_calls, step):
        mirror_dir = tmp_path / str(number)
        try:
            _run(remote, mirror_dir, FaultyOS(fail_at=number, error=code))
        except (StoreError, OSError) as error:
            if os.strerror(code) not in str(error):
                raise
        while OPENED:
            OPENED.pop().close_mirror()
        _run(remote, mirror_dir, OsIO())


@pytest.mark.parametrize("short", [1000, 4096])
def test_short_reads_and_writes_and_signals_are_continued(remote, tmp_path, short):
    _run(remote, tmp_path / "short", FaultyOS(short=short))
    _run(remote, tmp_path / "signal", FaultyOS(fail_at=3, repeat=2, error=errno.EINTR, calls={"pwrite"}))
    _run(remote, tmp_path / "direct", FaultyOS(refuse_flags=os.O_DIRECT))


def test_file_systems_without_locks_on_parts_of_files_take_a_mirror(remote, tmp_path):
    for code in (errno.ENOLCK, errno.EINVAL, errno.EOPNOTSUPP):
        _run(
            remote, tmp_path / str(code), FaultyOS(fail_at=1, repeat=10**6, error=code, calls={"lock_range"})
        )


def test_locks_on_parts_of_files_are_of_an_opening(tmp_path):
    path, os_io = tmp_path / "file", OsIO()
    path.write_bytes(bytes(10))
    first, second = (os_io.open(path, os.O_RDWR) for _ in range(2))
    os_io.lock_range(first, fcntl.LOCK_SH, 2, 3)
    os_io.lock_range(second, fcntl.LOCK_SH, 4, 3)
    with pytest.raises(BlockingIOError):
        os_io.lock_range(second, fcntl.LOCK_EX, 3, 1)
    os_io.lock_range(second, fcntl.LOCK_EX, 5, 1)
    os_io.close(first)
    os_io.lock_range(second, fcntl.LOCK_EX, 3, 1)
    os_io.close(second)


def test_a_hole_reads_as_zeros_and_takes_no_space(tmp_path):
    path, os_io = tmp_path / "file", OsIO()
    path.write_bytes(b"x" * 65536)
    with path.open("r+b") as file:
        os_io.punch_hole(file.fileno(), 8192, 32768)
    assert path.read_bytes() == b"x" * 8192 + bytes(32768) + b"x" * (65536 - 40960)
    assert path.stat().st_blocks * 512 <= 65536 - 32768
    with path.open("rb") as file, pytest.raises(OSError, match="Bad file descriptor"):
        os_io.punch_hole(file.fileno(), 0, 4096)
