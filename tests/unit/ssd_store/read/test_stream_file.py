"""Files that are read, or written, once leave the page cache as it was."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader.convert.readers.npy_file import NpyFile
from gloader.errors import SourceError
from gloader.ssd_store.format.manifest import npy_header
from gloader.ssd_store.read import device_file
from gloader.ssd_store.read.device_file import StreamFile
from gloader.ssd_store.write.array_writer import BUFFER_BYTES, PageFile
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 1 << 16
SIZE = 5 * BLOCK + 777


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_file, "BLOCK_BYTES", BLOCK)


def cached_pages(path: Path) -> int:
    """Return how many pages of a file are in the page cache."""
    size = path.stat().st_size
    found = np.zeros(-(-size // 4096), np.uint8)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as memory:
        view = np.frombuffer(memory, np.uint8)
        address = ctypes.c_void_p(view.ctypes.data)
        failed = ctypes.CDLL(None).mincore(address, ctypes.c_size_t(size), ctypes.c_void_p(found.ctypes.data))
        del view
    assert failed == 0
    return int(np.count_nonzero(found & 1))


def uncached_file(path: Path, size: int) -> bytes:
    content = np.random.default_rng(0).bytes(size)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_pages(path):
        pytest.skip("the file system of the temporary folder is in memory")
    return content


@pytest.mark.parametrize("how", ["direct", "refused", "refused by the first read", "short reads"])
def test_reads_leave_no_page_behind(tmp_path: Path, how: str) -> None:
    content = uncached_file(tmp_path / "a", SIZE)
    os_io = {
        "direct": FaultyOS(),
        "refused": FaultyOS(refuse_flags=os.O_DIRECT),
        "refused by the first read": FaultyOS(fail_at=1, calls={"pread_into"}, error=errno.EINVAL),
        "short reads": FaultyOS(short=10_001),
    }[how]
    with StreamFile(tmp_path / "a", os_io=os_io) as file:
        assert b"".join(iter(lambda: file.read(9_999), b"")) == content
    assert cached_pages(tmp_path / "a") <= 1


def test_any_seek_and_length(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(SIZE)
    (tmp_path / "a").write_bytes(content)
    chance = random.Random(0)  # noqa: S311
    with StreamFile(tmp_path / "a") as file:
        for _ in range(300):
            at, length = chance.randrange(SIZE + 10), chance.randrange(3 * BLOCK)
            assert file.seek(at) == at
            if chance.random() < 0.5:  # on into the next blocks, so that one is read ahead
                found = b"".join(iter(lambda: file.read(BLOCK // 2), b""))
                assert found == content[at:]
            else:
                found = file.read(length)
                assert found == content[at : at + len(found)]
                assert found or not length or at >= SIZE
        assert file.seek(-5, os.SEEK_END) == SIZE - 5
        assert file.read() == content[-5:]


def test_failures_and_short_files_are_raised_where_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(SIZE))
    failing = FaultyOS(fail_at=3, calls={"pread_into"})
    with StreamFile(tmp_path / "a", os_io=failing) as file, pytest.raises(OSError, match="injected"):
        file.readall()
    with StreamFile(tmp_path / "a") as file:
        file.read(10)
        os.truncate(tmp_path / "a", 3 * BLOCK)
        assert len(file.readall() or b"") == 3 * BLOCK - 10
    with pytest.raises(IsADirectoryError):
        StreamFile(tmp_path)


def test_arrays_are_read_past_the_page_cache(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((5_000, 16))
    np.save(tmp_path / "a.npy", rows)
    np.savez(tmp_path / "a.npz", x=rows)
    for path, member in ((tmp_path / "a.npy", None), (tmp_path / "a.npz", "x")):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if cached_pages(path):
            pytest.skip("the file system of the temporary folder is in memory")
        array = NpyFile.open(path, member)
        time.sleep(0.2)  # the system reads ahead of the header on its own time
        before = cached_pages(path)  # what the header brought along
        assert np.array_equal(np.concatenate(list(array.rows(700))), rows)
        assert cached_pages(path) <= before


@pytest.mark.parametrize("how", ["direct", "refused", "refused by the first write", "short writes"])
def test_large_arrays_are_written_past_the_page_cache(tmp_path: Path, how: str) -> None:
    os_io = {
        "direct": FaultyOS(),
        "refused": FaultyOS(refuse_flags=os.O_DIRECT),
        "refused by the first write": FaultyOS(fail_at=2, calls={"write"}, error=errno.EINVAL),
        "short writes": FaultyOS(short=999_999),
    }[how]
    content = np.frombuffer(np.random.default_rng(0).bytes(2 * BUFFER_BYTES + 5_000), np.uint8)
    header = npy_header("uint8", content.shape)
    file = PageFile(tmp_path / "a.npy", header, os_io=os_io)
    for start in range(0, content.size, 1_000_003):
        file.append(content[start : start + 1_000_003])
    file.write_out()
    file.finish()
    if how == "direct" and os.statvfs(tmp_path).f_bsize == 4096:
        assert cached_pages(tmp_path / "a.npy") <= 2  # the header
    assert np.array_equal(np.load(tmp_path / "a.npy"), content)
    assert (tmp_path / "a.npy").stat().st_size % 4096 == 0


def test_a_write_that_fails_behind_the_caller_is_raised(tmp_path: Path) -> None:
    file = PageFile(tmp_path / "a", bytes(4096), os_io=FaultyOS(fail_at=2, calls={"write"}, repeat=9))
    try:
        file.append(np.zeros(BUFFER_BYTES, np.uint8))
        with pytest.raises(OSError, match="injected"):
            file.write_out()
    finally:
        file.abort()


def test_a_file_that_shrinks_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(100_000))
    array = NpyFile.open(tmp_path / "a.npy")
    rows = array.rows(1_000)
    next(rows)
    os.truncate(tmp_path / "a.npy", 500_000)
    with pytest.raises(SourceError, match=r"a\.npy.*ends .* bytes early"):
        list(rows)
