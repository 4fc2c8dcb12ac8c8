"""Three ways to read wanted pages: what each takes, which is the fastest; the files of regions; buffers of a pass."""

from __future__ import annotations

import numpy as np
import pytest

from gloader.ssd_store.cost.io_rates import IoRates
from gloader.ssd_store.spill.regions import MAX_FILES, plan_regions
from gloader.ssd_store.sweep.passes import pass_memory_bytes, plan_pass, plan_pass_buffers
from gloader.ssd_store.sweep.sweeper import EXTENT_BYTES, plan_buffers

NUM_PAGES = 5000
LONGEST = EXTENT_BYTES // 4096


def rates(reads: float = 1e5, read: float = 1e9, *, is_one_device: bool = True) -> IoRates:
    return IoRates(
        random_reads_per_s=reads,
        read_bytes_per_s=read,
        write_bytes_per_s=5e8,
        pack_read_bytes_per_s=1e9,
        is_one_device=is_one_device,
    )


def bits(wanted: np.ndarray) -> np.ndarray:
    flags = np.zeros(-(-NUM_PAGES // 64) * 64, np.uint8)
    flags[wanted] = 1
    return np.packbits(flags, bitorder="little").view(np.uint64)


def extents(wanted: list[int], gap_pages: int) -> list[int]:
    """Return the pages of each extent, as the merge rule says."""
    found: list[list[int]] = []
    for page in wanted:
        if found and page - found[-1][1] - 1 <= gap_pages and page - found[-1][0] < LONGEST:
            found[-1][1] = page
        else:
            found.append([page, page])
    return [last - first + 1 for first, last in found]


@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.4, 1.0])
def test_each_way_is_counted_as_a_sweep_would_read_it(share: float) -> None:
    wanted = np.flatnonzero(np.random.default_rng(0).random(NUM_PAGES) < share)
    plan = plan_pass(bits(wanted), NUM_PAGES, rates(), gap_bytes=8192, written_bytes=0)
    for way, gap_pages in (("direct", 0), ("merged", 2)):
        sizes = extents(wanted.tolist(), gap_pages)
        reads = plan.ways[way]
        assert (reads.requests, reads.num_bytes) == (len(sizes), 4096 * sum(sizes))
        times = rates().times
        assert reads.seconds == pytest.approx(sum(times.seconds(4096 * size) for size in sizes))
    full = plan.ways["full"]
    assert (full.requests, full.num_bytes) == (-(-NUM_PAGES // LONGEST), 4096 * NUM_PAGES)
    assert plan.pages_wanted == len(wanted)
    assert plan.seconds == min(reads.seconds for reads in plan.ways.values())


def test_the_fastest_way_depends_on_the_disk_and_may_be_forced() -> None:
    random = np.random.default_rng(0)
    few, some = (np.flatnonzero(random.random(NUM_PAGES) < share) for share in (0.001, 0.4))
    ways = [
        plan_pass(bits(few), NUM_PAGES, rates(), gap_bytes=8192, written_bytes=0).way,
        plan_pass(bits(few), NUM_PAGES, rates(reads=10), gap_bytes=8192, written_bytes=0).way,
        plan_pass(bits(some), NUM_PAGES, rates(reads=1e9, read=4e12), gap_bytes=8192, written_bytes=0).way,
    ]
    assert ways == ["direct", "full", "direct"]
    clustered = np.concatenate([np.arange(start, start + 12, 3) for start in range(0, NUM_PAGES, 500)])
    plan = plan_pass(bits(clustered), NUM_PAGES, rates(reads=2e4), gap_bytes=8192, written_bytes=10**8)
    assert (plan.way, plan.gap_bytes) == ("merged", 8192)
    assert plan.seconds == pytest.approx(plan.ways["merged"].seconds + 0.2)
    apart = plan_pass(
        bits(clustered), NUM_PAGES, rates(is_one_device=False), gap_bytes=8192, written_bytes=10**8
    )
    assert apart.seconds == pytest.approx(0.2)
    forced = plan_pass(bits(few), NUM_PAGES, rates(), gap_bytes=8192, written_bytes=0, forced="full")
    assert forced.way == "full"


def test_regions_of_different_hops_share_no_file() -> None:
    groups = [2] * 100 + [1] * 50 + [0] * 5 + [2] * 1
    counts = np.random.default_rng(0).integers(0, 5000, len(groups))
    layout = plan_regions(counts, 4, groups)
    runs = [slice(0, 100), slice(100, 150), slice(150, 155), slice(155, 156)]
    files = [set(layout.file[run].tolist()) for run in runs]
    assert sum(map(len, files)) == len(set().union(*files)) == len(layout.file_bytes)
    assert max(map(len, files)) <= MAX_FILES
    assert files[3] == {int(layout.file[-1])}
    pages = -(-counts * 4 // 4096)
    for number, size in enumerate(layout.file_bytes.tolist()):
        mine = layout.file == number
        assert size == 4096 * pages[mine].sum()
        assert np.array_equal(layout.start[mine], 4096 * (np.cumsum(pages[mine]) - pages[mine]))


@pytest.mark.parametrize("num_owners", [1, 6, 768, 1536])
def test_recommended_memory_of_a_pass_gives_pieces_of_16_kib_and_half_of_it_is_enough(
    num_owners: int,
) -> None:
    memory = pass_memory_bytes(num_owners)
    buffers = plan_pass_buffers(memory)
    assert buffers.sweep_bytes + buffers.lane_bytes + buffers.portion_bytes <= memory
    assert plan_buffers(num_owners, buffers.sweep_bytes).piece_bytes >= 16384
    assert plan_buffers(num_owners, plan_pass_buffers(memory // 2).sweep_bytes).piece_bytes >= 4096
