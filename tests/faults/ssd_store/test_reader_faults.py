"""The reader on devices that fail, files that are cut, and systems that refuse."""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reliability_report import Namespace

from gloader.errors import (
    ChecksumError,
    FormatError,
    StoreError,
    StoreOpenError,
    StoreReadError,
    TruncatedStoreError,
    VersionError,
)
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.format.manifest import seal_manifest
from gloader.ssd_store.os_io import MAX_RETRIES
from gloader.testing.faults import Corruption, FaultyOS
from gloader.testing.suites import make_features, same_bits

FEATURES = make_features(2000, 100, "float32")  # rows straddle pages; 196 pages
ROWS = np.random.default_rng(0).integers(0, 2000, 700)
FILE_BYTES = 4096 + 196 * 4096
IO = ["auto", "threads", "buffered"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    FeatureStore.create(tmp_path / "s", FEATURES).close()
    return tmp_path / "s"


def read(store: FeatureStore, rows: np.ndarray = ROWS) -> np.ndarray:
    out = np.empty((len(rows), 100), np.float32)
    store.read_into(rows, out)
    return out


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only


@pytest.mark.reliability("B1")
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 100_000, FILE_BYTES - 4096, FILE_BYTES - 1])
def test_a_truncated_file_is_refused_at_open(size: int, path: Path) -> None:
    os.truncate(path / "features.npy", size)
    with pytest.raises(TruncatedStoreError, match=f"has {size} bytes, expected {FILE_BYTES}"):
        FeatureStore.open(path)


