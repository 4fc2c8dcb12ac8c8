"""Measurements of a device: reads and writes that are timed and dropped."""

from __future__ import annotations

import os
import secrets
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.errors import StoreOpenError
from gloader.ssd_store.cost.probe_loads import ReadLoad, WriteLoad, shares_together, steady_rate
from gloader.ssd_store.cost.read_times import SEQUENTIAL_BYTES
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath, close_quietly, is_unsupported
from gloader.ssd_store.read.descriptor import Descriptor
from gloader.ssd_store.read.extents import ALIGNMENT, Extents

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.types import IdArray

CHUNK_BYTES: Final = 4 * 2**20  # of a write
# Reads in flight, the fewest first: one that reaches the rate of the next is deep enough. Those of 64 KiB and in file
# order hold as many bytes in flight as reads of batches and sweeps do.
DEPTHS: Final = (64, 256, 1024)
WIDE_DEPTH: Final = 64
_SEQUENTIAL_DEPTH: Final = 16
_MIXED_DEPTH: Final = 256  # of reads beside a sweep
_RANDOM_BATCH, _SEQUENTIAL_BATCH = 8192, 256  # most reads between two looks at the clock
_RANDOM_PLACES: Final = 2**17  # more than a phase reads
_WORTH: Final = (
    1.05  # a deeper queue must gain 5%: otherwise noise would choose among depths that are all enough
)
_LONE_READS: Final = 32
_LONGEST_WAIT_S: Final = 0.01  # of a thread for a core


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
    return WriteLoad(fd, noise(memory), os_io=os_io).fill(seconds=seconds, max_bytes=max_bytes)


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
    extents = random_extents(size, read_bytes=read_bytes, start=start)
    with ReadLoad(fd, extents, memory, depth=depth, most=_RANDOM_BATCH) as load:
        return steady_rate(load.settled(seconds).step, seconds=seconds)


def measure_depth(fd: int, size: int, memory: Any, *, seconds: float, start: int = 0) -> tuple[float, int]:
    """Return the reads of 4 KiB per second that the device keeps up, and how many in flight that takes.

    Parameters
    ----------
    fd, size, memory, seconds, start : as of `measure_random_reads`, memory for the deepest of `DEPTHS`

    Raises
    ------
    OSError
        The device failed.
    """
    best_rate, best_depth = 0.0, DEPTHS[0]
    for depth in DEPTHS:
        rate = measure_random_reads(fd, size, memory, depth=depth, seconds=seconds, start=start)
        if rate <= best_rate * _WORTH:
            break
        best_rate, best_depth = rate, depth
        if rate * _LONGEST_WAIT_S < depth:  # what it has to do is in the queue already
            break
    return best_rate, best_depth


def measure_latency(fd: int, size: int, memory: Any, *, start: int = 0) -> float:
    """Return the seconds of a read of 4 KiB with nothing beside it: the median of some.

    Parameters
    ----------
    fd, size, memory, start : as of `measure_random_reads`

    Raises
    ------
    OSError
        The device failed.
    """
    extents = random_extents(size, read_bytes=ALIGNMENT, start=start)
    with ReadLoad(fd, extents, memory, depth=1, most=1) as load:
        return median(load.step_seconds() for _ in range(_LONE_READS))


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
    with sweep_load(fd, size, memory, start=start) as load:
        return steady_rate(load.settled(seconds).step, seconds=seconds) * SEQUENTIAL_BYTES


def measure_mixed_writes(
    fd: int, size: int, memory: Any, writes: WriteLoad, *, seconds: float, start: int = 0
) -> float:
    """Return what a device does of a sweep and of writes at once, over what it does of them in turns.

    Parameters
    ----------
    fd, size, memory, start : of the file that is swept, as of `measure_sequential_reads`
    writes : to another file, which is overwritten
    seconds : how long to measure either, and both

    Raises
    ------
    OSError
        The device failed, or is full.
    """
    with sweep_load(fd, size, memory, start=start) as sweep:
        return shares_together(sweep.settled(seconds).step, writes.step, seconds=seconds)


def measure_mixed_reads(fd: int, size: int, memory: Any, *, seconds: float, start: int = 0) -> float:
    """Return what a device does of a sweep and of random reads at once, over what it does of them in turns.

    Parameters
    ----------
    fd, size, start : as of `measure_random_reads`
    memory : (>= 4 MiB + 256 * 4 KiB,) uint8, page-aligned; overwritten
    seconds : how long to measure either, and both

    Raises
    ------
    OSError
        The device failed.
    """
    swept, read = memory[:CHUNK_BYTES], memory[CHUNK_BYTES:]
    extents = random_extents(size, read_bytes=ALIGNMENT, start=start)
    with (
        sweep_load(fd, size, swept, start=start) as sweep,
        ReadLoad(fd, extents, read, depth=_MIXED_DEPTH, most=_RANDOM_BATCH) as reads,
    ):
        return shares_together(sweep.settled(seconds).step, reads.settled(seconds).step, seconds=seconds)


def random_extents(size: int, *, read_bytes: int, start: int = 0) -> Extents:
    """Return reads of ``read_bytes`` anywhere in ``size`` bytes from ``start`` on.

    At other places each time: a cache in front of the device may remember the last ones.
    """
    places = size // read_bytes
    chosen = np.random.default_rng().integers(0, places, min(_RANDOM_PLACES, places))
    return bare_extents(start + chosen * read_bytes, read_bytes)


def sweep_load(fd: int, size: int, memory: Any, *, start: int = 0) -> ReadLoad:
    """Return reads in file order, from anywhere in a file on; for the parameters see `measure_sequential_reads`."""
    count = size // SEQUENTIAL_BYTES
    first = np.random.default_rng().integers(count)  # as above
    offset = start + (np.arange(count) + first) % count * SEQUENTIAL_BYTES
    return ReadLoad(
        fd, bare_extents(offset, SEQUENTIAL_BYTES), memory, depth=_SEQUENTIAL_DEPTH, most=_SEQUENTIAL_BATCH
    )


def bare_extents(offset: IdArray, length: int) -> Extents:
    """Return reads that no row wants: the bytes are fetched and dropped."""
    nothing = np.zeros(offset.shape[0], np.int64)
    return Extents(offset=offset, length=np.full_like(nothing, length), row_begin=nothing, row_end=nothing)


def noise(memory: Any) -> Any:
    """Return a chunk of ``memory``, filled with random bytes: some devices compress, and some drop zeros."""
    chunk = memory[:CHUNK_BYTES]
    chunk[:] = np.random.default_rng(0).integers(0, 256, CHUNK_BYTES, dtype=np.uint8)
    return chunk
