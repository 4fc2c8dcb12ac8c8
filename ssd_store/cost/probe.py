"""Measurements of a device: reads and writes that are timed and dropped."""

from __future__ import annotations

import errno
import math
import os
import secrets
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.errors import StoreOpenError
from gloader.ssd_store.cost.read_times import SEQUENTIAL_BYTES
from gloader.ssd_store.format.checksum import FORMAT_VERSION
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath, close_quietly, is_unsupported
from gloader.ssd_store.read.backend import Backend, ExecutorKind, PlainBackend, choose_executor
from gloader.ssd_store.read.copy_kernels import make_target
from gloader.ssd_store.read.descriptor import Descriptor
from gloader.ssd_store.read.extents import ALIGNMENT, Extents
from gloader.ssd_store.read.preadpool import PreadPool
from gloader.ssd_store.read.uring import Uring
from gloader.ssd_store.read.verify_kernels import ReadJob

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.types import IdArray

CHUNK_BYTES = 4 * 2**20  # of a write
_SEQUENTIAL_DEPTH = 16
WIDE_DEPTH = 64  # reads of 64 KiB in flight: as many bytes as small ones in the deepest queue
_MAX_THREADS = 32
_RANDOM_BATCH, _SEQUENTIAL_BATCH = 8192, 256  # most reads between two looks at the clock
_RANDOM_PLACES = 2**17  # more than a phase reads
# A device, or its host, may give more for a moment than it keeps up: phases are repeated until one is as fast as the
# one before it, but not for ever.
_MOST_PHASES = 4
_STEADY = 0.85  # of the rate of the phase before


def open_scratch(folder: Path, os_io: OsIO = REAL_OS) -> tuple[int, bool]:
    """Return the descriptor of a new file without a name, and whether it is open with O_DIRECT.

    Raises
    ------
    StoreOpenError
        No file can be made in ``folder``.
    """
    path = folder / f".gloader-probe-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        fd = os_io.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            # Its name goes at once: whatever happens to this process, nothing stays behind.
            os_io.unlink(path)
            os_io.set_blocking(fd)
            is_direct = _is_made_direct(fd, os_io)
        except BaseException:
            close_quietly(fd, os_io=os_io)
            raise
    except OSError as error:
        message = f"cannot make a temporary file to measure the device: {error.strerror}"
        raise StoreOpenError(error.errno, message, str(folder)) from error
    return fd, is_direct


def _is_made_direct(fd: int, os_io: OsIO) -> bool:
    # Not when it is opened: a refused O_DIRECT may leave the file that O_CREAT made.
    try:
        os_io.set_direct(fd, is_direct=True)
    except OSError as error:
        if not is_unsupported(error):
            raise
        return False
    return True


def open_existing(path: StrPath, os_io: OsIO = REAL_OS) -> tuple[Descriptor, bool]:
    """Return a file open for reading, and whether it is open with O_DIRECT.

    Raises
    ------
    OSError
        As `Descriptor`.
    """
    try:
        return Descriptor(path, os.O_RDONLY | os.O_DIRECT, os_io=os_io), True
    except OSError as error:
        if not is_unsupported(error):
            raise
    return Descriptor(path, os_io=os_io), False


def measure_writes(
    fd: int, memory: Any, *, seconds: float, max_bytes: int, os_io: OsIO = REAL_OS
) -> tuple[int, float]:
    """Fill an empty file for a while, fsync included; return its size in bytes and the bytes per second.

    Parameters
    ----------
    fd : of the empty file
    memory : (>= 4 MiB,) uint8, page-aligned; overwritten
    seconds : how long to write, fsync not counted
    max_bytes : size at which to stop earlier
    os_io : the system calls to make

    Raises
    ------
    OSError
        The device failed, or is full.
    """
    chunk = memory[:CHUNK_BYTES]
    # Random bytes: some devices compress, and some drop zeros.
    chunk[:] = np.random.default_rng(0).integers(0, 256, CHUNK_BYTES, dtype=np.uint8)
    size, start = 0, time.perf_counter()
    while size < max_bytes and (size == 0 or time.perf_counter() - start < seconds):
        count = os_io.pwrite(fd, chunk.data, size)
        if count < ALIGNMENT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        size += count // ALIGNMENT * ALIGNMENT
    # Inside the timing: before it, the bytes may be anywhere but on the device.
    os_io.fsync(fd)
    return size, size / (time.perf_counter() - start)


