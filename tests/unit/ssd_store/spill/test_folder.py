"""Spill folders: files, budget, ownership."""

from __future__ import annotations

import errno
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
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pytest
from forking import in_child
from hypothesis import given, settings
from hypothesis import strategies as st

from gloader.errors import (
    BudgetError,
    ConfigError,
    ForkError,
    FormatError,
    SpillError,
)
from gloader.ssd_store.os_io import OsIO
from gloader.ssd_store.spill import claim as claim_module
from gloader.ssd_store.spill import claim as owner_module
from gloader.ssd_store.spill.claim import (
    UNCLAIMED_GRACE_S,
    SpillClaim,
    SpillOwner,
    remove_dead_spills,
    scratch_folder,
    spill_parent,
)
from gloader.ssd_store.spill.folder import SpillFile, SpillFolder

MB = 10**6
CONTENT = b"row of x" * 1000


def put(spill: SpillFolder, content: bytes = CONTENT, what: str = "the pack of superbatch 0") -> Path:
    """Write a file as packs do."""
    path = spill.reserve_file(len(content), what)
    file = SpillFile(path, len(content), direct=False, os_io=spill.os_io)
    file.write_fully(memoryview(content), 0)
    file.close()
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def spill(tmp_path: Path) -> Any:
    with SpillFolder(tmp_path, budget_bytes=10 * MB) as folder:
        yield folder


# --- budget ---


@pytest.mark.reliability("C14")
def test_the_budget_is_checked_before_anything_is_written(tmp_path: Path) -> None:
    size = len(CONTENT)
    with SpillFolder(tmp_path, budget_bytes=2 * size + 1) as spill:
        first = put(spill)
        put(spill)
        with pytest.raises(BudgetError, match="the pack of superbatch 2") as caught:
            put(spill, what="the pack of superbatch 2")
        for part in (
            f"needs {size} bytes",
            "1 are allowed",
            f"is {2 * size + 1} bytes",
            "raise spill_budget",
        ):
            assert part in str(caught.value)
        assert len(names(spill.path)) == 3
        assert spill.used_bytes == 2 * size
        spill.remove_file(first)
        spill.remove_file(first)
        assert spill.used_bytes == size
        assert put(spill).read_bytes() == CONTENT


@pytest.mark.reliability("C14")
def test_a_part_of_the_budget_is_another_folder_s_and_not_taken_twice(tmp_path: Path) -> None:
    with SpillFolder(tmp_path, budget_bytes=100) as whole, whole.split_off(60) as part:
        assert (whole.room_bytes, part.room_bytes) == (40, 60)
        assert whole.path != part.path
        with pytest.raises(
            BudgetError, match=r"another spill folder needs 41 bytes .* and 40 of the spill budget of 40"
        ):
            whole.split_off(41)
        assert whole.room_bytes == 40
    assert names(tmp_path) == []
    with pytest.raises(SpillError, match="closed"):
        whole.split_off(1)


def test_a_whole_superbatch_can_be_checked_first(spill: SpillFolder) -> None:
    spill.require_room(10 * MB)
    with pytest.raises(
        BudgetError, match=r"superbatch 4 needs 10000001 bytes \(10 MB\) on disk and 10000000 are allowed"
    ):
        spill.require_room(10 * MB + 1, "superbatch 4")


def test_what_is_on_disk_is_what_is_counted(spill: SpillFolder) -> None:
    paths = [put(spill, bytes(i * 700 + 1)) for i in range(6)]
    assert len(set(paths)) == 6
    for path in paths[::2]:
        spill.remove_file(path)
    assert spill.used_bytes == sum(path.stat().st_size for path in spill.path.glob("*.spill"))


def test_an_idle_file_that_fits_is_used_again(spill: SpillFolder) -> None:
    small, large, larger = (put(spill, bytes(size)) for size in (1000, 3000, 5000))
    assert spill.reuse_file(1) is None
    for path in (larger, small, large, small):
        spill.keep_file(path)
    assert spill.used_bytes == 0
    assert spill.reuse_file(2000) == large  # the smallest that is large enough
    assert spill.reuse_file(6000) == larger  # the largest, which has the least to grow
    assert spill.used_bytes == 3000 + 6000
    assert spill.reuse_file(6000) == small
    assert spill.reuse_file(1) is None
    assert {small, large, larger} <= set(spill.path.iterdir())


def test_idle_files_make_room(tmp_path: Path) -> None:
    with SpillFolder(tmp_path, budget_bytes=1000) as spill:
        kept = [put(spill, bytes(size)) for size in (300, 600)]
        for path in kept:
            spill.keep_file(path)
        assert spill.room_bytes == 1000
        spill.require_room(1000)
        assert (spill.reuse_file(500), spill.reuse_file(300)) == (kept[1], kept[0])
        spill.keep_file(kept[1])
        # The idle file would be one of 701 bytes, the other has 300.
        assert spill.reuse_file(701) is None
        assert put(spill, bytes(700)).stat().st_size == 700
        assert (kept[1].exists(), spill.used_bytes) == (False, 1000)


