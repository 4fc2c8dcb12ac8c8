"""Rows A3 and A4 with a real full file system and a real file size limit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gloader

PROGRAM = """
import errno, os, resource, signal, sys
from pathlib import Path
import numpy as np
from gloader.errors import StoreWriteError
from gloader.ssd_store.format.array_reader import load_array
from gloader.ssd_store.format.format import STORE_MANIFEST, load_manifest
from gloader.ssd_store.os_io import OsIO
from gloader.ssd_store.feature_store import FeatureWriter

class Blind(OsIO):  # believes that there is room, so that the writes themselves run into the wall
    def statvfs(self, path):
        status = list(super().statvfs(path))
        status[4] = 2**40  # f_bavail
        return os.statvfs_result(status)

def write(num_rows, os_io, **settings):
    with FeatureWriter(folder / "s", num_rows=num_rows, dim=256, dtype="float32", os_io=os_io, **settings) as w:
        for start in range(0, num_rows, 100):
            w.append(np.full((100, 256), 7, np.float32))

mode, folder = sys.argv[1], Path(sys.argv[2])
write(200, OsIO())  # 205 KB: fits
if mode == "limit":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_001, 1_000_001))  # within a write: first it is short
wall = errno.EFBIG if mode == "limit" else errno.ENOSPC
before = sorted(os.listdir(folder / "s"))
for num_rows in (8000, 1500, 800):
    try:
        write(num_rows, Blind(), overwrite=True)
    except StoreWriteError as error:
        assert error.errno == wall, error
        assert "nothing was written" in str(error) and "needed" in str(error), error
    else:
        assert num_rows == 800 and mode == "limit", num_rows
        before = sorted(os.listdir(folder / "s"))
    assert os.listdir(folder) == ["s"], os.listdir(folder)
    assert sorted(os.listdir(folder / "s")) == before
    record = load_manifest(folder / "s", STORE_MANIFEST).arrays["features"]
    assert (load_array(folder / "s", record) == 7).all()
if mode == "full":
    try:
        write(8000, OsIO(), overwrite=True)
    except StoreWriteError as error:
        assert "writing needs 8216576 bytes" in str(error), error
    else:
        raise AssertionError("space was not checked")
print("ok")
"""


def run(*arguments, prefix=()):
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


@pytest.mark.reliability("A4")
def test_a_file_size_limit(tmp_path):
    done = run("limit", tmp_path)
    assert done.stdout == "ok\n", done.stderr


@pytest.mark.reliability("A3")
def test_a_full_file_system(tmp_path, namespace):
    prefix = namespace(f"mount -t tmpfs -o size=1M none '{tmp_path}'")
    # Without a namespace the file size limit runs into the same code.
    done = run("limit", tmp_path) if prefix is None else run("full", tmp_path, prefix=prefix)
    assert done.stdout == "ok\n", done.stderr
