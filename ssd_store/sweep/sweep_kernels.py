"""A sweep's kernels, on memory alone: choose extents, verify their pages, deal their rows out to the batches.

A sweep reads a file's needed pages once, in file order. The kernels do no input or output. Tables hold the extents to
read and the pieces to write, and the sweep's driver executes them:

1. `plan_reads` plans extents (reads) while the table and the ring, the read buffer, have room.
2. The driver reads the extents. The head is the oldest extent that is not dealt out.
3. `is_damaged` compares the needed pages of the head with their checksums.
4. `deal_out` copies each batch's rows from the head to the batch's piece, the buffer of one write. `seal` marks a full
   piece as ready, and the driver writes it.
5. After the last extent, `flush` marks the batches' last pieces as ready.

A batch's rows ascend, so each batch needs only one position: the byte of its next row. A batch's ids may be too many
for the memory. They then arrive in portions, and a batch without ids ends a step as ``STARVED``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gloader.core.kernels import njit
from gloader.core.numba_ops import copy_block, to_int
from gloader.ssd_store.format.checksum import FORMAT_VERSION, page_checksum_at
from gloader.ssd_store.read.extents import ALIGNMENT, joins_read
from gloader.ssd_store.sweep.wanted_rows import next_bit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

# Rows in the table of extents; column ``i % depth``, the slot, describes extent i while it is in memory: its first byte
# and its bytes in the matrix, its place in the ring, the ring's tail after it, and its state, one of the next line.
START, LENGTH, AT, RING_END, FLAG = range(5)
PENDING, DONE, FAILED_READ = range(3)
# Rows in the table of batches: byte of the next row in the matrix, position of its id in ``ids``, bytes of it that are
# dealt out already, number of the batch's piece or -1, bytes in this piece, and bytes in earlier pieces.
NEXT_BYTE, ROW, SKIP, PIECE, FILL, WRITTEN = range(6)
# Rows in the table of pieces: a full piece's batch, its bytes, and its offset in the batch's region.
BATCH, SIZE, OFFSET = range(3)
# Positions in the state. Extents are numbered from 0; the first three count dealt out, submitted and planned extents.
# PAGE: next page to plan. RING_HEAD, RING_TAIL: begin and end of the ring's occupied bytes, counted without wrapping.
HEAD, SUBMITTED, PLANNED, PAGE, RING_HEAD, RING_TAIL = range(6)
# TURN: first batch without its rows from the head. VERIFIED: number of verified extents. FLUSHED: 1 after `flush`. Then
# the heights of the three stacks of pieces.
TURN, VERIFIED, FLUSHED, NUM_FREE, NUM_READY, NUM_FAILED = range(6, 12)
# READS, WRITES: requests in flight. BAD_PAGE: last page found damaged, or -1. ERROR: errno of a broken ring. NUM_* and
# *_BYTES: totals of the sweep. REFUSALS: refused system calls in a row.
READS, WRITES, BAD_PAGE, ERROR, NUM_READS, READ_BYTES, NUM_WRITES, WRITE_BYTES, REFUSALS = range(12, 21)
NUM_STATES = 21
# Values of a batch's next byte: NEVER if it needs no more rows, UNKNOWN if its next row is in a missing portion.
NEVER, UNKNOWN = np.int64(2**62), np.int64(-1)
# Results for an extent. DEALT: all its rows are dealt out. NO_PIECE: no piece is free. STARVED: a batch has used up its
# portion of rows. ASTRAY: a batch needs a row from an unmarked page, which may not be read. STARVED and ASTRAY also end
# a driver's step, so they differ from a step's own results, 0 to 6.
DEALT, NO_PIECE, STARVED, ASTRAY = range(7, 11)
WHOLE_FILE = -1  # a value of ``gap_bytes``: every page is read, needed or not


class Sweep(NamedTuple):
    """A running sweep, in the form for kernels. Offsets and pages count from the matrix's first row.

    Numba accepts a named tuple here, and no dataclass.
    """

    # All row ids, or a portion, batch after batch. One of the two arrays is empty: a kernel then compiles once.
    ids: NDArray[np.int32]
    long_ids: IdArray
    ends: IdArray  # (S,) end of each batch's ids; the next id is at the batch's ``ROW``
    has_more: NDArray[np.bool_]  # (S,) another portion follows
    pages: NDArray[np.uint64]  # one bit per page, set for needed pages
    num_pages: int
    row_bytes: int
    checksums: NDArray[np.uint64]  # (P,) the matrix's page checksums; empty means no verification
    format_version: int  # the checksums' format version
    max_bytes: int  # longest extent, a multiple of ``ALIGNMENT``
    gap_bytes: int  # longest hole that a read bridges, or ``WHOLE_FILE``
    ring: NDArray[np.uint8]  # read buffer, a ring of bytes
    ring_words: NDArray[np.uint64]  # the same memory
    extents: IdArray  # (5, depth) the table of extents
    batches: IdArray  # (6, S) the table of batches
    pieces: NDArray[np.uint8]  # the pieces' memory
    piece_words: NDArray[np.uint64]  # the same memory
    piece_bytes: int
    owners: IdArray  # (3, pieces) the table of pieces
    free: IdArray  # (pieces,) a stack of free pieces
    ready: IdArray  # (pieces,) a stack of full pieces whose write has not started
    failed: IdArray  # (pieces,) a stack of pieces whose write failed
    sums: NDArray[np.uint64]  # checksums of the written pages, region after region; empty if not computed
    first_page: IdArray  # (S,) start of each batch's region in `sums`
    state: IdArray  # (21,)


@njit(cache=True, nogil=True)
def begin(sweep: Sweep, starts: IdArray) -> None:
    """Initialise the state, the stacks and the batches; each batch's ids begin at ``starts`` (S,) in ``ids``."""
    sweep.state[:] = 0
    sweep.state[BAD_PAGE] = -1
    sweep.batches[:] = 0
    num_pieces = sweep.free.shape[0]
    for i in range(num_pieces):
        sweep.free[i] = num_pieces - 1 - i
    sweep.state[NUM_FREE] = num_pieces
    for b in range(sweep.batches.shape[1]):
        sweep.batches[ROW, b] = starts[b]
        sweep.batches[PIECE, b] = -1
        sweep.batches[NEXT_BYTE, b] = _next_byte(b, starts[b], sweep)


