"""What happens to the bytes of one finished read: verify its pages, copy its rows out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from numba import njit

from gloader.ssd_store.format.checksum import page_checksum_at
from gloader.ssd_store.read.extents import ALIGNMENT
from gloader.ssd_store.read.row_copy import Target, copy_extent

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gloader.types import IdArray


class Delivery(NamedTuple):
    """One call of ``read_into`` as a kernel sees it: the reads, the staging slots and the target.

    ``staged``, ``staged_halves`` and ``staged_words`` are views of the same staging memory.
    """

    offset: IdArray  # (X,) the fields of `Extents`
    length: IdArray
    row_begin: IdArray
    row_end: IdArray
    data_offset: int  # byte of the file where page 0 and row 0 start
    checksums: NDArray[np.uint64]  # (P,) one per page; empty: do not verify
    staged: NDArray[np.uint8]
    staged_halves: NDArray[np.uint16]
    staged_words: NDArray[np.uint64]
    slot_bytes: int  # distance of two slots of the staging memory
    target: Target


@njit(cache=True, nogil=True)
def deliver(work: Delivery, e: int, base: int) -> int:
    """Verify and copy extent ``e``, whose bytes start at ``work.staged[base]``; see `deliver_extent`."""
    offset, length, row_begin, row_end, data_offset, checksums, staged, halves, words, _, target = work
    rows, position, out_bytes, out_floats, scale, mode, row_bytes, dim = target
    return deliver_extent(
        e, base, offset, length, row_begin, row_end, data_offset, checksums, staged, halves, words,
        rows, position, out_bytes, out_floats, scale, mode, row_bytes, dim,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def deliver_extent(
    e: int,
    base: int,
    offset: IdArray,
    length: IdArray,
    row_begin: IdArray,
    row_end: IdArray,
    data_offset: int,
    checksums: NDArray[np.uint64],
    staged: NDArray[np.uint8],
    halves: NDArray[np.uint16],
    words: NDArray[np.uint64],
    rows: IdArray,
    position: IdArray,
    out_bytes: NDArray[np.uint8],
    out_floats: NDArray[np.float32],
    scale: NDArray[np.float32],
    mode: int,
    row_bytes: int,
    dim: int,
) -> int:
    """Verify and copy extent ``e``, whose bytes start at ``staged[base]``.

    The arguments are the fields of `Delivery` and `Target`, spread out by loops that call this for each
    read: taking an array out of a tuple counts references, for which threads would fight. Pages that no
    wanted row touches were read for speed only and are not verified.

    Returns
    -------
    int
        -1, or the first page whose checksum differs; no row of the extent was copied then.
    """
    begin, end = row_begin[e], row_end[e]
    start = offset[e] - data_offset  # from here on, bytes of the data region
    stop = start + length[e]
    shift = base - start
    page = first_bad_page(rows, row_bytes, begin, end, start, stop, shift, words, checksums)
    if page < 0:
        copy_extent(
            rows, position, out_bytes, out_floats, scale, mode, row_bytes, dim,
            begin, end, start, stop, shift, staged, halves,
        )  # fmt: skip
    return page


@njit(cache=True, nogil=True)
def first_bad_page(
    rows: IdArray,
    row_bytes: int,
    begin: int,
    end: int,
    start: int,
    stop: int,
    shift: int,
    words: NDArray[np.uint64],
    checksums: NDArray[np.uint64],
) -> int:
    """Return the first page in bytes ``start`` to ``stop`` under rows ``[begin:end]`` that differs, or -1."""
    if checksums.shape[0] == 0:
        return -1
    page = start // ALIGNMENT
    for i in range(begin, end):
        first = rows[i] * row_bytes
        page = max(page, first // ALIGNMENT)
        past = (min(first + row_bytes, stop) - 1) // ALIGNMENT + 1
        while page < past:
            if page_checksum_at(words, (shift + page * ALIGNMENT) // 8, page) != checksums[page]:
                return page
            page += 1
    return -1
