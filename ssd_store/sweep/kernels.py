"""Kernels of a sweep, on memory alone: choose extents, verify their pages, deal their rows out to the batches.

No input or output happens here: extents that are to be read and pieces that are to be written are left in tables, for
whoever drives the sweep.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import njit

from gloader.core.numba_ops import copy_block
from gloader.ssd_store.format.checksum import FORMAT_VERSION, page_checksum_at
from gloader.ssd_store.read.extents import ALIGNMENT, joins_read
from gloader.ssd_store.sweep.wanted_rows import next_bit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

# Rows of the table of extents; column ``i % depth`` describes extent i while it is in memory.
START, LENGTH, AT, RING_END, FLAG = range(5)
PENDING, DONE, FAILED_READ = range(3)
# Rows of the table of batches.
NEXT_BYTE, ROW, SKIP, PIECE, FILL, WRITTEN = range(6)
# Rows of the table of pieces.
BATCH, SIZE, OFFSET = range(3)
# Positions in the state.
HEAD, SUBMITTED, PLANNED, PAGE, RING_HEAD, RING_TAIL = range(6)
TURN, VERIFIED, FLUSHED, NUM_FREE, NUM_READY, NUM_FAILED = range(6, 12)
READS, WRITES, BAD_PAGE, ERROR, NUM_READS, READ_BYTES, NUM_WRITES, WRITE_BYTES, REFUSALS = range(12, 21)
NUM_STATES = 21
NEVER = np.int64(2**62)


class Sweep(NamedTuple):
    """A sweep under way, as kernels see it. Offsets and pages count from the first row of the matrix.

    A named tuple and not a dataclass, because numba takes only the former.
    """

    ids: NDArray[Any]  # (K,) the fields of `WantedRows`
    bounds: IdArray  # (S + 1,)
    pages: NDArray[np.uint64]
    num_pages: int
    row_bytes: int
    checksums: NDArray[np.uint64]  # (P,) of the matrix's pages; empty: do not verify
    format_version: int  # of the format that they were made by
    max_bytes: int  # of an extent, a multiple of ``ALIGNMENT``
    gap_bytes: int  # longest hole that is read through
    ring: NDArray[np.uint8]  # where extents are read to, as a ring of bytes
    ring_words: NDArray[np.uint64]  # the same memory
    extents: IdArray  # (5, depth)
    batches: IdArray  # (6, S)
    pieces: NDArray[np.uint8]  # what is written, piece by piece
    piece_words: NDArray[np.uint64]  # the same memory
    piece_bytes: int
    owners: IdArray  # (3, pieces): the batch, the bytes and the place in the batch's region of a full piece
    free: IdArray  # (pieces,) a stack
    ready: IdArray  # (pieces,) a stack of full pieces that nobody writes yet
    failed: IdArray  # (pieces,) a stack of those whose write failed
    sums: NDArray[np.uint64]  # checksums of the pages written, region after region; empty: do not compute
    first_page: IdArray  # (S,) where a batch's region starts in `sums`
    state: IdArray  # (21,)


@njit(cache=True, nogil=True)
def begin(sweep: Sweep) -> None:
    """Set everything to the start."""
    sweep.state[:] = 0
    sweep.state[BAD_PAGE] = -1
    sweep.batches[:] = 0
    num_pieces = sweep.free.shape[0]
    for i in range(num_pieces):
        sweep.free[i] = num_pieces - 1 - i
    sweep.state[NUM_FREE] = num_pieces
    for b in range(sweep.batches.shape[1]):
        row = sweep.bounds[b]
        sweep.batches[ROW, b] = row
        sweep.batches[PIECE, b] = -1
        has_rows = row < sweep.bounds[b + 1]
        sweep.batches[NEXT_BYTE, b] = np.int64(sweep.ids[row]) * sweep.row_bytes if has_rows else NEVER


@njit(cache=True, nogil=True)
def plan_reads(sweep: Sweep) -> None:
    """Plan extents in file order while the table and the ring have room for them."""
    pages, num_pages, extents, state = sweep.pages, sweep.num_pages, sweep.extents, sweep.state
    depth, ring_bytes = extents.shape[1], sweep.ring.shape[0]
    # Nothing is in memory: start at the ring's beginning again, so that less of its end is skipped.
    if state[HEAD] == state[PLANNED]:
        state[RING_HEAD] = state[RING_TAIL] = 0
    while state[PLANNED] - state[HEAD] < depth:
        first = next_bit(pages, state[PAGE], num_pages)
        state[PAGE] = first
        if first == num_pages:
            return
        # Pages beyond the limit cannot join: the search for the next one need not go there.
        limit = min(first + sweep.max_bytes // ALIGNMENT, num_pages)
        start, stop = first * ALIGNMENT, (first + 1) * ALIGNMENT
        following = next_bit(pages, first + 1, limit)
        while following < limit:
            page = following * ALIGNMENT
            if not joins_read(start, stop, page, page + ALIGNMENT, sweep.gap_bytes, sweep.max_bytes):
                break
            stop = page + ALIGNMENT
            following = next_bit(pages, following + 1, limit)
        length = stop - start
        # An extent lies in one piece: what is too short for it at the ring's end is skipped.
        at = state[RING_TAIL] % ring_bytes
        skipped = ring_bytes - at if at + length > ring_bytes else np.int64(0)
        if state[RING_TAIL] + skipped + length - state[RING_HEAD] > ring_bytes:
            return
        state[RING_TAIL] += skipped + length
        slot = state[PLANNED] % depth
        extents[START, slot] = start
        extents[LENGTH, slot] = length
        extents[AT, slot] = (at + skipped) % ring_bytes
        extents[RING_END, slot] = state[RING_TAIL]
        extents[FLAG, slot] = PENDING
        state[PLANNED] += 1
        state[PAGE] = stop // ALIGNMENT
        state[NUM_READS] += 1
        state[READ_BYTES] += length


@njit(cache=True, nogil=True)
def is_damaged(slot: int, sweep: Sweep) -> bool:
    """Return whether a wanted page of the extent in ``slot`` differs from its checksum; note which.

    Pages of holes that were read through are nobody's and not verified. An extent is verified once.
    """
    pages, checksums, words, state = sweep.pages, sweep.checksums, sweep.ring_words, sweep.state
    if checksums.shape[0] == 0 or state[VERIFIED] > state[HEAD]:
        return False
    first, at = sweep.extents[START, slot] // ALIGNMENT, sweep.extents[AT, slot]
    for i in range(sweep.extents[LENGTH, slot] // ALIGNMENT):
        page = first + i
        is_wanted = (pages[page >> 6] >> np.uint64(page & 63)) & np.uint64(1)
        word = (at + i * ALIGNMENT) // 8
        if is_wanted and page_checksum_at(words, word, page, sweep.format_version) != checksums[page]:
            state[BAD_PAGE] = page
            return True
    state[VERIFIED] = state[HEAD] + 1
    return False


@njit(cache=True, nogil=True)
def seal(piece: int, batch: int, length: int, sweep: Sweep) -> None:
    """Checksum the pages of a full piece and leave it to be written."""
    owners, state = sweep.owners, sweep.state
    offset = sweep.batches[WRITTEN, batch]
    for i in range(length // ALIGNMENT):
        page = offset // ALIGNMENT + i
        word = (piece * sweep.piece_bytes + i * ALIGNMENT) // 8
        sweep.sums[sweep.first_page[batch] + page] = page_checksum_at(
            sweep.piece_words, word, page, FORMAT_VERSION
        )
    owners[BATCH, piece] = batch
    owners[SIZE, piece] = length
    owners[OFFSET, piece] = offset
    sweep.batches[WRITTEN, batch] = offset + length
    sweep.ready[state[NUM_READY]] = piece
    state[NUM_READY] += 1
    state[NUM_WRITES] += 1
    state[WRITE_BYTES] += length


@njit(cache=True, nogil=True)
def deal_out(slot: int, sweep: Sweep) -> bool:
    """Append what the extent in ``slot`` holds of each batch's rows to the batch's piece, and let it go.

    Returns
    -------
    bool
        False if no piece is free: call again when one is. Each batch holds at most one that is not full, so one
        is free or being written as long as there are at least as many pieces as batches.
    """
    extents, batches, state = sweep.extents, sweep.batches, sweep.state
    start = extents[START, slot]
    stop = start + extents[LENGTH, slot]
    shift = extents[AT, slot] - start
    # After a wait for a piece, the batches before ``TURN`` have their rows of this extent already.
    for b in range(state[TURN], batches.shape[1]):
        if batches[NEXT_BYTE, b] < stop and not _deal_to(b, stop, shift, sweep):
            state[TURN] = b
            return False
    state[TURN] = 0
    state[RING_HEAD] = extents[RING_END, slot]
    state[HEAD] += 1
    return True


@njit(cache=True, nogil=True)
def _deal_to(b: int, stop: int, shift: int, sweep: Sweep) -> bool:
    """Append the rows of batch ``b`` up to byte ``stop``; return False if no piece is free."""
    ids, ring, pieces, batches, state = sweep.ids, sweep.ring, sweep.pieces, sweep.batches, sweep.state
    row_bytes, piece_bytes, end = sweep.row_bytes, sweep.piece_bytes, sweep.bounds[b + 1]
    # In locals, which stay in registers, until the batch has all that this extent holds for it.
    first, row, skip = batches[NEXT_BYTE, b], batches[ROW, b], batches[SKIP, b]
    piece, fill = batches[PIECE, b], batches[FILL, b]
    has_room = True
    while first < stop:
        at = first + skip
        left = min(first + row_bytes, stop) - at
        skip += left
        while left > 0:
            if piece < 0:
                if state[NUM_FREE] == 0:
                    has_room = False
                    break
                state[NUM_FREE] -= 1
                piece = sweep.free[state[NUM_FREE]]
                fill = np.int64(0)
            count = min(left, piece_bytes - fill)
            copy_block(pieces, piece * piece_bytes + fill, ring, shift + at, count)
            at += count
            left -= count
            fill += count
            if fill == piece_bytes:
                seal(piece, b, fill, sweep)
                piece = np.int64(-1)
        skip -= left
        if skip < row_bytes:  # without room; or the row straddles, and its rest comes with the next extent
            break
        row += 1
        skip = np.int64(0)
        first = np.int64(ids[row]) * row_bytes if row < end else NEVER
    batches[NEXT_BYTE, b], batches[ROW, b], batches[SKIP, b] = first, row, skip
    batches[PIECE, b], batches[FILL, b] = piece, fill
    return has_room


@njit(cache=True, nogil=True)
def flush(sweep: Sweep) -> None:
    """Pad each batch's last piece with zeros to whole pages, and leave it to be written."""
    batches = sweep.batches
    if sweep.sums.shape[0] > 0:  # otherwise nothing is written
        for b in range(batches.shape[1]):
            piece, fill = batches[PIECE, b], batches[FILL, b]
            if piece >= 0:
                length = (fill + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
                at = piece * sweep.piece_bytes
                sweep.pieces[at + fill : at + length] = 0
                seal(piece, b, length, sweep)
                batches[PIECE, b] = -1
    sweep.state[FLUSHED] = 1
