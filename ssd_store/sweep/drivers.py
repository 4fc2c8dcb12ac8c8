"""A sweep's drivers, between its kernels and the device: calls one by one or in threads, and io_uring.

A sweep reads a file's needed pages once, in file order, and deals the rows out: it copies each row to the pieces of the
batches that need it. An extent is one read, a piece is one write. The kernels in `sweep_kernels` plan the extents and
fill the pieces; a driver makes the reads and the writes. `Sweeper` calls a driver's ``step`` until the sweep ends:
between two steps, after a few milliseconds, Python can check for signals and cancellation.

`CallDriver` uses plain calls, one by one or in threads. `UringDriver` keeps reads and writes in flight in an io_uring
ring. If this disk lacks some of the pages, another source (`SweepSource`) brings the bytes, and a driver reads nothing.
Its step then ends at each extent, the caller fills the extent, and the driver writes as usual.
"""

from __future__ import annotations

import errno
import os
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from gloader.core.kernels import njit
from gloader.core.numba_ops import to_int
from gloader.core.signals import thread_errors
from gloader.core.thread_times import helping
from gloader.errors import StoreReadError
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.machine_ops import load32, load64, load_acquire32, store_release32
from gloader.ssd_store.read.uring import (
    CQ_HEAD,
    CQ_MASK,
    CQ_TAIL,
    CQE_BYTES,
    CQES,
    FIXED,
    MASK32,
    MAX_REFUSALS,
    OP_READ,
    OP_READ_FIXED,
    OP_WRITE,
    OP_WRITE_FIXED,
    SQ_HEAD,
    SQ_TAIL,
    Uring,
    enter,
    submit,
)
from gloader.ssd_store.sweep import sweep_kernels as kernels
from gloader.ssd_store.sweep.sweep_kernels import (
    AT,
    BATCH,
    DEALT,
    DONE,
    ERROR,
    FAILED_READ,
    FLAG,
    FLUSHED,
    HEAD,
    LENGTH,
    NO_PIECE,
    NUM_FAILED,
    NUM_FREE,
    NUM_READY,
    OFFSET,
    PENDING,
    PLANNED,
    READS,
    REFUSALS,
    SIZE,
    START,
    STARVED,
    SUBMITTED,
    WRITES,
    Sweep,
    deal_out,
    flush,
    is_damaged,
    plan_reads,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.ssd_store.os_io import OsIO
    from gloader.ssd_store.read.device_file import DeviceFile
    from gloader.ssd_store.spill.folder import SpillFile
    from gloader.types import IdArray


# Results of a step. RUNNING: the step used up its budget. FINISHED: everything is read and written. READ_CARE: the read
# of the extent at the head failed, or there is no file to read, and the caller fills the extent. WRITE_CARE: a write
# failed, and the caller repeats it. DAMAGED: a page differs from its checksum. BROKEN: the io_uring ring is unusable.
# INTERRUPTED, a signal came, is only a result of `_wait`; the step then ends with RUNNING. Two results of the kernels
# also end a step. ``STARVED``: a batch has used up its portion of row ids, and the caller provides the next portion.
# ``ASTRAY``: a batch needs a row from a page that is not marked as needed, which is an error. A caller that reads or
# writes "with care" continues after short requests and signals, and raises an error with advice.
RUNNING, FINISHED, READ_CARE, WRITE_CARE, DAMAGED, INTERRUPTED, BROKEN = range(7)
_THREADS: Final = 8  # threads of a `CallDriver`, for reads and writes


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepFiles:
    """A sweep's files: a file to read from, if any, and the region that each of the S batches writes in a file."""

    label: str  # prefix for a number in messages: "superbatch 3, batch"
    file: DeviceFile | None  # None if another source brings the bytes
    # (S,) each batch's file, shared by several batches; None for a batch without rows. Empty if nothing is written.
    targets: Sequence[SpillFile | None]
    fds: IdArray  # (S,) the targets' descriptors, -1 without a target
    starts: IdArray  # (S,) each region's first byte in its file

    @property
    def fd(self) -> int:
        """The descriptor to read from; -1 if the caller fills the extents."""
        return -1 if self.file is None else self.file.fd


class CallDriver:
    """Drives sweeps with calls to `OsIO`, from threads or one by one. Owns the threads until `close`.

    Without threads, every request is left to the caller, which reads and writes with care, one request at a time. Tests
    inject faults on this path.

    Parameters
    ----------
    os_io : the system calls
    threaded : True uses threads
    """

    def __init__(self, os_io: OsIO, *, threaded: bool) -> None:
        self.name = "threads" if threaded else "plain"
        self._os_io = os_io
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="gloader-sweep") if threaded else None
        # Reads in flight, by the extent's slot, its column in the table `Sweep.extents`.
        self._reads: dict[int, Future[int]] = {}
        self._writes: dict[Future[int], int] = {}  # writes in flight, with the number of the piece

    def step(self, sweep: Sweep, files: SweepFiles, budget_bytes: int, /) -> int:
        """Work on the sweep until ``budget_bytes`` are dealt out or a problem needs care; return the result.

        Parameters
        ----------
        sweep : the sweep's state
        files : files to read from and write to
        budget_bytes : bytes to deal out before Python can check signals and cancellation
        """
        dealt = 0
        while dealt < budget_bytes:
            self._start_reads(sweep, files)
            self._start_writes(sweep, files)
            self._collect_writes(sweep, wait_s=0.0)
            if sweep.state[kernels.NUM_FAILED]:
                return WRITE_CARE
            if sweep.state[kernels.HEAD] == sweep.state[kernels.PLANNED]:
                if self._has_ended(sweep):
                    return FINISHED
                continue
            # Extents are dealt out in file order, so the oldest read is awaited.
            slot = int(sweep.state[kernels.HEAD]) % sweep.extents.shape[1]
            if not self._has_read(slot, sweep):
                return READ_CARE
            with np.errstate(over="ignore"):  # without compilation, the wrap-around would warn
                if kernels.is_damaged(slot, sweep):
                    return DAMAGED
                missing = kernels.deal_out(slot, sweep)
            if missing == kernels.DEALT:
                dealt += int(sweep.extents[kernels.LENGTH, slot])
            elif missing == kernels.NO_PIECE:
                # Every piece is in use, so one must be written first. Without threads, the ready pieces count as failed
                # writes, and the loop's next round returns WRITE_CARE.
                self._start_writes(sweep, files)
                self._collect_writes(sweep)
            else:
                return int(missing)
        return RUNNING

    def settle(self, sweep: Sweep, /) -> None:
        """Wait until no request is in flight."""
        wait([*self._reads.values(), *self._writes])
        for slot in list(self._reads):
            self._has_read(slot, sweep)
        self._collect_writes(sweep, wait_s=0.0)

    def close(self) -> None:
        """End and join the threads. Idempotent."""
        if self._pool is not None:
            self._pool.shutdown()

    def _start_reads(self, sweep: Sweep, files: SweepFiles) -> None:
        """Plan extents, and start their reads."""
        state, extents, fd = sweep.state, sweep.extents, files.fd
        kernels.plan_reads(sweep)
        while state[kernels.SUBMITTED] < state[kernels.PLANNED]:
            slot = int(state[kernels.SUBMITTED]) % extents.shape[1]
            state[kernels.SUBMITTED] += 1
            # Without threads or without a file, a request counts as failed at once: the caller makes it with care.
            if self._pool is None or fd < 0:
                extents[kernels.FLAG, slot] = kernels.FAILED_READ
                continue
            # The table's rows START, LENGTH and AT: the extent's first byte in the stored rows of the file, its bytes,
            # and its place in the ring, the sweep's buffer for reads.
            start, length, ring_offset, _, _ = extents[:, slot].tolist()
            # `thread_errors` raises a clear error if no thread can start. `helping` counts the thread's processor time
            # for this thread.
            with thread_errors():
                self._reads[slot] = self._pool.submit(
                    helping(self._os_io.pread_into),
                    fd,
                    sweep.ring[ring_offset : ring_offset + length].data,
                    DATA_OFFSET + start,
                )

    def _start_writes(self, sweep: Sweep, files: SweepFiles) -> None:
        """Start the writes of all full pieces."""
        state = sweep.state
        while state[kernels.NUM_READY]:
            state[kernels.NUM_READY] -= 1
            piece = int(sweep.ready[state[kernels.NUM_READY]])
            if self._pool is None:
                _fail(piece, sweep)
                continue
            batch, data, offset = piece_of(piece, sweep, files)
            with thread_errors():
                write = self._pool.submit(helping(self._os_io.pwrite), int(files.fds[batch]), data, offset)
            self._writes[write] = piece

    def _has_ended(self, sweep: Sweep) -> bool:
        """Write the last pieces, after all extents are dealt out. Return True if everything is written."""
        if not sweep.state[kernels.FLUSHED]:
            with np.errstate(over="ignore"):
                kernels.flush(sweep)
        elif not self._writes and not sweep.state[kernels.NUM_READY]:
            return True
        else:
            self._collect_writes(sweep)
        return False

    def _has_read(self, slot: int, sweep: Sweep) -> bool:
        """Wait for the slot's read. Return True if its bytes have arrived."""
        future = self._reads.pop(slot, None)
        if future is not None:
            is_complete = (
                future.exception() is None and future.result() == sweep.extents[kernels.LENGTH, slot]
            )
            sweep.extents[kernels.FLAG, slot] = kernels.DONE if is_complete else kernels.FAILED_READ
        return bool(sweep.extents[kernels.FLAG, slot] == kernels.DONE)

    def _collect_writes(self, sweep: Sweep, *, wait_s: float | None = None) -> None:
        """Record completed writes. Wait for one write if ``wait_s`` is None."""
        done, _ = wait(self._writes, timeout=wait_s, return_when=FIRST_COMPLETED)
        for future in done:
            piece = self._writes.pop(future)
            if future.exception() is None and future.result() == sweep.owners[kernels.SIZE, piece]:
                give_back(piece, sweep)
            else:
                _fail(piece, sweep)


