"""The choice of blocks to evict; no block in use is evicted."""

import errno
import itertools
import os
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from mirrored import BLOCK, FEATURES, fetched, open_mirrored, read_range, settle

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.signals import NEVER
from gloader.errors import StoreOpenError
from gloader.ssd_store.format.manifest import DATA_OFFSET
from gloader.ssd_store.mirror import mirror_folder
from gloader.ssd_store.mirror.keeper import choose_victims, count_uses
from gloader.ssd_store.mirror.mirrored_file import EVICTED, HERE
from gloader.ssd_store.os_io import OsIO


def uses_of(*values):
    return np.array(values, np.float32)


def test_blocks_that_are_wanted_by_each_sweep_count_more_than_those_of_old():
    uses = np.zeros(3, np.float32)
    for _ in range(5):
        count_uses(uses, np.array([0]))
    count_uses(uses, np.array([1]))
    assert uses[0] > uses[1] > uses[2] == 0


def test_the_least_used_go_and_no_more_than_are_needed():
    lengths = np.array([10, 10, 10, 5])
    assert choose_victims(uses_of(3, 1, 2, 0), lengths, needed_bytes=12, newcomer=9).tolist() == [3, 1]
    assert choose_victims(uses_of(3, 1, 2, 0), lengths, needed_bytes=5, newcomer=9).tolist() == [3]
    assert choose_victims(uses_of(3, 1, 2, 0), lengths, needed_bytes=0, newcomer=9).tolist() == []


def test_a_newcomer_must_be_used_clearly_more():
    lengths = np.array([10, 10])
    assert choose_victims(uses_of(1, 1), lengths, needed_bytes=10, newcomer=1.2) is None
    assert choose_victims(uses_of(1, 1), lengths, needed_bytes=10, newcomer=1.3) is not None
    assert choose_victims(uses_of(1, 5), lengths, needed_bytes=20, newcomer=1.3) is None
    assert choose_victims(uses_of(1, 5), lengths, needed_bytes=20, newcomer=None).tolist() == [0, 1]


def test_where_too_little_would_go_nothing_does_but_for_what_must_stay():
    assert choose_victims(uses_of(1), np.array([10]), needed_bytes=11, newcomer=9) is None
    assert choose_victims(uses_of(1), np.array([10]), needed_bytes=11, newcomer=None).tolist() == [0]
    assert choose_victims(uses_of(), np.array([], int), needed_bytes=1, newcomer=9) is None


def test_a_newcomer_may_need_all_that_may_go():
    assert choose_victims(uses_of(1, 1), np.array([10, 10]), needed_bytes=20, newcomer=5).tolist() == [0, 1]
    assert choose_victims(uses_of(1), np.array([10]), needed_bytes=10, newcomer=5).tolist() == [0]


@pytest.fixture(name="budget")
def _budget(monkeypatch, remote):
    """Room for what must be here, and for five blocks."""
    monkeypatch.setattr(mirror_folder, "WINDOW_BLOCKS", 2)
    always = sum(len(content) for name, content in remote.files.items() if name.endswith(".pages"))
    return always + 5 * BLOCK


def bits(*blocks):
    pages = np.zeros(12 * 16, np.bool_)
    for block in blocks:
        pages[max(block * 16 - 1, 0) : block * 16 + 15] = True
    return np.packbits(pages, bitorder="little").view(np.uint64)


def sweep(os_io, path, blocks, content):
    """Read blocks of the features as a sweep does; return whether a source was needed."""
    fd = os_io.open(path, os.O_RDONLY)
    try:
        source = os_io.source(fd, bits(*blocks), DATA_OFFSET)
        for block in blocks:
            start = max(block * BLOCK, DATA_OFFSET)
            buffer = aligned_bytes(min((block + 1) * BLOCK, len(content)) - start)
            if source is None:
                os_io.pread_into(fd, buffer.data, start)
            else:
                source.read(buffer.data, start - DATA_OFFSET, cancellation=NEVER)
            assert bytes(buffer) == content[start : start + len(buffer)]
        if source is not None:
            source.close()
        settle(os_io)
        return source is not None
    finally:
        os_io.close(fd)


def used(root):
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*") if path.suffix in {".npy", ".pages"})


