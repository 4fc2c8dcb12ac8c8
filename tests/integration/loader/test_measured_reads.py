"""An epoch's figures are what the disk saw: every read and every byte, counted at the system calls."""

import functools
import os
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import gloader
from gloader import Dataset
from gloader.ssd_store.os_io import StrPath
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.testing.faults import FaultyOS

NUM_NODES, DIM = 6000, 64  # 1.5 MB of features: a dense sweep takes a dozen reads


class CountingOS(FaultyOS):
    """System calls that count the reads and writes of features and packs."""

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[int, str] = {}
        self._counting = threading.Lock()
        self.moved: Counter[str] = Counter()

    def open(self, path: StrPath, flags: int, mode: int = 0o666) -> int:
        fd = super().open(path, flags, mode)
        self._files[fd] = os.fspath(path)
        return fd

    def duplicate(self, fd: int) -> int:
        other = super().duplicate(fd)
        self._files[other] = self._files[fd]
        return other

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        return self._note("read", fd, super().pread_into(fd, buffer, offset))

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        return self._note("written", fd, super().pwrite(fd, data, offset))

    def _note(self, what: str, fd: int, num_bytes: int) -> int:
        if any(name in self._files[fd] for name in ("features", "spill")):
            with self._counting:
                self.moved[f"bytes_{what}"] += num_bytes
                self.moved[f"requests_{what}"] += 1
        return num_bytes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A graph that is sampled nearly whole by a few batches."""
    rng = np.random.default_rng(0)
    Dataset.from_numpy(
        tmp_path / "d",
        edge_index=rng.integers(0, NUM_NODES, (2, 60_000)),
        features=rng.standard_normal((NUM_NODES, DIM)).astype(np.float32),
        labels=rng.integers(0, 3, NUM_NODES),
        train=np.arange(1000),
        valid=np.arange(1000, 1100),
        test=np.arange(1100, 1200),
    )
    return tmp_path / "d"


@pytest.mark.parametrize("strategy", ["direct", "staged", "packed"])
@pytest.mark.parametrize("cached_rows", [0, 500])
def test_an_epoch_counts_the_reads_and_writes_that_the_disk_saw(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str, cached_rows: int
) -> None:
    os_io = CountingOS()
    monkeypatch.setattr("gloader.plan.sweep_plan.SpillFolder", functools.partial(SpillFolder, os_io=os_io))
    with gloader.Loader(
        Dataset.open(path, os_io=os_io), fanouts=[10, 5], batch_size=250, memory_budget="200MB", threads=1,
        features="ssd", cache=cached_rows * 4 * DIM, superbatch=2, io_strategy=strategy, spill_dir=tmp_path, epochs=1,
    ) as loader:  # fmt: skip
        os_io.moved.clear()  # of what opening read
        assert len(list(loader)) == 4
        stats, moved = loader.stats, os_io.moved
    assert stats.requests == moved["requests_read"] > 0
    assert stats.bytes_read == moved["bytes_read"]
    assert stats.bytes_written == moved["bytes_written"]
    assert (stats.bytes_written > 0) == (strategy == "packed")
