"""Kernels for the bytes of one finished read: verify its pages, copy its rows out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from numba import njit

from gloader.ssd_store.format.checksum import page_checksum_at
from gloader.ssd_store.read.copy_kernels import Target, copy_extent
from gloader.ssd_store.read.extents import ALIGNMENT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gloader.types import IdArray


class ReadJob(NamedTuple):
    """One call of ``read_into`` as a kernel sees it: the reads, the bounce slots and the target.

    ``bounce``, ``bounce_halves`` and ``bounce_words`` are views of the same bounce memory. A named tuple and not a
    dataclass, because numba takes only the former.
    """

    offset: IdArray  # (X,) the fields of `Extents`
    length: IdArray
    row_begin: IdArray
    row_end: IdArray
    data_offset: int  # byte of the file where page 0 and row 0 start
    checksums: NDArray[np.uint64]  # (P,) one per page; empty: do not verify
    format_version: int  # of the format that they were made by
    bounce: NDArray[np.uint8]
    bounce_halves: NDArray[np.uint16]
    bounce_words: NDArray[np.uint64]
    slot_bytes: int  # distance of two slots of the bounce memory
    target: Target


@njit(cache=True, nogil=True)
def verify_and_copy(job: ReadJob, e: int, base: int) -> int:
    """Verify and copy extent ``e``, whose bytes start at ``job.bounce[base]``; see `verify_and_copy_fields`."""
    (
        offset,
        length,
        row_begin,
        row_end,
        data_offset,
        checksums,
        format_version,
        bounce,
        halves,
        words,
        _,
        target,
    ) = job
    rows, position, out_bytes, out_floats, scale, mode, row_bytes, dim = target
    return verify_and_copy_fields(
        e, base, offset, length, row_begin, row_end, data_offset, checksums, format_version, bounce, halves, words,
        rows, position, out_bytes, out_floats, scale, mode, row_bytes, dim,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def verify_and_copy_fields(
    e: int,
    base: int,
    offset: IdArray,
    length: IdArray,
    row_begin: IdArray,
    row_end: IdArray,
    data_offset: int,
    checksums: NDArray[np.uint64],
    format_version: int,
    bounce: NDArray[np.uint8],
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
    """Verify and copy extent ``e``, whose bytes start at ``bounce[base]``.

    The arguments are the fields of `ReadJob` and `Target`, spread out by loops that call this for each
    read: taking an array out of a tuple counts references, for which threads would fight. Pages that no
    wanted row touches were read for speed only and are not verified.

    Returns
    -------
    int
        -1, or the first page whose checksum differs; no row of the extent was copied then.
    """
    begin, end = row_begin[e], row_end[e]
    # From here on bytes count from row 0, as rows and pages do; ``shift`` leads from there into the bounce memory.
    start = offset[e] - data_offset
    stop = start + length[e]
    shift = base - start
    # Verified before a byte is copied: of a damaged extent nothing reaches the caller's array.
    page = first_bad_page(rows, row_bytes, begin, end, start, stop, shift, words, checksums, format_version)
    if page < 0:
        copy_extent(
            rows, position, out_bytes, out_floats, scale, mode, row_bytes, dim,
            begin, end, start, stop, shift, bounce, halves,
        )  # fmt: skip
    return page


@njit(cache=True, nogil=True, inline="always")
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
    format_version: int,
) -> int:
    """Return the first page in bytes ``start`` to ``stop`` under rows ``[begin:end]`` that differs, or -1."""
    if checksums.shape[0] == 0:
        return -1
    page = start // ALIGNMENT
    for i in range(begin, end):
        first = rows[i] * row_bytes
        # Rows ascend: a page that several of them touch is verified once.
        page = max(page, first // ALIGNMENT)
        past = (min(first + row_bytes, stop) - 1) // ALIGNMENT + 1
        while page < past:
            if (
                page_checksum_at(words, (shift + page * ALIGNMENT) // 8, page, format_version)
                != checksums[page]
            ):
                return page
            page += 1
    return -1
