"""A mirror fills up with what is read of it, verified, and never with anything else."""

import errno
import json
import logging
import os
import shutil
import stat
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mirrored import BLOCK, FEATURES, Remote, fetched, open_mirrored, read_range, settle, upload, uploaded

from gloader.dataset import Dataset
from gloader.errors import (
    BudgetError,
    ChecksumError,
    ConfigError,
    FormatError,
    IncompleteStoreError,
    NotAStoreError,
    StoreError,
    StoreOpenError,
    StoreReadError,
    StoreWriteError,
    TruncatedStoreError,
)
from gloader.ssd_store.mirror import mirror, mirror_folder
from gloader.ssd_store.os_io import OsIO
from gloader.testing.faults import FaultyObjects


def arrays(dataset):
    return {name: value for name, value in dataset.to_numpy().items() if isinstance(value, np.ndarray)}


def require_equal(remote, root, os_io):
    wanted, found = arrays(Dataset.open(remote.folder)), arrays(Dataset.open(root, os_io=os_io))
    assert wanted.keys() == found.keys()
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name])


@pytest.mark.parametrize("block_bytes", [4096, BLOCK, 8 * 2**20])
def test_a_dataset_reads_as_the_one_that_was_uploaded_each_block_asked_for_once(
    remote, mirror_dir, block_bytes
):
    root, os_io, objects = open_mirrored(remote, mirror_dir, block_bytes=block_bytes)
    require_equal(remote, root, os_io)
    os_io.close_mirror()
    most = sum(-(-len(content) // block_bytes) for content in remote.files.values())
    assert len(objects.asked) <= most
    assert set(Counter((asked.name, asked.start) for asked in objects.asked).values()) == {1}
    assert os_io.stats().requests == len(objects.asked) + objects.num_others


def test_opening_reads_the_record_alone(remote, mirror_dir):
    root, os_io, objects = open_mirrored(remote, mirror_dir)
    dataset = Dataset.open(root, os_io=os_io)
    assert dataset.num_nodes == 3000
    assert not objects.asked
    os_io.close_mirror()


def test_the_second_time_one_request_is_made(remote, mirror_dir):
    root, os_io, _ = open_mirrored(remote, mirror_dir)
    require_equal(remote, root, os_io)
    os_io.close_mirror()
    root, os_io, objects = open_mirrored(remote, mirror_dir)
    require_equal(remote, root, os_io)
    os_io.close_mirror()
    assert (objects.num_others, len(objects.asked)) == (1, 0)
    stats = os_io.stats()
    assert stats.blocks_here == stats.blocks


def test_a_read_brings_the_blocks_it_touches(remote, mirror_dir):
    root, os_io, objects = open_mirrored(remote, mirror_dir)
    content = remote.files[FEATURES]
    for start, length in ((BLOCK * 5 + 100, 1000), (BLOCK * 8 - 10, 20), (BLOCK * 2, BLOCK), (0, 4096)):
        assert read_range(os_io, root / FEATURES, start, length) == content[start : start + length]
    assert sorted(fetched(objects)) == [2, 5, 7, 8]
    assert read_range(os_io, root / FEATURES, len(content) - 10, 50) == content[-10:]
    os_io.close_mirror()


def test_who_reads_on_finds_blocks_on_their_way(remote, mirror_dir):
    root, os_io, objects = open_mirrored(remote, mirror_dir, delay_s=0.01)
    content = remote.files[FEATURES]
    assert read_range(os_io, root / FEATURES, 0, len(content)) == content
    assert objects.most_running > 3
    os_io.close_mirror()


@pytest.mark.reliability("O5")
@pytest.mark.parametrize("budget", [None, 500_000])
@pytest.mark.parametrize("kind", [errno.EBUSY, errno.ETIMEDOUT, errno.ECONNRESET, errno.EIO, "cut", "flip"])
def test_the_same_bytes_come_from_a_store_that_fails(remote, mirror_dir, monkeypatch, kind, budget):
    seen = set()

    def fault(number, asked):
        is_first = asked not in seen  # a block that came damaged twice is refused
        seen.add(asked)
        return kind if number % 4 == 0 and is_first else None

    monkeypatch.setattr(mirror_folder, "WINDOW_BLOCKS", 2)
    root, os_io, _ = open_mirrored(remote, mirror_dir, fault=fault, budget_bytes=budget, requests=1)
    require_equal(remote, root, os_io)
    assert os_io.stats().retries > 0
    os_io.close_mirror()


@pytest.mark.reliability("O7")
def test_a_damaged_object_names_its_block_and_page(remote, mirror_dir):
    fault = lambda _, asked: "flip" if asked.name == FEATURES and asked.start == 3 * BLOCK else None  # noqa: E731
    root, os_io, objects = open_mirrored(remote, mirror_dir, fault=fault)
    # The middle of block 3: the pages of data begin behind the header.
    page = (3 * BLOCK + BLOCK // 2) // 4096 - 1
    with pytest.raises(ChecksumError, match=rf"features.npy: block 3: page {page} at byte .*upload it again"):
        read_range(os_io, root / FEATURES, 3 * BLOCK, 100)
    assert fetched(objects) == [3, 3]
    # Nothing of it is here, and the next one who asks is answered anew.
    assert os_io.stats().blocks_here == 1  # the checksums
    with pytest.raises(ChecksumError, match="block 3"):
        read_range(os_io, root / FEATURES, 3 * BLOCK, 100)
    assert (
        read_range(os_io, root / FEATURES, 4 * BLOCK, 10)
        == remote.files[FEATURES][4 * BLOCK : 4 * BLOCK + 10]
    )
    os_io.close_mirror()


@pytest.mark.reliability("O7")
@pytest.mark.parametrize("where", ["header", "sums", "padding"])
def test_damage_that_no_page_checksum_covers_is_found_too(remote, mirror_dir, where):
    name = FEATURES if where == "header" else "features.pages"

    class Damaged(FaultyObjects):
        def get(self, asked, start, length, etag):
            data = bytearray(super().get(asked, start, length, etag))
            if asked == name and start == 0:
                data[{"header": 20, "sums": 5000, "padding": len(data) - 1}[where]] ^= 1
            return bytes(data)

    root, os_io, _ = open_mirrored(remote, mirror_dir, objects=Damaged(remote.objects))
    words = "the header is not that of float32" if where == "header" else "does not match the digest"
    with pytest.raises(ChecksumError, match=words):
        read_range(os_io, root / FEATURES, 0, 5000)
    os_io.close_mirror()


@pytest.mark.reliability("O6")
def test_an_object_that_was_replaced_is_refused(tmp_path, mirror_dir):
    remote = uploaded(tmp_path, "replaced")
    root, os_io, _ = open_mirrored(remote, mirror_dir)
    read_range(os_io, root / FEATURES, 0, 5000)
    remote.objects.put(FEATURES, remote.files[FEATURES])  # the same bytes: only the ETag tells
    with pytest.raises(
        StoreOpenError, match="was replaced after its mirror was made; open the dataset again"
    ) as caught:
        read_range(os_io, root / FEATURES, BLOCK, 10)
    assert caught.value.errno == errno.ESTALE
    assert caught.value.filename == f"{remote.url}/{FEATURES}"
    assert str(root.parent) in str(caught.value)
    os_io.close_mirror()


def test_a_new_version_gets_a_mirror_of_its_own(tmp_path, mirror_dir):
    old = uploaded(tmp_path, "versions", 1)
    root, os_io, _ = open_mirrored(old, mirror_dir)
    require_equal(old, root, os_io)
    os_io.close_mirror()
    other = uploaded(tmp_path, "versions", 2)
    new = upload(other.folder, old.url)
    again, os_io, _ = open_mirrored(new, mirror_dir)
    assert again != root
    require_equal(new, again, os_io)
    os_io.close_mirror()
    assert len([path for path in mirror_dir.iterdir() if not path.name.startswith(".")]) == 2


@pytest.mark.reliability("O18")
@pytest.mark.parametrize("kind", ["missing", "short", "long", "record", "nothing"])
def test_an_upload_that_is_not_whole_is_refused_before_anything_is_made(tmp_path, mirror_dir, kind):
    remote = uploaded(tmp_path, kind)
    content = remote.files[FEATURES]
    error, words = {
        "missing": (IncompleteStoreError, "is missing; upload"),
        "short": (TruncatedStoreError, "expected .* upload"),
        "long": (FormatError, "expected .* upload"),
        "record": (ChecksumError, "own checksum"),
        "nothing": (NotAStoreError, "not a gloader dataset"),
    }[kind]
    if kind == "missing":
        remote.objects.delete(FEATURES)
    elif kind in {"short", "long"}:
        remote.objects.put(FEATURES, content[:-4096] if kind == "short" else content + bytes(4096))
    elif kind == "record":
        remote.objects.put("dataset.json", remote.files["dataset.json"].replace(b"features", b"featureS"))
    else:
        remote.objects.delete("dataset.json")
    with pytest.raises(error, match=words):
        open_mirrored(remote, mirror_dir)
    assert not mirror_dir.exists()


@pytest.mark.reliability("O1")
def test_without_a_network_a_whole_mirror_is_opened_with_a_warning(remote, mirror_dir, caplog):
    with pytest.raises(StoreReadError, match="no network"):
        open_mirrored(remote, mirror_dir, is_away=True)
    root, os_io, _ = open_mirrored(remote, mirror_dir)
    read_range(os_io, root / FEATURES, 0, 5000)
    os_io.close_mirror()
    # With holes it would fail in the middle of a run.
    with pytest.raises(StoreReadError, match="no network"):
        open_mirrored(remote, mirror_dir, is_away=True)
    root, os_io, _ = open_mirrored(remote, mirror_dir)
    for name, content in remote.files.items():
        read_range(os_io, root / name, 0, len(content))
    os_io.close_mirror()
    with caplog.at_level(logging.WARNING):
        root, os_io, _ = open_mirrored(remote, mirror_dir, is_away=True)
    assert "cannot be reached" in caplog.text
    assert "newer version" in caplog.text
    require_equal(remote, root, os_io)
    os_io.close_mirror()


def test_an_answer_of_the_store_is_believed_though_a_mirror_is_whole(tmp_path, mirror_dir):
    remote = uploaded(tmp_path, "gone")
    root, os_io, _ = open_mirrored(remote, mirror_dir)
    for name, content in remote.files.items():
        read_range(os_io, root / name, 0, len(content))
    os_io.close_mirror()
    remote.objects.delete("dataset.json")
    with pytest.raises(NotAStoreError, match="not a gloader dataset"):
        open_mirrored(remote, mirror_dir)


def test_a_mirror_is_its_owners_alone_and_names_no_secret(remote, mirror_dir):
    class Shown(FaultyObjects):
        url = remote.url

    root, os_io, _ = open_mirrored(remote, mirror_dir, objects=Shown(remote.objects))
    read_range(os_io, root / FEATURES, 0, 5000)
    os_io.close_mirror()
    for path in [mirror_dir, *mirror_dir.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    record = json.loads((root.parent / "mirror.json").read_text())
    assert record["url"] == remote.url
    assert record["files"][FEATURES] == [len(remote.files[FEATURES]), remote.objects.head(FEATURES).etag]


def test_a_mirror_takes_no_more_space_than_what_came(remote, mirror_dir):
    root, os_io, _ = open_mirrored(remote, mirror_dir)
    read_range(os_io, root / FEATURES, 5 * BLOCK, 10)
    os_io.close_mirror()
    assert (root / FEATURES).stat().st_size == len(remote.files[FEATURES])
    assert (root / FEATURES).stat().st_blocks * 512 <= BLOCK + 3 * 4096


@pytest.mark.reliability("O14")
@pytest.mark.parametrize("what", ["record", "link", "version"])
def test_a_folder_that_is_not_a_mirror_of_ours_is_not_believed(remote, mirror_dir, tmp_path, what):
    root, os_io, _ = open_mirrored(remote, mirror_dir)
    os_io.close_mirror()
    folder, record = root.parent, root.parent / "mirror.json"
    if what == "record":
        record.write_text("{}")
    elif what == "version":
        record.write_text(record.read_text().replace('"version": 1', '"version": 2'))
    else:
        shutil.move(folder, tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        (FormatError, StoreOpenError, StoreWriteError), match=r"remove the folder|another|File exists"
    ):
        _, os_io, _ = open_mirrored(remote, mirror_dir)
        read_range(os_io, root / FEATURES, 5 * BLOCK, 10)


@pytest.mark.reliability("O8")
def test_a_block_that_is_damaged_here_later_is_brought_once_more(remote, mirror_dir):
    root, os_io, _ = open_mirrored(remote, mirror_dir)
    content = remote.files[FEATURES]
    read_range(os_io, root / FEATURES, 0, len(content))
    os_io.close_mirror()
    with (root / FEATURES).open("r+b") as file:
        file.seek(6 * BLOCK + 5)
        file.write(b"damage")
    root, os_io, objects = open_mirrored(remote, mirror_dir)
    fd = os_io.open(root / FEATURES, os.O_RDONLY)
    assert os_io.refetch(fd, 6 * BLOCK + 4096)
    assert fetched(objects) == [6]
    assert read_range(os_io, root / FEATURES, 0, len(content)) == content
    # Others may have read it before; nobody goes on for ever.
    answers = [os_io.refetch(fd, 6 * BLOCK) for _ in range(10)]
    assert answers == [True, True] + [False] * 8
    assert fetched(objects) == [6]
    os_io.close(fd)
    with (root / "dataset.json").open("rb") as other:
        assert not os_io.refetch(other.fileno(), 0)
    os_io.close_mirror()


@pytest.mark.reliability("O8")
def test_page_checksums_that_are_damaged_here_are_brought_once_more(remote, mirror_dir):
    root, os_io, _ = open_mirrored(remote, mirror_dir)
    read_range(os_io, root / FEATURES, 0, 5000)
    os_io.close_mirror()
    with (root / "features.pages").open("r+b") as file:
        file.seek(4096 + 80)
        file.write(b"damage")
    root, os_io, objects = open_mirrored(remote, mirror_dir)
    assert read_range(os_io, root / FEATURES, BLOCK, 10) == remote.files[FEATURES][BLOCK : BLOCK + 10]
    assert fetched(objects, "features.pages") == [0]
    os_io.close_mirror()


def test_two_mirrors_in_one_folder_bring_each_block_once_where_they_can(remote, mirror_dir):
    root, first, _objects = open_mirrored(remote, mirror_dir)
    _, second, others = open_mirrored(remote, mirror_dir)
    content = remote.files[FEATURES]
    assert read_range(first, root / FEATURES, 0, 6 * BLOCK) == content[: 6 * BLOCK]
    first.mirror.close()  # whatever was read ahead is kept now
    assert read_range(second, root / FEATURES, 0, len(content)) == content
    assert not set(fetched(others)) & set(range(6))
    second.close_mirror()


def test_a_block_that_failed_once_is_asked_for_by_the_next_reader(remote, mirror_dir):
    failing = [errno.EACCES]
    fault = lambda _, asked: failing.pop() if asked.name == FEATURES and failing else None  # noqa: E731
    root, os_io, _ = open_mirrored(remote, mirror_dir, fault=fault)
    with pytest.raises(StoreReadError, match="injected"):
        read_range(os_io, root / FEATURES, BLOCK, 10)
    assert read_range(os_io, root / FEATURES, BLOCK, 10) == remote.files[FEATURES][BLOCK : BLOCK + 10]
    os_io.close_mirror()


@pytest.mark.reliability("O8")
def test_a_file_that_is_checked_whole_and_damaged_here_later_is_brought_once_more(remote, mirror_dir):
    name = "features.pages"
    root, os_io, objects = open_mirrored(remote, mirror_dir)
    assert read_range(os_io, root / name, 0, len(remote.files[name])) == remote.files[name]
    settle(os_io)
    with (root / name).open("r+b") as file:
        file.seek(4096)
        file.write(b"damage")
    with (root / name).open("rb") as file:
        assert os_io.refetch(file.fileno(), 4096)
    assert fetched(objects, name) == [0, 0]
    assert (root / name).read_bytes() == remote.files[name]
    os_io.close_mirror()


@pytest.mark.reliability("O13")
def test_of_two_mirrors_in_one_folder_one_brings_a_block_that_both_want_at_a_time(remote, mirror_dir):
    root, first, asked = open_mirrored(remote, mirror_dir, delay_s=0.01)
    _, second, others = open_mirrored(remote, mirror_dir, delay_s=0.01)
    with ThreadPoolExecutor() as threads:
        both = [threads.submit(require_equal, remote, root, each) for each in (first, second)]
        for each in both:
            each.result()
    first.close_mirror()
    second.close_mirror()
    counts = Counter((each.name, each.start) for each in asked.asked + others.asked)
    assert set(counts.values()) == {1}
    stats = [first.stats(), second.stats()]
    assert sum(each.bytes for each in stats) == sum(each.length for each in asked.asked + others.asked)


@pytest.mark.reliability("O13")
@pytest.mark.parametrize("end", ["kept", "refused", "closed", "stopped"])
def test_a_block_that_another_process_brings_and_does_not_get_is_asked_for(
    remote, mirror_dir, monkeypatch, end
):
    is_asking, go_on = threading.Event(), threading.Event()

    def fault(_, asked):
        if asked.name == FEATURES:
            is_asking.set()
            go_on.wait(10)
            return errno.EACCES if end == "refused" else None
        return None

    monkeypatch.setattr(mirror, "REQUEST_TIMEOUT_S", 0.3 if end == "stopped" else 60.0)
    root, stuck, _ = open_mirrored(remote, mirror_dir, fault=fault)
    _, other, others = open_mirrored(remote, mirror_dir)
    wanted = remote.files[FEATURES][BLOCK : BLOCK + 10]
    with ThreadPoolExecutor() as threads:
        first = threads.submit(read_range, stuck, root / FEATURES, BLOCK, 10)
        assert is_asking.wait(5)
        second = threads.submit(read_range, other, root / FEATURES, BLOCK, 10)
        time.sleep(0.15)
        assert not fetched(others)
        if end == "closed":  # as by its end
            stuck.close_mirror()
        elif end != "stopped":
            go_on.set()
        assert second.result(5) == wanted
        go_on.set()
        if end in {"refused", "closed"}:
            with pytest.raises(StoreError, match="closed" if end == "closed" else "injected"):
                first.result(5)
        else:
            assert first.result(5) == wanted
    assert fetched(others) == ([] if end == "kept" else [1])


@pytest.mark.reliability("O9")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_takes_nothing_costs_blocks_and_no_bytes(remote, mirror_dir, caplog, code):
    class Full(OsIO):
        is_full = False

        def datasync(self, fd):
            if self.is_full:
                raise OSError(code, os.strerror(code))
            super().datasync(fd)

    disk = Full()
    root, os_io, _ = open_mirrored(remote, mirror_dir, os_io=disk)
    content = remote.files[FEATURES]
    read_range(os_io, root / FEATURES, 0, 5000)
    disk.is_full = True
    with caplog.at_level(logging.WARNING):
        assert read_range(os_io, root / FEATURES, 0, len(content)) == content
        settle(os_io)
    assert caplog.text.count("blocks cannot be kept here") == 1
    assert os_io.stats().not_kept > 0
    # Who reads past these calls needs them on the disk.
    with (
        pytest.raises(StoreWriteError, match=r"block \d+ cannot be written: .*--mirror-dir"),
        (root / FEATURES).open("rb") as file,
    ):
        list(os_io.portions(file.fileno(), np.array([8 * BLOCK]), np.array([4096])))
    os_io.close_mirror()


def test_requests_below_one_and_budgets_that_hold_nothing_are_refused(remote, mirror_dir):
    with pytest.raises(ConfigError, match="object_requests=0 must be at least 1"):
        open_mirrored(remote, mirror_dir, requests=0)
    with pytest.raises(
        BudgetError, match=r"needs at least \d+ bytes .*--mirror-budget allows 5000; allow more"
    ):
        open_mirrored(remote, mirror_dir, budget_bytes=5000)


def test_a_second_mirror_is_made_while_a_dead_process_left_a_draft(remote, mirror_dir):
    root, os_io, _ = open_mirrored(remote, mirror_dir)
    os_io.close_mirror()
    shutil.move(root.parent, mirror_dir / f".{root.parent.name}.making")
    again, os_io, _ = open_mirrored(remote, mirror_dir)
    assert again == root
    require_equal(Remote(remote.folder, remote.objects, remote.files), root, os_io)
    os_io.close_mirror()
    assert list(mirror_dir.iterdir()) == [root.parent]


class Refusing(OsIO):
    """A file system that lets nobody make, or look at, a folder."""

    def __init__(self, refused):
        self.refused = refused

    def mkdir(self, path, mode=0o777):
        if self.refused == "mkdir":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        super().mkdir(path, mode)

    def lstat(self, path):
        if self.refused == "lstat":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return super().lstat(path)


@pytest.mark.reliability("O14")
@pytest.mark.parametrize(("refused", "kind"), [("mkdir", StoreWriteError), ("lstat", StoreOpenError)])
def test_a_folder_that_is_not_to_be_written_is_told_of_with_the_flag(remote, mirror_dir, refused, kind):
    with pytest.raises(kind, match="Permission denied; give another --mirror-dir"):
        open_mirrored(remote, mirror_dir, os_io=Refusing(refused))