def piece_of(piece: int, sweep: Sweep, files: SweepFiles) -> tuple[int, memoryview, int]:
    """Return a full piece's batch, its bytes, and the piece's offset in the batch's file.

    Parameters
    ----------
    piece : the piece's number
    sweep : the sweep's state
    files : the sweep's files
    """
    batch, size, offset = sweep.owners[:, piece].tolist()  # the table's rows BATCH, SIZE and OFFSET
    begin = piece * sweep.piece_bytes
    return batch, sweep.pieces[begin : begin + size].data, int(files.starts[batch]) + offset


def give_back(piece: int, sweep: Sweep) -> None:
    """Free a piece that has been written."""
    sweep.free[sweep.state[kernels.NUM_FREE]] = piece
    sweep.state[kernels.NUM_FREE] += 1


def _fail(piece: int, sweep: Sweep) -> None:
    """Leave a piece's write to the caller: it failed, or there are no threads to make it."""
    sweep.failed[sweep.state[kernels.NUM_FAILED]] = piece
    sweep.state[kernels.NUM_FAILED] += 1


READ_DEPTH: Final = 256  # extents in the table, so also the maximum number of reads in flight
MAX_WRITES: Final = 256  # writes in flight; with the reads they fill the io_uring ring
_SMALL_BYTES: Final = 32 * 1024  # for shorter reads, several completions are awaited together
_UNSUBMITTED: Final = 16  # requests that may wait for submission while extents are dealt out
_DRAIN: Final = -1  # budget for a step that begins no requests and waits for all in flight
_NOWHERE: Final = np.empty(0, np.int64)  # no files to write


