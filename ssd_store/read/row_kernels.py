"""Kernels over the bytes of finished reads: verify pages, copy rows out, copy lists of elements.

A read brings an extent, an aligned range of a file, into a slot of the bounce memory. The kernels here then verify the
extent's pages (4 KiB each, with a checksum), and copy its rows to the caller's array. `Target` is the caller's array
with the rows' conversion, such as float16 to float32. `ReadJob` has one file's extents and their rows. A `ReadLane`'s
backends call `verify_and_copy_fields` for each extent that was read; rows that are in memory already are copied by
`copy_extent` alone. A kernel is a function that numba compiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gloader.core.dtypes import BRAIN, BYTES, HALF, RAW, RowFormat
from gloader.core.kernels import njit
from gloader.core.numba_ops import copy_block, prefetch
from gloader.core.value_kernels import dequantize_int8, widen_bfloat16, widen_float16
from gloader.errors import ShapeError
from gloader.ssd_store.format.checksum import page_checksum_at
from gloader.ssd_store.read.extents import ALIGNMENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray


_AHEAD = 8  # rows between a copied row and a prefetched row
_LINE_BYTES = 64  # bytes in a cache line
_FETCHED_BYTES = 8 * _LINE_BYTES  # maximum bytes of a row to prefetch; the hardware prefetches the rest


class Target(NamedTuple):
    """The target for one call's rows, as views for kernels. Owns nothing.

    Numba accepts a named tuple here, and no dataclass.
    """

    rows: IdArray  # (M,) stored rows, ascending
    position: IdArray  # (M,) each stored row's place in the output; empty means the row's own rank
    out_bytes: NDArray[np.uint8]  # the output as bytes; used by RAW
    out_floats: NDArray[np.float32]  # the output as floats; used by the other modes
    scale: NDArray[np.float32]  # (N,) each stored row's factor; used by SCALED
    mode: int  # the conversion from stored to output rows, see `gloader.core.dtypes`
    row_bytes: int  # bytes of one stored row
    dim: int  # elements in one row


def make_target(
    rows: IdArray,
    position: IdArray,
    out: NDArray[Any],
    form: RowFormat = BYTES,
) -> Target:
    """Describe the copy of stored ``rows`` into ``out``. Pure.

    Parameters
    ----------
    rows : (M,) int64
        Stored rows in ascending order.
    position : (M,) int64 or empty
        Row in ``out`` for each row id; empty when row i goes to row i.
    out : (>= M, F)
        C-contiguous, with the stored dtype or float32.
    form : RowFormat
        The stored rows' form; its ``scale`` has each row's factor.

    Raises
    ------
    ShapeError
        ``out`` is not C-contiguous, or the stored dtype cannot be converted to its dtype.
    """
    if out.ndim != 2 or not out.flags.c_contiguous or not out.flags.writeable:
        raise ShapeError(
            f"out must be a writable C-contiguous matrix, got shape {out.shape}, strides {out.strides}"
        )
    # Kernels see the output as bytes or floats, never as its own dtype, so that one compiled kernel serves all dtypes.
    flat = out.reshape(-1)
    mode = form.way_to(out.dtype)
    return Target(
        mode=mode,
        row_bytes=out.shape[1] * form.dtype.itemsize,
        dim=out.shape[1],
        rows=rows,
        position=position,
        out_bytes=flat.view(np.uint8),
        out_floats=flat if mode != RAW else np.empty(0, np.float32),
        scale=np.empty(0, np.float32) if form.scale is None else form.scale,
    )


@njit(cache=True, nogil=True)
def copy_extent(
    rows: IdArray,
    position: IdArray,
    out_bytes: NDArray[np.uint8],
    out_floats: NDArray[np.float32],
    scale: NDArray[np.float32],
    mode: int,
    row_bytes: int,
    dim: int,
    begin: int,
    end: int,
    start: int,
    stop: int,
    shift: int,
    source: NDArray[np.uint8],
    words: NDArray[np.uint16],
) -> None:
    """Copy the parts of rows ``rows[begin:end]`` that lie in the matrix's bytes ``start`` to ``stop``.

    The arguments up to ``dim`` are the fields of `Target`. Byte b of the matrix is ``source[b + shift]``; ``words`` is
    ``source`` as 16-bit words. The arguments come from a plan and are not checked. They are not a tuple, because taking
    an array out of a tuple counts references, and threads would compete for the counters.
    """
    fetched = min(row_bytes, _FETCHED_BYTES)
    for i in range(begin, end):
        # A later row's first cache lines are prefetched, because rows are far apart in memory.
        if i + _AHEAD < end:
            ahead = rows[i + _AHEAD] * row_bytes + shift
            for byte in range(0, fetched, _LINE_BYTES):
                prefetch(source, ahead + byte)
        first = rows[i] * row_bytes
        # A row across two reads is copied in two parts: its first ``skip`` bytes came with the previous read.
        begin_byte = max(first, start)
        count = min(first + row_bytes, stop) - begin_byte
        skip = begin_byte - first
        at = begin_byte + shift  # in ``source``
        out_row = position[i] if position.shape[0] > 0 else np.int64(i)
        if mode == RAW:
            copy_block(out_bytes, out_row * row_bytes + skip, source, at, count)
        elif mode == HALF:
            widen_float16(out_floats, out_row * dim + skip // 2, words, at // 2, count // 2)
        elif mode == BRAIN:
            widen_bfloat16(out_floats, out_row * dim + skip // 2, words, at // 2, count // 2)
        else:
            dequantize_int8(out_floats, out_row * dim + skip, source, at, count, scale[rows[i]])


class ReadJob(NamedTuple):
    """One call of ``read_into`` for a kernel: the reads, the bounce slots and the target.

    ``bounce``, ``bounce_halves`` and ``bounce_words`` are views of the same bounce memory. Numba accepts a named tuple
    here, and no dataclass.
    """

    offset: IdArray  # (X,) the fields of `Extents`
    length: IdArray
    row_begin: IdArray
    row_end: IdArray
    data_offset: int  # file offset of page 0 and row 0
    checksums: NDArray[np.uint64]  # (P,) one per page; empty without verification
    format_version: int  # the checksums' format version
    bounce: NDArray[np.uint8]
    bounce_halves: NDArray[np.uint16]
    bounce_words: NDArray[np.uint64]
    slot_bytes: int  # distance between two slots in the bounce memory
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

    The other arguments are the fields of `ReadJob` and `Target`, one by one as in `copy_extent`. Pages without a
    requested row are in the read only for speed, and are not verified.

    Returns
    -------
    int
        -1, or the first page with a wrong checksum. In this case no row in the extent was copied.
    """
    begin, end = row_begin[e], row_end[e]
    # From here on bytes count from row 0, like rows and pages. ``shift`` converts them to the bounce memory.
    start = offset[e] - data_offset
    stop = start + length[e]
    shift = base - start
    # Verification precedes the first copy, so that no byte of a damaged extent reaches the caller's array.
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
    """Return the first damaged page in bytes ``start`` to ``stop`` that holds a part of ``rows[begin:end]``, or -1."""
    if checksums.shape[0] == 0:
        return -1
    page = start // ALIGNMENT
    for i in range(begin, end):
        first = rows[i] * row_bytes
        # Rows ascend, so a page that several rows touch is verified once.
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


