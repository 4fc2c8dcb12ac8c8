from __future__ import annotations

import errno

import pytest

from gloader.ssd_store.write.atomic_file import write_atomically
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
