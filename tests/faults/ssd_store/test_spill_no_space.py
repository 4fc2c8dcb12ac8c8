"""Row E1 with a real full file system, a real file size limit, and space that is too small from the start."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gloader
from gloader.errors import SpillError
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.os_io import OsIO
from gloader.ssd_store.spill import SpillFolder, record_bytes
from gloader.testing.faults import FaultyOS

PROGRAM = """
import errno, os, resource, signal, sys
from pathlib import Path
import numpy as np
from gloader.errors import SpillError
from gloader.ssd_store.os_io import OsIO
from gloader.ssd_store.spill import SpillFolder

class Blind(OsIO):  # believes that there is room, so that the writes themselves run into the wall
    def statvfs(self, path):
        status = list(super().statvfs(path))
        status[4] = 2**40  # f_bavail
        return os.statvfs_result(status)

mode, folder = sys.argv[1], Path(sys.argv[2])
if mode == "limit":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700_001, 700_001))  # within a write: first it is short
wall = errno.EFBIG if mode == "limit" else errno.ENOSPC
with SpillFolder(folder, budget_bytes=10**9, os_io=Blind()) as spill:
    small, large = {"x": np.arange(50_000)}, {"x": np.ones(400_000)}  # 0.4 and 3.2 MB; the disk has 1 MiB
    kept = spill.write_record((0, 0), small)
    before = sorted(os.listdir(spill.path)), spill.used_bytes
    for batch in (1, 2, 3):
        try:
            spill.write_record((0, batch), large)
        except SpillError as error:
            assert error.errno == wall, error
            text = str(error)
            assert f"writing the spill of superbatch 0, batch {batch} failed" in text, text
            assert "needed 3215360 bytes" in text and "bytes (" in text and "are free" in text, text
        else:
            raise AssertionError("the record cannot have been written")
        assert (sorted(os.listdir(spill.path)), spill.used_bytes) == before
        assert (spill.read_record(kept)["x"] == small["x"]).all()
    again = spill.write_record((0, 4), small)  # the space of the failed records is there again
    assert (spill.read_record(again)["x"] == small["x"]).all()
    if mode == "full":
        spill._os_io = OsIO()
        try:
            spill.write_record((0, 5), large)
        except SpillError as error:
            assert "does not fit on the disk: needed 3215360 bytes" in str(error), error
        else:
            raise AssertionError("space was not checked")
assert os.listdir(folder) == [], os.listdir(folder)
print("ok")
"""


def run(*arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    checkout = str(Path(gloader.__path__[0]).parent)
    paths = os.pathsep.join(filter(None, [checkout, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [*prefix, sys.executable, "-c", PROGRAM, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def can_mount() -> bool:
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.reliability("E1")
def test_a_file_size_limit(tmp_path: Path) -> None:
    done = run("limit", tmp_path)
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.reliability("E1")
def test_a_full_file_system(tmp_path: Path) -> None:
    if not can_mount():  # no user namespaces here: the file size limit runs into the same code
        done = run("limit", tmp_path)
    else:
        mount = f'mount -t tmpfs -o size=1M none {tmp_path} && exec "$0" "$@"'
        done = run("full", tmp_path, prefix=("unshare", "-rm", "sh", "-c", mount))
    assert done.stdout == "ok\n", done.stderr


class SmallDisk(OsIO):
    """A file system with a hundred blocks of 4 KiB left."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def statvfs(self, path: object) -> os.statvfs_result:
        return os.statvfs_result((4096, 4096, 1000, 100, 100, 0, 0, 0, 0, 255))

    def open(self, path: object, flags: int, mode: int = 0o666) -> int:
        self.opened.append(str(path))
        return super().open(path, flags, mode)  # type: ignore[arg-type]


@pytest.mark.reliability("E1")
def test_the_free_space_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    arrays = {"x": np.zeros(100_000)}
    disk = SmallDisk()
    with SpillFolder(tmp_path, budget_bytes=10**9, os_io=disk) as spill:
        spill.write_record((2, 8), {"x": np.zeros(40_000)})
        disk.opened.clear()
        with pytest.raises(SpillError, match="superbatch 2, batch 9 does not fit on the disk") as caught:
            spill.write_record((2, 9), arrays)
        needed = record_bytes((2, 9), arrays)
        for part in (f"needed {needed} bytes", "409600 bytes (410 KB) are free", "GLOADER_SPILL_DIR"):
            assert part in str(caught.value)
        assert caught.value.errno == errno.ENOSPC
        assert disk.opened == []
        with pytest.raises(SpillError, match="superbatch 3 does not fit"):
            spill.require_room(409_601, "superbatch 3")
        spill.require_room(409_600, "superbatch 3")


@pytest.mark.reliability("E1")
@pytest.mark.parametrize("call", ["write", "open", "close"])
def test_a_disk_that_stays_full(tmp_path: Path, call: str) -> None:
    """Whatever reports it; the records before and a store beside it are as they were."""
    rows = np.arange(4000, dtype=np.float32).reshape(100, 40)
    with FeatureStore.create(tmp_path / "store", rows) as store:
        with SpillFolder(tmp_path, budget_bytes=10**9) as spill:
            kept = spill.write_record((0, 0), {"x": rows})
            spill._os_io = FaultyOS(fail_at=1, repeat=10**6, error=errno.ENOSPC, calls={call})
            with pytest.raises(
                SpillError, match=rf"No space left.*needed {kept.num_bytes} bytes .*are free"
            ) as caught:
                spill.write_record((0, 1), {"x": rows})
            assert caught.value.filename == str(spill.path / "00000001.spill")
            assert sorted(os.listdir(spill.path)) == ["00000000.spill", "owner.json"]  # noqa: PTH208
            assert spill.used_bytes == kept.num_bytes
            spill._os_io = OsIO()
            assert np.array_equal(spill.read_record(kept)["x"], rows)
        out = np.empty_like(rows)
        store.read_into(np.arange(100), out)
        assert np.array_equal(out, rows)
    assert os.listdir(tmp_path) == ["store"]  # noqa: PTH208


@pytest.mark.reliability("E1")
def test_ctrl_c_in_a_write_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted(OsIO):
        def write(self, fd: int, data: memoryview) -> int:
            super().write(fd, data[:100])
            raise KeyboardInterrupt

    with SpillFolder(tmp_path, budget_bytes=10**9) as spill:
        spill._os_io = Interrupted()
        with pytest.raises(KeyboardInterrupt):
            spill.write_record("x", {"x": np.zeros(10)})
        assert [path.name for path in spill.path.iterdir()] == ["owner.json"]
        assert spill.used_bytes == 0
