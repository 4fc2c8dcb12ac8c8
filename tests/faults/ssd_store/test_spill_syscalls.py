"""The SQLite loop over spill folders: the n-th system call fails, for every n, until none is left to fail."""

from __future__ import annotations

import errno
import os
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader.errors import SpillError
from gloader.ssd_store.os_io import REAL_OS
from gloader.ssd_store.spill import SpillFolder, SpillRef, remove_dead_spills
from gloader.ssd_store.spill_owner import SpillOwner
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from pathlib import Path

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR, "EMFILE": errno.EMFILE}
KEPT = {"x": np.arange(10)}
ARRAYS = {"nodes": np.arange(200_000, dtype=np.int64), "x": np.ones((77, 13), np.float32)}  # two buffers


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def num_fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    return list(found) == list(expected) and all(np.array_equal(found[n], expected[n]) for n in found)


def read_error(spill: SpillFolder, ref: SpillRef) -> SpillError | None:
    try:
        assert same(spill.read_record(ref), ARRAYS)
    except SpillError as error:
        return error
    return None


@pytest.mark.reliability("E1")
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_every_call_of_a_write_fails_once(tmp_path: Path, error: int) -> None:
    failures = 0
    with SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        kept = spill.write_record((0, 0), KEPT)
        before, fds = (names(spill.path), spill.used_bytes), num_fds()
        for number in count(1):
            spill._os_io = faulty = FaultyOS(fail_at=number, error=error)
            ref = spill_error = None
            try:
                ref = spill.write_record((0, number), ARRAYS)
            except SpillError as caught:
                spill_error = caught
            if ref is None:
                failures += 1
                assert f"superbatch 0, batch {number}" in str(spill_error)
                assert spill_error.errno == error
                assert (names(spill.path), spill.used_bytes) == before, faulty.history
            else:
                spill._os_io = REAL_OS
                assert same(spill.read_record(ref), ARRAYS)
                spill.delete_record(ref)
            assert num_fds() == fds, faulty.history
            spill._os_io = REAL_OS
            assert same(spill.read_record(kept), KEPT)
            if not faulty.was_hit:
                break
        assert set(faulty.history) == {"statvfs", "open", "write", "close"}
    assert failures == len(faulty.history) - (3 if error == errno.EINTR else 0)  # writes go on
    assert names(tmp_path) == []


@pytest.mark.reliability("E1")
def test_the_loop_reaches_every_write(tmp_path: Path) -> None:
    faulty = FaultyOS()
    with SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        spill._os_io = faulty
        spill.write_record("x", ARRAYS)
    assert faulty.history.count("write") == 3  # a full buffer, the rest of the data, the checksums


@pytest.mark.reliability("E1")
def test_a_partial_record_is_removed_at_the_second_attempt(tmp_path: Path) -> None:
    with SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        spill._os_io = FaultyOS(fail_at=2, repeat=2, error=errno.EIO, calls={"write", "unlink"})
        with pytest.raises(SpillError):
            spill.write_record((0, 1), ARRAYS)
        assert (names(spill.path), spill.used_bytes) == (["owner.json"], 0)


@pytest.mark.reliability("E1")
def test_a_partial_record_that_cannot_be_removed_is_counted_and_named(tmp_path: Path) -> None:
    with SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        spill._os_io = FaultyOS(fail_at=2, repeat=10**6, error=errno.EIO, calls={"write", "unlink"})
        with pytest.raises(SpillError) as caught:
            spill.write_record((0, 1), ARRAYS)
        assert "00000000.spill could not be removed" in caught.value.__notes__[0]
        assert spill.used_bytes >= (spill.path / "00000000.spill").stat().st_size > 0
    assert names(tmp_path) == []