@pytest.mark.reliability("B2")
@pytest.mark.parametrize("io", IO)
@pytest.mark.parametrize("size", [0, 4096, 4097, 50 * 4096 + 700, FILE_BYTES - 1])
def test_a_file_truncated_after_open_raises_where_it_is_missed(io: str, size: int, path: Path) -> None:
    whole_pages = max(0, size // 4096 - 1)
    with FeatureStore.open(path, io=io, gap_bytes=0) as store:
        assert same_bits(read(store), FEATURES[ROWS])
        os.truncate(path / "features.npy", size)
        left = np.arange(whole_pages * 4096 // 400)
        assert same_bits(read(store, left), FEATURES[left])
        for _ in range(2):
            with pytest.raises(
                TruncatedStoreError, match=rf"features\.npy: bytes .* but the file now has {size};"
            ):
                read(store, np.array([1999]))
        with pytest.raises(TruncatedStoreError):
            read(store, np.arange(2000))


@pytest.mark.reliability("B5")
def test_each_failing_call_raises_a_typed_error_or_does_no_harm(path: Path) -> None:
    """The SQLite loop: the n-th system call fails, for n = 1, 2, ... until none is left to fail."""
    before = open_fds()
    for code in (errno.EIO, errno.EACCES, errno.ENOMEM):
        for n in range(1, 1000):
            system = FaultyOS(fail_at=n, error=code)
            try:
                with FeatureStore.open(path, os_io=system, gap_bytes=0) as store:
                    assert same_bits(read(store), FEATURES[ROWS])
            except StoreError as error:
                assert str(path) in str(error)  # noqa: PT017 - either outcome is right
            except OSError:
                assert system.history[n - 1] == "close"
            assert open_fds() == before
            if not system.was_hit:
                break
        assert n > 20


@pytest.mark.reliability("B5")
def test_a_failing_read_is_not_repeated(path: Path) -> None:
    system = FaultyOS(fail_at=1, error=errno.EIO, repeat=10**6, calls=["pread_into"])
    healthy = FaultyOS()
    with FeatureStore.open(path, os_io=healthy) as store:
        store._file._os_io = system  # the device fails from now on
        with pytest.raises(StoreReadError, match="reading at byte 4096 failed: Input/output error") as caught:
            read(store, np.array([0]))
        assert caught.value.errno == errno.EIO
        assert caught.value.filename == str(path / "features.npy")
        assert system.num_calls == 1


class ShortReads(FaultyOS):
    """A device that gives fewer bytes than asked for, and rubbish behind them."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        count = min(super().pread_into(fd, buffer, offset), self._most)
        buffer[count:] = b"\xee" * (len(buffer) - count)
        return count


@pytest.mark.reliability("B6")
@pytest.mark.parametrize("short", [1, 7, 511, 512, 4095, 4096, 5000, 100_000])
def test_short_reads_are_continued(short: int, path: Path) -> None:
    with FeatureStore.open(path, verify="off", os_io=FaultyOS()) as store:
        rows = ROWS[:3] if short < 100 else ROWS
        store._file._os_io = ShortReads(short)
        assert same_bits(read(store, rows), FEATURES[rows])
        assert store.is_direct


@pytest.mark.reliability("B6")
@pytest.mark.parametrize("code", [errno.EINTR, errno.EAGAIN])
def test_interrupted_reads_are_repeated_but_not_for_ever(code: int, path: Path) -> None:
    with FeatureStore.open(path, os_io=FaultyOS()) as store:
        store._file._os_io = FaultyOS(fail_at=2, error=code, repeat=MAX_RETRIES - 1, calls=["pread_into"])
        assert same_bits(read(store), FEATURES[ROWS])
        store._file._os_io = FaultyOS(fail_at=1, error=code, repeat=10**6, calls=["pread_into"])
        with pytest.raises(StoreReadError) as caught:
            read(store)
        assert caught.value.errno == code


@pytest.mark.reliability("B7")
def test_a_file_system_without_o_direct_is_read_buffered(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    system = FaultyOS(refuse_flags=os.O_DIRECT)
    with FeatureStore.open(path, os_io=system) as store:
        assert not store.is_direct
        assert same_bits(read(store), FEATURES[ROWS])
        assert same_bits(read(store), FEATURES[ROWS])
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        f"{path / 'features.npy'}: the file system refuses O_DIRECT, reading through the page cache"
    ]
    with pytest.raises(StoreOpenError, match="refuses O_DIRECT; use direct='auto'"):
        FeatureStore.open(path, os_io=system, direct="require")


@pytest.mark.reliability("B7")
def test_reads_that_refuse_o_direct_are_made_buffered(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    refusing = FaultyOS(fail_at=3, error=errno.EINVAL, calls=["pread_into"])
    with FeatureStore.open(path, os_io=FaultyOS(), gap_bytes=0) as store:
        store._file._os_io = refusing
        assert store.is_direct
        assert same_bits(read(store), FEATURES[ROWS])
        assert not store.is_direct
    assert refusing.was_hit
    assert caplog.text.count("refuses O_DIRECT") == 1
    with FeatureStore.open(path, os_io=FaultyOS(), direct="require") as store:
        store._file._os_io = FaultyOS(fail_at=1, error=errno.EINVAL, calls=["pread_into"])
        with pytest.raises(StoreReadError, match="Invalid argument"):
            read(store)


@pytest.mark.parametrize("io", ["auto", "threads"])
def test_a_failure_in_a_kernel_is_read_again_with_care(io: str, path: Path) -> None:
    """The fast path only reports that a read failed; why is found out by the careful one."""
    with FeatureStore.open(path, io=io, gap_bytes=0) as store:
        file = store._file
        real, bad = file.fd, os.open(path, os.O_RDONLY)  # reading a folder fails with EISDIR
        file.fd = bad
        try:
            with pytest.raises(StoreReadError, match="Is a directory"):
                read(store)
        finally:
            file.fd = real
            os.close(bad)
        assert same_bits(read(store), FEATURES[ROWS])


@pytest.mark.parametrize("io", ["auto", "threads"])
def test_reads_that_fail_in_a_kernel_and_succeed_with_care_lose_nothing(io: str, path: Path) -> None:
    """An fd that the kernels cannot read, behind system calls that can."""
    with FeatureStore.open(path, io=io, gap_bytes=0) as store:
        file = store._file
        real, bad = file.fd, os.open(path, os.O_RDONLY)

        class Redirect(FaultyOS):
            def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
                return super().pread_into(real if fd == bad else fd, buffer, offset)

        file.fd, file._os_io = bad, Redirect()
        try:
            assert same_bits(read(store), FEATURES[ROWS])
            assert file._os_io.num_calls > 0
        finally:
            file.fd = real
            os.close(bad)


@pytest.mark.reliability("B3")
def test_damage_on_the_way_is_found(path: Path) -> None:
    system = FaultyOS(corrupt=Corruption(offset=4096 + 4096 * 7 + 5, mask=16, file="features.npy"))
    with (
        FeatureStore.open(path, os_io=system) as store,
        pytest.raises(ChecksumError, match="page 7 at byte 32768"),
    ):
        read(store, np.arange(2000))


READ_ALL = """
import hashlib, json, sys
import numpy as np
from gloader.ssd_store import FeatureStore
from gloader.ssd_store.format.verification import verify_directory
for _ in range(int(sys.argv[2])):
    with FeatureStore.open(sys.argv[1]) as store:
        out = np.empty((store.num_rows, store.dim), np.float32)
        store.read_into(np.arange(store.num_rows), out)
    ok = verify_directory(sys.argv[1], "store.json").is_ok
print(json.dumps([hashlib.sha256(out.tobytes()).hexdigest(), ok]))
"""


def child(path: Path, *, rounds: int = 1, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[3]
    return subprocess.Popen(
        [*prefix, sys.executable, "-B", "-c", READ_ALL, str(path), str(rounds)],
        env=dict(os.environ, PYTHONPATH=str(root)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> list[Any]:
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    return json.loads(out)


def digest() -> str:
    import hashlib

    return hashlib.sha256(FEATURES.tobytes()).hexdigest()


def listing(path: Path) -> list[tuple[str, int, int]]:
    return sorted(
        (p.name, p.stat().st_size, p.stat().st_mtime_ns)
        for p in [path, *path.parent.iterdir(), *path.iterdir()]
    )


@pytest.mark.reliability("B9")
def test_reading_writes_nothing_beside_the_store(path: Path) -> None:
    before = listing(path)
    path.chmod(0o555)
    for file in path.iterdir():
        file.chmod(0o444)
    with FeatureStore.open(path, verify="open") as store:
        assert same_bits(read(store), FEATURES[ROWS])
    assert listing(path) == before
    path.chmod(0o755)


@pytest.mark.reliability("B9")
def test_a_read_only_mount_is_enough(path: Path, namespace: Namespace) -> None:
    mounts = f'mount --bind "{path}" "{path}" && mount -o remount,ro,bind "{path}"'
    prefix = namespace(f'{mounts} && ! touch "{path}/x" 2>/dev/null')
    if prefix is None:
        # The writes that a reader must not make are refused by a wrapper instead.
        writes = ("write", "pwrite", "mkdir", "unlink", "replace", "fsync", "fallocate")
        system = FaultyOS(fail_at=1, repeat=10**6, error=errno.EROFS, calls=writes)
        with FeatureStore.open(path, os_io=system, verify="open") as store:
            assert same_bits(read(store), FEATURES[ROWS])
        assert system.num_calls == 0
        return
    assert outcome(child(path, prefix=prefix)) == [digest(), True]


@pytest.mark.reliability("B10")
@pytest.mark.parametrize(
    ("key", "value", "error", "text"),
    [
        ("format_version", 3, VersionError, "format version 3 by 'gloader.*', this build reads 1 and 2"),
        ("byte_order", "big", VersionError, "byte_order is 'big', this build reads 'little' only"),
        ("required_features", ["zstd"], VersionError, r"needs features \['zstd'\]"),
        ("arrays", [], FormatError, "must be an object"),
    ],
)
def test_a_store_of_another_build_is_refused(
    key: str, value: Any, error: type[Exception], text: str, path: Path
) -> None:
    body = json.loads((path / "store.json").read_text())
    del body["checksum"]
    (path / "store.json").write_bytes(seal_manifest({**body, key: value}))
    with pytest.raises(error, match=text):
        FeatureStore.open(path)


@pytest.mark.reliability("B10")
def test_a_store_that_was_replaced_while_open_is_read_to_its_end(path: Path) -> None:
    with FeatureStore.open(path) as store:
        FeatureStore.create(path, FEATURES[::-1].copy(), overwrite=True).close()
        assert same_bits(read(store), FEATURES[ROWS])
    with FeatureStore.open(path) as store:
        assert not same_bits(read(store), FEATURES[ROWS])


@pytest.mark.reliability("B11")
def test_two_processes_share_a_store(path: Path) -> None:
    other = child(path, rounds=5)
    try:
        with FeatureStore.open(path) as store:
            while other.poll() is None:
                assert same_bits(read(store), FEATURES[ROWS])
        assert outcome(other) == [digest(), True]
    finally:
        other.kill()
        other.wait()


@pytest.mark.reliability("B13")
def test_running_out_of_descriptors_is_explained_and_leaves_none_open(path: Path) -> None:
    before, limits = open_fds(), resource.getrlimit(resource.RLIMIT_NOFILE)
    outcomes = []
    for spare in range(8):
        highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only
        fillers = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest + 8 - open_fds() + 1)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max([highest, *fillers]) + 1 + spare, limits[1]))
        try:
            with FeatureStore.open(path) as store:
                outcomes.append(same_bits(read(store), FEATURES[ROWS]))
        except StoreOpenError as error:
            assert "ulimit -n" in str(error)  # noqa: PT017 - either outcome is right
            outcomes.append("refused")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for fd in fillers:
                os.close(fd)
        assert open_fds() == before
    assert outcomes[0] == "refused"
    assert outcomes[-1] is True


class InterruptedReadError(KeyboardInterrupt):
    """The Ctrl-C of a test. Python's own start of a thread does not survive another exception from a signal handler."""


@pytest.mark.parametrize("io", ["auto", "threads"])
def test_a_signal_ends_a_read_with_nothing_in_flight(io: str, tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise InterruptedReadError

    features = make_features(20_000, 100, "float32")
    rows = np.repeat(np.arange(0, 20_000, 21), 100)  # 950 reads
    out = np.empty((len(rows), 100), np.float32)
    before = signal.signal(signal.SIGALRM, interrupt)
    gc.collect()
    gc.disable()  # Python drops what a handler raises while a finalizer runs: that of another test's garbage
    try:
        with FeatureStore.create(tmp_path / "s", features):
            pass
        with FeatureStore.open(tmp_path / "s", io=io, gap_bytes=0, queue_depth=4) as store:
            assert same_bits(read(store), features[ROWS])
            for delay in (0.005, 0.01, 0.02):
                signal.setitimer(signal.ITIMER_REAL, delay)
                with pytest.raises(InterruptedReadError):
                    for _ in range(200):
                        store.read_into(rows, out)
                out[:] = 0
                assert same_bits(read(store), features[ROWS])
                assert not out.any()  # nobody writes to an array that was given up
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()
