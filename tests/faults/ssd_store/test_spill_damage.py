"""Row E2: a record that is cut, damaged or exchanged between writing and reading is never a wrong batch."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.errors import ChecksumError, SpillError
from gloader.ssd_store.os_io import OsIO
from gloader.ssd_store.spill import SpillFolder, SpillRef
from gloader.testing.faults import Corruption, FaultyOS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ARRAYS = {"nodes": np.arange(300, dtype=np.int64), "x": np.random.default_rng(0).random((50, 9), np.float32)}
FILE_BYTES = 4 * 4096  # header, two pages of data, their checksums
CHECKSUMS_AT = 3 * 4096
BUDGET = 10**6


@pytest.fixture(scope="module")
def spill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpillFolder]:
    # A folder of its own: the leak guard of each test looks at what the test left, and this outlives it.
    with SpillFolder(tmp_path_factory.mktemp("spill"), budget_bytes=BUDGET) as folder:
        yield folder


@pytest.fixture(scope="module")
def ref(spill: SpillFolder) -> SpillRef:
    written = spill.write_record((3, 17), ARRAYS)
    assert written.path.stat().st_size == FILE_BYTES
    return written


@pytest.fixture(scope="module")
def content(ref: SpillRef) -> bytes:
    return ref.path.read_bytes()


def check_refused(spill: SpillFolder, ref: SpillRef) -> int:
    """Read a damaged record; return the byte that the error names."""
    with pytest.raises(ChecksumError, match="superbatch 3, batch 17") as caught:
        spill.read_record(ref)
    assert str(ref.path) in str(caught.value)
    found = re.search(r"damaged at byte (\d+)", str(caught.value))
    assert found, caught.value
    return int(found[1])


def check_fine(spill: SpillFolder, ref: SpillRef) -> None:
    found = spill.read_record(ref)
    assert all(np.array_equal(found[name], array) for name, array in ARRAYS.items())


@pytest.mark.reliability("E2")
def test_a_changed_bit_at_every_byte_is_found_and_located(
    spill: SpillFolder, ref: SpillRef, content: bytes
) -> None:
    bits = 1 << np.random.default_rng(7).integers(0, 8, FILE_BYTES)
    fd = os.open(ref.path, os.O_RDWR)
    try:
        for offset in range(FILE_BYTES):
            os.pwrite(fd, bytes([content[offset] ^ int(bits[offset])]), offset)
            named = check_refused(spill, ref)
            exact = offset if offset >= CHECKSUMS_AT else offset // 4096 * 4096
            assert named == exact, offset
            os.pwrite(fd, content[offset : offset + 1], offset)
    finally:
        os.close(fd)
    check_fine(spill, ref)


@pytest.mark.reliability("E2")
def test_a_cut_at_every_sector_and_about_it_is_found(
    spill: SpillFolder, ref: SpillRef, content: bytes
) -> None:
    sizes = {size + step for size in range(0, FILE_BYTES + 1, 512) for step in (-1, 0, 1)}
    for size in sorted(sizes - {-1, FILE_BYTES}):
        with ref.path.open("r+b") as file:
            file.write(content)
            file.truncate(size)  # one size is larger by a byte
        assert check_refused(spill, ref) == min(size, FILE_BYTES)
    ref.path.write_bytes(content)
    check_fine(spill, ref)


@pytest.mark.reliability("E2")
@given(
    pieces=st.lists(
        st.tuples(st.integers(0, FILE_BYTES - 1), st.binary(min_size=1, max_size=5000)),
        min_size=1,
        max_size=4,
    ),
    size=st.none() | st.integers(0, FILE_BYTES + 5000),
)
def test_any_damage_is_found(
    spill: SpillFolder, ref: SpillRef, content: bytes, pieces: list[tuple[int, bytes]], size: int | None
) -> None:
    damaged = bytearray(content)
    for offset, data in pieces:
        damaged[offset : offset + len(data)] = data[: FILE_BYTES - offset]
    if size is not None:
        damaged = damaged[:size].ljust(size, b"\0")
    ref.path.write_bytes(damaged)
    try:
        if damaged == content:
            check_fine(spill, ref)
        else:
            check_refused(spill, ref)
    finally:
        ref.path.write_bytes(content)


@pytest.mark.reliability("E2")
def test_pages_that_change_places_are_found(spill: SpillFolder, ref: SpillRef, content: bytes) -> None:
    """Each page with its checksum is right, and at the wrong place."""
    one, two = content[4096:8192], content[8192:12288]
    tail = bytearray(content[CHECKSUMS_AT:])
    tail[8:16], tail[16:24] = tail[16:24], tail[8:16]
    ref.path.write_bytes(content[:4096] + two + one + tail)
    assert check_refused(spill, ref) == 4096
    ref.path.write_bytes(content)


@pytest.mark.reliability("E2")
def test_another_whole_record_in_its_place_is_found(
    spill: SpillFolder, ref: SpillRef, content: bytes
) -> None:
    """The right key, size and checksums, but of other arrays, as a lost write would leave them."""
    other = spill.write_record((3, 17), {"nodes": ARRAYS["nodes"] + 1, "x": ARRAYS["x"]})
    ref.path.write_bytes(other.path.read_bytes())
    assert check_refused(spill, ref) == 0
    ref.path.write_bytes(content)
    spill.delete_record(other)


class LostTail(OsIO):
    """A file that is cut after its size was asked for."""

    is_real = False

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        return super().pread_into(fd, buffer[: max(0, 5000 - offset)], offset)


@pytest.mark.reliability("E2")
def test_a_record_cut_while_it_is_read_is_found(tmp_path: Path) -> None:
    with SpillFolder(tmp_path, budget_bytes=BUDGET) as writer:
        ref = writer.write_record((3, 17), ARRAYS)
        writer._os_io = LostTail()
        assert check_refused(writer, ref) == 5000


@pytest.mark.reliability("E2")
def test_a_device_that_returns_other_bytes_is_found(tmp_path: Path) -> None:
    damage = Corruption(offset=9000, mask=4, file=".spill")
    with SpillFolder(tmp_path, budget_bytes=BUDGET, os_io=FaultyOS(corrupt=damage)) as spill:
        assert check_refused(spill, spill.write_record((3, 17), ARRAYS)) == 8192


@pytest.mark.reliability("E2")
def test_a_link_or_fifo_in_its_place_is_refused(tmp_path: Path) -> None:
    with SpillFolder(tmp_path, budget_bytes=BUDGET) as spill:
        ref = spill.write_record((3, 17), ARRAYS)
        ref.path.rename(tmp_path / "moved")
        ref.path.symlink_to(tmp_path / "moved")
        with pytest.raises(
            SpillError, match="superbatch 3, batch 17 failed: Too many levels of symbolic links"
        ):
            spill.read_record(ref)
        ref.path.unlink()
        os.mkfifo(ref.path)
        with pytest.raises(SpillError, match="not a regular file"):
            spill.read_record(ref)


def test_the_digest_is_what_decides(spill: SpillFolder, ref: SpillRef) -> None:
    assert check_refused(spill, replace(ref, digest="0" * 16)) == 0