@pytest.mark.parametrize("short", [1, 1000, 4096, 5000])
def test_short_and_interrupted_transfers_are_continued(tmp_path: Path, short: int) -> None:
    arrays = {"nodes": np.arange(700)}
    os_io = FaultyOS(short=short, fail_at=2, repeat=3, error=errno.EINTR, calls={"write", "pread_into"})
    with SpillFolder(tmp_path, budget_bytes=10**6) as spill:
        spill._os_io = os_io
        ref = spill.write_record("x", arrays)
        assert same(spill.read_record(ref), arrays)
        spill._os_io = FaultyOS(short=short, fail_at=2, repeat=3, error=errno.EINTR, calls={"pread_into"})
        assert same(spill.read_record(ref), arrays)


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE])
def test_every_call_of_a_read_fails_once(tmp_path: Path, error: int) -> None:
    with SpillFolder(tmp_path, budget_bytes=10**8) as spill:
        ref = spill.write_record((0, 1), ARRAYS)
        fds, failures = num_fds(), 0
        for number in count(1):
            spill._os_io = faulty = FaultyOS(fail_at=number, error=error)
            if failure := read_error(spill, ref):
                assert "reading the spill of superbatch 0, batch 1 failed" in str(failure)
                assert failure.errno == error
                failures += 1
            assert num_fds() == fds
            if not faulty.was_hit:
                break
        spill._os_io = REAL_OS
        assert failures == 5  # open, two of fstat, set_blocking, pread; not close
        assert same(spill.read_record(ref), ARRAYS)


@pytest.mark.reliability("E1")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EINTR], ids=["ENOSPC", "EINTR"])
def test_every_call_of_a_life_fails_once(tmp_path: Path, error: int) -> None:
    """Creation, a record and the end: whatever fails, one retry of the removal leaves nothing."""
    fds = num_fds()
    failures = 0
    for number in count(1):
        faulty = FaultyOS(fail_at=number, error=error)
        try:
            with SpillFolder(tmp_path, budget_bytes=10**7, os_io=faulty) as spill:
                ref = spill.write_record("x", KEPT)
                assert same(spill.read_record(ref), KEPT)
                spill.delete_record(ref)
        except SpillError:
            failures += 1
        assert names(tmp_path) == [], (number, faulty.history)
        assert num_fds() == fds, (number, faulty.history)
        if not faulty.was_hit:
            break
    assert 10 < failures < number


def test_a_removal_that_fails_for_good_is_an_error_and_a_note(tmp_path: Path) -> None:
    spill = SpillFolder(tmp_path, budget_bytes=10**7)
    spill._claim._os_io = FaultyOS(fail_at=1, repeat=10**6, calls={"rmdir", "unlink"})
    with pytest.raises(SpillError, match="removing the spill folder failed"):
        spill.close()
    spill.close()
    with pytest.raises(KeyError) as caught, SpillFolder(tmp_path, budget_bytes=10**7) as other:
        other._claim._os_io = FaultyOS(fail_at=1, repeat=10**6, calls={"rmdir"})
        raise KeyError("the user's")
    assert "removing the spill folder failed" in caught.value.__notes__[0]


@pytest.mark.reliability("E3")
@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
def test_every_call_of_the_removal_of_the_dead_fails_once(tmp_path: Path, error: int) -> None:
    """It never raises, never touches the living, and the next time removes what it could not."""
    with SpillFolder(tmp_path, budget_bytes=10**7) as live:
        ref = live.write_record("x", KEPT)
        for number in count(1):
            dead = tmp_path / f"gloader-spill-dead{number}"
            dead.mkdir()
            owner = SpillOwner(
                pid=2**22 + 1, start_ticks=1, boot_id=SpillOwner.this_process().boot_id, host="h"
            )
            (dead / "owner.json").write_text(owner.to_json())
            (dead / "record").write_bytes(b"x")
            faulty = FaultyOS(fail_at=number, error=error)
            removed = remove_dead_spills(tmp_path, os_io=faulty)
            assert dead.exists() == (dead not in removed), faulty.history
            assert same(live.read_record(ref), KEPT)
            remove_dead_spills(tmp_path)
            assert names(tmp_path) == [live.path.name], faulty.history
            if not faulty.was_hit:
                break
        assert number > 20
