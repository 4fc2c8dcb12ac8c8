"""Task tables and row times on devices that fail and in damaged files: told with file and row, or the right rows."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tasks import TaskArrays, task_arrays, write_tasks

from gloader.dataset import Dataset
from gloader.dataset.verify import verify_dataset
from gloader.errors import ChecksumError, StoreError, StoreWriteError, TruncatedStoreError
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 1500
NAMES = ["nodes", "times", "labels", "weights"]
EVERY = np.arange(COUNT)
FILES = [*(f"tables/t/{name}" for name in NAMES), "row_time"]


@pytest.fixture(name="arrays")
def _arrays() -> TaskArrays:
    return task_arrays(COUNT)


@pytest.fixture(name="root")
def _root(tmp_path: Path, arrays: TaskArrays) -> Path:
    return write_tasks(tmp_path / "d", {"t": arrays}).root


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (value,) = file.read(1)
        file.seek(at)
        file.write(bytes([value ^ 1]))


@pytest.mark.reliability("M1")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("suffix", ["npy", "pages"])
@pytest.mark.parametrize("size", [0, 4097, -1])
def test_a_file_that_is_cut_is_refused_when_the_dataset_is_opened(
    root: Path, name: str, suffix: str, size: int
) -> None:
    path = root / f"{name}.{suffix}"
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    with pytest.raises(TruncatedStoreError, match=rf"{name}\.{suffix}: the file has"):
        Dataset.open(root)


@pytest.mark.reliability("M1")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_bytes", [0, 10**9])
def test_a_flipped_bit_is_told_with_its_page_and_others_are_read(
    root: Path, arrays: TaskArrays, name: str, max_bytes: int
) -> None:
    flip(root / "tables" / "t" / f"{name}.npy", 4096 + 9)
    (problem,) = verify_dataset(root).problems
    assert problem.file == f"tables/t/{name}.npy"
    message = rf"tables/t/{name}\.npy: page 0 "
    if max_bytes:
        with pytest.raises(ChecksumError, match=message):
            Dataset.open(root).task_table("t").open(max_bytes=max_bytes)
        return
    with Dataset.open(root).task_table("t").open(max_bytes=0) as opened:
        with pytest.raises(ChecksumError, match=message):
            opened.read(EVERY[:1])
        others = EVERY[1200:]
        arrays.require(opened.read(others), others)


@pytest.mark.reliability("M1")
@pytest.mark.parametrize("max_bytes", [0, 10**9])
def test_a_flipped_bit_of_row_times_is_told(root: Path, max_bytes: int) -> None:
    flip(root / "row_time.npy", 4096 + 9)
    nodes = Dataset.open(root).node_tables["node"]
    with pytest.raises(ChecksumError, match=r"row_time\.npy: page 0 "):
        nodes.open_row_times(max_bytes=max_bytes).read(np.array([1]))


@pytest.mark.reliability("M5")
@pytest.mark.parametrize("max_bytes", [0, 10**9])
def test_each_failing_call_raises_a_typed_error_or_does_no_harm(
    root: Path, arrays: TaskArrays, max_bytes: int
) -> None:
    """The n-th system call fails, for n = 1, 2, ... until none is left to fail."""
    before = open_fds()
    for number in range(1, 1000):
        system = FaultyOS(fail_at=number, error=errno.EIO)
        try:
            dataset = Dataset.open(root, os_io=system)
            with dataset.task_table("t").open(max_bytes=max_bytes) as opened:
                arrays.require(opened.read(EVERY[::9]), EVERY[::9])
        except StoreError as error:
            assert str(root) in str(error)  # noqa: PT017 - either outcome is right
        except OSError:
            assert system.history[number - 1] == "close"
        assert open_fds() == before
        if not system.was_hit:
            break
    assert number > 50


@pytest.mark.reliability("M5")
@pytest.mark.parametrize("call", ["write", "fsync", "fsync_dir", "open"])
def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path, arrays: TaskArrays, call: str) -> None:
    failures = 0
    for number in range(1, 300, 11):
        faulty = FaultyOS(fail_at=number, repeat=10**6, error=errno.ENOSPC, calls={call})
        try:
            write_tasks(tmp_path / "d", {"t": arrays}, os_io=faulty)
        except StoreWriteError:
            failures += 1
            assert not list(tmp_path.iterdir())
        if not faulty.was_hit:
            break
    else:
        raise AssertionError("no run went through")
    assert failures > 0
    with Dataset.open(tmp_path / "d").task_table("t").open(max_bytes=0) as opened:
        arrays.require(opened.read(EVERY), EVERY)