class UringDriver:
    """Drives sweeps through an io_uring ring for their reads and writes. Owns the ring until `close`.

    Parameters
    ----------
    memory : memory that sweeps use for reads and writes, registered with the ring

    Raises
    ------
    OSError
        See `Uring`.
    """

    name = "uring"

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._ring = Uring(READ_DEPTH + MAX_WRITES, memory)

    def step(self, sweep: Sweep, files: SweepFiles, budget_bytes: int) -> int:
        """Work on the sweep until ``budget_bytes`` are dealt out or a problem needs care; return the result.

        Parameters
        ----------
        sweep : the sweep's state
        files : files to read from and write to
        budget_bytes : bytes to deal out before Python can check signals and cancellation

        Raises
        ------
        StoreReadError
            The ring broke, or is closed.
        """
        if not self._ring.table.shape[0]:
            raise StoreReadError(
                errno.EBADF,
                "the io_uring of this sweep is closed or broke; open the loader, or the store, again",
            )
        status = int(_step_or_drain(self._ring.table, sweep, files.fd, files.fds, files.starts, budget_bytes))
        self._check(status, sweep)
        return status

    def settle(self, sweep: Sweep) -> None:
        """Wait until no request is in flight."""
        if self._ring.table.shape[0] and sweep.state[READS] + sweep.state[WRITES] > 0:
            # The kernel that began these requests also drains them, so that Ctrl-C does not wait for a compilation.
            self._check(int(_step_or_drain(self._ring.table, sweep, -1, _NOWHERE, _NOWHERE, _DRAIN)), sweep)

    def close(self) -> None:
        """Release the ring. Idempotent."""
        self._ring.close()

    def _check(self, status: int, sweep: Sweep) -> None:
        """Close the ring and raise StoreReadError if the step's result is BROKEN."""
        if status == BROKEN:
            # Requests may still be in flight: nothing may use the ring or its memory again.
            self.close()
            code = int(sweep.state[ERROR])
            raise StoreReadError(code, f"io_uring_enter failed: {os.strerror(code)}; use io='threads'")