@pytest.mark.reliability("O17")
def test_a_budget_is_kept_on_the_disk_and_the_bytes_are_right(remote, mirror_dir, budget):
    root, os_io, _ = open_mirrored(remote, mirror_dir, budget_bytes=budget)
    content = remote.files[FEATURES]
    rng = np.random.default_rng(0)
    for _ in range(200):
        start = int(rng.integers(0, len(content)))
        length = int(rng.integers(1, 3 * BLOCK))
        assert read_range(os_io, root / FEATURES, start, length) == content[start : start + length]
        assert os_io.mirror.keeper.used_bytes() <= budget
    os_io.close_mirror()
    # A page of header and one of size for every file, besides blocks.
    assert used(root) <= budget + 2 * 4096 * len(remote.files)
    assert os_io.stats().blocks_here * BLOCK <= budget + BLOCK


def test_in_sweeps_over_all_what_fits_stays_and_is_not_asked_for_again(remote, mirror_dir, budget):
    root, os_io, objects = open_mirrored(remote, mirror_dir, budget_bytes=budget)
    content = remote.files[FEATURES]
    for _ in range(6):
        sweep(os_io, root / FEATURES, list(range(12)), content)
    os_io.close_mirror()
    counts = Counter(fetched(objects))
    assert sorted(counts.values()) == [1] * 5 + [6] * 7


def test_files_that_are_read_from_start_to_end_push_nothing_out_and_bring_the_rest_alone(
    remote, mirror_dir, budget
):
    content = remote.files[FEATURES]
    # Each in a process of its own, which knows nothing of uses before.
    for number in range(3):
        root, os_io, objects = open_mirrored(remote, mirror_dir, budget_bytes=budget)
        assert read_range(os_io, root / FEATURES, 0, len(content)) == content
        settle(os_io)
        os_io.close_mirror()
        assert os_io.stats().evicted == 0
        assert len(fetched(objects)) == (12 if number == 0 else 7)


def test_blocks_that_sweeps_want_more_often_take_the_place_of_others(remote, mirror_dir, budget):
    root, os_io, objects = open_mirrored(remote, mirror_dir, budget_bytes=budget)
    content = remote.files[FEATURES]
    sweep(os_io, root / FEATURES, list(range(12)), content)
    for _ in range(5):
        sweep(os_io, root / FEATURES, [7, 8, 9, 10, 11], content)
    before = len(objects.asked)
    assert not sweep(os_io, root / FEATURES, [7, 8, 9, 10, 11], content)
    assert len(objects.asked) == before
    os_io.close_mirror()


def test_a_block_that_is_marked_while_another_asks_for_room_counts_once(
    remote, mirror_dir, budget, monkeypatch
):
    _, os_io, _ = open_mirrored(remote, mirror_dir, budget_bytes=budget)
    keeper, file = os_io.mirror.keeper, os_io.mirror.files.named(FEATURES)
    keeper.budget_bytes = keeper.used_bytes() + 2 * BLOCK
    data, mark, kept = aligned_bytes(BLOCK), file.mark, []

    def mark_and_ask(block, value, **options):
        mark(block, value, **options)
        if block == 3:  # it is marked, and whoever wrote it has not said yet that it is done
            kept.append(keeper.keep(file, 4, data, mark=HERE, must=False))

    monkeypatch.setattr(file, "mark", mark_and_ask)
    kept.append(keeper.keep(file, 3, data, mark=HERE, must=False))
    assert kept == [True, True]
    assert keeper.num_not_kept == 0
    assert not keeper.keep(file, 5, data, mark=HERE, must=False)


def test_what_is_pinned_stays_though_others_must_have_room(remote, mirror_dir, budget):
    root, os_io, _ = open_mirrored(remote, mirror_dir, budget_bytes=budget)
    content = remote.files[FEATURES]
    fd = os_io.open(root / FEATURES, os.O_RDONLY)
    firsts = np.array([0, 1, 2], np.int64) * BLOCK + 4096
    runs = os_io.portions(fd, firsts, np.full(3, 4096))
    first, past = next(runs)
    assert first == 0
    # Somebody else needs all of the budget meanwhile.
    assert read_range(os_io, root / FEATURES, 3 * BLOCK, 9 * BLOCK) == content[3 * BLOCK :][: 9 * BLOCK]
    file = os_io.mirror.files.named(FEATURES)
    assert (file.marks[:past] == HERE).all()
    assert os.pread(fd, 4096, int(firsts[0])) == content[int(firsts[0]) :][:4096]
    rest = [(first, past), *runs]
    assert [rest[0][0], rest[-1][1]] == [0, 3]
    assert all(a[1] == b[0] for a, b in itertools.pairwise(rest))
    settle(os_io)
    assert not file.pins.any()
    os_io.close(fd)
    os_io.close_mirror()


