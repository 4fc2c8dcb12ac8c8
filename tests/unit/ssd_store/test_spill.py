"""Spill folders: records, budget, ownership."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import shutil
import signal
import stat
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.errors import (
    BudgetError,
    ChecksumError,
    ConfigError,
    ForkError,
    FormatError,
    ShapeError,
    SpillError,
)
from gloader.ssd_store.checksum import checksum_pages, digest_of
from gloader.ssd_store.os_io import OsIO
from gloader.ssd_store.spill import SpillFolder, record_bytes, remove_dead_spills, spill_parent
from gloader.ssd_store.spill_claim import UNCLAIMED_GRACE_S, SpillClaim
from gloader.ssd_store.spill_layout import parse_header, plan_record
from gloader.ssd_store.spill_owner import SpillOwner

MB = 10**6
ARRAYS: dict[str, np.ndarray] = {
    "nodes": np.arange(1000, dtype=np.int64),
    "indptr": np.arange(33, dtype=np.int32),
    "x": np.random.default_rng(0).standard_normal((77, 13)).astype(np.float32),
    "half": np.float16([[np.nan, -0.0], [np.inf, 6e-8]]),
    "mask": np.array([True, False, True]),
    "big_endian": np.arange(5, dtype=">i8"),
    "scalar": np.array(3.5),
    "empty": np.empty((0, 7), np.int16),
    "strided": np.arange(40, dtype=np.complex64).reshape(8, 5)[::2, ::-1],
}


def same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> bool:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype, name
        assert found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name
    return True


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def spill(tmp_path: Path) -> Any:
    with SpillFolder(tmp_path, budget_bytes=10 * MB) as folder:
        yield folder


# --- records ---


@pytest.mark.parametrize("key", ["trace", "", "ünïcode\n", (0, 0), (3, 17), (np.int64(2), np.int64(40_000))])
def test_a_record_comes_back_bit_for_bit(spill: SpillFolder, key: Any) -> None:
    ref = spill.write_record(key, ARRAYS)
    assert ref.key == key
    found = spill.read_record(ref)
    assert same(found, ARRAYS)
    assert all(array.flags.writeable and array.flags.aligned for array in found.values())
    assert same(spill.read_record(ref), ARRAYS)  # as often as one likes


def test_a_record_without_arrays(spill: SpillFolder) -> None:
    assert spill.read_record(spill.write_record("nothing", {})) == {}


@pytest.mark.parametrize(
    "num_bytes", [1, 4095, 4096, 4097, 2**20 - 4096, 2**20, 2**20 + 1, 2_500_001, 2**21 + 5]
)
def test_records_about_the_size_of_pages_and_buffers(spill: SpillFolder, num_bytes: int) -> None:
    arrays = {"x": np.random.default_rng(num_bytes).integers(0, 256, num_bytes, dtype=np.uint8)}
    ref = spill.write_record((1, 2), arrays)
    assert ref.path.stat().st_size == ref.num_bytes == record_bytes((1, 2), arrays)
    assert same(spill.read_record(ref), arrays)


def test_many_records_have_their_own_files(spill: SpillFolder) -> None:
    refs = [spill.write_record((0, 0), {"n": np.array(number)}) for number in range(50)]
    assert len({ref.path for ref in refs}) == 50
    assert [int(spill.read_record(ref)["n"]) for ref in reversed(refs)] == list(reversed(range(50)))


def test_the_file_is_as_documented(spill: SpillFolder) -> None:
    ref = spill.write_record((3, 17), {"a": np.arange(3, dtype="<i4"), "b": np.arange(1024, dtype="<f8")})
    data = ref.path.read_bytes()
    assert data[:8] == b"GLSPILL\x01"
    length = int.from_bytes(data[8:16], "little")
    assert json.loads(data[16 : 16 + length]) == {
        "key": [3, 17],
        "arrays": {
            "a": {"dtype": "<i4", "shape": [3], "offset": 0},
            "b": {"dtype": "<f8", "shape": [1024], "offset": 64},
        },
    }
    assert not any(data[16 + length : 4096])
    assert np.array_equal(np.frombuffer(data, "<i4", 3, 4096), [0, 1, 2])
    assert np.array_equal(np.frombuffer(data, "<f8", 1024, 4096 + 64), np.arange(1024))
    checksums = np.empty(4, np.uint64)
    checksum_pages(np.frombuffer(data, np.uint8, 4 * 4096).copy(), 0, checksums)
    assert np.array_equal(np.frombuffer(data, "<u8", 4, 4 * 4096), checksums)
    assert digest_of(checksums) == ref.digest
    assert len(data) == 5 * 4096


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (np.array([object()]), "|O"),
        (np.array(["text"]), "<U4"),
        (np.zeros(2, dtype="f4,i4"), "|V8"),
        (np.array(["2020-01-01"], dtype="M8[D]"), "M8"),
        ([1, 2], "list"),
        (None, "NoneType"),
    ],
)
def test_what_a_record_cannot_hold(spill: SpillFolder, array: Any, kind: str) -> None:
    with pytest.raises(ShapeError) as caught:
        spill.write_record((1, 2), {"fine": np.zeros(3), "x": array})
    assert "superbatch 1, batch 2: array 'x' is of kind" in str(caught.value)
    assert kind in str(caught.value)
    assert (spill.used_bytes, names(spill.path)) == (0, ["owner.json"])


def test_a_reference_with_another_key_is_refused(spill: SpillFolder) -> None:
    ref = spill.write_record((1, 2), ARRAYS)
    with pytest.raises(
        ChecksumError, match=r"superbatch 1, batch 3 .*byte 0 holds the spill of superbatch 1, batch 2"
    ):
        spill.read_record(replace(ref, key=(1, 3)))


HEADER = np.frombuffer(plan_record((1, 2), {"x": np.zeros(3)}).header, np.uint8)


def padded(text: bytes) -> np.ndarray:
    data = b"GLSPILL\x01" + len(text).to_bytes(8, "little") + text
    return np.frombuffer(data.ljust(8192, b"\0"), np.uint8)


@given(st.binary(max_size=100) | st.binary(max_size=100).map(lambda data: b"GLSPILL\x01" + data))
def test_any_bytes_are_a_header_or_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_header(np.frombuffer(data.ljust(4096, b"\0"), np.uint8))


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["<f8", "|O", "<f3"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_ARRAY = st.fixed_dictionaries({"dtype": _JSON, "shape": _JSON, "offset": _JSON})


@given(
    _JSON
    | st.fixed_dictionaries({"key": _JSON, "arrays": st.dictionaries(st.text(max_size=3), _JSON | _ARRAY)})
)
def test_any_json_is_a_header_or_a_format_error(members: Any) -> None:
    try:
        _, start, arrays = parse_header(padded(json.dumps(members).encode()))
    except FormatError:
        return
    assert all(start + array.offset + array.num_bytes <= 8192 for array in arrays)


@pytest.mark.parametrize(
    "array",
    [
        {"dtype": "|O", "shape": [1], "offset": 0},
        {"dtype": "<f8", "shape": [-1], "offset": 0},
        {"dtype": "<f8", "shape": [513], "offset": 0},
        {"dtype": "<f8", "shape": [2**61, 2**61], "offset": 0},
        {"dtype": "<f8", "shape": [True], "offset": 0},
        {"dtype": "<f8", "shape": [512], "offset": 1},
        {"dtype": "<f8", "shape": [1], "offset": -8},
    ],
)
def test_absurd_arrays_are_format_errors(array: dict[str, Any]) -> None:
    good = {"dtype": "<f8", "shape": [512], "offset": 0}
    parse_header(padded(json.dumps({"key": "k", "arrays": {"x": good}}).encode()))
    with pytest.raises(FormatError):
        parse_header(padded(json.dumps({"key": "k", "arrays": {"x": array}}).encode()))


def test_deep_json_is_a_format_error() -> None:
    data = padded(b"[" * 4000)
    with pytest.raises(FormatError):
        parse_header(data)


# --- budget ---


@pytest.mark.reliability("C14")
def test_the_budget_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    size = record_bytes((0, 0), ARRAYS)
    with SpillFolder(tmp_path, budget_bytes=2 * size + 1) as spill:
        first = spill.write_record((0, 0), ARRAYS)
        spill.write_record((0, 1), ARRAYS)
        with pytest.raises(BudgetError, match="superbatch 0, batch 2") as caught:
            spill.write_record((0, 2), ARRAYS)
        for part in (
            f"needs {size} bytes",
            "1 are allowed",
            f"is {2 * size + 1} bytes",
            "raise spill_budget",
        ):
            assert part in str(caught.value)
        assert len(names(spill.path)) == 3
        assert spill.used_bytes == 2 * size
        spill.delete_record(first)
        assert spill.used_bytes == size
        assert same(spill.read_record(spill.write_record((0, 2), ARRAYS)), ARRAYS)


def test_a_whole_superbatch_can_be_checked_first(spill: SpillFolder) -> None:
    spill.require_room(10 * MB)
    with pytest.raises(
        BudgetError, match=r"superbatch 4 needs 10000001 bytes \(10 MB\) on disk and 10000000 are allowed"
    ):
        spill.require_room(10 * MB + 1, "superbatch 4")


def test_what_is_on_disk_is_what_is_counted(spill: SpillFolder) -> None:
    refs = [spill.write_record((0, i), {"x": np.zeros(i * 700)}) for i in range(6)]
    for ref in refs[::2]:
        spill.delete_record(ref)
    assert spill.used_bytes == sum(path.stat().st_size for path in spill.path.glob("*.spill"))


def test_threads_stay_within_the_budget(tmp_path: Path) -> None:
    size = record_bytes((0, 0), ARRAYS)
    refused: list[BaseException] = []
    with SpillFolder(tmp_path, budget_bytes=10 * size) as spill:

        def work(number: int) -> None:
            for i in range(5):
                try:
                    ref = spill.write_record((number, i), ARRAYS)
                    assert same(spill.read_record(ref), ARRAYS)
                except BudgetError as error:
                    refused.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == 10
        assert spill.used_bytes == 10 * size


def test_a_negative_budget_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="-1 bytes; give 0 or more"):
        SpillFolder(tmp_path, budget_bytes=-1)
    assert names(tmp_path) == []


# --- life ---


def test_the_folder_is_private_and_leaves(tmp_path: Path) -> None:
    spill = SpillFolder(tmp_path, budget_bytes=MB)
    assert spill.path.parent == tmp_path
    assert spill.path.name.startswith("gloader-spill-")
    assert stat.S_IMODE(spill.path.stat().st_mode) == 0o700
    ref = spill.write_record("x", ARRAYS)
    assert stat.S_IMODE(ref.path.stat().st_mode) == 0o600
    (spill.path / "folder").mkdir()
    (spill.path / "folder" / "file").write_text("x")
    (tmp_path / "kept").write_text("x")
    (spill.path / "link").symlink_to(tmp_path)
    spill.close()
    spill.close()
    assert names(tmp_path) == ["kept"]
    assert spill.used_bytes == 0


def test_an_exception_in_the_block_passes_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), SpillFolder(tmp_path, budget_bytes=MB) as spill:
        spill.write_record("x", ARRAYS)
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_after_close_and_delete_there_is_an_error_not_a_file(tmp_path: Path) -> None:
    spill = SpillFolder(tmp_path, budget_bytes=MB)
    ref, gone = spill.write_record((0, 1), ARRAYS), spill.write_record((0, 2), ARRAYS)
    spill.delete_record(gone)
    for use in (spill.read_record, spill.delete_record):
        with pytest.raises(SpillError, match="superbatch 0, batch 2 was deleted"):
            use(gone)
    spill.close()
    for action in (
        lambda: spill.write_record("x", ARRAYS),
        lambda: spill.read_record(ref),
        lambda: spill.delete_record(ref),
    ):
        with pytest.raises(SpillError, match="the spill folder is closed"):
            action()
    assert names(tmp_path) == []


def test_a_record_of_another_folder_is_refused(tmp_path: Path, spill: SpillFolder) -> None:
    with SpillFolder(tmp_path, budget_bytes=MB) as other:
        ref = other.write_record("x", ARRAYS)
        with pytest.raises(SpillError, match="or belongs to another folder"):
            spill.delete_record(ref)
        assert same(other.read_record(ref), ARRAYS)


def test_a_record_that_somebody_removed(spill: SpillFolder) -> None:
    ref = spill.write_record((5, 6), ARRAYS)
    ref.path.unlink()
    with pytest.raises(SpillError, match=r"reading the spill of superbatch 5, batch 6 failed: No such file"):
        spill.read_record(ref)


def test_a_forked_child_neither_writes_nor_removes(spill: SpillFolder) -> None:
    ref = spill.write_record("x", ARRAYS)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(ForkError, match=r"create a spill folder in\s+each process"):
                spill.write_record("y", ARRAYS)
            with pytest.raises(ForkError):
                spill.delete_record(ref)
            same(spill.read_record(ref), ARRAYS)
            spill.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert same(spill.read_record(ref), ARRAYS)
    assert remove_dead_spills(spill.path.parent) == []


def test_where_spills_go(tmp_path: Path, private_tmpdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOADER_SPILL_DIR", raising=False)
    assert spill_parent() == private_tmpdir
    monkeypatch.setenv("GLOADER_SPILL_DIR", str(tmp_path / "there"))
    assert spill_parent() == tmp_path / "there"
    assert spill_parent(tmp_path) == tmp_path
    with pytest.raises(
        SpillError, match=r"creating a spill folder in .*there \(set GLOADER_SPILL_DIR to another\)"
    ):
        SpillFolder(budget_bytes=MB)
    (tmp_path / "there").mkdir()
    with SpillFolder(budget_bytes=MB) as spill:
        assert spill.path.parent == tmp_path / "there"


def test_a_write_during_which_the_folder_is_closed(tmp_path: Path) -> None:
    class Closing(OsIO):
        def write(self, fd: int, data: memoryview) -> int:
            spill.close()
            return super().write(fd, data)

    spill = SpillFolder(tmp_path, budget_bytes=MB)
    spill._os_io = Closing()
    with pytest.raises(SpillError, match="the spill folder is closed"):
        spill.write_record("x", ARRAYS)
    assert (names(tmp_path), spill.used_bytes) == ([], 0)


# --- who owns a folder ---


def test_this_process_runs_and_its_owner_file_round_trips(spill: SpillFolder) -> None:
    owner = SpillOwner.this_process()
    assert owner.pid == os.getpid()
    assert len(owner.boot_id) == 36
    assert not owner.is_gone()
    assert SpillOwner.parse(owner.to_json()) == SpillOwner.read(spill.path / "owner.json") == owner


def test_when_an_owner_is_gone() -> None:
    owner = SpillOwner.this_process()
    assert replace(owner, start_ticks=owner.start_ticks + 1).is_gone()  # the number was given out again
    assert replace(owner, pid=2**22 + 1).is_gone()  # above the largest process number of Linux
    assert replace(owner, boot_id="another").is_gone()
    assert not replace(owner, boot_id="another", host="another").is_gone()  # who knows
    assert not replace(owner, host="another").is_gone()  # a host may be renamed while it runs


def test_a_zombie_is_gone() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has collected it
    fields = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
    owner = replace(SpillOwner.this_process(), pid=child, start_ticks=int(fields[19]))
    try:
        assert owner.is_gone()
    finally:
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"pid": 1}', "[" * 4000]
    + [
        json.dumps({"pid": 1, "start_ticks": 2, "boot_id": "b", "host": "h"} | change)
        for change in (
            {"pid": "1"},
            {"pid": True},
            {"start_ticks": -1},
            {"host": None},
            {"boot_id": 3},
            {"more": 1},
        )
    ],
)
def test_a_malformed_owner_file_is_a_format_error(text: str) -> None:
    with pytest.raises(FormatError):
        SpillOwner.parse(text)


# --- removal of the dead ---


def make_dead(parent: Path, name: str = "gloader-spill-dead", **changes: Any) -> Path:
    """A folder as a killed process leaves it."""
    path = parent / name
    path.mkdir(mode=0o700)
    owner = replace(SpillOwner.this_process(), **({"pid": 2**22 + 1} | changes))
    (path / "owner.json").write_text(owner.to_json())
    (path / "00000000.spill").write_bytes(b"half a record")
    return path


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.mark.reliability("E3")
def test_a_dead_owners_folder_is_removed_and_named(tmp_path: Path) -> None:
    path = make_dead(tmp_path)
    (path / "folder").mkdir()
    (path / "folder" / "file").write_text("x")
    (tmp_path / "kept").mkdir()
    (path / "link").symlink_to(tmp_path / "kept")
    assert remove_dead_spills(tmp_path) == [path]
    assert names(tmp_path) == ["kept"]
    assert remove_dead_spills(tmp_path) == []


@pytest.mark.reliability("E3")
def test_the_next_spill_folder_removes_the_dead_ones(tmp_path: Path) -> None:
    make_dead(tmp_path)
    with SpillFolder(tmp_path, budget_bytes=MB) as spill:
        assert names(tmp_path) == [spill.path.name]


@pytest.mark.reliability("E3")
def test_a_held_lock_keeps_a_folder_whatever_its_owner_file_says(tmp_path: Path, spill: SpillFolder) -> None:
    ref = spill.write_record("x", ARRAYS)
    dead = replace(SpillOwner.this_process(), pid=2**22 + 1)
    (spill.path / "owner.json").write_text(dead.to_json())
    assert remove_dead_spills(tmp_path) == []
    assert same(spill.read_record(ref), ARRAYS)


@pytest.mark.reliability("E3")
def test_a_live_process_keeps_its_folder_even_without_the_lock(tmp_path: Path) -> None:
    path = make_dead(tmp_path, pid=os.getpid())
    age(path, 10**6)
    assert remove_dead_spills(tmp_path) == []
    assert (path / "00000000.spill").exists()


@pytest.mark.reliability("E3")
def test_nothing_that_is_not_ours_is_touched(tmp_path: Path) -> None:
    foreign = tmp_path / "elsewhere"
    foreign.mkdir()
    dead = make_dead(foreign)
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / "gloader-spill-link").symlink_to(dead)
    (parent / "gloader-spill-dangling").symlink_to("nowhere")
    (parent / "gloader-spill-file").write_text("x")
    os.mkfifo(parent / "gloader-spill-fifo")
    make_dead(parent, "another-name")
    make_dead(parent, "gloader-spill-malformed").joinpath("owner.json").write_text("{}")
    link = make_dead(parent, "gloader-spill-linked-owner") / "owner.json"
    link.unlink()
    link.symlink_to(dead / "owner.json")
    fifo = make_dead(parent, "gloader-spill-fifo-owner") / "owner.json"
    fifo.unlink()
    os.mkfifo(fifo)
    (parent / "gloader-spill-fresh").mkdir()
    (parent / "gloader-spill-theirs").mkdir()
    (parent / "gloader-spill-theirs" / "thesis.tex").write_text("x")
    age(parent / "gloader-spill-theirs", 10**7)
    make_dead(parent, "gloader-spill-other-host", boot_id="other", host="other")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    assert remove_dead_spills(parent) == []
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


@pytest.mark.reliability("E3")
@pytest.mark.parametrize("content", [[], ["owner.json.tmp"]])
def test_a_folder_that_was_never_claimed_goes_when_it_is_old(tmp_path: Path, content: list[str]) -> None:
    path = tmp_path / "gloader-spill-never"
    path.mkdir()
    for name in content:
        (path / name).write_text('{"pi')
    assert remove_dead_spills(tmp_path) == []
    age(path, UNCLAIMED_GRACE_S + 60)
    assert remove_dead_spills(tmp_path) == [path]


@pytest.mark.reliability("E3")
def test_a_name_that_a_live_owner_took_meanwhile_stays(tmp_path: Path) -> None:
    """Another run removes the dead folder, and a new one gets its name, just before we lock what we opened."""
    path = make_dead(tmp_path)

    class Meanwhile(OsIO):
        def flock(self, fd: int, operation: int) -> None:
            shutil.rmtree(path)
            make_dead(tmp_path, pid=os.getpid())
            super().flock(fd, operation)

    assert remove_dead_spills(tmp_path, os_io=Meanwhile()) == []
    assert names(path) == ["00000000.spill", "owner.json"]


def test_another_users_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_dead(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert remove_dead_spills(tmp_path) == []
    assert path.exists()


def test_a_parent_that_is_not_there_has_no_dead(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert remove_dead_spills(tmp_path / "nowhere") == []
    assert "cannot look for abandoned spill folders" in caplog.text


def test_a_claim_that_nobody_holds_is_removed(tmp_path: Path) -> None:
    claim = SpillClaim(tmp_path)
    assert claim.path.exists()
    del claim
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("when", ["mkdir", "flock", "open", "fsync", "replace"])
def test_a_signal_while_a_claim_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    original = getattr(os, when, None) or getattr(fcntl, when)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        signal.raise_signal(signal.SIGINT)
        return result

    before = descriptors()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fcntl if when == "flock" else os, when, interrupted)
        SpillClaim(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert descriptors() == before


def test_a_signal_while_a_claim_is_removed_is_raised_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()
    claim = SpillClaim(tmp_path)
    remove = os.rmdir

    def interrupted(path: Path) -> None:
        signal.raise_signal(signal.SIGINT)
        remove(path)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rmdir", interrupted)
        claim.remove()
    assert list(tmp_path.iterdir()) == []
    assert descriptors() == before


def test_a_signal_while_the_folders_of_the_dead_are_removed_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dead(tmp_path)
    before = descriptors()
    read = os.open

    def interrupted(*args: Any, **kwargs: Any) -> int:
        fd = read(*args, **kwargs)
        signal.raise_signal(signal.SIGINT)
        return fd

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "open", interrupted)
        remove_dead_spills(tmp_path)
    assert descriptors() == before
    assert list(tmp_path.iterdir()) == []


def descriptors() -> list[str]:
    gc.collect()
    return sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the listing's own descriptor is always the same
