"""A lane reads several files, reports a bad page, and ends once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader.core.dtypes import RowFormat
from gloader.core.thread_times import own_account
from gloader.errors import StoreError
from gloader.ssd_store.format.checksum import checksum_pages
from gloader.ssd_store.read.device_file import DeviceFile
from gloader.ssd_store.read.extents import ALIGNMENT, plan_extents
from gloader.ssd_store.read.lane import ReadLane, slot_distance
from gloader.ssd_store.read.row_kernels import make_target
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from pathlib import Path

DIM = 512  # a row of float64 a page
NO_POSITIONS = np.empty(0, np.int64)


def write(path: Path, rows: np.ndarray) -> np.ndarray:
    rows.tofile(path)
    sums = np.empty(len(rows), np.uint64)
    checksum_pages(rows.reshape(-1).view(np.uint8), 0, sums)
    return sums


def read(lane: ReadLane, path: Path, ids: np.ndarray, sums: np.ndarray) -> tuple[np.ndarray, int, int]:
    out = np.zeros((len(ids), DIM))
    extents = plan_extents(
        ids, row_bytes=8 * DIM, data_offset=0, max_gap_bytes=0, max_extent_bytes=2 * ALIGNMENT
    )
    target = make_target(ids, NO_POSITIONS, out, RowFormat(dtype=out.dtype, dim=out.shape[1]))
    file = DeviceFile(path)
    try:
        return out, *lane.read(file, extents, target, data_offset=0, checksums=sums)
    finally:
        file.close()


@pytest.fixture(params=["auto", "threads", "plain"])
def lane(request: pytest.FixtureRequest):
    settings = {"io": "auto", "os_io": FaultyOS()} if request.param == "plain" else {"io": request.param}
    lane = ReadLane(2**20, is_direct=True, when_closed="its owner closed it", **settings)
    yield lane
    lane.close()


def test_the_processor_time_of_reading_threads_counts_for_who_reads(lane: ReadLane, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((100, DIM))
    sums = write(tmp_path / "rows", rows)
    before = own_account().used_ns
    assert read(lane, tmp_path / "rows", np.arange(0, 100, 2), sums)[1] == 50
    assert (own_account().used_ns > before) == (lane.backend == "threads")


def test_one_lane_reads_several_files(lane: ReadLane, tmp_path: Path) -> None:
    ids = np.array([0, 3, 4, 9])
    for number in range(3):
        rows = np.random.default_rng(number).random((10, DIM))
        sums = write(tmp_path / str(number), rows)
        out, requests, page = read(lane, tmp_path / str(number), ids, sums)
        assert (requests, page) == (3, -1)  # rows 3 and 4 share a read
        assert np.array_equal(out, rows[ids])


def test_a_bad_page_is_named_and_the_lane_goes_on(lane: ReadLane, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((10, DIM))
    sums = write(tmp_path / "f", rows)
    wrong = sums.copy()
    wrong[4] += np.uint64(1)
    assert read(lane, tmp_path / "f", np.array([3, 5]), wrong)[2] == -1  # nobody wants page 4
    assert read(lane, tmp_path / "f", np.array([3, 4]), wrong)[2] == 4
    assert np.array_equal(read(lane, tmp_path / "f", np.array([3, 4]), sums)[0], rows[3:5])


def test_a_closed_lane_says_whose_it_was_and_holds_no_memory(lane: ReadLane, tmp_path: Path) -> None:
    sums = write(tmp_path / "f", np.ones((2, DIM)))
    assert lane.bounce_bytes == 2**20
    lane.close()
    lane.close()
    assert lane.bounce_bytes == 0
    with pytest.raises(StoreError, match="f: its owner closed it"):
        read(lane, tmp_path / "f", np.array([0]), sums)


def test_slots_are_no_power_of_two_apart_while_there_is_memory() -> None:
    ids = np.arange(16)
    extents = plan_extents(
        ids, row_bytes=ALIGNMENT, data_offset=0, max_gap_bytes=0, max_extent_bytes=16 * ALIGNMENT
    )
    assert slot_distance(extents, 2**20) == 17 * ALIGNMENT
    assert slot_distance(extents, 16 * ALIGNMENT) == 16 * ALIGNMENT
