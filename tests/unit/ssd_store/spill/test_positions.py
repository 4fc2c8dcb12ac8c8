"""Positions that come to a sweep in portions: the right values in every region, whatever the portions and extents."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gloader.core.signals import NEVER, Cancellation
from gloader.errors import ChannelClosedError, ChecksumError, PlanError
from gloader.ssd_store.format.checksum import checksum_pages
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.read.columns import stored_array
from gloader.ssd_store.read.lane import ReadSettings
from gloader.ssd_store.spill.folder import SpillFolder
from gloader.ssd_store.spill.regions import RegionStore, SharedBuffers, plan_regions
from gloader.ssd_store.sweep import sweeper as sweep_module
from gloader.ssd_store.sweep.supply import WantedPositions
from gloader.ssd_store.sweep.sweep_kernels import WHOLE_FILE
from gloader.ssd_store.sweep.wanted_rows import empty_bits
from gloader.ssd_store.write.new_directory import NewDirectory
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gloader.types import IdArray

DRIVERS: dict[str, dict[str, Any]] = {"uring": {"io": "auto"}, "threads": {"io": "threads"}, "plain": {}}


class Listed:
    """The portions of positions that are all in memory."""

    def __init__(self, wanted: list[IdArray]) -> None:
        self.wanted = wanted
        self.given = [0] * len(wanted)
        self.num_fills = 0

    def fill(self, ids: IdArray, taken: IdArray, ends: IdArray, has_more: np.ndarray) -> None:
        self.num_fills += 1
        for o, positions in enumerate(self.wanted):
            left = ids[o, taken[o] : ends[o]].copy()
            more = positions[self.given[o] : self.given[o] + ids.shape[1] - len(left)]
            ids[o, : len(left)] = left
            ids[o, len(left) : len(left) + len(more)] = more
            self.given[o] += len(more)
            ends[o], taken[o] = len(left) + len(more), 0
            has_more[o] = self.given[o] < len(positions)


class Promising(Listed):
    """Says that positions follow, and gives none."""

    def fill(self, ids: IdArray, taken: IdArray, ends: IdArray, has_more: np.ndarray) -> None:
        self.num_fills += 1
        assert self.num_fills < 9, "asked for ever"
        taken[:], ends[:], has_more[:] = 0, 0, True


def pages_of(wanted: list[IdArray], num_pages: int, itemsize: int) -> np.ndarray:
    pages = empty_bits(num_pages)
    for positions in wanted:
        for page in np.unique(positions * itemsize // 4096).tolist():
            pages[page >> 6] |= np.uint64(1 << (page & 63))
    return pages


def write_array(root: Path, values: np.ndarray):
    with NewDirectory(root, manifest_name="dataset.json") as directory:
        with directory.array("indices", dtype=values.dtype.name, shape=values.shape) as writer:
            writer.append(values)
        return directory.commit("dataset", {}).arrays["indices"]


@contextmanager
def opened(
    root: Path, record, spill_parent: Path, *, driver: str = "uring", os_io: OsIO = REAL_OS
) -> Iterator:
    os_io = FaultyOS() if driver == "plain" and os_io is REAL_OS else os_io
    stored = stored_array(root, record, settings=ReadSettings(**DRIVERS[driver]), os_io=os_io)
    with SpillFolder(spill_parent, budget_bytes=10**9) as spill:
        store = RegionStore(
            stored,
            spill,
            buffers=SharedBuffers(sweep_bytes=6 * 2**20, lane_bytes=2**20, name="the reader"),
        )
        try:
            yield store, spill
        finally:
            store.close()
        assert spill.used_bytes == 0


def wanted_of(
    wanted: list[IdArray], record, gap_bytes: int = 8192, *, columns: int = 1000, **others: Any
) -> WantedPositions:
    itemsize = np.dtype(record.dtype).itemsize
    return WantedPositions(
        portions=others.pop("portions", None) or Listed(wanted),
        counts=np.array([len(positions) for positions in wanted], np.int64),
        pages=others.pop("pages", pages_of(wanted, record.num_pages, itemsize)),
        num_pages=record.num_pages,
        gap_bytes=gap_bytes,
        portion_bytes=columns * 8 * len(wanted),
        **others,
    )


def bring(store: RegionStore, wanted: WantedPositions, itemsize: int, groups: Any = ()):
    layout = plan_regions(wanted.counts, itemsize, groups)
    return store.write(wanted, layout, label="edge pass 3", member="frontier", cancellation=NEVER)


def draw(length: int, seed: int = 0) -> list[IdArray]:
    """Owners of every kind: none, one value, a list longer than many extents, every value, a few, the last one."""
    rng = np.random.default_rng(seed)
    few = [np.flatnonzero(rng.random(length) < share) for share in (0.001, 0.01, 0.3)]
    return [
        np.arange(0),
        np.array([length - 1]),
        np.arange(length // 5, length * 4 // 5),
        np.arange(length),
        *few,
        np.array([0]),
    ]


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_every_owner_gets_its_values(
    tmp_path: Path, dtype: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = 70_001  # the last page is not full, nor the last piece
    values = np.random.default_rng(1).integers(0, 2**31, length).astype(dtype)
    record = write_array(tmp_path / "d", values)
    wanted = draw(length)
    itemsize = values.dtype.itemsize
    with opened(tmp_path / "d", record, tmp_path, driver=driver) as (store, spill):
        seen = set()
        for extent, width, gap in [(4096, 3, 0), (2**20, 10**6, 8192), (2**17, 257, WHOLE_FILE)]:
            monkeypatch.setattr(sweep_module, "EXTENT_BYTES", extent)
            asked = wanted_of(wanted if width > 3 else [p[:300] for p in wanted], record, gap, columns=width)
            regions = bring(store, asked, itemsize, groups=[2, 2, 2, 2, 1, 1, 0, 0])
            for owner, positions in enumerate(asked.portions.wanted):
                found = regions.read_array(owner, len(positions), values.dtype)
                np.testing.assert_array_equal(found, values[positions])
                assert found.flags.writeable == (len(found) == 0)
                regions.release(owner)
            seen.add(regions.cost.read.requests)
            assert regions.cost.read.rows == asked.counts.sum()
            assert spill.used_bytes == 0
        assert len(seen) == 3
        assert regions.cost.read.bytes_read == record.num_pages * 4096


def test_an_array_without_a_value_and_nobody_who_wants_one(tmp_path: Path) -> None:
    for length in (0, 1):
        record = write_array(tmp_path / str(length), np.arange(length, dtype=np.int32) + 7)
        with opened(tmp_path / str(length), record, tmp_path) as (store, _):
            for wanted in ([], [np.arange(length)], [np.arange(0), np.arange(length)]):
                for gap in (0, WHOLE_FILE):
                    regions = bring(store, wanted_of(wanted, record, gap), 4)
                    found = [
                        regions.read_array(o, len(p), np.dtype(np.int32)).tolist()
                        for o, p in enumerate(wanted)
                    ]
                    assert found == [[7] * len(positions) for positions in wanted]
                    regions.close()


@pytest.mark.parametrize("driver", DRIVERS)
def test_positions_that_were_not_announced_are_an_error_and_no_wild_read(tmp_path: Path, driver: str) -> None:
    record = write_array(tmp_path / "d", np.arange(20_000, dtype=np.int32))
    right = [np.arange(5), np.arange(0, 20_000, 7)]
    with opened(tmp_path / "d", record, tmp_path, driver=driver) as (store, spill):
        astray = wanted_of(right, record, 0, pages=pages_of([right[1][1000:]], record.num_pages, 4))
        with pytest.raises(
            PlanError, match="edge pass 3, frontier 0 wants row 0 of page 0, which was not marked"
        ):
            bring(store, astray, 4)
        unsorted = wanted_of([np.array([9000, 3])], record)
        with pytest.raises(PlanError, match="frontier 0 wants row 3 of page 0"):
            bring(store, unsorted, 4)
        for wrong in ([right[0], right[1][1:]], [right[0], np.arange(0, 20_000, 6)]):
            portions = Listed(wrong)
            announced = wanted_of(right, record, WHOLE_FILE, portions=portions, columns=3000)
            with pytest.raises(PlanError, match=r"owner 1 of a sweep .* announced: -?\d+ of them"):
                bring(store, announced, 4)
            assert portions.num_fills == 1  # before one of too many is written to the region of another
        for gap_bytes in (0, WHOLE_FILE):
            beyond = wanted_of(
                [np.array([20_480])], record, gap_bytes, pages=pages_of([], record.num_pages, 4)
            )
            with pytest.raises(PlanError, match="owner 0 of a sweep"):
                bring(store, beyond, 4)
        with pytest.raises(PlanError, match=r"owner 0 of a sweep .* announced: 5 of them are missing"):
            bring(store, wanted_of(right[:1], record, portions=Promising(right[:1])), 4)
        assert spill.used_bytes == 0


@pytest.mark.parametrize("driver", DRIVERS)
def test_positions_beyond_what_32_bits_count(tmp_path: Path, driver: str) -> None:
    """A file with a hole of 8 GB: read, verified and found at both ends, its damaged page named."""
    length = 2**31 + 5000
    record = write_array(tmp_path / "d", np.zeros(1, np.int32))
    stored = stored_array(
        tmp_path / "d",
        record,
        settings=ReadSettings(**DRIVERS[driver]),
        os_io=FaultyOS() if driver == "plain" else REAL_OS,
    )
    last_page = (length - 1) // 1024
    checksums = np.zeros(last_page + 1, np.uint64)
    places = np.array([3, 2**31 - 1, 2**31, 2**31 + 3000, length - 1])
    content = {int(page): np.zeros(1024, np.int32) for page in places // 1024}
    for position in places.tolist():
        content[position // 1024][position % 1024] = position % 10007
    with (tmp_path / "d" / record.file).open("r+b") as file:
        file.truncate(DATA_OFFSET + 4096 * (last_page + 1))
        for page, values in content.items():
            checksum_pages(values.view(np.uint8), page, checksums[page : page + 1])
            file.seek(DATA_OFFSET + 4096 * page)
            file.write(values.tobytes())
    stored = replace(stored, num_rows=length, checksums=checksums)
    wanted = [places, places[-1:], places[:1]]
    pages = empty_bits(last_page + 1)
    for page in content:
        pages[page >> 6] |= np.uint64(1 << (page & 63))
    asked = WantedPositions(
        portions=Listed(wanted),
        counts=np.array([5, 1, 1]),
        pages=pages,
        num_pages=last_page + 1,
        gap_bytes=8192,
        portion_bytes=3 * 2 * 8,
    )
    with SpillFolder(tmp_path, budget_bytes=10**9) as spill:
        store = RegionStore(
            stored,
            spill,
            buffers=SharedBuffers(sweep_bytes=6 * 2**20, lane_bytes=2**20, name="the reader"),
        )
        try:
            regions = bring(store, asked, 4)
            for owner, positions in enumerate(wanted):
                found = regions.read_array(owner, len(positions), np.dtype(np.int32))
                assert found.tolist() == (positions % 10007).tolist()
            checksums[2**31 // 1024] ^= np.uint64(1)
            with pytest.raises(
                ChecksumError, match=rf"page 2097152 at byte \d+, with rows {2**31} to {2**31 + 1023}"
            ):
                bring(store, replace(asked, portions=Listed(wanted)), 4)
        finally:
            store.close()


def test_a_sweep_of_portions_can_be_cancelled_at_any_look(tmp_path: Path) -> None:
    record = write_array(tmp_path / "d", np.arange(9000, dtype=np.int32))
    with opened(tmp_path / "d", record, tmp_path) as (store, spill):
        wanted = wanted_of([np.arange(0, 9000, 3)], record, columns=300)
        looks = iter([False] * 5)
        with pytest.raises(ChannelClosedError, match=r"a sweep over .*indices.npy was cancelled"):
            store.write(
                wanted,
                plan_regions(wanted.counts, 4),
                label="edge pass 3",
                member="frontier",
                cancellation=Cancellation(lambda: next(looks, True)),
            )
        assert spill.used_bytes == 0
