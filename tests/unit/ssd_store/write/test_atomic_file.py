"""A file that is written atomically is complete or not there, whatever fails and whenever it is cut."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from gloader.ssd_store.os_io import OsIO
from gloader.ssd_store.write.atomic_file import TEMPORARY_PATTERN, write_atomically, write_chunks_atomically
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


def test_the_name_of_a_file_in_the_making_is_the_process_own(tmp_path) -> None:
    watching = Watching(tmp_path)
    write_atomically(tmp_path / "a", b"a", os_io=watching)
    (temporary,) = watching.seen[0][1]
    assert str(os.getpid()) in temporary
    assert fnmatch(temporary, TEMPORARY_PATTERN)


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
