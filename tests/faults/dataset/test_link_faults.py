"""Link tables on devices that fail and in files that are cut or damaged: told with file and row, or the right rows."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from linked import LinkArrays, link_arrays, write_linked

from gloader.dataset import Dataset
from gloader.errors import (
    ChecksumError,
    GloaderError,
    StoreError,
    StoreOpenError,
    StoreReadError,
    StoreWriteError,
    TruncatedStoreError,
)
from gloader.ssd_store.os_io import OsIO
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gloader.ssd_store.os_io import StrPath

COUNT = 700  # pairs of 6 pages
NAMES = ["pairs", "labels", "times", "negatives"]
ROW_BYTES = {"pairs": 32, "labels": 4, "times": 8, "negatives": 12}
EVERY = np.arange(COUNT)


@pytest.fixture(name="arrays")
def _arrays() -> LinkArrays:
    return link_arrays(COUNT, num_destinations=40, num_reverses=300)


@pytest.fixture(name="root")
def _root(tmp_path: Path, arrays: LinkArrays) -> Path:
    return write_linked(tmp_path / "d", {"train": arrays}).root


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (value,) = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ 1]))


@pytest.mark.reliability("M1")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("suffix", ["npy", "pages"])
@pytest.mark.parametrize("size", [0, 4096, 4097, -1])
def test_a_file_that_is_cut_is_refused_when_the_dataset_is_opened(
    root: Path, name: str, suffix: str, size: int
) -> None:
    path = root / "links" / "train" / f"{name}.{suffix}"
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    with pytest.raises(TruncatedStoreError, match=rf"links/train/{name}\.{suffix}: the file has"):
        Dataset.open(root)


@pytest.mark.reliability("M1")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("io", ["auto", "threads", "buffered"])
def test_a_file_that_is_cut_while_it_is_open_is_told_by_whoever_misses_it(
    root: Path, arrays: LinkArrays, name: str, io: Any
) -> None:
    path = root / "links" / "train" / f"{name}.npy"
    size = path.stat().st_size
    with Dataset.open(root).link_table("train").open(max_bytes=0, io=io) as links:
        os.truncate(path, size - 4096)
        for _ in range(2):
            with pytest.raises(TruncatedStoreError, match=rf"links/train/{name}\.npy: bytes"):
                links.read(EVERY)
        if size > 3 * 4096:
            arrays.require(links.read(EVERY[:20]), EVERY[:20])


@pytest.mark.reliability("M1")
@pytest.mark.parametrize("name", NAMES)
def test_a_flipped_bit_is_told_with_its_page_and_rows_and_others_are_read(
    root: Path, arrays: LinkArrays, name: str
) -> None:
    path, row_bytes = root / "links" / "train" / f"{name}.npy", ROW_BYTES[name]
    num_pages = path.stat().st_size // 4096 - 1
    for page in range(num_pages):
        flip(path, 4096 * (page + 1) + 9)
        first, last = page * 4096 // row_bytes, min(((page + 1) * 4096 - 1) // row_bytes, COUNT - 1)
        with Dataset.open(root).link_table("train").open(max_bytes=0) as links:
            with pytest.raises(
                ChecksumError, match=rf"links/train/{name}\.npy: page {page} .*with rows {first} to"
            ):
                links.read(EVERY[first : first + 1])
            others = np.concatenate([EVERY[:first], EVERY[last + 1 :]])[::31]
            arrays.require(links.read(others), others)
        with pytest.raises(ChecksumError, match=rf"links/train/{name}\.npy: page {page} "):
            Dataset.open(root).link_table("train").open(max_bytes=10**9)
        flip(path, 4096 * (page + 1) + 9)


@pytest.mark.reliability("M1")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_bytes", [0, 10**9])
def test_damaged_checksums_are_told(root: Path, name: str, max_bytes: int) -> None:
    flip(root / "links" / "train" / f"{name}.pages", 4096)
    before = open_fds()
    with pytest.raises(
        ChecksumError, match=rf"links/train/{name}\.pages: the page checksums of 'links/train/{name}'"
    ):
        Dataset.open(root).link_table("train").open(max_bytes=max_bytes)
    assert open_fds() == before


@pytest.mark.reliability("M5")
@pytest.mark.parametrize("max_bytes", [0, 10**9])
def test_each_failing_call_raises_a_typed_error_or_does_no_harm(
    root: Path, arrays: LinkArrays, max_bytes: int
) -> None:
    """The n-th system call fails, for n = 1, 2, ... until none is left to fail."""
    before = open_fds()
    for code in (errno.EIO, errno.ENOMEM):
        for number in range(1, 1000):
            system = FaultyOS(fail_at=number, error=code)
            try:
                with Dataset.open(root, os_io=system).link_table("train").open(max_bytes=max_bytes) as links:
                    arrays.require(links.read(EVERY[::9]), EVERY[::9])
            except StoreError as error:
                assert str(root) in str(error)  # noqa: PT017 - either outcome is right
            except OSError:
                assert system.history[number - 1] == "close"
            assert open_fds() == before
            if not system.was_hit:
                break
        assert number > 60


@pytest.mark.reliability("M5")
def test_a_device_that_fails_later_is_told_with_errno_and_file(root: Path, arrays: LinkArrays) -> None:
    system = FaultyOS(fail_at=10**6)
    with Dataset.open(root, os_io=system).link_table("train").open(max_bytes=0) as links:
        arrays.require(links.read(EVERY), EVERY)
        links._columns._columns["times"]._file._file._os_io = FaultyOS(  # type: ignore[attr-defined]
            fail_at=1, error=errno.EIO, repeat=10**6, calls=["pread_into"]
        )
        with pytest.raises(StoreReadError, match="Input/output error") as caught:
            links.read(EVERY)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(root / "links/train/times.npy"))


@pytest.mark.reliability("M5")
@pytest.mark.parametrize("call", ["write", "fsync", "fsync_dir", "open"])
def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path, arrays: LinkArrays, call: str) -> None:
    failures = 0
    for number in range(1, 200, 9):
        faulty = FaultyOS(fail_at=number, repeat=10**6, error=errno.ENOSPC, calls={call})
        try:
            write_linked(tmp_path / "d", {"train": arrays}, os_io=faulty)
        except StoreWriteError:
            failures += 1
            assert not list(tmp_path.iterdir())
        if not faulty.was_hit:
            break
    else:
        raise AssertionError("no run went through")
    assert failures > 0
    with Dataset.open(tmp_path / "d").link_table("train").open(max_bytes=0) as links:
        arrays.require(links.read(EVERY), EVERY)


class ReplacedAt(OsIO):
    """Puts another dataset in the place of the old one right before the n-th file is opened."""

    def __init__(self, replace: Callable[[], object]) -> None:
        self.left, self._replace = 10**6, replace

    def open(self, path: StrPath, flags: int, mode: int = 0o666) -> int:
        self.left -= 1
        if self.left == 0:
            self._replace()
        return super().open(path, flags, mode)


@pytest.mark.reliability("M5")
@pytest.mark.parametrize("max_bytes", [0, 44 * COUNT, 10**9])
def test_a_dataset_that_is_replaced_while_links_are_opened_is_refused_or_the_old_one(
    tmp_path: Path, arrays: LinkArrays, max_bytes: int
) -> None:
    """Never another's rows, and never what looks like damage, whichever file was opened last."""
    root, newer = tmp_path / "d", tmp_path / "e"
    for number in range(1, 60):
        for path, content in ((root, arrays), (newer, link_arrays(COUNT, num_destinations=40, seed=5))):
            write_linked(path, {"train": content}, overwrite=True)

        def swap() -> None:
            root.rename(tmp_path / "old")
            newer.rename(root)

        system = ReplacedAt(swap)
        table = Dataset.open(root, os_io=system).link_table("train")
        system.left = number
        try:
            with table.open(max_bytes=max_bytes) as links:
                arrays.require(links.read(EVERY), EVERY)
        except StoreOpenError as error:
            assert error.errno == errno.ESTALE  # noqa: PT017 - either outcome is right
        if system.left > 0:
            break
        shutil.rmtree(tmp_path / "old")
    assert number >= 10


@pytest.mark.reliability("M1")
def test_damage_of_any_file_is_told_by_its_name_or_by_nobody_who_reads_something_else(root: Path) -> None:
    """Whoever reads a table sees damage of its own files alone."""
    for path in sorted(root.rglob("*.npy")):
        flip(path, 4096 + 3)
        is_of_links = path.parent.name == "train"
        try:
            with Dataset.open(root).link_table("train").open(max_bytes=0) as links:
                links.read(EVERY)
            assert not is_of_links, path
        except GloaderError as error:
            assert is_of_links, path
            assert str(path) in str(error)  # noqa: PT017 - either outcome is right
        flip(path, 4096 + 3)