def test_a_sweep_that_needs_no_source_keeps_its_blocks_until_it_is_over(remote, mirror_dir, budget):
    root, os_io, _ = open_mirrored(remote, mirror_dir, budget_bytes=budget)
    content = remote.files[FEATURES]
    for _ in range(3):
        sweep(os_io, root / FEATURES, [2, 3], content)
    fd = os_io.open(root / FEATURES, os.O_RDONLY)
    assert os_io.source(fd, bits(2, 3), DATA_OFFSET) is None
    for _ in range(5):
        sweep(os_io, root / FEATURES, [5, 6, 7, 8, 9, 10], content)
    assert os.pread(fd, BLOCK, 2 * BLOCK) == content[2 * BLOCK : 3 * BLOCK]
    assert os_io.mirror.files.named(FEATURES).pins.sum() == 2
    os_io.close(fd)
    assert not os_io.mirror.files.named(FEATURES).pins.any()
    os_io.close_mirror()


def test_a_block_that_goes_leaves_the_header_and_its_neighbours(remote, mirror_dir, budget):
    root, os_io, _ = open_mirrored(remote, mirror_dir, budget_bytes=budget)
    content = remote.files[FEATURES]
    sweep(os_io, root / FEATURES, [0, 1, 2, 3], content)
    file = os_io.mirror.files.named(FEATURES)
    for block in (0, 2):
        os_io.mirror.keeper._evict(file, block)
    found = (root / FEATURES).read_bytes()
    assert found[:DATA_OFFSET] == content[:DATA_OFFSET]
    assert not any(found[DATA_OFFSET:BLOCK])
    assert found[BLOCK : 2 * BLOCK] == content[BLOCK : 2 * BLOCK]
    assert not any(found[2 * BLOCK : 3 * BLOCK])
    assert found[3 * BLOCK : 4 * BLOCK] == content[3 * BLOCK : 4 * BLOCK]
    os_io.close_mirror()


def test_a_block_that_cannot_be_written_may_come_again_and_go(remote, mirror_dir, budget):
    class Failing(OsIO):
        is_failing = False

        def datasync(self, fd):
            if self.is_failing:
                raise OSError(errno.EIO, "injected")
            super().datasync(fd)

    disk = Failing()
    root, os_io, _ = open_mirrored(remote, mirror_dir, budget_bytes=budget, os_io=disk)
    content = remote.files[FEATURES]
    sweep(os_io, root / FEATURES, [0], content)  # and the checksums
    disk.is_failing = True
    sweep(os_io, root / FEATURES, [4], content)
    file = os_io.mirror.files.named(FEATURES)
    assert file.marks[4] != HERE
    assert not file.pins.any()
    disk.is_failing = False
    sweep(os_io, root / FEATURES, [4], content)
    assert file.marks[4] == HERE
    os_io.close_mirror()


@pytest.mark.parametrize("has_budget", [False, True])
def test_a_mirror_that_cannot_be_opened_leaves_no_file_open(remote, mirror_dir, budget, has_budget):
    class Refusing(OsIO):
        num_opened = 0

        def lock_range(self, *_):
            raise OSError(errno.EIO, "injected")

        def open(self, path, flags, mode=0o666):
            self.num_opened += "/blocks/" in str(path)
            if has_budget and self.num_opened == 3:
                raise OSError(errno.EIO, "injected")
            return super().open(path, flags, mode)

    root, os_io, _ = open_mirrored(remote, mirror_dir)
    os_io.close_mirror()
    files = Path("/proc/self/fd")
    before = len([*files.iterdir()])
    with pytest.raises(StoreOpenError, match="cannot be opened: injected") as caught:
        _, os_io, _ = open_mirrored(
            remote, mirror_dir, os_io=Refusing(), budget_bytes=budget if has_budget else None
        )
        read_range(os_io, root / FEATURES, 0, 5000)
    assert caught.value.errno == errno.EIO
    assert len([*files.iterdir()]) <= before  # while the error holds on to what raised it


@pytest.mark.reliability("O17")
def test_another_process_loses_nothing_that_it_reads(remote, mirror_dir, budget):
    """Locks of an opening are what two processes see of each other, and two mirrors of one process, too."""
    root, whole, _ = open_mirrored(remote, mirror_dir)
    content = remote.files[FEATURES]
    read_range(whole, root / FEATURES, 0, len(content))
    _, small, _ = open_mirrored(remote, mirror_dir, budget_bytes=budget)
    for _ in range(3):
        sweep(small, root / FEATURES, [1, 4, 8], content)
    assert read_range(small, root / FEATURES, 0, len(content)) == content
    # The one without a budget holds all of it, so nothing went.
    assert (root / FEATURES).read_bytes() == content
    whole.close_mirror()
    small.close_mirror()