def test_a_file_that_is_not_handed_out_stays_idle(tmp_path: Path) -> None:
    class Stuck(OsIO):
        def unlink(self, path: Any) -> None:
            raise OSError(errno.EIO, "no")

    with SpillFolder(tmp_path, budget_bytes=1000) as spill:
        kept = [put(spill, bytes(size)) for size in (300, 600)]
        for path in kept:
            spill.keep_file(path)
        healthy, spill._os_io = spill._os_io, Stuck()
        with pytest.raises(SpillError, match="removing a spilled file failed"):
            spill.reuse_file(800)  # the larger one grows, and the other is in its way
        spill._os_io = healthy
        assert (spill.used_bytes, spill.room_bytes) == (0, 1000)
        assert spill.reuse_file(800) == kept[1]


@given(st.lists(st.tuples(st.sampled_from(["write", "keep", "remove"]), st.integers(0, 400)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_the_disk_never_takes_more_than_the_budget(steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as parent, SpillFolder(parent, budget_bytes=1000) as spill:
        live: list[Path] = []
        for kind, number in steps:
            if kind == "write":
                size = number + 1
                try:
                    spill.require_room(size)
                except BudgetError:
                    assert spill.used_bytes + size > 1000
                    continue
                path = spill.reuse_file(size) or put(spill, bytes(size))
                if path.stat().st_size < size:
                    path.write_bytes(bytes(size))
                live.append(path)
            elif live:
                path = live.pop(number % len(live))
                (spill.keep_file if kind == "keep" else spill.remove_file)(path)
            sizes = {path: path.stat().st_size for path in spill.path.glob("*.spill")}
            assert set(live) <= set(sizes)
            assert sum(sizes.values()) <= 1000


def test_threads_stay_within_the_budget(tmp_path: Path) -> None:
    size = len(CONTENT)
    refused: list[BaseException] = []
    with SpillFolder(tmp_path, budget_bytes=10 * size) as spill:

        def work() -> None:
            for _ in range(5):
                try:
                    assert put(spill).read_bytes() == CONTENT
                except BudgetError as error:
                    refused.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
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


@pytest.mark.reliability("J9")
def test_the_folder_is_private_and_leaves(tmp_path: Path) -> None:
    spill = SpillFolder(tmp_path, budget_bytes=MB)
    assert spill.path.parent == tmp_path
    assert spill.path.name.startswith("gloader-spill-")
    assert stat.S_IMODE(spill.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(put(spill).stat().st_mode) == 0o600
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
        put(spill)
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_after_close_there_is_an_error_and_no_file(tmp_path: Path) -> None:
    spill = SpillFolder(tmp_path, budget_bytes=MB)
    path = put(spill)
    spill.close()
    with pytest.raises(SpillError, match="the spill folder is closed"):
        put(spill)
    spill.remove_file(path)  # gone with the folder
    assert (names(tmp_path), spill.used_bytes) == ([], 0)


def test_a_file_of_another_folder_is_left_alone(tmp_path: Path, spill: SpillFolder) -> None:
    with SpillFolder(tmp_path, budget_bytes=MB) as other:
        path = put(other)
        spill.remove_file(path)
        assert path.read_bytes() == CONTENT
        assert other.used_bytes == len(CONTENT)


def test_a_file_that_somebody_removed_gives_its_bytes_back(spill: SpillFolder) -> None:
    path = put(spill)
    path.unlink()
    spill.remove_file(path)
    assert spill.used_bytes == 0


def test_a_forked_child_neither_writes_nor_removes(spill: SpillFolder) -> None:
    path = put(spill)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(ForkError, match=r"create a spill folder in\s+each process"):
                put(spill)
            spill.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.read_bytes() == CONTENT
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


def test_an_owner_on_another_host_may_live_if_no_boot_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of its process may belong to another process here, with another start."""
    monkeypatch.setattr("gloader.ssd_store.spill.claim._boot_id", lambda _: "")
    owner = replace(SpillOwner.this_process(), boot_id="", start_ticks=1)
    assert not replace(owner, host="another").is_gone()
    assert owner.is_gone()


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
    (path / "00000000.spill").write_bytes(b"half a pack")
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
def test_a_scratch_folder_removes_the_dead_of_any_kind_and_is_signed_itself(tmp_path: Path) -> None:
    make_dead(tmp_path, "gloader-autotune-dead")
    with scratch_folder(tmp_path, prefix="gloader-infer-") as path:
        assert names(tmp_path) == [path.name]
        assert names(path) == ["owner.json"]
    assert names(tmp_path) == []


@pytest.mark.reliability("E3")
def test_a_held_lock_keeps_a_folder_whatever_its_owner_file_says(tmp_path: Path, spill: SpillFolder) -> None:
    path = put(spill)
    dead = replace(SpillOwner.this_process(), pid=2**22 + 1)
    (spill.path / "owner.json").write_text(dead.to_json())
    assert remove_dead_spills(tmp_path) == []
    assert path.read_bytes() == CONTENT


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


def boot_tag() -> str:
    return SpillOwner.this_process().boot_id[:8]


@pytest.mark.reliability("E3")
@pytest.mark.reliability("J12")
@pytest.mark.parametrize("content", [[], ["owner.json.tmp"]])
def test_a_folder_that_was_never_claimed_goes_at_once_and_another_kernels_when_it_is_old(
    tmp_path: Path, content: list[str]
) -> None:
    paths = [
        tmp_path / f"gloader-{name}"
        for name in (f"infer-{boot_tag()}-00000001", "spill-00000000-00000001", "spill-00000001")
    ]
    for path in paths:
        path.mkdir()
        for name in content:
            (path / name).write_text('{"pi')
    mine = tmp_path / "gloader-spill-experiments"  # a name that is not generated
    mine.mkdir()
    assert remove_dead_spills(tmp_path) == paths[:1]
    for path in (*paths[1:], mine):
        age(path, UNCLAIMED_GRACE_S + 60)
    assert remove_dead_spills(tmp_path) == paths[1:]
    assert mine.is_dir()


@pytest.mark.reliability("E4")
@pytest.mark.parametrize("when", ["before the lock", "while it is locked"])
def test_a_folder_that_another_run_took_for_a_dead_ones_is_made_again(tmp_path: Path, when: str) -> None:
    class Meanwhile(OsIO):
        removed: ClassVar[list[Path]] = []

        def _remove(self, moment: str) -> None:
            if moment == when and not self.removed:
                self.removed += remove_dead_spills(tmp_path)

        def kill_point(self, name: str) -> None:
            if name == "spill.after_mkdtemp":
                self._remove("before the lock")

        def flock(self, fd: int, operation: int) -> None:
            self._remove("while it is locked")
            super().flock(fd, operation)

    os_io = Meanwhile()
    with SpillFolder(tmp_path, budget_bytes=MB, os_io=os_io) as spill:
        assert len(os_io.removed) == 1
        assert names(tmp_path) == [spill.path.name]
        assert names(spill.path) == ["owner.json"]
    assert names(tmp_path) == []


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


@pytest.mark.reliability("J12")
def test_sigterm_that_nobody_handles_leaves_no_folder(tmp_path: Path) -> None:
    """Also while a thread makes files in it."""

    def child() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        spill = SpillFolder(tmp_path, budget_bytes=MB)

        def fill() -> None:
            while True:
                (spill.path / f"{time.monotonic_ns()}.spill").touch()

        threading.Thread(target=fill, daemon=True).start()
        while len(names(spill.path)) < 10:
            time.sleep(0.001)
        signal.raise_signal(signal.SIGTERM)

    assert in_child(child) == -signal.SIGTERM
    assert names(tmp_path) == []


@pytest.fixture
def _no_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a sandbox that mounts none."""
    monkeypatch.setattr(owner_module, "_PROC", tmp_path / "nowhere")
    monkeypatch.setattr(owner_module, "_BOOT_ID", tmp_path / "nowhere" / "boot_id")


@pytest.mark.usefixtures("_no_proc")
def test_without_proc_a_folder_is_made_and_the_dead_are_told_from_the_living(tmp_path: Path) -> None:
    with SpillFolder(tmp_path, budget_bytes=MB) as spill:
        mine = SpillOwner.this_process()
        assert (mine.pid, mine.start_ticks, mine.boot_id) == (os.getpid(), 0, "")
        assert not mine.is_gone()
        assert replace(mine, pid=2**22 + 1).is_gone()  # beyond the largest number that Linux gives
        assert replace(mine, pid=2**70).is_gone()
        assert not replace(mine, host="elsewhere", pid=2**22 + 1).is_gone()
        assert remove_dead_spills(tmp_path) == []
        assert names(tmp_path) == [spill.path.name]
        # Without an owner file it would be known by its name.
        assert claim_module._GENERATED.fullmatch(spill.path.name)


def test_an_owner_that_knew_no_proc_is_told_by_its_number(tmp_path: Path) -> None:
    mine = replace(SpillOwner.this_process(), start_ticks=0, boot_id="")
    assert not mine.is_gone()
    assert replace(mine, pid=2**22 + 1).is_gone()


def test_a_claim_that_was_given_up_may_be_dropped_when_the_interpreter_is_taken_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = SpillClaim(tmp_path)
    claim.remove()
    monkeypatch.setattr(claim_module, "os", None)
    claim.__del__()
