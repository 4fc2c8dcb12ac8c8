"""A pure planner from row ids to a file's aligned extents: the reads, and the rows that each read fetches.

An extent is one read of whole pages of 4 KiB. It covers one or more needed rows, and bridges short holes between them,
because reading a short hole takes less time than another request. `plan_extents` makes the plan, and a `ReadLane` then
executes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gloader.core.kernels import njit
from gloader.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from gloader.types import IdArray

ALIGNMENT = 4096  # bytes in a page: pages are verified as a unit, and every device accepts reads of 4 KiB
NOWHERE = np.int64(-(2**62))  # begin and end of the read before the first read, which no row can join


@dataclass(frozen=True, slots=True, kw_only=True)
class Extents:
    """Aligned, disjoint reads in file order, with each read's range of rows.

    A row across two extents belongs to both ranges; its bytes are copied in two parts.
    """

    offset: IdArray  # (X,) bytes from the start of the file, multiples of ``ALIGNMENT``
    length: IdArray  # (X,) bytes, multiples of ``ALIGNMENT``
    row_begin: IdArray  # (X,) first position in the sorted rows
    row_end: IdArray  # (X,) one past the last position

    def __len__(self) -> int:
        """Return the number of reads."""
        return int(self.offset.shape[0])

    @property
    def num_bytes(self) -> int:
        """Bytes in all reads."""
        return int(self.length.sum())


def min_extent_bytes(row_bytes: int) -> int:
    """Return the longest aligned read that a single row with ``row_bytes`` can need. Pure."""
    return (row_bytes + 2 * ALIGNMENT - 2) // ALIGNMENT * ALIGNMENT


def mean_extent_bytes(row_bytes: int) -> int:
    """Return the average bytes of an aligned read for one row with ``row_bytes``. Pure."""
    # Within a page, rows begin at the multiples of gcd(row_bytes, 4096), all equally often.
    return row_bytes + ALIGNMENT - math.gcd(row_bytes, ALIGNMENT)


def num_pages(rows: IdArray, *, row_bytes: int) -> int:
    """Return the number of pages with at least one byte of the ascending ``rows`` (M,). Pure."""
    first = rows * row_bytes // ALIGNMENT
    last = (rows * row_bytes + row_bytes - 1) // ALIGNMENT
    # A page that the previous row also touches was counted with the previous row.
    counted = np.concatenate([[-1], last[:-1]])
    return int((last - np.maximum(first, counted + 1) + 1).sum())


def plan_extents(
    rows: IdArray, *, row_bytes: int, data_offset: int, max_gap_bytes: int, max_extent_bytes: int
) -> Extents:
    """Merge sorted rows into the fewest aligned reads worth making. Pure.

    Two rows share a read if the hole between their pages costs less to read than a second request, see
    `ReadTimes.gap_bytes`. No page is read twice, and there are never more reads than rows.

    Parameters
    ----------
    rows : (M,) int64
        Row ids in ascending order; repeats are allowed.
    row_bytes : int
        Bytes in one row, at least 1.
    data_offset : int
        Row 0's first byte in the file.
    max_gap_bytes : int
        Longest hole between two pages that a read bridges.
    max_extent_bytes : int
        Longest read; at least ``min_extent_bytes(row_bytes)``.

    Returns
    -------
    Extents
        X <= M reads, ascending by offset.

    Raises
    ------
    ConfigError
        A limit is too small.
    ShapeError
        ``rows`` is not a one-dimensional int64 array.
    """
    if row_bytes < 1 or data_offset < 0 or max_gap_bytes < 0:
        raise ConfigError(
            f"row_bytes={row_bytes} must be >= 1, data_offset={data_offset} and "
            f"max_gap_bytes={max_gap_bytes} must be >= 0"
        )
    if max_extent_bytes < min_extent_bytes(row_bytes):
        raise ConfigError(
            f"max_extent_bytes={max_extent_bytes} cannot hold one row of {row_bytes} bytes: "
            f"at least {min_extent_bytes(row_bytes)}"
        )
    if rows.ndim != 1 or rows.dtype != np.int64:
        raise ShapeError(
            f"rows must be a one-dimensional int64 array, got {rows.dtype} of shape {rows.shape}"
        )
    # There are never more reads than rows, so a kernel fills one table, whose head is the result.
    table = np.empty((4, rows.shape[0]), np.int64)
    count = _plan(rows, row_bytes, data_offset, max_gap_bytes, max_extent_bytes, table)
    offset, length, begin, end = table[:, :count]
    return Extents(offset=offset, length=length, row_begin=begin, row_end=end)


@njit(cache=True, nogil=True)
def _plan(
    rows: IdArray, row_bytes: int, data_offset: int, max_gap: int, max_length: int, table: IdArray
) -> int:
    """Fill ``table`` (offset, length, row_begin, row_end) and return the number of extents.

    ``start`` and ``stop`` are the begin and end of the current extent. Each row's pages either join it, or complete it
    and begin the next one. Extents never overlap, so a row may lie in two.
    """
    count = 0
    start, stop = NOWHERE, NOWHERE
    for i in range(rows.shape[0]):
        page, page_end = pages_of(data_offset + rows[i] * row_bytes, row_bytes)
        if joins_read(start, stop, page, page_end, max_gap, max_length):
            stop = max(stop, page_end)
            continue
        if count > 0:
            table[1, count - 1] = stop - start
            table[3, count - 1] = i
            if page < stop:
                # The previous extent already contains this row's first page, so the row, with its repeats, belongs to
                # both extents.
                repeats_end = i
                while repeats_end < rows.shape[0] and rows[repeats_end] == rows[i]:
                    repeats_end += 1
                table[3, count - 1] = repeats_end
        start, stop = max(page, stop), page_end
        table[0, count] = start
        table[2, count] = i
        count += 1
    if count > 0:
        table[1, count - 1] = stop - start
        table[3, count - 1] = rows.shape[0]
    return count


@njit(cache=True, nogil=True)
def pages_of(first: int, row_bytes: int) -> tuple[int, int]:
    """Return the begin and end, in bytes, of the pages that hold the row at byte ``first``. Pure."""
    return first // ALIGNMENT * ALIGNMENT, (first + row_bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


@njit(cache=True, nogil=True)
def joins_read(start: int, stop: int, page: int, page_end: int, max_gap: int, max_length: int) -> bool:
    """Return True if pages join the read before them: the hole is small, and the read stays short enough. Pure.

    Planned reads, counted reads and sweeps all merge by this rule.

    Parameters
    ----------
    start, stop : begin and end of the last read, in bytes; both `NOWHERE` before the first read
    page, page_end : begin and end of the pages, in bytes; ``page`` never decreases between calls
    max_gap, max_length : longest hole that a read bridges and longest read, in bytes
    """
    return page - stop <= max_gap and page_end - start <= max_length
