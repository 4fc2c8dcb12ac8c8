"""The SQLite loop over spill folders: the n-th system call fails, for every n, until none is left to fail."""

from __future__ import annotations

import errno
import os
from itertools import count
from typing import TYPE_CHECKING

import pytest

from gloader.errors import SpillError
from gloader.ssd_store.os_io import spill_errors
from gloader.ssd_store.spill.claim import SpillOwner, remove_dead_spills
from gloader.ssd_store.spill.folder import SpillFile, SpillFolder
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from pathlib import Path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def num_fds() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names only


def put(spill: SpillFolder, content: bytes = b"rows" * 2000) -> Path:
    """Write a file as packs do."""
    path = spill.reserve_file(len(content), "the pack of superbatch 0")
    with spill_errors(path, "writing a pack", os_io=spill.os_io):
        file = SpillFile(path, len(content), direct=False, os_io=spill.os_io)
        try:
            file.write_fully(memoryview(content), 0)
            file.close()
        finally:
            file.abandon()
    return path


@pytest.mark.reliability("E1")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EINTR], ids=["ENOSPC", "EINTR"])
def test_every_call_of_a_life_fails_once(tmp_path: Path, error: int) -> None:
    """Creation, a file and the end: whatever fails, one retry of the removal leaves nothing."""
    fds = num_fds()
    failures = 0
    for number in count(1):
        faulty = FaultyOS(fail_at=number, error=error)
        try:
            with SpillFolder(tmp_path, budget_bytes=10**7, os_io=faulty) as spill:
                path = put(spill)
                spill.remove_file(path)
                assert not path.exists()
                assert spill.used_bytes == 0
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
        kept = put(live)
        for number in count(1):
            dead = tmp_path / f"gloader-spill-dead{number}"
            dead.mkdir()
            owner = SpillOwner(
                pid=2**22 + 1, start_ticks=1, boot_id=SpillOwner.this_process().boot_id, host="h"
            )
            (dead / "owner.json").write_text(owner.to_json())
            (dead / "00000000.spill").write_bytes(b"x")
            faulty = FaultyOS(fail_at=number, error=error)
            removed = remove_dead_spills(tmp_path, os_io=faulty)
            assert dead.exists() == (dead not in removed), faulty.history
            assert kept.read_bytes() == b"rows" * 2000
            remove_dead_spills(tmp_path)
            assert names(tmp_path) == [live.path.name], faulty.history
            if not faulty.was_hit:
                break
        assert number > 20
