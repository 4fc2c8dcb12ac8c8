"""Exact counts of the requests and bytes that each way of reading a superbatch's missing rows would take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from gloader.errors import ConfigError, PlanError, ShapeError
from gloader.ssd_store.read.extents import ALIGNMENT, NOWHERE, joins_read, min_extent_bytes, pages_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.types import IdArray

_REQUESTS, _BYTES = 0, 1
_ID_BYTES = 4
_WORD_BITS = 64
# The 64 powers of two leave 64 different remainders: which bit is set is found without a loop.
_POWER_HASH = np.uint64(67)
_BIT_OF = np.array([next((b for b in range(64) if (1 << b) % 67 == hash_), 0) for hash_ in range(67)])


@dataclass(frozen=True, slots=True, kw_only=True)
class MissCounts:
    """What the missing rows of a superbatch cost, by each way of reading them."""

    num_batches: int  # S
    rows: int  # the sum of the batches' misses
    unique_rows: int
    row_bytes: int  # R, as stored
    direct_requests: int  # reads of all batches, one batch at a time
    direct_bytes: int
    sweep_requests: int  # reads of one pass over the union, in file order
    sweep_bytes: int
    pack_bytes: int  # of the batches' regions on disk, alignment included

    @property
    def in_ram_bytes(self) -> int:
        """Bytes of memory that hold every missing row once, and its id."""
        return self.unique_rows * (self.row_bytes + _ID_BYTES)


def count_misses(
    misses: Sequence[IdArray],
    *,
    num_rows: int,
    row_bytes: int,
    data_offset: int,
    gap_bytes: int,
    sweep_gap_bytes: int,
    max_extent_bytes: int,
) -> MissCounts:
    """Count what `plan_extents` would plan for each batch and for their union, without planning it.

    Takes each batch once, in order, and keeps none of them: the union is a bitmap of ``num_rows`` bits.

    Parameters
    ----------
    misses : S arrays (M_b,) of int64
        Row ids of each batch, strictly ascending.
    num_rows, row_bytes, data_offset : int
        N, R and the byte of row 0, of the feature file.
    gap_bytes, sweep_gap_bytes : int
        Longest hole that is read through by a batch's reads and by the pass over the union.
    max_extent_bytes : int
        Longest read.

    Raises
    ------
    ConfigError
        A size is negative or too small.
    ShapeError
        A batch is not a one-dimensional int64 array.
    PlanError
        A batch is not ascending, or names a row that the file does not have.
    """
    _require_sizes(num_rows, row_bytes, data_offset, gap_bytes, sweep_gap_bytes, max_extent_bytes)
    # A bit a row: 12 MB for 100 million rows, however many of them are missing.
    bitmap = np.zeros(-(-num_rows // _WORD_BITS), np.uint64)
    direct, sweep = np.zeros(2, np.int64), np.zeros(2, np.int64)
    rows = pack = num_batches = 0
    for batch, missing in enumerate(misses):
        ids = _checked(missing, batch)
        bad = _count_batch(ids, num_rows, row_bytes, data_offset, gap_bytes, max_extent_bytes, bitmap, direct)
        if bad >= 0:
            raise PlanError(
                f"missing row {ids[bad]} at position {bad} of batch {batch} is out of order or of range: rows must "
                f"ascend from 0 to {num_rows - 1}; this is a bug of gloader, please report it"
            )
        rows += ids.shape[0]
        pack += -(-ids.shape[0] * row_bytes // ALIGNMENT) * ALIGNMENT
        num_batches += 1
    unique = _count_union(bitmap, row_bytes, data_offset, sweep_gap_bytes, max_extent_bytes, sweep)
    return MissCounts(
        num_batches=num_batches,
        rows=rows,
        unique_rows=int(unique),
        row_bytes=row_bytes,
        direct_requests=int(direct[_REQUESTS]),
        direct_bytes=int(direct[_BYTES]),
        sweep_requests=int(sweep[_REQUESTS]),
        sweep_bytes=int(sweep[_BYTES]),
        pack_bytes=pack,
    )


def _require_sizes(
    num_rows: int, row_bytes: int, data_offset: int, gap_bytes: int, sweep_gap_bytes: int, longest: int
) -> None:
    if num_rows < 0 or row_bytes < 1 or data_offset < 0 or gap_bytes < 0 or sweep_gap_bytes < 0:
        raise ConfigError(
            f"num_rows={num_rows}, data_offset={data_offset}, gap_bytes={gap_bytes} and "
            f"sweep_gap_bytes={sweep_gap_bytes} must be >= 0, row_bytes={row_bytes} must be >= 1"
        )
    if longest < min_extent_bytes(row_bytes):
        raise ConfigError(
            f"max_extent_bytes={longest} cannot hold one row of {row_bytes} bytes: "
            f"at least {min_extent_bytes(row_bytes)}"
        )


def _checked(missing: IdArray, batch: int) -> IdArray:
    if missing.ndim != 1 or missing.dtype != np.int64:
        raise ShapeError(
            f"the missing rows of batch {batch} must be a one-dimensional int64 array, got {missing.dtype} of "
            f"shape {missing.shape}"
        )
    # To numba a read-only or strided array is another type, to be compiled for again.
    return np.require(missing, requirements=("C", "W"))


@njit(cache=True, nogil=True)
def _count_batch(
    rows: IdArray,
    num_rows: int,
    row_bytes: int,
    data_offset: int,
    max_gap: int,
    max_length: int,
    bitmap: NDArray[np.uint64],
    totals: IdArray,
) -> int:
    """Add a batch's reads to ``totals`` and its rows to ``bitmap``; return the position of a bad row, or -1."""
    requests, num_bytes = 0, np.int64(0)
    start, stop = NOWHERE, NOWHERE
    previous = np.int64(-1)
    for i in range(rows.shape[0]):
        row = rows[i]
        # Checked before the bit is set: a kernel that writes out of bounds damages memory without a word.
        if row <= previous or row >= num_rows:
            return i
        previous = row
        bitmap[row >> 6] |= np.uint64(1) << np.uint64(row & 63)
        page, page_end = pages_of(data_offset + row * row_bytes, row_bytes)
        if joins_read(start, stop, page, page_end, max_gap, max_length):
            stop = max(stop, page_end)
            continue
        num_bytes += stop - start
        start, stop = max(page, stop), page_end
        requests += 1
    totals[_REQUESTS] += requests
    totals[_BYTES] += num_bytes + stop - start
    return -1


@njit(cache=True, nogil=True)
def _count_union(
    bitmap: NDArray[np.uint64],
    row_bytes: int,
    data_offset: int,
    max_gap: int,
    max_length: int,
    totals: IdArray,
) -> int:
    """Write the reads of the rows in ``bitmap`` to ``totals``; return how many rows there are."""
    unique, requests, num_bytes = 0, 0, np.int64(0)
    start, stop = NOWHERE, NOWHERE
    for word in range(bitmap.shape[0]):
        left = bitmap[word]
        while left != np.uint64(0):
            # Without its lowest bit, and then that bit alone.
            rest = left & (left - np.uint64(1))
            row = word * _WORD_BITS + _BIT_OF[np.int64((left ^ rest) % _POWER_HASH)]
            left = rest
            unique += 1
            page, page_end = pages_of(data_offset + row * row_bytes, row_bytes)
            if joins_read(start, stop, page, page_end, max_gap, max_length):
                stop = max(stop, page_end)
                continue
            num_bytes += stop - start
            start, stop = max(page, stop), page_end
            requests += 1
    totals[_REQUESTS] = requests
    totals[_BYTES] = num_bytes + stop - start
    return unique
