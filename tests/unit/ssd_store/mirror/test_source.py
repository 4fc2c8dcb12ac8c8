"""Sweeps over files that are not here whole, and extents that are brought before a kernel reads them."""

import os
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mirrored import BLOCK, FEATURES, fetched, open_mirrored, read_range, settle

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.signals import NEVER, Cancellation
from gloader.errors import ChannelClosedError, StoreReadError
from gloader.ssd_store.format.manifest import DATA_OFFSET
from gloader.ssd_store.mirror.mirror_io import wanted_blocks
from gloader.ssd_store.mirror.mirrored_file import MirroredFile


@pytest.fixture(name="opened")
def _opened(remote, mirror_dir):
    root, os_io, objects = open_mirrored(remote, mirror_dir)
    fd = os_io.open(root / FEATURES, os.O_RDONLY)
    yield os_io, objects, fd, root / FEATURES
    os_io.close(fd)


def page_bits(pages, num_pages=188):
    is_wanted = np.zeros(-(-num_pages // 64) * 64, np.bool_)
    is_wanted[pages] = True
    return np.packbits(is_wanted, bitorder="little").view(np.uint64)


class Shape:
    block_bytes, num_blocks = 4 * 4096, 13


@given(st.sets(st.integers(0, 50), max_size=20))
def test_wanted_blocks_are_those_of_wanted_pages(pages):
    found = wanted_blocks(page_bits(sorted(pages), 51), DATA_OFFSET, Shape())
    assert found.tolist() == sorted({(page + 1) // 4 for page in pages})


def read_all(source, pages, content):
    for page in pages:
        buffer = aligned_bytes(4096)
        source.read(buffer.data, page * 4096, cancellation=NEVER)
        assert bytes(buffer) == content[DATA_OFFSET + page * 4096 :][:4096], page


def test_a_source_brings_wanted_pages_and_asks_for_their_blocks_once_in_order(remote, mirror_dir):
    # Of requests that are made at a time any may be the first.
    root, os_io, objects = open_mirrored(remote, mirror_dir, requests=1)
    fd = os_io.open(root / FEATURES, os.O_RDONLY)
    pages = [0, 14, 15, 16, 60, 61, 150]
    source = os_io.source(fd, page_bits(pages), DATA_OFFSET)
    read_all(source, pages, remote.files[FEATURES])
    source.close()
    source.close()
    assert fetched(objects) == [0, 1, 3, 9]
    os_io.close(fd)
    os_io.close_mirror()
    # What came was kept: nothing is missing for the next sweep.
    assert os_io.stats().blocks_here == 5


def test_when_nothing_is_missing_there_is_no_source(remote, opened):
    os_io, _objects, fd, _path = opened
    pages = [15, 16, 17, 40]
    source = os_io.source(fd, page_bits(pages), DATA_OFFSET)
    read_all(source, pages, remote.files[FEATURES])
    source.close()
    deadline = time.monotonic() + 5
    while os_io.stats().blocks_here < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert os_io.source(fd, page_bits(pages), DATA_OFFSET) is None
    assert os_io.source(fd, page_bits([*pages, 100]), DATA_OFFSET) is not None


def test_a_sweep_waits_for_blocks_that_are_just_being_written(remote, opened, monkeypatch):
    os_io, _objects, fd, _path = opened
    write = MirroredFile.write

    def write_late(file, block, data):
        time.sleep(0.1)
        write(file, block, data)

    monkeypatch.setattr(MirroredFile, "write", write_late)
    pages = [15, 16, 17, 40]
    source = os_io.source(fd, page_bits(pages), DATA_OFFSET)
    read_all(source, pages, remote.files[FEATURES])
    source.close()
    assert os_io.source(fd, page_bits(pages), DATA_OFFSET) is None


def test_a_source_reads_what_is_here_from_the_disk(remote, opened):
    os_io, objects, fd, path = opened
    content = remote.files[FEATURES]
    read_range(os_io, path, 3 * BLOCK, 100)
    os_io.mirror.bring(os_io.mirror.files.named(FEATURES), [3])
    pages = list(range(20, 80))
    source = os_io.source(fd, page_bits(pages), DATA_OFFSET)
    read_all(source, pages, content)
    source.close()
    assert sorted(fetched(objects)) == [1, 2, 3, 4, 5]


def test_extents_over_blocks_that_nobody_wanted_come_all_the_same(remote, opened):
    os_io, objects, fd, _path = opened
    source = os_io.source(fd, page_bits([0, 187]), DATA_OFFSET)
    buffer = bytearray(188 * 4096)
    source.read(memoryview(buffer), 0, cancellation=NEVER)
    source.close()
    assert bytes(buffer) == remote.files[FEATURES][DATA_OFFSET:]
    assert sorted(fetched(objects)) == list(range(12))


def test_many_blocks_are_on_their_way_and_no_more_than_the_store_bears(remote, mirror_dir):
    root, os_io, objects = open_mirrored(remote, mirror_dir, delay_s=0.02, requests=3)
    fd = os_io.open(root / FEATURES, os.O_RDONLY)
    source = os_io.source(fd, page_bits(range(188)), DATA_OFFSET)
    buffer = bytearray(4096)
    source.read(memoryview(buffer), 0, cancellation=NEVER)
    time.sleep(0.2)
    # Three in flight and two more: however slow the sweep is, no more is held.
    assert len(fetched(objects)) == 5
    read_all(source, range(1, 188), remote.files[FEATURES])
    assert objects.most_running == 3
    source.close()
    os_io.close(fd)


def test_memory_limits_what_is_on_its_way(remote, mirror_dir):
    root, os_io, objects = open_mirrored(remote, mirror_dir, delay_s=0.01)
    os_io.limit_memory(12 * BLOCK)
    content = remote.files[FEATURES]
    assert read_range(os_io, root / FEATURES, 0, len(content)) == content
    assert objects.most_running == 3
    settle(os_io)
    assert len(os_io.mirror._spare) <= 3
    os_io.limit_memory(0)
    assert os_io.mirror.width == 4


def test_a_source_that_waits_is_cancelled(remote, mirror_dir):
    root, os_io, objects = open_mirrored(
        remote, mirror_dir, fault=lambda _, asked: "hang" if asked.name == FEATURES else None
    )
    fd = os_io.open(root / FEATURES, os.O_RDONLY)
    source = os_io.source(fd, page_bits([50]), DATA_OFFSET)
    until = time.monotonic() + 0.1
    with pytest.raises(ChannelClosedError):
        source.read(
            memoryview(bytearray(4096)),
            50 * 4096,
            cancellation=Cancellation(lambda: time.monotonic() > until),
        )
    source.close()
    os_io.close(fd)
    objects.go_on.set()


def test_a_source_says_why_a_block_does_not_come(remote, mirror_dir):
    root, os_io, _ = open_mirrored(
        remote, mirror_dir, fault=lambda _, asked: 13 if asked.name == FEATURES else None
    )
    fd = os_io.open(root / FEATURES, os.O_RDONLY)
    source = os_io.source(fd, page_bits([50]), DATA_OFFSET)
    with pytest.raises(StoreReadError, match="injected"):
        source.read(memoryview(bytearray(4096)), 50 * 4096, cancellation=NEVER)
    source.close()
    os_io.close(fd)


def test_other_files_have_neither_portions_nor_a_source(tmp_path, opened):
    os_io, *_ = opened
    (tmp_path / "other").write_bytes(bytes(8192))
    with (tmp_path / "other").open("rb") as file:
        assert os_io.source(file.fileno(), page_bits([0]), DATA_OFFSET) is None
        assert os_io.download_s(file.fileno(), page_bits([0]), DATA_OFFSET) == 0
        assert list(os_io.portions(file.fileno(), np.array([0, 4096]), np.array([10, 10]))) == [(0, 2)]
        assert list(os_io.portions(file.fileno(), np.array([], int), np.array([], int))) == []


def test_a_sweep_waits_for_a_download_where_it_wants_half_of_what_is_missing(opened):
    os_io, _objects, fd, _path = opened
    assert os_io.download_s(fd, page_bits([0]), DATA_OFFSET) == 0
    half = page_bits([block * 16 for block in range(6)])  # of 12 blocks
    assert os_io.download_s(fd, half, DATA_OFFSET) == pytest.approx(6 * BLOCK / os_io.likely_bytes_per_s)
    os_io.mirror.bring(os_io.mirror.files.named(FEATURES), [0, 1, 8, 9, 10])
    assert os_io.download_s(fd, half, DATA_OFFSET) == pytest.approx(4 * BLOCK / os_io.likely_bytes_per_s)
    os_io.mirror.bring(os_io.mirror.files.named(FEATURES), range(12))
    assert os_io.download_s(fd, half, DATA_OFFSET) == 0


@given(data=st.data())
def test_portions_are_all_extents_in_order_each_here_when_its_turn_comes(remote, tmp_path_factory, data):
    starts = sorted(data.draw(st.lists(st.integers(1, 187), max_size=12), label="pages"))
    lengths = [data.draw(st.integers(1, min(40, 188 - start))) * 4096 for start in starts]
    here = data.draw(st.sets(st.integers(0, 11), max_size=6), label="here")
    root, os_io, objects = open_mirrored(remote, tmp_path_factory.mktemp("m"))
    os_io.mirror.bring(os_io.mirror.files.named(FEATURES), sorted(here))
    before = len(fetched(objects))
    content, fd = remote.files[FEATURES], os_io.open(root / FEATURES, os.O_RDONLY)
    offsets = np.array(starts, np.int64) * 4096
    done = 0
    for first, past in os_io.portions(fd, offsets, np.array(lengths, np.int64)):
        assert first == done
        assert past > first
        for extent in range(first, past):
            at, length = int(offsets[extent]), lengths[extent]
            assert os.pread(fd, length, at) == content[at : at + length]
        done = past
    assert done == len(starts)
    touched = {
        block
        for start, length in zip(starts, lengths, strict=True)
        for block in range(start * 4096 // BLOCK, -(-(start * 4096 + length) // BLOCK))
    }
    assert sorted(fetched(objects)[before:]) == sorted(touched - here)
    os_io.close(fd)
    os_io.close_mirror()