@njit(cache=True, nogil=True, inline="always")
def _submit_all(ring: IdArray, sweep: Sweep, source_fd: int, fds: IdArray, starts: IdArray) -> int:
    """Plan reads, and put reads and ready pieces into the io_uring ring; return the ring's new tail.

    A request's tag is the extent's slot, or the number of slots plus the piece's number.

    Parameters
    ----------
    ring : addresses of the io_uring ring, see `Uring.table`
    sweep : the sweep's state
    source_fd : descriptor to read from; -1 if the caller fills the extents
    fds, starts : as in `SweepFiles`
    """
    extents, owners, state = sweep.extents, sweep.owners, sweep.state
    depth = extents.shape[1]
    read_code = OP_READ_FIXED if ring[FIXED] else OP_READ
    write_code = OP_WRITE_FIXED if ring[FIXED] else OP_WRITE
    read_base, write_base = np.int64(sweep.ring.ctypes.data), np.int64(sweep.pieces.ctypes.data)
    # Reads come first, up to the table's depth, so that the device never waits for more reads.
    tail = load_acquire32(ring[SQ_TAIL])
    plan_reads(sweep)
    while state[SUBMITTED] < state[PLANNED]:
        slot = state[SUBMITTED] % depth
        if source_fd < 0:  # without a file the caller fills the extent
            extents[FLAG, slot] = FAILED_READ
            state[SUBMITTED] += 1
            continue
        offset, address = DATA_OFFSET + extents[START, slot], read_base + extents[AT, slot]
        tail = submit(ring, tail, read_code, source_fd, offset, address, extents[LENGTH, slot], slot)
        state[SUBMITTED] += 1
        state[READS] += 1
    while state[NUM_READY] > 0 and state[WRITES] < MAX_WRITES:
        state[NUM_READY] -= 1
        piece = sweep.ready[state[NUM_READY]]
        batch = owners[BATCH, piece]
        offset, address = starts[batch] + owners[OFFSET, piece], write_base + piece * sweep.piece_bytes
        tail = submit(ring, tail, write_code, fds[batch], offset, address, owners[SIZE, piece], depth + piece)
        state[WRITES] += 1
    store_release32(ring[SQ_TAIL], tail)
    return tail


@njit(cache=True, nogil=True, inline="always")
def _reap(ring: IdArray, sweep: Sweep) -> bool:
    """Record completions. Return True if there were any."""
    extents, state = sweep.extents, sweep.state
    depth = extents.shape[1]
    # This is an acquire read: afterwards the completions before ``last``, and their bytes, are visible.
    head = load_acquire32(ring[CQ_HEAD])
    last = load_acquire32(ring[CQ_TAIL])
    if head == last:
        return False
    while head != last:
        entry = ring[CQES] + (head & ring[CQ_MASK]) * CQE_BYTES
        tag = load64(entry)
        result = load32(entry + 8)
        if tag < depth:
            extents[FLAG, tag] = DONE if result == extents[LENGTH, tag] else FAILED_READ
            state[READS] -= 1
        else:
            # These lines repeat `give_back` and `_fail`, which are not compiled and so cannot be called from a kernel.
            piece = tag - depth
            if result == sweep.owners[SIZE, piece]:
                sweep.free[state[NUM_FREE]] = piece
                state[NUM_FREE] += 1
            else:
                sweep.failed[state[NUM_FAILED]] = piece
                state[NUM_FAILED] += 1
            state[WRITES] -= 1
        head = (head + 1) & MASK32
    store_release32(ring[CQ_HEAD], head)
    return True


