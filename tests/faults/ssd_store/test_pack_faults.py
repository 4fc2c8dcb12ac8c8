"""Packs on disks that are full, fail, lie or refuse: typed errors, right rows or none, and nothing left behind."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import gloader
from gloader.core.signals import NEVER, Cancellation
from gloader.errors import (
    BudgetError,
    ChannelClosedError,
    ChecksumError,
    SpillError,
    StoreError,
    StoreReadError,
    TruncatedStoreError,
)
from gloader.ssd_store import FeatureStore, Packer, load_misses
from gloader.ssd_store.os_io import OsIO
from gloader.ssd_store.read.uring import FD, probe_uring
from gloader.ssd_store.spill.folder import SpillFiles, SpillFolder
from gloader.testing.faults import Corruption, FaultyOS

NUM_ROWS, DIM = 2000, 100
FEATURES = np.random.default_rng(0).standard_normal((NUM_ROWS, DIM)).astype(np.float32)
MISSES = [np.arange(start, NUM_ROWS, 3 + start) for start in range(5)] + [np.empty(0, np.int64)]
IO = ["auto", "threads", "buffered"]
DRIVER = Path(__file__).with_name("pack_driver.py")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packs") / "s"
    FeatureStore.create(path, FEATURES).close()
    return path


def files(spill: SpillFolder) -> list[Path]:
    return sorted(path for path in spill.path.iterdir() if path.name != "owner.json")


def num_fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only


def read(source, batch: int) -> np.ndarray:
    out = np.zeros((len(MISSES[batch]), DIM), np.float32)
    source.read_into(batch, MISSES[batch], out, at=np.arange(len(out)))
    return out


def is_right(source) -> bool:
    return all(np.array_equal(read(source, b), FEATURES[rows]) for b, rows in enumerate(MISSES))


def live(store: FeatureStore, spill: SpillFolder) -> None:
    with Packer(store, spill, memory_bytes=2**21, max_gap_bytes=0) as packer:
        pack = packer.pack(MISSES, superbatch=7, cancellation=NEVER)
        for batch, rows in enumerate(MISSES):
            assert np.array_equal(read(pack, batch), FEATURES[rows])
        # The files of those that are released stay for the next pack, the first is removed with the packer.
        for batch in range(1, len(MISSES)):
            pack.release(batch)


# --- calls that fail ---------------------------------------------------------------------------------


@pytest.mark.reliability("E1")
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EINTR, errno.EMFILE])
def test_each_failing_call_of_a_packs_life(code: int, path: Path, tmp_path: Path) -> None:
    """The SQLite loop: the n-th system call on the store or the spill folder fails, for every n."""
    healthy = FaultyOS()
    failures = 0
    with FeatureStore.open(path, os_io=healthy) as store, SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        fds = num_fds()
        for n in range(1, 2000):
            faulty = FaultyOS(fail_at=n, error=code)
            store._os_io = spill._os_io = faulty
            try:
                live(store, spill)
            except StoreError as error:
                failures += 1
                where = str(error)
                assert "superbatch 7" in where or str(path) in where or str(spill.path) in where, where
                assert getattr(error, "errno", code) == code, faulty.history[n - 1]  # noqa: PT017 - either is right
            spill._os_io = healthy
            assert num_fds() == fds, faulty.history[n - 1]
            if faulty.history[n - 1 : n] != ["unlink"]:
                assert (files(spill), spill.used_bytes) == (sorted(spill._idle), 0), faulty.history[n - 1]
            if not faulty.was_hit:
                break
        assert n > 60
        assert failures > (20 if code != errno.EINTR else 3)
        assert {"statvfs", "open", "fallocate", "pwrite", "pread_into", "unlink"} <= set(faulty.history)
        store._os_io = healthy
        live(store, spill)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.reliability("E1")
def test_a_full_disk_or_budget_is_seen_before_a_byte_is_written(path: Path, tmp_path: Path) -> None:
    class Full(FaultyOS):
        def statvfs(self, path):
            found = list(super().statvfs(path))
            found[4] = 1  # free blocks
            return os.statvfs_result(found)

    with FeatureStore.open(path) as store:
        with SpillFolder(tmp_path, budget_bytes=10**5) as spill:
            text = r"the pack of superbatch 7 needs \d+ bytes .* on disk and 100000 are allowed"
            with pytest.raises(BudgetError, match=text):
                live(store, spill)
            assert (files(spill), spill.used_bytes) == ([], 0)
        with SpillFolder(tmp_path, budget_bytes=10**8) as spill:
            spill._os_io = Full()
            with pytest.raises(
                SpillError, match=r"needed \d+ bytes .* are free; .* nothing was written"
            ) as full:
                live(store, spill)
            assert full.value.errno == errno.ENOSPC
            assert "open" not in spill._os_io.history
            assert (files(spill), spill.used_bytes) == ([], 0)


@pytest.mark.reliability("E1")
@pytest.mark.parametrize("io", IO)
def test_a_write_that_fails_in_the_background(io: str, path: Path, tmp_path: Path) -> None:
    """The limit on the size of files is met by the writes themselves: the space is not reserved before."""

    class NoReserve(FaultyOS):
        is_real = True

        def fallocate(self, fd, offset, num_bytes):
            raise OSError(errno.EOPNOTSUPP, "not here")

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with FeatureStore.open(path, io=io) as store, SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        live(store, spill)  # kernels that are compiled now are not written to their cache under the limit
        spill._os_io = NoReserve()
        fds = num_fds()
        resource.setrlimit(resource.RLIMIT_FSIZE, (40960, limits[1]))
        try:
            with contextlib.suppress(
                OSError
            ):  # the first time numba may be refused the file of a kernel as well
                live(store, spill)
            with pytest.raises(SpillError, match=r"packing superbatch 7, batch \d failed: File too large"):
                live(store, spill)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (files(spill), spill.used_bytes, num_fds()) == ([], 0, fds)
        live(store, spill)


@pytest.mark.parametrize("io", IO)
def test_a_read_that_fails_in_the_background_is_repeated_with_care(
    io: str, path: Path, tmp_path: Path
) -> None:
    folder = os.open(path, os.O_RDONLY)  # reading a folder fails with EISDIR
    with (
        FeatureStore.open(path, io=io) as store,
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
        Packer(store, spill) as packer,
    ):
        file = packer._regions._sweeper._file
        real, file.fd = file.fd, folder
        with pytest.raises(StoreReadError, match="Is a directory"):
            packer.pack(MISSES, superbatch=7, cancellation=NEVER)
        assert (files(spill), spill.used_bytes) == ([], 0)
        file.fd = real
        os.close(folder)
        assert is_right(packer.pack(MISSES, superbatch=7, cancellation=NEVER))


@pytest.mark.reliability("E1")
@pytest.mark.skipif(probe_uring() is not None, reason=f"no io_uring here: {probe_uring()}")
def test_a_ring_that_breaks_leaves_nothing(path: Path, tmp_path: Path) -> None:
    with (
        FeatureStore.open(path) as store,
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
        Packer(store, spill) as packer,
    ):
        packer._regions._sweeper._driver._ring._table[FD] = -1
        for text in ("io_uring_enter failed", "closed or broke; open the loader"):
            with pytest.raises(StoreReadError, match=text):
                packer.pack(MISSES, superbatch=7, cancellation=NEVER)
            assert (files(spill), spill.used_bytes) == ([], 0)


@pytest.mark.reliability("E1")
def test_files_that_cannot_be_removed_are_counted_and_named(path: Path, tmp_path: Path) -> None:
    with FeatureStore.open(path) as store, SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        spill._os_io = FaultyOS(fail_at=1, repeat=10**6, error=errno.EIO, calls={"unlink"})
        with pytest.raises(SpillError, match="removing a spilled file failed"):
            live(store, spill)
        in_use = set(files(spill)) - set(spill._idle)
        assert spill.used_bytes >= sum(file.stat().st_size for file in in_use) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.reliability("E1")
def test_a_file_that_cannot_be_removed_keeps_no_other_pack(path: Path, tmp_path: Path) -> None:
    with FeatureStore.open(path) as store, SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        packer = Packer(store, spill)
        for number in range(2):
            packer.pack(MISSES, superbatch=number, cancellation=NEVER)
        made = len(files(spill))
        spill._os_io = FaultyOS(
            fail_at=1, repeat=2, error=errno.EIO, calls={"unlink"}
        )  # one file: it is tried twice
        with pytest.raises(SpillError, match="removing a spilled file failed"):
            packer.close()
        assert made > 2
        assert len(files(spill)) == 1
    assert list(tmp_path.iterdir()) == []


# --- systems that refuse -----------------------------------------------------------------------------


@pytest.mark.reliability("B7")
@pytest.mark.parametrize("when", ["open", "pwrite", "short"])
def test_a_folder_without_o_direct_is_written_buffered(
    when: str, path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    system = {
        "open": FaultyOS(refuse_flags=os.O_DIRECT),
        "pwrite": FaultyOS(fail_at=3, error=errno.EINVAL, calls={"pwrite"}),
        "short": FaultyOS(short=5000),
    }[when]
    with FeatureStore.open(path) as store, SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        spill._os_io = system
        live(store, spill)
    assert "refuses O_DIRECT, writing through the page cache" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.reliability("B6")
@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN])
def test_interrupted_writes_are_repeated(code: int, path: Path, tmp_path: Path) -> None:
    with FeatureStore.open(path) as store, SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        spill._os_io = FaultyOS(fail_at=2, repeat=50, error=code, calls={"pwrite"})
        live(store, spill)
        assert spill._os_io.was_hit


# --- bytes that change -------------------------------------------------------------------------------


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


@pytest.mark.reliability("E2")
@pytest.mark.parametrize("io", IO)
def test_a_flipped_bit_of_a_pack_is_found(io: str, path: Path, tmp_path: Path) -> None:
    with (
        FeatureStore.open(path, io=io, verify="off") as store,  # packs are verified all the same
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
        Packer(store, spill) as packer,
    ):
        pack = packer.pack(MISSES, superbatch=7, cancellation=NEVER)
        for batch, file in enumerate(files(spill)):  # so few batches have a file each
            last = 4 * DIM * len(MISSES[batch]) - 1
            for offset in (0, 4095, 4096, last // 2, last):
                flip(file, offset)
                text = rf"superbatch 7, batch {batch} .* damaged at byte {offset // 4096 * 4096}: the page"
                with pytest.raises(ChecksumError, match=text):
                    read(pack, batch)
                flip(file, offset)
        assert is_right(pack)


@pytest.mark.reliability("E2")
@pytest.mark.parametrize("io", IO)
def test_a_cut_or_exchanged_pack_is_found(io: str, path: Path, tmp_path: Path) -> None:
    with (
        FeatureStore.open(path, io=io) as store,
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
        Packer(store, spill) as packer,
    ):
        pack = packer.pack(MISSES, superbatch=7, cancellation=NEVER)
        first, second = files(spill)[:2]
        saved = first.read_bytes()
        for size in (0, 1, 4096, 5000, len(saved) - 4096, len(saved) - 1):
            os.truncate(first, size)
            with pytest.raises(ChecksumError, match=r"superbatch 7, batch 0 .* is damaged at byte"):
                read(pack, 0)
        first.write_bytes(second.read_bytes().ljust(len(saved), b"\0"))
        with pytest.raises(ChecksumError, match="superbatch 7, batch 0"):
            read(pack, 0)
        first.write_bytes(saved)
        assert is_right(pack)


@pytest.mark.reliability("E2")
def test_any_damage_of_a_pack_is_found(path: Path, tmp_path: Path) -> None:
    """Pieces are overwritten, pages change places, the end is cut or grows: the right rows or an error."""
    draw = np.random.default_rng(5)
    with (
        FeatureStore.open(path, io="buffered") as store,
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
        Packer(store, spill) as packer,
    ):
        pack = packer.pack(MISSES, superbatch=7, cancellation=NEVER)
        file, num_bytes = files(spill)[0], 4 * DIM * len(MISSES[0])
        saved = file.read_bytes()
        for _ in range(300):
            damaged = bytearray(saved)
            for _ in range(draw.integers(1, 5)):
                at, length = int(draw.integers(num_bytes)), int(draw.integers(1, 5000))
                damaged[at : at + length] = draw.bytes(length)[: len(saved) - at]
            file.write_bytes(damaged[: draw.integers(1, len(saved))] if draw.random() < 0.3 else damaged)
            with pytest.raises(ChecksumError, match=r"superbatch 7, batch 0 .* is damaged at byte \d+"):
                read(pack, 0)
        one, two = saved[4096:8192], saved[8192:12288]
        file.write_bytes(saved[:4096] + two + one + saved[12288:])
        with pytest.raises(ChecksumError, match="damaged at byte 4096: the page"):
            read(pack, 0)
        file.write_bytes(saved)
        assert is_right(pack)


@pytest.mark.reliability("E2")
def test_a_device_that_lies_about_a_pack(path: Path, tmp_path: Path) -> None:
    with FeatureStore.open(path) as store, SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        spill._os_io = FaultyOS(corrupt=Corruption(offset=5000, mask=1, file=".spill"))
        with pytest.raises(ChecksumError, match=r"superbatch 7, batch 0 .* the page at byte 4096"):
            live(store, spill)
        assert (files(spill), spill.used_bytes) == ([], 0)


@pytest.mark.reliability("B3")
@pytest.mark.parametrize("io", IO)
def test_a_damaged_store_is_not_packed(io: str, path: Path, tmp_path: Path) -> None:
    data = path / "features.npy"
    with FeatureStore.open(path, io=io) as store, SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        flip(data, 4096 + 9 * 4096 + 17)
        try:
            for attempt in (
                lambda: live(store, spill),
                lambda: load_misses(store, MISSES, cancellation=NEVER),
            ):
                with pytest.raises(
                    ChecksumError, match=r"page 9 at byte 40960, with rows 92 to 102 \(requested: 9"
                ):
                    attempt()
                assert (files(spill), spill.used_bytes) == ([], 0)
        finally:
            flip(data, 4096 + 9 * 4096 + 17)
        live(store, spill)


@pytest.mark.reliability("B2")
@pytest.mark.parametrize("io", IO)
def test_a_store_cut_while_it_is_open_is_not_packed(io: str, tmp_path: Path) -> None:
    FeatureStore.create(tmp_path / "s", FEATURES).close()
    with (
        FeatureStore.open(tmp_path / "s", io=io) as store,
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
    ):
        os.truncate(tmp_path / "s" / "features.npy", 100 * 4096 + 5)
        for attempt in (lambda: live(store, spill), lambda: load_misses(store, MISSES, cancellation=NEVER)):
            with pytest.raises(TruncatedStoreError, match="but the file now has 409605"):
                attempt()
        assert (files(spill), spill.used_bytes) == ([], 0)


# --- the end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("io", IO)
def test_whatever_ends_a_sweep_leaves_nothing(
    io: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between two steps, with requests in flight, and after the last."""
    with FeatureStore.open(path, io=io) as store, SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        looks = 0

        def interrupt() -> bool:
            nonlocal looks
            looks += 1
            if looks == len(MISSES) + 2:
                raise KeyboardInterrupt
            return False

        monkeypatch.setattr("gloader.ssd_store.sweep.sweeper._STEP_BYTES", 4096)
        with Packer(store, spill) as packer:
            with pytest.raises(KeyboardInterrupt):
                packer.pack(MISSES, superbatch=7, cancellation=Cancellation(interrupt))
            assert (files(spill), spill.used_bytes) == ([], 0)
            with monkeypatch.context() as patch:
                patch.setattr(SpillFiles, "complete", interrupt_now)
                with pytest.raises(KeyboardInterrupt):
                    packer.pack(MISSES, superbatch=7, cancellation=NEVER)
            assert (files(spill), spill.used_bytes) == ([], 0)
            assert is_right(packer.pack(MISSES, superbatch=7, cancellation=NEVER))