@njit(cache=True, nogil=True)
def next_pages(
    starts: IdArray, counts: IdArray, order: IdArray, at: int, done: int, per_page: int, pages: IdArray
) -> int:
    """Write the next pages to read for lists of elements; return the number of pages.

    A list is a range of consecutive elements of a long array, such as a node's in-edges. The call continues with list
    ``at`` after its first ``done`` elements, and ends when ``pages`` is full. The pages ascend. A list that begins on
    an earlier page, because it is requested twice, waits for the next call.

    Parameters
    ----------
    starts, counts : (M,) each list's start and number of elements
    order : (M,) the lists' order in the file; empty if they are in file order
    at, done : the next list in this order, and the number of its copied elements
    per_page : elements per page
    pages : (P,) written
    """
    count = 0
    for i in range(at, starts.shape[0]):
        number = order[i] if order.shape[0] else i
        if done < counts[number]:
            page = (starts[number] + done) // per_page
            if count > 0 and page < pages[count - 1]:
                return count
            if count > 0 and page == pages[count - 1]:  # the page is written already, for the previous list
                page += 1
            for wanted in range(page, (starts[number] + counts[number] - 1) // per_page + 1):
                if count == pages.shape[0]:
                    return count
                pages[count] = wanted
                count += 1
        done = 0
    return count


@njit(cache=True, nogil=True)
def copy_lists(
    starts: IdArray,
    counts: IdArray,
    order: IdArray,
    ends: IdArray,
    at: int,
    done: int,
    pages: IdArray,
    elements: NDArray[Any],
    values: NDArray[Any],
) -> tuple[int, int]:
    """Copy the lists' elements that lie on ``pages``, written by `next_pages`; return the next ``at`` and ``done``.

    Parameters
    ----------
    starts, counts, order, at, done : as in `next_pages`
    ends : (M,) end of each list in ``values``
    pages : (P,) ascending
    elements : (P, per page) the pages' elements
    values : (sum of counts,) the lists' elements, one list after another; written
    """
    per_page = elements.shape[1]
    row = 0
    while at < starts.shape[0]:
        number = order[at] if order.shape[0] else at
        while done < counts[number]:
            page = (starts[number] + done) // per_page
            while row < pages.shape[0] and pages[row] < page:
                row += 1
            if row == pages.shape[0] or pages[row] != page:  # the rest needs another call of `next_pages`
                return at, done
            column = starts[number] + done - page * per_page
            out = ends[number] - counts[number] + done
            length = min(counts[number] - done, per_page - column)
            for i in range(length):
                values[out + i] = elements[row, column + i]
            done += length
        at, done = at + 1, 0
    return at, done
