"""A file that is written atomically is complete or not there, whatever fails and whenever it is cut."""

from __future__ import annotations

import errno
import os
import re
import secrets
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gloader.errors import StoreExistsError, StoreWriteError
from gloader.ssd_store.os_io import KILL_AT_VARIABLE, OsIO
from gloader.ssd_store.write.atomic_file import append_durably, write_atomically, write_chunks_atomically
from gloader.testing.faults import FaultyOS


def test_writes_and_replaces(tmp_path) -> None:
    target = tmp_path / "result.json"
    write_atomically(target, b"one")
    write_atomically(target, memoryview(b"two"))
    assert target.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [target]


def test_short_writes_are_continued(tmp_path) -> None:
    write_atomically(tmp_path / "a", b"0123456789", os_io=FaultyOS(short=3))
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_whatever_call_fails_the_old_content_stays_and_nothing_else(tmp_path) -> None:
    target = tmp_path / "result.json"
    for call in range(1, 20):
        write_atomically(target, b"old")
        faulty = FaultyOS(fail_at=call, error=errno.ENOSPC)
        try:
            write_atomically(target, b"new", os_io=faulty)
        except OSError:
            assert target.read_bytes() in (b"old", b"new")
        else:
            if not faulty.was_hit:
                break
        assert list(tmp_path.iterdir()) == [target], f"call {call}"
    else:
        pytest.fail("never ran through")
    assert call > 4