def interrupt_now(_files: SpillFiles) -> None:
    raise KeyboardInterrupt


def test_nothing_is_in_flight_after_a_sweep_that_was_cancelled(path: Path, tmp_path: Path) -> None:
    class Slow(OsIO):
        num_active = num_calls = 0

        def pread_into(self, fd, buffer, offset):
            self.num_active += 1
            self.num_calls += 1
            time.sleep(0.05)
            try:
                return super().pread_into(fd, buffer, offset)
            finally:
                self.num_active -= 1

    with (
        FeatureStore.open(path, io="threads", os_io=(slow := Slow())) as store,
        SpillFolder(tmp_path, budget_bytes=10**8) as spill,
        Packer(store, spill, max_gap_bytes=0) as packer,
    ):
        slow.num_calls = 0
        sparse = [np.arange(0, NUM_ROWS, 41)]
        with pytest.raises(ChannelClosedError), pytest.MonkeyPatch.context() as patch:
            patch.setattr("gloader.ssd_store.sweep.sweeper._STEP_BYTES", 4096)
            packer.pack(sparse, superbatch=7, cancellation=Cancellation(lambda: slow.num_calls > 0))
        assert slow.num_calls > 1
        assert slow.num_active == 0


@pytest.mark.reliability("E3")
def test_sigkill_leaves_one_folder_that_the_next_run_removes(path: Path, tmp_path: Path) -> None:
    checkout = str(Path(gloader.__path__[0]).parent)
    paths = os.pathsep.join(filter(None, [checkout, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(path), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "pack.in_sweep": ["killed", [14], 1, 0],
        "pack.after_sweep": ["killed", [14], 1, 0],
        "": ["exit 0", [], 0, 0],
    }
