"""Reads through io_uring, driven by one nogil kernel: no C compiler, no liburing, no privileges.

An io_uring is a pair of rings in memory that a process shares with the operating system. The process writes requests to
the submission queue (sq) and increases its tail; the system reads them, and increases its head. The system reports each
finished request, with the request's tag, in the completion queue (cq) in the same way. One system call, ``enter``,
submits requests and waits for completions. A registered buffer is memory that the system pins once, instead of at each
request.

In this file a kernel is a function compiled by numba; "the system" is the operating system.
`Uring.read` reads a job's extents (aligned reads), verifies their pages and copies their rows. For sweeps, which are
passes over a whole file, `gloader.ssd_store.sweep.drivers` uses `submit` and `enter`.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from typing import TYPE_CHECKING

import numba
import numpy as np

from gloader.core.kernels import njit
from gloader.errors import StoreReadError
from gloader.ssd_store.machine_ops import (
    call_errno,
    call_syscall,
    load32,
    load64,
    load_acquire32,
    store32,
    store64,
    store_release32,
)
from gloader.ssd_store.os_io import errno_location_address, syscall_address
from gloader.ssd_store.read.backend import ReadProgress
from gloader.ssd_store.read.row_kernels import ReadJob, verify_and_copy_fields

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

_LOG = logging.getLogger(__name__)

# Numbers of the system calls, the same on every architecture.
SETUP, ENTER, REGISTER = 425, 426, 427
# Flags and constants of the system's header ``linux/io_uring.h``.
COOP_TASKRUN = 1 << 8  # completions wait for the next call instead of interrupting this process (Linux 5.19)
FEAT_SINGLE_MMAP, FEAT_RW_CUR_POS = 1 << 0, 1 << 3  # FEAT_RW_CUR_POS came with OP_READ (Linux 5.6)
# Linux 5.11 added this feature. Before 5.9, a fork made the parent write to pages other than its ring's pinned pages.
FEAT_EXT_ARG = 1 << 8
GETEVENTS = 1  # ``enter`` waits for completions
REGISTER_BUFFERS = 0
OFF_SQES = 0x10000000  # offset at which the array of requests is mapped
OP_READ_FIXED, OP_WRITE_FIXED, OP_READ, OP_WRITE = 4, 5, 22, 23  # FIXED: with a registered buffer
SQE_BYTES, CQE_BYTES = 64, 16  # bytes of a request and of a completion
MAX_REFUSALS = 10_000  # EAGAIN or EBUSY in a row, after which the ring counts as broken
MAX_DEPTH = 4096  # maximum number of requests in flight
MASK32 = 0xFFFFFFFF  # heads and tails are 32-bit counters that wrap around

# Bytes delivered (verified and copied) in one turn, before new requests are submitted. The device gets no new requests
# during the copies. All completed reads together are often half of the ring. Delivering them in one turn would halve
# the rate for packs (rows of a batch that lie together), and lower the rate for rows of 6.5 KB to three quarters.
_TURN_BYTES = 64 * 1024

# Positions in the table that describes a ring to numba's kernels: the descriptor, addresses of the rings' fields, masks
# for positions in the rings, 1 with a registered buffer, and the addresses of two C functions.
FD, SQ_HEAD, SQ_TAIL, SQ_MASK, SQES, CQ_HEAD, CQ_TAIL, CQ_MASK, CQES, FIXED, SYSCALL, ERRNO = range(12)
# Positions in the report of `_drive`: the first extent not started, the number of unfinished extents, a damaged page or
# -1, an errno or 0. From HEAD on, the report lists the unfinished extents.
NEXT, UNFINISHED, BAD_PAGE, STATUS, HEAD = range(5)


class Uring:
    """An io_uring for ``depth`` reads. Owns its file descriptor and mappings until `close`.

    Parameters
    ----------
    depth : requests in flight, at most 4096
    bounce : memory to read into, registered with the ring; None means that no memory is registered

    Raises
    ------
    OSError
        The system has no io_uring, forbids it, or has one without plain reads.
    """

    name = "uring"

    def __init__(self, depth: int, bounce: NDArray[np.uint8] | None = None) -> None:
        # `_create`, the kernel that creates the ring, writes the descriptor into this array.
        self._descriptor = np.full(1, -1, np.int64)
        if numba.config.DISABLE_JIT:
            raise OSError(errno.ENOSYS, "io_uring needs compiled kernels, and NUMBA_DISABLE_JIT is set")
        self.depth = min(max(depth, 1), MAX_DEPTH)
        self._maps: list[mmap.mmap] = []
        try:
            params = _setup(self.depth, self._descriptor)
            self._table = self._map_rings(params)
            self._bounce = bounce  # kept alive: the system may write to it as long as the ring exists
            # Memory may be registered if a fork leaves this process its pinned pages, see `FEAT_EXT_ARG`.
            is_pinned_for_good = int(params[5]) & FEAT_EXT_ARG
            self._table[FIXED] = bool(is_pinned_for_good) and bounce is not None and self._register(bounce)
            self._check_entry()
        except BaseException:
            self.close()
            raise

    @property
    def _fd(self) -> int:
        return int(self._descriptor[0])

    @property
    def table(self) -> IdArray:
        """The table (12,) that describes the ring to numba's kernels; empty after `close`."""
        return self._table

    def read(self, fd: int, job: ReadJob, start: int, /) -> ReadProgress:
        """Read extents from ``start`` on, until the first failure. On return no read is in flight.

        Parameters
        ----------
        fd : the file's descriptor
        job : the extents, with their rows' target
        start : first extent to read

        Raises
        ------
        StoreReadError
            The ring broke, or is closed.
        """
        if self._fd < 0:
            raise StoreReadError(
                errno.EBADF,
                "the io_uring of this store is closed or broke; open the loader, or the store, again",
            )
        depth = min(self.depth, job.bounce.shape[0] // job.slot_bytes)
        report = np.empty(HEAD + depth, np.int64)
        report[NEXT], report[UNFINISHED], report[BAD_PAGE], report[STATUS] = start, 0, -1, 0
        _drive(self._table, fd, job, start, depth, report)
        if report[STATUS]:
            # Reads may still be in flight into the bounce memory, so neither it nor this ring may be used again.
            self.close()
            code = int(report[STATUS])
            raise StoreReadError(code, f"io_uring_enter failed: {os.strerror(code)}; use io='threads'")
        return ReadProgress(
            next=int(report[NEXT]),
            unfinished=report[HEAD : HEAD + report[UNFINISHED]],
            bad_page=int(report[BAD_PAGE]),
        )

    def _check_entry(self) -> None:
        """Enter the ring without requests, because a sandbox may allow creating rings and forbid using them.

        Raises
        ------
        OSError
            The call is forbidden.
        """
        _call(ENTER, self._fd, 0)

    def close(self) -> None:
        """Unmap and close the ring. Idempotent."""
        fd = self._fd
        if fd >= 0:
            # The number is dropped first: at a second close, another file might have it.
            self._descriptor[0] = -1
            os.close(fd)
            self._table = np.empty(0, np.int64)
            self._maps.clear()  # not closed: a traceback may still hold a view, and the last view unmaps the memory

    def __del__(self) -> None:
        # A signal during the creation or the close may have left the ring without a reference, or may have come before
        # the first line in `__init__`.
        if hasattr(self, "_descriptor"):
            self.close()

    def _map_rings(self, params: NDArray[np.uint32]) -> IdArray:
        """Map both rings into this process, and return the table that describes them."""
        # Words 0 and 1 of `struct io_uring_params` are sizes; from words 10 and 20 on it has the offsets of both rings'
        # fields in the mapping. Of these, word 6 of sq is the index array's, and word 5 of cq the completions'.
        sq_entries, cq_entries = int(params[0]), int(params[1])
        sq, cq = params[10:20].astype(np.int64), params[20:30].astype(np.int64)
        ring = self._map(max(sq[6] + sq_entries * 4, cq[5] + cq_entries * CQE_BYTES), 0)
        sqes = self._map(sq_entries * SQE_BYTES, OFF_SQES)
        # The index array is always the identity: entry i of the ring is request i.
        ring[sq[6] : sq[6] + sq_entries * 4].view(np.uint32)[:] = np.arange(sq_entries)
        base = ring.ctypes.data
        table = np.zeros(12, np.int64)
        table[FD] = self._fd
        table[SQ_HEAD], table[SQ_TAIL] = base + sq[0], base + sq[1]
        table[SQ_MASK], table[CQ_MASK] = sq_entries - 1, cq_entries - 1
        table[SQES] = sqes.ctypes.data
        table[CQ_HEAD], table[CQ_TAIL], table[CQES] = base + cq[0], base + cq[1], base + cq[5]
        table[SYSCALL], table[ERRNO] = syscall_address(), errno_location_address()
        return table

    def _map(self, length: int, offset: int) -> NDArray[np.uint8]:
        """Map ``length`` bytes of the ring's file from ``offset`` on, and return them."""
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        mapping = mmap.mmap(self._fd, int(length), flags=flags, offset=offset)
        self._maps.append(mapping)
        return np.frombuffer(mapping, np.uint8)

    def _register(self, bounce: NDArray[np.uint8]) -> bool:
        """Pin the bounce memory once instead of at every read. Return False if the system refuses."""
        vector = np.array([bounce.ctypes.data, bounce.nbytes], np.uint64)
        try:
            _call(REGISTER, self._fd, REGISTER_BUFFERS, vector.ctypes.data, 1)
        except OSError as error:
            _LOG.debug("io_uring buffers stay unregistered: %s", error)
            return False
        return True


def probe_uring() -> str | None:
    """Return the reason why io_uring cannot be used here, or None if it can. Opens a ring and enters it once."""
    try:
        Uring(8).close()
    except OSError as error:
        return str(error)
    return None


def _call(number: int, first: int, second: int = 0, third: int = 0, fourth: int = 0) -> int:
    """Make a system call from Python and return its result, or raise OSError."""
    result = _system_call(syscall_address(), errno_location_address(), number, first, second, third, fourth)
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


@njit(cache=True, nogil=True)
def _system_call(
    function: int, location: int, number: int, first: int, second: int, third: int, fourth: int
) -> int:
    """Make a system call; return its result, or the negative errno."""
    result = call_syscall(function, number, first, second, third, fourth, 0, 0)
    return result if result >= 0 else -call_errno(location)


def _setup(entries: int, descriptor: IdArray) -> NDArray[np.uint32]:
    """Create a ring, write its descriptor to ``descriptor`` (1,), and return its parameter block.

    The block is `struct io_uring_params` as 30 words: word 2 has the requested flags, word 5 the system's features.
    """
    # A system that is too old for the flag returns EINVAL, and works without the flag.
    for flags in (COOP_TASKRUN, 0):
        params = np.zeros(30, np.uint32)
        params[2] = flags
        code = _create(syscall_address(), errno_location_address(), entries, params.ctypes.data, descriptor)
        if code == errno.EINVAL and flags:
            continue
        if code:
            raise OSError(code, os.strerror(code))
        if params[5] & FEAT_SINGLE_MMAP and params[5] & FEAT_RW_CUR_POS:
            return params
        break
    raise OSError(errno.ENOSYS, "this kernel's io_uring is older than Linux 5.6")


@njit(cache=True, nogil=True)
def _create(function: int, location: int, entries: int, params: int, descriptor: IdArray) -> int:
    """Create a ring; return 0, or the errno.

    The descriptor is recorded here, not by the caller. A Ctrl-C during the call is raised when the call returns, and
    the descriptor would be lost.
    """
    result = call_syscall(function, SETUP, entries, params, 0, 0, 0, 0)
    if result < 0:
        return call_errno(location)
    descriptor[0] = result
    return 0


@njit(cache=True, nogil=True)
def submit(
    ring: IdArray, tail: int, opcode: int, fd: int, offset: int, address: int, length: int, tag: int
) -> int:
    """Write one request at ``tail`` and return the next tail; the caller publishes it.

    Parameters
    ----------
    ring : the table of `Uring`
    tail : the submission queue's tail
    opcode : one of the ``OP_`` constants
    fd, offset, address, length : the open file, the offset in it, and the memory
    tag : a number that the completion repeats
    """
    entry = ring[SQES] + (tail & ring[SQ_MASK]) * SQE_BYTES
    # Opcode, flags and priority share the first word; the registered buffer's index 0 is in the zeros.
    store32(entry, opcode)
    store32(entry + 4, fd)
    store64(entry + 8, offset)
    store64(entry + 16, address)
    store32(entry + 24, length)
    store32(entry + 28, 0)
    store64(entry + 32, tag)
    store64(entry + 40, 0)
    store64(entry + 48, 0)
    store64(entry + 56, 0)
    return (tail + 1) & MASK32


@njit(cache=True, nogil=True)
def enter(ring: IdArray, tail: int, wait: int) -> int:
    """Submit the requests before ``tail``, wait for ``wait`` completions, and return 0 or the errno."""
    pending = (tail - load_acquire32(ring[SQ_HEAD])) & MASK32
    if call_syscall(ring[SYSCALL], ENTER, ring[FD], pending, wait, GETEVENTS, 0, 0) < 0:
        return call_errno(ring[ERRNO])
    return 0


@njit(cache=True, nogil=True)
def _drive(ring: IdArray, fd: int, job: ReadJob, start: int, depth: int, report: IdArray) -> None:
    """Keep ``depth`` reads in flight, deliver each on completion, and return when no read is in flight.

    Each round of the loop submits reads for the free slots, waits for completions, and delivers the completed extents:
    it verifies their pages and copies their rows. After a failed read, a bad page or a signal it submits no more, and
    returns once all reads in flight have completed. The caller then decides, and may call again.

    Parameters
    ----------
    ring : the table of `Uring`
    fd, job : the open file, and the extents with their rows' target
    start : first extent to read
    depth : slots in the bounce memory, so also the maximum number of reads in flight
    report : (4 + depth,) positions as above; written
    """
    (
        offset, length, row_begin, row_end, data_offset, checksums, format_version, bounce, halves, words,
        slot_bytes, target,
    ) = job  # fmt: skip
    rows, position, out_bytes, out_floats, scale, mode, row_bytes, dim = target
    count = offset.shape[0]
    base = np.int64(bounce.ctypes.data)
    opcode = OP_READ_FIXED if ring[FIXED] else OP_READ
    free = np.arange(depth)
    num_free = depth
    owner = np.empty(depth, np.int64)  # the extent in each slot
    tail = load_acquire32(ring[SQ_TAIL])
    upcoming = np.int64(start)
    refusals = 0
    stopping = False
    while True:
        while num_free > 0 and upcoming < count and not stopping:
            num_free -= 1
            slot = free[num_free]
            owner[slot] = upcoming
            address = base + slot * slot_bytes
            tail = submit(ring, tail, opcode, fd, offset[upcoming], address, length[upcoming], slot)
            upcoming += 1
        # The tail is published last: from now on the system may read every entry before it.
        store_release32(ring[SQ_TAIL], tail)
        in_flight = depth - num_free
        if in_flight == 0:
            break
        # Wait for as many completions as a turn delivers, but at most a quarter of the ring: the device then still has
        # the other three quarters.
        code = enter(ring, tail, min(in_flight, max(1, min(depth // 4, _TURN_BYTES // slot_bytes))))
        if code == errno.EINTR:
            stopping = True  # let Python run its signal handlers once all is drained
        elif code in (errno.EAGAIN, errno.EBUSY):
            refusals += 1
        elif code != 0:
            refusals = MAX_REFUSALS
        if refusals >= MAX_REFUSALS:
            report[STATUS] = code
            break
        # This is an acquire read: afterwards the completions before ``last``, and their bytes, are visible.
        head = load_acquire32(ring[CQ_HEAD])
        last = load_acquire32(ring[CQ_TAIL])
        if head != last:
            refusals = 0
        delivered = np.int64(0)
        while head != last and delivered < _TURN_BYTES:
            entry = ring[CQES] + (head & ring[CQ_MASK]) * CQE_BYTES
            slot = load64(entry)  # the request's tag; byte 8 has the bytes read, or a negative errno
            extent = owner[slot]
            delivered += slot_bytes
            if load32(entry + 8) != length[extent]:
                report[HEAD + report[UNFINISHED]] = extent
                report[UNFINISHED] += 1
                stopping = True
            else:
                page = verify_and_copy_fields(
                    extent, slot * slot_bytes, offset, length, row_begin, row_end, data_offset, checksums,
                    format_version, bounce, halves, words,
                    rows, position, out_bytes, out_floats, scale, mode, row_bytes, dim,
                )  # fmt: skip
                if page >= 0:
                    report[BAD_PAGE] = page
                    stopping = True
            free[num_free] = slot
            num_free += 1
            head = (head + 1) & MASK32
        # The head is returned last, because the system may then overwrite these completions.
        store_release32(ring[CQ_HEAD], head)
    report[NEXT] = upcoming
