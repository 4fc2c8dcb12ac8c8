"""The system calls and the loops around them."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from gloader.ssd_store.os_io import (
    MAX_RETRIES,
    REAL_OS,
    close_quietly,
    errno_location_address,
    is_worth_repeating,
    libc_address,
    make_folders,
    open_regular,
    pread_address,
    read_full,
    syscall_address,
    write_full,
)
from gloader.testing.faults import Corruption, FaultyOS


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


DATA = bytes(range(256)) * 40


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@pytest.mark.parametrize("short", [0, 1, 7, 4096])
def test_read_full_continues_short_and_interrupted_reads(path, short):
    os_io = FaultyOS(short=short, fail_at=2, repeat=3, error=errno.EINTR, calls={"pread_into"})
    fd = open_regular(path, os_io=os_io)
    buffer = bytearray(len(DATA) + 10)
    assert read_full(fd, memoryview(buffer), 100, os_io=os_io) == len(DATA) - 100
    assert buffer[: len(DATA) - 100] == DATA[100:]
    close_quietly(fd)


def test_read_full_raises_the_first_error(path):
    os_io = FaultyOS(fail_at=1, calls={"pread_into"})
    fd = open_regular(path, os_io=os_io)
    with pytest.raises(OSError, match="Input/output error"):
        read_full(fd, memoryview(bytearray(10)), 0, os_io=os_io)
    assert os_io.num_calls == 1
    close_quietly(fd)


def test_write_full_continues(tmp_path):
    os_io = FaultyOS(short=100, fail_at=2, repeat=3, error=errno.EINTR, calls={"write"})
    fd = os_io.open(tmp_path / "new", os.O_WRONLY | os.O_CREAT)
    write_full(fd, memoryview(DATA), os_io=os_io)
    close_quietly(fd)
    assert (tmp_path / "new").read_bytes() == DATA


def test_regular_files_are_opened_blocking_and_not_inherited(path):
    fd = open_regular(path)
    assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK
    assert not os.get_inheritable(fd)
    REAL_OS.close(fd)


def test_a_failed_open_regular_leaves_no_descriptor(path):
    before = len(names("/proc/self/fd"))
    for number in (2, 3):
        with pytest.raises(OSError, match="Input/output error"):
            open_regular(path, os_io=FaultyOS(fail_at=number))
    assert len(names("/proc/self/fd")) == before


def test_names_are_exchanged_or_kept(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / f"was {name}").touch()
    REAL_OS.exchange(tmp_path / "a", tmp_path / "b")
    assert names(tmp_path / "a") == ["was b"]
    with pytest.raises(FileExistsError):
        REAL_OS.rename_noreplace(tmp_path / "a", tmp_path / "b")
    with pytest.raises(FileNotFoundError, match="missing"):
        REAL_OS.exchange(tmp_path / "a", tmp_path / "missing")


def test_parents_are_made_once(tmp_path):
    make_folders(tmp_path / "a" / "b")
    make_folders(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_entry_points_for_kernels():
    assert len({pread_address(), syscall_address(), errno_location_address()}) == 3
    with pytest.raises(OSError, match="no function no_such_function"):
        libc_address("no_such_function")


# --- the fault wrapper ---


def test_refused_flags(path):
    os_io = FaultyOS(refuse_flags=os.O_DIRECT)
    with pytest.raises(OSError, match="flags refused") as caught:
        os_io.open(path, os.O_RDONLY | os.O_DIRECT)
    assert caught.value.errno == errno.EINVAL
    os_io.close(os_io.open(path, os.O_RDONLY))


def test_corruption_of_one_file(path, tmp_path):
    (tmp_path / "other").write_bytes(DATA)
    os_io = FaultyOS(corrupt=Corruption(offset=300, mask=3, file="file"))
    for name, expected in (("file", DATA[300] ^ 3), ("other", DATA[300])):
        fd = os_io.open(tmp_path / name, os.O_RDONLY)
        buffer = bytearray(50)
        assert os_io.pread_into(fd, memoryview(buffer), 290) == 50
        assert buffer[10] == expected
        assert buffer[:10] == DATA[290:300]
        os_io.close(fd)


def test_unknown_calls_are_refused():
    with pytest.raises(ValueError, match=r"no calls \['frobnicate'\]"):
        FaultyOS(calls={"frobnicate"})


def test_a_request_is_repeated_after_a_signal_or_a_full_queue_but_not_for_ever() -> None:
    for code in (errno.EINTR, errno.EAGAIN):
        assert is_worth_repeating(OSError(code, "x"), MAX_RETRIES - 1)
        assert not is_worth_repeating(OSError(code, "x"), MAX_RETRIES)
    assert not is_worth_repeating(OSError(errno.EIO, "x"), 1)


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(NotADirectoryError) as caught:
        make_folders(tmp_path / "a")
    assert caught.value.filename == str(tmp_path / "a")