@njit(cache=True, nogil=True)
def _wait(ring: IdArray, sweep: Sweep, tail: int, count: int) -> int:
    """Submit requests, wait for ``count`` requests in flight, and record all completions.

    ``count`` must be an `np.int64`, because numba compiles another copy for a literal.
    """
    state = sweep.state
    # The count never exceeds the requests in flight, because the call would not return.
    code = enter(ring, tail, min(count, state[READS] + state[WRITES]))
    # REFUSALS counts the calls in a row that the system refused for lack of resources (EAGAIN, EBUSY). Each completion
    # sets it to 0. Any other error except a signal sets it to the maximum at once, at which the ring counts as broken.
    if _reap(ring, sweep):
        state[REFUSALS] = 0
    elif code in (errno.EAGAIN, errno.EBUSY):
        state[REFUSALS] += 1
    elif code not in (0, errno.EINTR):
        state[REFUSALS] = MAX_REFUSALS
    if state[REFUSALS] >= MAX_REFUSALS:
        state[ERROR] = code
        return BROKEN
    return INTERRUPTED if code == errno.EINTR else RUNNING


@njit(cache=True, nogil=True, inline="always")
def _awaited(length: int, in_flight: int) -> int:
    """Return the number of completions to wait for together, for extents of about ``length`` bytes. Pure."""
    # Small reads are awaited in bursts, because a system call for each would cost more than the read.
    return max(1, in_flight // 4) if length < _SMALL_BYTES else 1


@njit(cache=True, nogil=True, inline="always")
def _leave(ring: IdArray, sweep: Sweep, tail: int, source_fd: int) -> int:
    """Leave the extent at the head to the caller."""
    # Without a file, a source fills the extent, which may take long. So the pending writes are submitted first.
    if source_fd < 0 and _wait(ring, sweep, tail, np.int64(0)) == BROKEN:
        return BROKEN
    return READ_CARE


@njit(cache=True, nogil=True, inline="always")
def _step(
    ring: IdArray, sweep: Sweep, source_fd: int, fds: IdArray, starts: IdArray, budget_bytes: int
) -> int:
    """Read ahead, deal out, write behind. Return a result as `UringDriver.step`.

    Each round of the loop submits new reads and writes, deals out the extent at the head if its bytes have arrived,
    and collects completions. It waits only if the extent's bytes are missing, or no piece is free.
    """
    extents, state = sweep.extents, sweep.state
    depth = extents.shape[1]
    dealt = np.int64(0)
    while True:
        tail = _submit_all(ring, sweep, source_fd, fds, starts)
        if state[NUM_FAILED] > 0:
            return WRITE_CARE
        slot = state[HEAD] % depth
        count = np.int64(1)  # completions to wait for
        missing = DEALT  # the kernels' result for the head's extent: DEALT, or the reason to stop
        if state[HEAD] == state[PLANNED]:
            if state[FLUSHED] == 0:
                flush(sweep)
                continue
            if state[NUM_READY] == 0 and state[WRITES] == 0:
                return FINISHED
        elif extents[FLAG, slot] == FAILED_READ:
            return _leave(ring, sweep, tail, source_fd)
        elif extents[FLAG, slot] == PENDING:
            count = to_int(_awaited(extents[LENGTH, slot], state[READS]))
        else:
            if is_damaged(slot, sweep):
                return DAMAGED
            missing = deal_out(slot, sweep)
            if missing == DEALT:
                dealt += extents[LENGTH, slot]
                # With few unsubmitted requests, another extent is dealt out before the next system call.
                if (tail - load_acquire32(ring[SQ_HEAD])) & MASK32 < _UNSUBMITTED and dealt < budget_bytes:
                    continue
            # More may be ready to deal out, so `_wait` only submits requests and collects completions. It waits for one
            # completion if no piece is free, because a write's end frees a piece.
            count = np.int64(missing == NO_PIECE)
        status = _wait(ring, sweep, tail, count)
        if status == BROKEN:
            return BROKEN
        if missing >= STARVED:  # STARVED or ASTRAY, the kernels' largest results, which the caller handles
            return missing
        if status == INTERRUPTED or dealt >= budget_bytes:  # let Python run its signal handlers
            return RUNNING


@njit(cache=True, nogil=True)
def _step_or_drain(
    ring: IdArray, sweep: Sweep, source_fd: int, fds: IdArray, starts: IdArray, budget_bytes: int
) -> int:
    """Make one step, or, with the budget ``_DRAIN``, only wait for all requests in flight."""
    if budget_bytes != _DRAIN:
        return _step(ring, sweep, source_fd, fds, starts, budget_bytes)
    tail = load_acquire32(ring[SQ_TAIL])
    while sweep.state[READS] + sweep.state[WRITES] > 0:
        if _wait(ring, sweep, tail, np.int64(1)) == BROKEN:
            return BROKEN
    return RUNNING


# A driver executes a sweep step by step. Between steps requests may be in flight; `settle` waits for them.
SweepDriver: TypeAlias = CallDriver | UringDriver
