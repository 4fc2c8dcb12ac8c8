"""The SQLite loop: the n-th system call fails, for every n, until the program runs through."""

import errno
import shutil
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from gloader.errors import StoreError, StoreWriteError
from gloader.ssd_store.os_io import OsIO
from gloader.testing.faults import EVERY_CALL, NO_CALLS, FaultyOS

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR}


def names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def entries(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.reliability("A3")
@pytest.mark.reliability("A5")
@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_every_call_fails_once(tmp_path, case, content_of, error):
    template = tmp_path / "template"
    template.mkdir()
    case.prepare(template)
    failures = 0
    for number in count(1):
        folder = tmp_path / str(number)
        shutil.copytree(template, folder)
        faulty = FaultyOS(fail_at=number, error=error)
        try:
            case.run(folder, faulty)
        except StoreError:
            failures += 1
            assert content_of(folder) == case.before, (number, faulty.history[-5:])
            leftovers = set(entries(folder)) - set(entries(template))
            assert not leftovers, (number, faulty.history[number - 1], leftovers)
        else:
            assert content_of(folder) == case.after, number
            assert names(folder) == ["s"], (number, faulty.history[number - 1 :])
        shutil.rmtree(folder)
        if not faulty.was_hit:
            break
    assert failures > 10
    assert number > failures


@pytest.mark.reliability("A3")
@pytest.mark.parametrize("call", ["write", "fsync", "fsync_dir", "open", "replace"])
def test_every_call_fails_from_some_point_on(tmp_path, case, content_of, call):
    template = tmp_path / "template"
    template.mkdir()
    case.prepare(template)
    for number in count(1):
        folder = tmp_path / str(number)
        shutil.copytree(template, folder)
        faulty = FaultyOS(fail_at=number, repeat=10**6, error=errno.ENOSPC, calls={call})
        try:
            case.run(folder, faulty)
        except StoreError:
            found = content_of(folder)
            # Where the undoing of a rename fails as well, the new version may stay: it is complete.
            assert found == case.before or (found == case.after and call in {"fsync_dir", "replace"}), number
        shutil.rmtree(folder)
        if not faulty.was_hit:
            break


@pytest.mark.reliability("A4")
@pytest.mark.parametrize("short", [1, 7, 4096, 5000])
def test_short_writes_are_continued(tmp_path, case, content_of, short):
    case.prepare(tmp_path)
    case.run(tmp_path, FaultyOS(short=short))
    assert content_of(tmp_path) == case.after


@pytest.mark.reliability("A4")
def test_interrupted_writes_are_continued(tmp_path, case, content_of):
    case.prepare(tmp_path)
    case.run(tmp_path, FaultyOS(fail_at=2, repeat=3, error=errno.EINTR, calls={"write"}))
    assert content_of(tmp_path) == case.after


def test_a_file_that_takes_nothing_is_an_error_not_a_loop(tmp_path, case, content_of):
    class Full(FaultyOS):
        def write(self, fd, data):
            return 0

    case.prepare(tmp_path)
    with pytest.raises(StoreWriteError, match="takes no more bytes"):
        case.run(tmp_path, Full())
    assert content_of(tmp_path) == case.before


@pytest.mark.reliability("A5")
def test_a_failed_fsync_is_final(tmp_path, case, content_of):
    case.prepare(tmp_path)
    faulty = FaultyOS(fail_at=1, calls={"fsync", "fsync_dir"})
    with pytest.raises(StoreWriteError, match=r"Input/output error.*nothing was written"):
        case.run(tmp_path, faulty)
    assert len(faulty.history) == 1  # not tried again
    assert content_of(tmp_path) == case.before


@pytest.mark.reliability("A3")
def test_the_message_says_needed_and_free_bytes(tmp_path, write_rows):
    rows = np.zeros((100, 10), np.float32)
    # A page of header and one of content, of the array and of its checksums.
    with pytest.raises(
        StoreWriteError, match=r"needed 16384 bytes, \d+ bytes are free; free some space"
    ) as caught:
        write_rows(tmp_path, rows, os_io=FaultyOS(fail_at=2, error=errno.ENOSPC, calls={"write"}))
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename.endswith("features.pages") or caught.value.filename.endswith("features.npy")


def test_the_fault_wrapper_counts_every_call():
    """A call that the wrapper forgets would never fail in these tests."""
    public = {name for name in vars(OsIO) if not name.startswith("_")} - {"is_real", "is_whole", *NO_CALLS}
    assert set(EVERY_CALL) == public
    assert all(name in vars(FaultyOS) for name in public)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("set_blocking", {"fd": 3}), ("set_direct", {"fd": 3, "is_direct": True}),
     ("drop_cache", {"fd": 3, "offset": 0, "num_bytes": 9})],
)  # fmt: skip
def test_the_fault_wrapper_makes_the_calls_that_answer_nothing(monkeypatch, name, arguments):
    made = []
    monkeypatch.setattr(OsIO, name, lambda _, *order, **named: made.append((*order, *named.values())))
    getattr(FaultyOS(), name)(**arguments)
    assert made == [tuple(arguments.values())]