def measure_random_reads(
    fd: int,
    size: int,
    memory: Any,
    *,
    depth: int,
    seconds: float,
    read_bytes: int = ALIGNMENT,
    start: int = 0,
) -> float:
    """Return the random reads per second that the device keeps up.

    Parameters
    ----------
    fd : of the file
    size : bytes of the file to read from
    memory : (>= depth * read_bytes,) uint8, page-aligned; overwritten
    depth : reads in flight
    seconds : how long to measure at a time, at least twice and until the rate is steady
    read_bytes : of one read, a multiple of 4096
    start : byte of the file, a multiple of 4096, from which on they are read

    Raises
    ------
    OSError
        The device failed.
    """
    # Other places at each run: a cache in front of the device may remember the last ones.
    places = size // read_bytes
    chosen = np.random.default_rng().integers(0, places, min(_RANDOM_PLACES, places))
    extents = _bare_extents(start + chosen * read_bytes, read_bytes)
    return _reads_per_s(fd, memory, depth, extents, _RANDOM_BATCH, seconds)


def measure_sequential_reads(fd: int, size: int, memory: Any, *, seconds: float, start: int = 0) -> float:
    """Return the bytes per second of large reads in file order that the device keeps up.

    Parameters
    ----------
    fd : of the file
    size : bytes of the file to read from
    memory : (>= 4 MiB,) uint8, page-aligned; overwritten
    seconds : how long to measure at a time, at least twice and until the rate is steady
    start : byte of the file, a multiple of 4096, from which on they are read

    Raises
    ------
    OSError
        The device failed.
    """
    count = size // SEQUENTIAL_BYTES
    first = np.random.default_rng().integers(count)  # as above
    extents = _bare_extents(start + (np.arange(count) + first) % count * SEQUENTIAL_BYTES, SEQUENTIAL_BYTES)
    rate = _reads_per_s(fd, memory, _SEQUENTIAL_DEPTH, extents, _SEQUENTIAL_BATCH, seconds)
    return rate * SEQUENTIAL_BYTES


def _bare_extents(offset: IdArray, length: int) -> Extents:
    """Return reads that no row wants: the bytes are fetched and dropped."""
    nothing = np.zeros(offset.shape[0], np.int64)
    return Extents(offset=offset, length=np.full_like(nothing, length), row_begin=nothing, row_end=nothing)


def _reads_per_s(fd: int, memory: Any, depth: int, extents: Extents, max_batch: int, seconds: float) -> float:
    def make(kind: ExecutorKind) -> Backend:
        if kind == "uring":
            return Uring(depth, memory)
        return PreadPool(min(depth, _MAX_THREADS)) if kind == "threads" else PlainBackend()

    backend = choose_executor("auto", is_direct=True, is_real=True, make=make)
    try:
        backend.read(fd, _job(extents, memory, 0, 1), 0)  # compiles the kernel outside the timing
        batch, first, done, start, rates = depth, 0, 0, time.perf_counter(), [math.inf]
        while True:
            begin = time.perf_counter()
            count = min(batch, len(extents) - first)
            progress = backend.read(fd, _job(extents, memory, first, first + count), 0)
            if progress.next <= progress.unfinished.size:
                raise OSError(errno.EIO, "not one of the reads that measure the device succeeded")
            first = (first + progress.next) % len(extents)
            now = time.perf_counter()
            if now - begin < seconds / 8 and batch < max_batch:
                # So short a burst is mostly its own beginning and end.
                batch, done, start = 2 * batch, 0, now
                continue
            done += progress.next
            if now - start >= seconds:
                rates.append(done / (now - start))
                if rates[-1] >= _STEADY * rates[-2] or len(rates) > _MOST_PHASES:
                    return rates[-1]
                done, start = 0, now
    finally:
        backend.close()


def _job(extents: Extents, memory: Any, first: int, last: int) -> ReadJob:
    out = np.empty((0, 1), np.uint8)
    nobody = np.empty(0, np.int64)
    return ReadJob(
        offset=extents.offset[first:last],
        length=extents.length[first:last],
        row_begin=extents.row_begin[first:last],
        row_end=extents.row_end[first:last],
        data_offset=0,
        checksums=np.empty(0, np.uint64),
        format_version=FORMAT_VERSION,
        bounce=memory,
        bounce_halves=memory.view(np.uint16),
        bounce_words=memory.view(np.uint64),
        slot_bytes=int(extents.length[0]),
        target=make_target(nobody, nobody, out, dtype=out.dtype),
    )