class Watching(OsIO):
    """The system, with the files that there are at every kill point."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[tuple[str, list[str]]] = []

    def kill_point(self, name: str) -> None:
        self.seen.append((name, sorted(path.name for path in self.folder.iterdir())))


def test_a_crash_meets_the_temporary_name_until_the_bytes_are_on_the_device(tmp_path) -> None:
    watching = Watching(tmp_path)
    target = tmp_path / "record.json"
    write_chunks_atomically(
        target, [b"a", b"b"], temporary=tmp_path / "record.json.tmp", label="record", os_io=watching
    )
    assert watching.seen == [
        ("record.after_write", ["record.json.tmp"]),
        ("record.after_fsync", ["record.json.tmp"]),
        ("record.after_rename", ["record.json"]),
        ("record.after_folder_fsync", ["record.json"]),
    ]
    assert target.read_bytes() == b"ab"


def test_the_name_of_a_file_in_the_making_is_the_process_own_and_unforeseeable(tmp_path) -> None:
    watching = Watching(tmp_path)
    for _ in range(2):
        write_atomically(tmp_path / "a", b"a", os_io=watching)
    (first,), (second,) = ([name for name in seen if name != "a"] for _, seen in watching.seen[::4])
    assert re.fullmatch(rf"\.a\.{os.getpid()}\.[0-9a-f]{{16}}\.tmp", first)
    assert first != second
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


@pytest.mark.reliability("J9")
def test_a_link_planted_at_a_temporary_name_is_never_followed(tmp_path, monkeypatch) -> None:
    (tmp_path / "theirs").write_text("theirs")
    tokens = iter(["0" * 16, "1" * 16])
    monkeypatch.setattr(secrets, "token_hex", lambda _: next(tokens))
    planted = tmp_path / f".a.{os.getpid()}.{'0' * 16}.tmp"
    planted.symlink_to(tmp_path / "theirs")
    write_atomically(tmp_path / "a", b"mine")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "a").is_symlink()) == (b"mine", False)
    planted_temporary = tmp_path / "record.tmp"
    planted_temporary.symlink_to(tmp_path / "theirs")
    with pytest.raises(FileExistsError):
        write_chunks_atomically(tmp_path / "record", [b"mine"], temporary=planted_temporary)
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert planted_temporary.is_symlink()


@pytest.mark.reliability("J17")
@pytest.mark.parametrize("kind", ["a folder", "a symbolic link", "a FIFO", "a device", "a socket"])
def test_what_is_no_regular_file_is_never_replaced(tmp_path, kind) -> None:
    path, target = tmp_path / "out.npy", tmp_path / "target"
    target.write_bytes(b"theirs")
    with socket.socket(socket.AF_UNIX) as listener:
        if kind == "a folder":
            path.mkdir()
        elif kind == "a symbolic link":
            path.symlink_to(target)
        elif kind == "a FIFO":
            os.mkfifo(path)
        elif kind == "a socket":
            listener.bind(str(path))
        else:
            path = Path("/dev/null")
        before = path.lstat()
        refusal = f"is {kind}, which is never replaced by a file; give another path"
        if kind != "a device":  # a failure of this test must not replace /dev/null
            with pytest.raises(StoreExistsError, match=refusal) as raised:
                write_atomically(path, b"mine")
            assert raised.value.filename == str(path)
        else:
            with pytest.raises(StoreExistsError, match=refusal):
                write_atomically(path, b"mine", os_io=FaultyOS(fail_at=1, error=errno.EPERM, calls={"open"}))
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert target.read_bytes() == b"theirs"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_in_bytes_with_the_file(tmp_path, code) -> None:
    faulty = FaultyOS(fail_at=1, error=code, calls={"write"})
    with pytest.raises(
        StoreWriteError, match=r"needed 7 bytes, \d+ bytes are free; free some space"
    ) as raised:
        write_atomically(tmp_path / "a", b"content", os_io=faulty)
    assert (raised.value.errno, raised.value.filename) == (code, str(tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_disk_is_an_error_that_names_the_file(tmp_path) -> None:
    with pytest.raises(StoreWriteError, match="writing failed") as raised:
        write_atomically(tmp_path / "a", b"", os_io=FaultyOS(fail_at=1, error=errno.EROFS, calls={"open"}))
    assert (raised.value.errno, raised.value.filename) == (errno.EROFS, str(tmp_path / "a"))


def _killed_at(point: str, path: Path) -> None:
    child = os.fork()
    if child == 0:
        os.environ[KILL_AT_VARIABLE] = point
        write_atomically(path, b"half")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.reliability("J12")
@pytest.mark.reliability("J17")
def test_what_a_killed_writer_left_goes_with_the_next_one_and_nothing_else_does(tmp_path) -> None:
    path = tmp_path / "p.npy"
    foreign = {".p.npy.swp.tmp", ".p.npy.12.tmp", ".other.npy.12.0123456789abcdef.tmp", ".p.npy.12.xyz.tmp"}
    for name in foreign:
        (tmp_path / name).write_text("theirs")
    (tmp_path / ".p.npy.7.0000000000000000.tmp").symlink_to(tmp_path / ".p.npy.swp.tmp")
    _killed_at("file.after_write", path)
    assert len(list(tmp_path.iterdir())) == len(foreign) + 2

    class Meanwhile(Watching):
        """Another process writes the same file while this one has it open."""

        def kill_point(self, name: str) -> None:
            super().kill_point(name)
            if name == "file.after_write":
                write_atomically(path, b"theirs")

    write_atomically(path, b"mine", os_io=Meanwhile(tmp_path))
    assert path.read_bytes() == b"mine"
    left = {entry.name for entry in tmp_path.iterdir()}
    assert left == foreign | {"p.npy", ".p.npy.7.0000000000000000.tmp"}


def test_what_is_appended_is_on_the_device_and_a_full_disk_is_named(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"one\n")
    watched = FaultyOS(short=3)
    append_durably(path, b"two and more\n", os_io=watched)
    assert path.read_bytes() == b"one\ntwo and more\n"
    assert watched.history[-2:] == ["fsync", "close"]
    with pytest.raises(StoreWriteError, match="needed 2 bytes"):
        append_durably(path, b"3\n", os_io=FaultyOS(fail_at=1, error=errno.ENOSPC, calls={"write"}))


def test_chunks_that_fail_leave_the_old_file_and_nothing_else(tmp_path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    target = tmp_path / "a"
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_chunks_atomically(target, chunks())
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