@njit(cache=True, nogil=True)
def continue_with(sweep: Sweep, starts: IdArray) -> None:
    """Continue with the next portion of every batch's rows, which begins at ``starts`` (S,)."""
    batches = sweep.batches
    for b in range(batches.shape[1]):
        batches[ROW, b] = starts[b]
        if batches[NEXT_BYTE, b] == UNKNOWN:
            batches[NEXT_BYTE, b] = _next_byte(b, starts[b], sweep)


@njit(cache=True, nogil=True)
def _next_byte(b: int, row: int, sweep: Sweep) -> int:
    """Return the matrix byte at which batch ``b``'s row with the id at position ``row`` begins."""
    if row < sweep.ends[b]:
        is_long = sweep.long_ids.shape[0] > 0
        return to_int(sweep.long_ids[row] if is_long else sweep.ids[row]) * sweep.row_bytes
    return to_int(UNKNOWN if sweep.has_more[b] else NEVER)


@njit(cache=True, nogil=True)
def next_extent(
    pages: NDArray[np.uint64], page: int, num_pages: int, gap_bytes: int, max_bytes: int
) -> tuple[int, int]:
    """Return the begin and end, in bytes, of the next extent from ``page`` on; equal if there is none.

    Parameters
    ----------
    pages : one bit per page, set for needed pages
    page : first page that was not planned yet
    num_pages : P
    gap_bytes : longest hole that a read bridges, or ``WHOLE_FILE``
    max_bytes : longest extent
    """
    if gap_bytes == WHOLE_FILE:
        return page * ALIGNMENT, min(page + max_bytes // ALIGNMENT, num_pages) * ALIGNMENT
    first = next_bit(pages, page, num_pages)
    if first == num_pages:
        return first * ALIGNMENT, first * ALIGNMENT
    # Pages beyond the limit cannot join, so the search for the next page ends there.
    limit = min(first + max_bytes // ALIGNMENT, num_pages)
    start, stop = first * ALIGNMENT, (first + 1) * ALIGNMENT
    following = next_bit(pages, first + 1, limit)
    while following < limit:
        begin = following * ALIGNMENT
        if not joins_read(start, stop, begin, begin + ALIGNMENT, gap_bytes, max_bytes):
            break
        stop = begin + ALIGNMENT
        following = next_bit(pages, following + 1, limit)
    return start, stop


@njit(cache=True, nogil=True)
def plan_reads(sweep: Sweep) -> None:
    """Plan extents in file order while the table and the ring have room for them."""
    pages, num_pages, extents, state = sweep.pages, sweep.num_pages, sweep.extents, sweep.state
    depth, ring_bytes = extents.shape[1], sweep.ring.shape[0]
    # If no extent is in memory, planning restarts at the ring's beginning, so that less of its end is skipped.
    if state[HEAD] == state[PLANNED]:
        state[RING_HEAD] = state[RING_TAIL] = 0
    while state[PLANNED] - state[HEAD] < depth:
        start, stop = next_extent(pages, state[PAGE], num_pages, sweep.gap_bytes, sweep.max_bytes)
        length = stop - start
        # If there is no room now, the search continues from here.
        state[PAGE] = start // ALIGNMENT
        if length == 0:
            return
        # An extent must be contiguous, so a remainder at the ring's end that is too short is skipped.
        tail = state[RING_TAIL] % ring_bytes
        skipped = ring_bytes - tail if tail + length > ring_bytes else np.int64(0)
        if state[RING_TAIL] + skipped + length - state[RING_HEAD] > ring_bytes:
            return
        state[RING_TAIL] += skipped + length
        slot = state[PLANNED] % depth
        extents[START, slot] = start
        extents[LENGTH, slot] = length
        extents[AT, slot] = (tail + skipped) % ring_bytes
        extents[RING_END, slot] = state[RING_TAIL]
        extents[FLAG, slot] = PENDING
        state[PLANNED] += 1
        state[PAGE] = stop // ALIGNMENT
        state[NUM_READS] += 1
        state[READ_BYTES] += length


@njit(cache=True, nogil=True)
def is_damaged(slot: int, sweep: Sweep) -> bool:
    """Return True if a needed page in the slot's extent differs from its checksum, and record the page's number.

    Pages in bridged holes are neither used nor verified. An extent is verified once.
    """
    pages, checksums, words, state = sweep.pages, sweep.checksums, sweep.ring_words, sweep.state
    if checksums.shape[0] == 0 or state[VERIFIED] > state[HEAD]:
        return False
    first, ring_offset = sweep.extents[START, slot] // ALIGNMENT, sweep.extents[AT, slot]
    for i in range(sweep.extents[LENGTH, slot] // ALIGNMENT):
        page = first + i
        # A word of ``pages`` has 64 bits.
        is_wanted = (pages[page >> 6] >> np.uint64(page & 63)) & np.uint64(1)
        word = (ring_offset + i * ALIGNMENT) // 8
        if is_wanted and page_checksum_at(words, word, page, sweep.format_version) != checksums[page]:
            state[BAD_PAGE] = page
            return True
    state[VERIFIED] = state[HEAD] + 1
    return False


@njit(cache=True, nogil=True)
def seal(piece: int, batch: int, length: int, sweep: Sweep) -> None:
    """Compute the page checksums of ``batch``'s full piece with ``length`` bytes, and mark it for writing."""
    owners, state = sweep.owners, sweep.state
    offset = sweep.batches[WRITTEN, batch]
    for i in range(length // ALIGNMENT):
        page = offset // ALIGNMENT + i
        word = (piece * sweep.piece_bytes + i * ALIGNMENT) // 8
        sweep.sums[sweep.first_page[batch] + page] = page_checksum_at(
            sweep.piece_words, word, page, np.int64(FORMAT_VERSION)
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
def deal_out(slot: int, sweep: Sweep) -> int:
    """Append each batch's rows in the slot's extent to the batch's piece, and free the extent.

    Returns
    -------
    int
        ``DEALT``, or the missing resource: call again when it is available. A piece always becomes available, because
        there are at least as many pieces as batches, and every other batch holds at most one unfilled piece.
    """
    extents, batches, state = sweep.extents, sweep.batches, sweep.state
    start = extents[START, slot]
    stop = start + extents[LENGTH, slot]
    shift = extents[AT, slot] - start
    # Numbers have a separate kernel: one function call per batch would take longer than dealing out its few numbers.
    is_numbers = sweep.long_ids.shape[0] > 0 and (sweep.row_bytes == 4 or sweep.row_bytes == 8)  # noqa: PLR1714
    status = DEALT
    if is_numbers:
        status = _deal_numbers(start, stop, shift, sweep)
    else:
        # After a wait, the batches before ``TURN`` already have their rows from this extent.
        for b in range(state[TURN], batches.shape[1]):
            if batches[NEXT_BYTE, b] < stop:
                status = _deal_to(b, start, stop, shift, sweep)
                if status != DEALT:
                    state[TURN] = b
                    break
    if status == DEALT:
        state[TURN] = 0
        state[RING_HEAD] = extents[RING_END, slot]
        state[HEAD] += 1
    return status


@njit(cache=True, nogil=True, inline="always")
def _deal_numbers(start: int, stop: int, shift: int, sweep: Sweep) -> int:
    """Append numbers of 4 or 8 bytes, which never cross extents, as `_deal_to`, for all batches from ``TURN`` on.

    Parameters
    ----------
    start, stop : begin and end of the extent, in the matrix's bytes
    shift : difference between a byte's place in the ring and in the matrix
    sweep : the sweep's state
    """
    ids, ends, ring, pieces = sweep.long_ids, sweep.ends, sweep.ring, sweep.pieces
    batches, state, row_bytes, piece_bytes = sweep.batches, sweep.state, sweep.row_bytes, sweep.piece_bytes
    for b in range(state[TURN], batches.shape[1]):
        first = batches[NEXT_BYTE, b]
        if first >= stop:
            continue
        row, end = batches[ROW, b], ends[b]
        piece, fill = batches[PIECE, b], batches[FILL, b]
        status = DEALT
        while first < stop:
            if first < start:
                status = STARVED if first == UNKNOWN else ASTRAY
                break
            if piece < 0:
                if state[NUM_FREE] == 0:
                    status = NO_PIECE
                    break
                state[NUM_FREE] -= 1
                piece = sweep.free[state[NUM_FREE]]
                fill = np.int64(0)
            to = piece * piece_bytes
            while fill < piece_bytes and first >= start and first < stop:
                # The lengths are constant, so that each copy is a single move.
                if row_bytes == 4:
                    copy_block(pieces, to + fill, ring, shift + first, 4)
                else:
                    copy_block(pieces, to + fill, ring, shift + first, 8)
                fill += row_bytes
                row += 1
                first = ids[row] * row_bytes if row < end else UNKNOWN
            if row == end and not sweep.has_more[b]:
                first = NEVER
            if fill == piece_bytes:
                seal(piece, b, fill, sweep)
                piece = np.int64(-1)
        batches[NEXT_BYTE, b], batches[ROW, b] = first, row
        batches[PIECE, b], batches[FILL, b] = piece, fill
        if status != DEALT:
            state[TURN] = b
            return status
    return DEALT


@njit(cache=True, nogil=True, inline="always")
def _deal_to(b: int, start: int, stop: int, shift: int, sweep: Sweep) -> int:
    """Append the bytes of batch ``b``'s rows that lie in the extent to its piece. Return as `deal_out`.

    Parameters
    ----------
    b : the batch
    start, stop, shift, sweep : as in `_deal_numbers`
    """
    ring, pieces, batches, state = sweep.ring, sweep.pieces, sweep.batches, sweep.state
    row_bytes, piece_bytes = sweep.row_bytes, sweep.piece_bytes
    # Locals stay in registers until the batch has all its rows from this extent.
    first, row, skip = batches[NEXT_BYTE, b], batches[ROW, b], batches[SKIP, b]
    piece, fill = batches[PIECE, b], batches[FILL, b]
    status = DEALT
    # A row across two extents ends here with ``skip`` bytes dealt out. The remaining bytes come with the next extent.
    while first + skip < stop:
        begin = first + skip
        if begin < start:
            status = STARVED if first == UNKNOWN else ASTRAY
            break
        if piece < 0:
            if state[NUM_FREE] == 0:
                status = NO_PIECE
                break
            state[NUM_FREE] -= 1
            piece = sweep.free[state[NUM_FREE]]
            fill = np.int64(0)
        count = min(min(first + row_bytes, stop) - begin, piece_bytes - fill)
        copy_block(pieces, piece * piece_bytes + fill, ring, shift + begin, count)
        skip += count
        fill += count
        if skip == row_bytes:
            row += 1
            skip = np.int64(0)
            first = _next_byte(b, row, sweep)
        if fill == piece_bytes:
            seal(piece, b, fill, sweep)
            piece = np.int64(-1)
    batches[NEXT_BYTE, b], batches[ROW, b], batches[SKIP, b] = first, row, skip
    batches[PIECE, b], batches[FILL, b] = piece, fill
    return status


@njit(cache=True, nogil=True)
def flush(sweep: Sweep) -> None:
    """Pad each batch's last piece with zeros to whole pages, and mark it for writing."""
    batches = sweep.batches
    if sweep.sums.shape[0] > 0:  # without checksums, no piece is written
        for b in range(batches.shape[1]):
            piece, fill = batches[PIECE, b], batches[FILL, b]
            if piece >= 0:
                length = (fill + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
                begin = piece * sweep.piece_bytes
                sweep.pieces[begin + fill : begin + length] = 0
                seal(piece, b, length, sweep)
                batches[PIECE, b] = -1
    sweep.state[FLUSHED] = 1
