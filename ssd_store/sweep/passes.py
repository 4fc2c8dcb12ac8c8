"""Plans for a pass over a file: the fastest of three ways to read the needed pages, and the buffers. Pure.

A pass is one sweep over a long array, such as the edges, that brings several owners the elements that each needs. An
owner is a frontier of sampled nodes. A way reads only the needed pages ("direct"), also short holes between them
("merged"), or the entire file ("full"). `plan_pass` chooses the way for samplers whose edges stay on the SSD, and
`plan_pass_buffers` divides their memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from gloader.core.kernels import njit
from gloader.errors import BudgetError
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.read.extents import ALIGNMENT
from gloader.ssd_store.sweep.sweep_kernels import WHOLE_FILE, next_extent
from gloader.ssd_store.sweep.sweeper import EXTENT_BYTES, MAX_RING_BYTES, num_pieces
from gloader.ssd_store.sweep.wanted_rows import count_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.types import IdArray


PassWay: TypeAlias = Literal["direct", "merged", "full"]
# Among equally fast ways the first is taken. All three read the same if every page is needed, and "direct" and "merged"
# read the same if no two needed pages are near each other.
_WAYS: Final[tuple[PassWay, ...]] = ("full", "direct", "merged")


@dataclass(frozen=True, slots=True, kw_only=True)
class WayReads:
    """The reads of one way."""

    requests: int
    num_bytes: int  # with the holes
    seconds: float  # predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """The way in which a pass reads, with the predicted time."""

    way: PassWay
    gap_bytes: int  # longest hole to bridge, for `WantedPositions`
    seconds: float  # predicted time for reading, and for writing the read rows
    pages_wanted: int  # number of needed pages
    ways: dict[PassWay, WayReads]  # the reads of all three ways


def plan_pass(
    pages: NDArray[np.uint64],
    num_pages: int,
    rates: IoRates,
    *,
    gap_bytes: int,
    written_bytes: int,
    forced: PassWay | None = None,
) -> PassPlan:
    """Return the fastest plan to read ``pages``. Pure.

    Parameters
    ----------
    pages : one bit for each page in the file
    num_pages : P
    rates : rates for the devices that hold the file and the spill folder
    gap_bytes : longest hole that "merged" bridges
    written_bytes : bytes that the pass writes in every way
    forced : the way to take, whatever its time; None takes the fastest
    """
    times, gaps = rates.times, {"direct": 0, "merged": gap_bytes, "full": WHOLE_FILE}
    ways: dict[PassWay, WayReads] = {}
    for name in _WAYS:
        # by_size[k] is the number of extents with k pages.
        by_size = np.zeros(EXTENT_BYTES // ALIGNMENT + 1, np.int64)
        count_extents(pages, num_pages, gaps[name], EXTENT_BYTES, by_size)
        num_bytes = int(by_size @ np.arange(by_size.shape[0])) * ALIGNMENT
        seconds = sum(
            count * times.seconds(size * ALIGNMENT) for size, count in enumerate(by_size.tolist()) if count
        )
        # Consecutive extents without holes run at the sequential rate, whatever their size.
        ways[name] = WayReads(
            requests=int(by_size.sum()),
            num_bytes=num_bytes,
            seconds=num_bytes / rates.read_bytes_per_s if name == "full" else seconds,
        )
    way = min(_WAYS, key=lambda name: ways[name].seconds) if forced is None else forced
    write_s = written_bytes / rates.write_bytes_per_s
    read_s = ways[way].seconds
    return PassPlan(
        way=way,
        gap_bytes=gaps[way],
        seconds=read_s + write_s if rates.is_one_device else max(read_s, write_s),
        pages_wanted=min(int(count_bits(pages)), num_pages),
        ways=ways,
    )


@njit(cache=True, nogil=True)
def count_extents(
    pages: NDArray[np.uint64], num_pages: int, gap_bytes: int, max_bytes: int, by_size: IdArray
) -> None:
    """Count the extents of a sweep over ``pages`` by their number of pages, without reading.

    Parameters
    ----------
    pages : one bit per page, set for needed pages
    num_pages : P
    gap_bytes, max_bytes : as in `next_extent`
    by_size : (>= longest + 1,) counts, incremented
    """
    page = np.int64(0)
    while True:
        start, stop = next_extent(pages, page, num_pages, gap_bytes, max_bytes)
        if start == stop:
            return
        by_size[(stop - start) // ALIGNMENT] += 1
        page = stop // ALIGNMENT


MIN_PASS_BYTES: Final = 4 * 2**20  # minimum bytes for all buffers
# Maximum bytes for reading back: 64 chunks of 128 KiB. The extra page per chunk makes the distance between two chunks
# no power of two, so that they do not compete for the same cache lines.
_LANE_BYTES: Final = 8 * 2**20 + 64 * PAGE_BYTES
# Maximum bytes for all owners' portions of positions. A portion is the part of an owner's positions that is in memory;
# all portions are filled in a few milliseconds.
_PORTION_BYTES: Final = 6 * 2**20
_PIECE_BYTES: Final = 4 * PAGE_BYTES  # bytes of one write for an owner


@dataclass(frozen=True, slots=True, kw_only=True)
class PassBuffers:
    """The sizes of a pass's buffers."""

    sweep_bytes: int  # for extents that were read, and pieces to write
    lane_bytes: int  # for reading the written pieces back
    portion_bytes: int  # for the owners' positions


def plan_pass_buffers(memory_bytes: int) -> PassBuffers:
    """Divide ``memory_bytes`` among a pass's buffers. Pure.

    Raises
    ------
    BudgetError
        The memory is too small.
    """
    if memory_bytes < MIN_PASS_BYTES:
        raise BudgetError(
            f"passes over the edges need {MIN_PASS_BYTES} bytes of buffers and {memory_bytes} are allowed; raise "
            "memory_budget"
        )
    lane = min(_LANE_BYTES, memory_bytes // 4 // PAGE_BYTES * PAGE_BYTES)
    portions = min(_PORTION_BYTES, memory_bytes // 4 // PAGE_BYTES * PAGE_BYTES)
    sweep = (memory_bytes - lane - portions) // PAGE_BYTES * PAGE_BYTES
    return PassBuffers(sweep_bytes=sweep, lane_bytes=lane, portion_bytes=portions)


def pass_memory_bytes(num_owners: int) -> int:
    """Return the bytes of buffers with which a pass for ``num_owners`` runs at full speed. Pure."""
    return _LANE_BYTES + _PORTION_BYTES + MAX_RING_BYTES + num_pieces(num_owners) * _PIECE_BYTES
