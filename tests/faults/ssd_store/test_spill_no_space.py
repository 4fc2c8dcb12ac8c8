"""Row E1 with a real full file system, a real file size limit, and space that is too small from the start."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from reliability_report import Namespace

import gloader
from gloader.core.signals import NEVER
from gloader.errors import SpillError
from gloader.ssd_store import FeatureStore, Packer
from gloader.ssd_store.os_io import OsIO
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.testing.faults import FaultyOS

NUM_ROWS, DIM = 8000, 100  # 3.2 MB; the disk has 1 MiB

PROGRAM = """
import errno, os, resource, signal, sys
from pathlib import Path
import numpy as np
from gloader.core.signals import NEVER
from gloader.errors import SpillError
from gloader.ssd_store import FeatureStore, Packer
from gloader.ssd_store.os_io import OsIO
from gloader.ssd_store.spill.folder import SpillFolder

class Blind(OsIO):  # believes that there is room, so that the disk itself has to say that there is none
    reserves = True

    def statvfs(self, path):
        status = list(super().statvfs(path))
        status[4] = 2**40  # f_bavail
        return os.statvfs_result(status)

    def fallocate(self, fd, offset, num_bytes):
        if not self.reserves:
            raise OSError(errno.EOPNOTSUPP, "not here")
        super().fallocate(fd, offset, num_bytes)

def make(packer, rows, number):
    return packer.pack([rows], superbatch=number, cancellation=NEVER)

def is_right(pack, rows):
    out = np.zeros((len(rows), 100), np.float32)
    pack.read_into(0, rows, out, at=np.arange(len(rows)))
    return (out == rows[:, None]).all()

mode, store, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
wall = errno.EFBIG if mode == "limit" else errno.ENOSPC
small, large = np.arange(0, 8000, 10), np.arange(8000)
blind = Blind()
with (
    FeatureStore.open(store) as store,
    SpillFolder(folder, budget_bytes=10**9, os_io=blind) as spill,
    Packer(store, spill) as packer,
):
    kept = make(packer, small, 0)
    assert is_right(kept, small)
    if mode == "limit":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (700_001, 700_001))  # within a write: first it is short
    before = sorted(os.listdir(spill.path)), spill.used_bytes
    for number, blind.reserves in ((1, True), (2, False), (3, False)):
        try:
            make(packer, large, number)
        except SpillError as error:
            assert error.errno == wall, error
            text = str(error)
            doing = "creating the pack of" if blind.reserves else "packing"
            assert f"{doing} superbatch {number}" in text and "failed" in text, text
            assert "needed " in text and "bytes (" in text and "are free" in text, text
        else:
            raise AssertionError("the pack cannot have been written")
        assert (sorted(os.listdir(spill.path)), spill.used_bytes) == before
        assert is_right(kept, small)
    assert is_right(make(packer, small, 4), small)  # the space of the failed packs is there again
    if mode == "full":
        spill._os_io = OsIO()
        try:
            make(packer, large, 5)
        except SpillError as error:
            assert "the pack of superbatch 5 does not fit on the disk: needed 3203072 bytes" in str(error), error
        else:
            raise AssertionError("space was not checked")
assert os.listdir(folder) == [], os.listdir(folder)
print("ok")
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("full") / "store"
    rows = np.repeat(np.arange(NUM_ROWS, dtype=np.float32)[:, None], DIM, axis=1)
    FeatureStore.create(path, rows).close()
    return path


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


@pytest.mark.reliability("E1")
def test_a_file_size_limit(store: Path, tmp_path: Path) -> None:
    done = run("limit", store, tmp_path)
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.reliability("E1")
def test_a_full_file_system(store: Path, tmp_path: Path, namespace: Namespace) -> None:
    prefix = namespace(f"mount -t tmpfs -o size=1M none '{tmp_path}'")
    # Without a namespace the file size limit runs into the same code.
    done = run("limit", store, tmp_path) if prefix is None else run("full", store, tmp_path, prefix=prefix)
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
    disk = SmallDisk()
    with SpillFolder(tmp_path, budget_bytes=10**9, os_io=disk) as spill:
        spill.remove_file(spill.reserve_file(409_600, "the pack of superbatch 2"))
        disk.opened.clear()
        with pytest.raises(SpillError, match="the pack of superbatch 3 does not fit on the disk") as caught:
            spill.reserve_file(409_601, "the pack of superbatch 3")
        for part in ("needed 409601 bytes", "409600 bytes (410 KB) are free", "GLOADER_SPILL_DIR"):
            assert part in str(caught.value)
        assert caught.value.errno == errno.ENOSPC
        assert (disk.opened, spill.used_bytes) == ([], 0)
        with pytest.raises(SpillError, match="superbatch 4 does not fit"):
            spill.require_room(409_601, "superbatch 4")
        spill.require_room(409_600, "superbatch 4")


@pytest.mark.reliability("E1")
@pytest.mark.parametrize("call", ["fallocate", "pwrite", "open", "close"])
def test_a_disk_that_stays_full(tmp_path: Path, call: str) -> None:
    """Whatever reports it; the packs before and a store beside it are as they were."""
    rows, all_rows = np.arange(4000, dtype=np.float32).reshape(100, 40), np.arange(100)
    out = np.empty_like(rows)
    with FeatureStore.create(tmp_path / "store", rows) as store:
        with SpillFolder(tmp_path, budget_bytes=10**9) as spill, Packer(store, spill) as packer:
            kept = packer.pack([all_rows], superbatch=0, cancellation=NEVER)
            before = sorted(os.listdir(spill.path)), spill.used_bytes  # noqa: PTH208
            spill._os_io = FaultyOS(fail_at=1, repeat=10**6, error=errno.ENOSPC, calls={call})
            with (
                Packer(store, spill) as full,
                pytest.raises(SpillError, match=r"No space left.*needed \d+ bytes .*are free") as caught,
            ):
                full.pack([all_rows], superbatch=1, cancellation=NEVER)
            assert caught.value.filename == str(spill.path / "00000001.spill")
            assert (sorted(os.listdir(spill.path)), spill.used_bytes) == before  # noqa: PTH208
            spill._os_io = OsIO()
            kept.read_into(0, all_rows, out, at=all_rows)
            assert np.array_equal(out, rows)
        store.read_into(all_rows, out)
        assert np.array_equal(out, rows)
    assert os.listdir(tmp_path) == ["store"]  # noqa: PTH208