def test_threads_and_mirrors_with_budgets_that_read_at_once_get_the_right_bytes(remote, mirror_dir, budget):
    root, first, _ = open_mirrored(remote, mirror_dir, budget_bytes=budget)
    _, second, _ = open_mirrored(remote, mirror_dir, budget_bytes=budget)
    content, wrong = remote.files[FEATURES], []

    def read(os_io, seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            start, length = int(rng.integers(0, len(content))), int(rng.integers(1, 2 * BLOCK))
            if read_range(os_io, root / FEATURES, start, length) != content[start : start + length]:
                wrong.append((seed, start, length))

    threads = [threading.Thread(target=read, args=([first, second][n % 2], n)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    first.close_mirror()
    second.close_mirror()


def test_nothing_is_evicted_from_a_folder_without_our_record(remote, mirror_dir, budget):
    root, os_io, _ = open_mirrored(remote, mirror_dir, budget_bytes=budget)
    content = remote.files[FEATURES]
    sweep(os_io, root / FEATURES, [0, 1, 2, 3, 4], content)
    (root.parent / "mirror.json").unlink()
    before = os_io.stats()
    for _ in range(3):
        sweep(os_io, root / FEATURES, [6, 7, 8], content)
    assert os_io.stats().evicted == before.evicted
    assert os_io.stats().blocks_here == before.blocks_here
    assert os_io.stats().not_kept > before.not_kept
    os_io.close_mirror()


@pytest.mark.reliability("O11")
def test_a_mark_is_gone_from_the_device_before_the_bytes_are_and_is_set_once(remote, mirror_dir, budget):
    calls = []

    class Recorded(OsIO):
        def pwrite(self, fd, data, offset):
            calls.append(("pwrite", fd))
            return super().pwrite(fd, data, offset)

        def datasync(self, fd):
            calls.append(("datasync", fd))
            super().datasync(fd)

        def punch_hole(self, fd, offset, num_bytes):
            calls.append(("punch", offset // BLOCK))
            super().punch_hole(fd, offset, num_bytes)

        def kill_point(self, name):
            calls.append(("point", name))

    root, os_io, _ = open_mirrored(remote, mirror_dir, budget_bytes=budget, os_io=Recorded())
    sweep(os_io, root / FEATURES, [0, 1], remote.files[FEATURES])
    file = os_io.mirror.files.named(FEATURES)
    calls.clear()
    os_io.mirror.keeper._evict(file, 1)
    marks = file._marks.fileno()
    assert calls == [
        ("pwrite", marks),
        ("datasync", marks),
        ("point", "mirror.after_mark"),
        ("point", "mirror.before_punch"),
        ("punch", 1),
    ]


def test_a_block_that_is_just_being_evicted_cannot_be_pinned(remote, mirror_dir, budget):
    root, os_io, _ = open_mirrored(remote, mirror_dir, budget_bytes=budget)
    sweep(os_io, root / FEATURES, [0, 1], remote.files[FEATURES])
    file, keeper = os_io.mirror.files.named(FEATURES), os_io.mirror.keeper
    found = []
    set_mark = file.mark

    def mark_and_pin(block, mark, *, is_durable):
        # Its mark is still there.
        found.append((keeper.pin(file, 0, 2), file.pins[:2].tolist()))
        set_mark(block, mark, is_durable=is_durable)

    file.mark = mark_and_pin
    keeper._evict(file, 1)
    assert found == [(False, [0, EVICTED])]
    assert not file.pins.any()


def test_another_process_may_evict_a_block_after_its_last_pin_alone(remote, mirror_dir, budget):
    root, os_io, _ = open_mirrored(remote, mirror_dir, budget_bytes=budget)
    sweep(os_io, root / FEATURES, [0, 1], remote.files[FEATURES])
    _, beside, _ = open_mirrored(remote, mirror_dir, budget_bytes=budget)
    file, keeper = os_io.mirror.files.named(FEATURES), os_io.mirror.keeper
    other, found = beside.mirror.files.named(FEATURES), []
    for change in (keeper.pin, keeper.pin, keeper.unpin, keeper.unpin):
        change(file, 1, 2)
        found.append(other.own(1))
    assert found == [False, False, False, True]
