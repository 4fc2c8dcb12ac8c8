"""The three ways to read the wanted pages of a file, and which is the fastest. Pure.

The touched pages alone ("direct"), with holes between them read through ("merged"), or all of the file ("full").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np
from numba import njit

from gloader.ssd_store.read.extents import ALIGNMENT
from gloader.ssd_store.sweep.kernels import WHOLE_FILE, next_extent
from gloader.ssd_store.sweep.sweep import EXTENT_BYTES
from gloader.ssd_store.sweep.wanted_rows import count_bits

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.ssd_store.cost.strategy import IoRates
    from gloader.types import IdArray

PassWay: TypeAlias = Literal["direct", "merged", "full"]
# The first of those that take the same time: where every page is wanted all three read the same, where no two are near
# one another two of them.
_WAYS: Final[tuple[PassWay, ...]] = ("full", "direct", "merged")


@dataclass(frozen=True, slots=True, kw_only=True)
class WayReads:
    """What one way of reading makes of the wanted pages."""

    requests: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PassPlan:
    """How a pass reads, and what it is predicted to take."""

    way: PassWay
    gap_bytes: int  # for `WantedPositions`
    seconds: float  # of reading and of writing what was read
    pages_wanted: int
    ways: dict[PassWay, WayReads]


def plan_pass(
    pages: NDArray[np.uint64],
    num_pages: int,
    rates: IoRates,
    *,
    gap_bytes: int,
    written_bytes: int,
    forced: PassWay | None = None,
) -> PassPlan:
    """Return the fastest way to read ``pages``. Pure.

    Parameters
    ----------
    pages : a bit for each page of the file
    num_pages : P
    rates : of the device of the file, and of that of the spill folder
    gap_bytes : longest hole that "merged" reads through
    written_bytes : that the pass writes, whichever way it reads
    forced : a way to take whatever it costs
    """
    times, gaps = rates.times, {"direct": 0, "merged": gap_bytes, "full": WHOLE_FILE}
    ways: dict[PassWay, WayReads] = {}
    for name in _WAYS:
        by_size = np.zeros(EXTENT_BYTES // ALIGNMENT + 1, np.int64)
        count_extents(pages, num_pages, gaps[name], EXTENT_BYTES, by_size)
        num_bytes = int(by_size @ np.arange(by_size.shape[0])) * ALIGNMENT
        seconds = sum(
            count * times.seconds(size * ALIGNMENT) for size, count in enumerate(by_size.tolist()) if count
        )
        # Extents that follow one another without a hole run at the sequential rate, whatever their size.
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
    """Count the extents of a sweep over ``pages`` by their number of pages, without reading one.

    Parameters
    ----------
    pages : a bit for each page that is wanted
    num_pages : P
    gap_bytes, max_bytes : as of `next_extent`
    by_size : (>= longest + 1,) counted up
    """
    page = np.int64(0)
    while True:
        start, stop = next_extent(pages, page, num_pages, gap_bytes, max_bytes)
        if start == stop:
            return
        by_size[(stop - start) // ALIGNMENT] += 1
        page = stop // ALIGNMENT
