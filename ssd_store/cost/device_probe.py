"""Probes of a device: timed reads and writes for one to three seconds, on an existing or a new file.

A probe measures the rates for a `DeviceProfile`, from which the cost model predicts the time of each I/O strategy.
`find_rates` calls `probe_file` for a file that exists, and `probe_folder` or `probe_writes` to measure with new files.

- A load repeats one kind of request: `ReadLoad` reads, `WriteLoad` writes.
- A step is a part of a load between two readings of the clock.
- A phase is a number of steps that last a given time. Phases are repeated until two in a row have about the same rate.
- A sweep is a load of large reads in file order. Two parallel loads show how they share the device.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import time
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.core.aligned_memory import mapped_bytes
from gloader.core.signals import run_together
from gloader.errors import StoreOpenError
from gloader.ssd_store.cost.device_profile import DeviceProfile
from gloader.ssd_store.cost.io_rates import MEDIUM_BYTES, SEQUENTIAL_BYTES, WIDE_BYTES
from gloader.ssd_store.format.checksum import FORMAT_VERSION
from gloader.ssd_store.os_io import REAL_OS, Descriptor, OsIO, StrPath, close_quietly, is_unsupported
from gloader.ssd_store.read.backend import ExecutorKind, PlainBackend, PreadPool, choose_executor
from gloader.ssd_store.read.extents import ALIGNMENT, Extents
from gloader.ssd_store.read.lane import DEFAULT_DEPTH
from gloader.ssd_store.read.row_kernels import ReadJob, make_target
from gloader.ssd_store.read.uring import Uring

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from gloader.ssd_store.read.lane import Backend
    from gloader.types import IdArray


_MAX_THREADS: Final = 32  # threads of a load without io_uring
# A device, or its host, may be faster for a moment than in the long run. So a measurement is repeated in phases until
# two consecutive phases agree, or a limit is reached. Later runs correct the rates for slower changes.
_MOST_PHASES: Final = 5  # phases in one measurement
_STEADY: Final = 0.85  # two phases agree if the slower one reaches this share of the faster one
_MOST_S: Final = 6.0  # no new phase after this multiple of a phase's seconds; for a device that stalls
_SETTLED: Final = 1 / 8  # shortest step, as a share of a phase; keeps the effect of its start and end small
# Maximum number of reads in the first step. A device with hundreds of reads per second would take seconds for more.
_FEW: Final = 32
# Bounds for the combined rate of two parallel loads, see `shares_together`: 2 means that neither slows the other down.
# A result outside the bounds is an effect of other programs.
_LEAST_TOGETHER, _MOST_TOGETHER = 0.25, 2.0


class ReadLoad:
    """Repeated reads of a file; the bytes are dropped. Owns a ring or threads until `close`.

    Parameters
    ----------
    fd : the open file
    extents : the reads, all of one length, made in this order and repeated from the beginning
    memory : (>= depth * length,) uint8, page-aligned; overwritten
    depth : reads in flight
    most : maximum number of reads per step

    Raises
    ------
    OSError
        The device failed.
    """

    def __init__(self, fd: int, extents: Extents, memory: Any, *, depth: int, most: int) -> None:
        def make(kind: ExecutorKind) -> Backend:
            if kind == "uring":
                return Uring(depth, memory)
            return PreadPool(min(depth, _MAX_THREADS)) if kind == "threads" else PlainBackend()

        self._fd, self._extents, self._memory = fd, extents, memory
        self._most, self._batch, self._first = most, min(depth, most, _FEW), 0
        self._backend = choose_executor("auto", is_direct=True, is_real=True, make=make)
        try:
            # Compiles the kernel outside the timing.
            self._backend.read(fd, read_job(extents, memory, 0, 1), 0)
        except BaseException:
            self._backend.close()
            raise

    def settled(self, seconds: float) -> Self:
        """Double the reads per step until a step takes an eighth of a phase; return this load.

        Parameters
        ----------
        seconds : duration of a phase
        """
        while self.step_seconds() < seconds * _SETTLED and self._batch < self._most:
            self._batch *= 2
        return self

    def step_seconds(self) -> float:
        """Run one step, and return its duration in seconds."""
        began = perf_counter()
        self.step()
        return perf_counter() - began

    def step(self) -> int:
        """Read the next extents, as many as a step has, and return their number.

        Raises
        ------
        OSError
            None of the started reads succeeded.
        """
        past = min(self._first + self._batch, len(self._extents))
        progress = self._backend.read(self._fd, read_job(self._extents, self._memory, self._first, past), 0)
        if progress.next <= progress.unfinished.size:
            raise OSError(errno.EIO, "not one of the reads that measure the device succeeded")
        self._first = (self._first + progress.next) % len(self._extents)
        return int(progress.next)

    def close(self) -> None:
        """Release everything. Idempotent."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class WriteLoad:
    """Repeated writes of a chunk to consecutive offsets of a file.

    Parameters
    ----------
    fd : the open file
    chunk : uint8, page-aligned if the file is open with O_DIRECT
    size : the file's size, after which the writes begin again at offset 0. None lets the file grow.
    os_io : the system calls
    """

    def __init__(self, fd: int, chunk: Any, *, size: int | None = None, os_io: OsIO = REAL_OS) -> None:
        self._fd, self._chunk, self._os_io = fd, chunk, os_io
        self._size, self._offset = size, 0

    def fill(self, *, seconds: float, max_bytes: int) -> tuple[int, float]:
        """Write for a while, then fsync. Return the written bytes and the bytes per second.

        Parameters
        ----------
        seconds : time to write, without the fsync
        max_bytes : size at which to stop earlier

        Raises
        ------
        OSError
            The device failed, or is full.
        """
        size, start = 0, perf_counter()
        while size < max_bytes and (size == 0 or perf_counter() - start < seconds):
            size += self.step()
        # The fsync belongs to the measured time: before it, the bytes may not be on the device.
        self._os_io.fsync(self._fd)
        return size, size / (perf_counter() - start)

    def step(self) -> int:
        """Write a chunk; return its bytes.

        Raises
        ------
        OSError
            The device failed, or is full.
        """
        if self._size is not None and self._offset + len(self._chunk) > self._size:
            self._offset = 0
        count = self._os_io.pwrite(self._fd, self._chunk.data, self._offset)
        if count < ALIGNMENT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        whole = count // ALIGNMENT * ALIGNMENT
        self._offset += whole
        return whole


def steady_rate(step: Callable[[], int], *, seconds: float) -> float:
    """Return a load's sustained rate per second: the mean of two consecutive phases that agree.

    Parameters
    ----------
    step : does one step of the load and returns its amount, such as reads or bytes
    seconds : shortest duration of a phase
    """
    previous, start = math.inf, perf_counter()  # the previous phase's rate
    for _ in range(_MOST_PHASES):
        done, began = 0, perf_counter()
        while (passed := perf_counter() - began) < seconds:
            done += step()
        rate = done / passed
        if min(rate, previous) >= _STEADY * max(rate, previous):
            return (previous + rate) / 2
        previous = rate
        if perf_counter() - start > _MOST_S * seconds:
            break
    # No two phases agreed. The last one is the best prediction.
    return previous


def shares_together(one: Callable[[], int], other: Callable[[], int], *, seconds: float) -> float:
    """Return the combined rate of two parallel loads, relative to running them one after the other.

    The result is the sum of both loads' rates in parallel, each as a share of its rate alone. 1 means no gain, and 2
    that neither load slows the other down.

    Parameters
    ----------
    one, other : do one step of a load, each in a separate thread, and return its amount
    seconds : time for each load alone, and for both together
    """

    def rate(step: Callable[[], int]) -> float:
        """Return the amount per second of a load."""
        done, began = 0, perf_counter()
        while (passed := perf_counter() - began) < seconds:
            done += step()
        return done / passed

    alone = [rate(one), rate(other)]
    tasks = [partial(rate, one), partial(rate, other)]
    together = run_together(tasks, threads=2, name="gloader-probe")
    combined = sum(parallel / single for parallel, single in zip(together, alone, strict=True))
    return min(max(combined, _LEAST_TOGETHER), _MOST_TOGETHER)


def read_job(extents: Extents, memory: Any, first: int, past: int) -> ReadJob:
    """Return the job for the reads ``first`` to ``past - 1``: the bytes are read, and no row is copied or verified."""
    out = np.empty((0, 1), np.uint8)
    no_ids = np.empty(0, np.int64)
    return ReadJob(
        offset=extents.offset[first:past],
        length=extents.length[first:past],
        row_begin=extents.row_begin[first:past],
        row_end=extents.row_end[first:past],
        data_offset=0,
        checksums=np.empty(0, np.uint64),
        format_version=FORMAT_VERSION,
        bounce=memory,  # receives the bytes, also seen as 16-bit halves and 64-bit words
        bounce_halves=memory.view(np.uint16),
        bounce_words=memory.view(np.uint64),
        slot_bytes=int(extents.length[0]),
        target=make_target(no_ids, no_ids, out),
    )


CHUNK_BYTES: Final = 4 * 2**20  # bytes of a write
# Queue depths (reads in flight) to try for 4 KiB reads, in ascending order. The probe takes the first depth that the
# next one hardly exceeds.
DEPTHS: Final = (64, 256, 1024)
WIDE_DEPTH: Final = 64  # random reads of 64 KiB in flight, as when batches are read
_SEQUENTIAL_DEPTH: Final = 16  # reads in file order in flight, as in a sweep
_MIXED_DEPTH: Final = 256  # random reads in flight during a sweep
_RANDOM_BATCH, _SEQUENTIAL_BATCH = 8192, 256  # maximum number of reads in a step
_RANDOM_PLACES: Final = 2**17  # offsets drawn for a random load; more reads than a phase makes
_WORTH: Final = 1.05  # least gain of a deeper queue, so that noise does not decide between equal depths
_LONE_READS: Final = 32  # reads whose median is the latency
_LONGEST_WAIT_S: Final = 0.01  # a thread's longest wait for a core


def open_scratch(folder: Path, os_io: OsIO = REAL_OS) -> tuple[int, bool]:
    """Return the descriptor of a new unnamed file, and whether it is open with O_DIRECT.

    Raises
    ------
    StoreOpenError
        No file can be made in ``folder``.
    """
    path = folder / f".gloader-probe-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        fd = os_io.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            # Unlinked at once, so that a crash leaves no file behind.
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
    """Switch the open file to O_DIRECT, reads and writes without the page cache; return False if it is unsupported."""
    # Not in `open`: if the system refused O_DIRECT there, the file that O_CREAT made could remain.
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
        As in `Descriptor`.
    """
    try:
        return Descriptor(path, os.O_RDONLY | os.O_DIRECT, os_io=os_io), True
    except OSError as error:
        if not is_unsupported(error):
            raise
    return Descriptor(path, os_io=os_io), False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedFile:
    """A part of an open file for timed reads, and the memory for their bytes. Every method may raise `OSError`."""

    fd: int
    num_bytes: int  # size of the part
    memory: Any  # uint8, page-aligned, with room for all reads in flight; overwritten
    start: int = 0  # first byte in the file, a multiple of 4096

    def random_reads(self, *, depth: int, seconds: float, read_bytes: int = ALIGNMENT) -> float:
        """Return the device's sustained random reads per second.

        Parameters
        ----------
        depth : reads in flight
        seconds : time per phase; at least two phases are run, until the rate is steady
        read_bytes : bytes per read, a multiple of 4096
        """
        with self.random_load(self.memory, read_bytes=read_bytes, depth=depth) as load:
            return steady_rate(load.settled(seconds).step, seconds=seconds)

    def best_depth(self, *, seconds: float) -> tuple[float, int]:
        """Return the sustained 4 KiB reads per second, and the queue depth that reaches them.

        Parameters
        ----------
        seconds : time per phase
        """
        best_rate, best_depth = 0.0, DEPTHS[0]
        for depth in DEPTHS:
            rate = self.random_reads(depth=depth, seconds=seconds)
            if rate <= best_rate * _WORTH:
                break
            best_rate, best_depth = rate, depth
            if rate * _LONGEST_WAIT_S < depth:  # a deeper queue only makes reads wait
                break
        return best_rate, best_depth

    def latency(self) -> float:
        """Return the seconds for a single 4 KiB read without other load: the median of several."""
        with self.random_load(self.memory, depth=1, most=1) as load:
            return median(load.step_seconds() for _ in range(_LONE_READS))

    def sequential_reads(self, *, seconds: float) -> float:
        """Return the sustained bytes per second for large reads in file order; a phase takes ``seconds``."""
        with self.sweep_load(self.memory) as load:
            return steady_rate(load.settled(seconds).step, seconds=seconds) * SEQUENTIAL_BYTES

    def mixed_writes(self, writes: WriteLoad, *, seconds: float) -> float:
        """Return the combined rate for a sweep and ``writes`` to another file, relative to taking turns."""
        with self.sweep_load(self.memory) as sweep:
            return shares_together(sweep.settled(seconds).step, writes.step, seconds=seconds)

    def mixed_reads(self, *, seconds: float) -> float:
        """Return the combined rate for a sweep and parallel random reads, relative to taking turns."""
        with (
            self.sweep_load(self.memory[:CHUNK_BYTES]) as sweep,
            self.random_load(self.memory[CHUNK_BYTES:], depth=_MIXED_DEPTH) as reads,
        ):
            return shares_together(sweep.settled(seconds).step, reads.settled(seconds).step, seconds=seconds)

    def random_load(
        self, memory: Any, *, read_bytes: int = ALIGNMENT, depth: int, most: int = _RANDOM_BATCH
    ) -> ReadLoad:
        """Return a load of random reads in this part.

        Each call draws new offsets, because the device's cache may hold the bytes of earlier calls.

        Parameters
        ----------
        memory, depth, most : as in `ReadLoad`
        read_bytes : bytes per read, a multiple of 4096
        """
        places = self.num_bytes // read_bytes
        chosen = np.random.default_rng().integers(0, places, min(_RANDOM_PLACES, places))
        extents = bare_extents(self.start + chosen * read_bytes, read_bytes)
        return ReadLoad(self.fd, extents, memory, depth=depth, most=most)

    def sweep_load(self, memory: Any) -> ReadLoad:
        """Return a load of reads in file order, from a random offset on, into ``memory`` (>= 4 MiB,)."""
        count = self.num_bytes // SEQUENTIAL_BYTES
        first = np.random.default_rng().integers(count)  # random, as in `random_load`
        offset = self.start + (np.arange(count) + first) % count * SEQUENTIAL_BYTES
        extents = bare_extents(offset, SEQUENTIAL_BYTES)
        return ReadLoad(self.fd, extents, memory, depth=_SEQUENTIAL_DEPTH, most=_SEQUENTIAL_BATCH)


def bare_extents(offset: IdArray, length: int) -> Extents:
    """Return reads without rows: the bytes are fetched and dropped."""
    nothing = np.zeros(offset.shape[0], np.int64)
    return Extents(offset=offset, length=np.full_like(nothing, length), row_begin=nothing, row_end=nothing)


def noise(memory: Any) -> Any:
    """Fill a chunk of ``memory`` with random bytes and return it, because some devices compress data or drop zeros."""
    chunk = memory[:CHUNK_BYTES]
    chunk[:] = np.random.default_rng(0).integers(0, 256, CHUNK_BYTES, dtype=np.uint8)
    return chunk


# A phase of 0.2 s predicts the rate of the next five seconds to 7% (median; 19% in one case in ten), on a virtual disk
# whose rate varies by a third within half a minute; 0.8 s predicts it to 6%. Later runs correct slower changes.
PHASE_S: Final = 0.08  # seconds of a phase: a compromise with the duration of the probe
_MIXED_S: Final = 0.06  # seconds of each measurement in `shares_together`
_FILE_BYTES: Final = 256 * 2**20  # largest size of a new file
# Largest size of a second file, overwritten during a sweep over the first.
_SECOND_FILE_BYTES: Final = 64 * 2**20


def probe_file(path: Path, start: int, num_bytes: int, os_io: OsIO) -> DeviceProfile:
    """Measure a file's reads. The profile has no write rate.

    Parameters
    ----------
    path : the file
    start, num_bytes : range in the file, multiples of 4096

    Raises
    ------
    OSError
        The file cannot be read.
    """
    file, is_direct = open_existing(path, os_io)
    with file as fd:
        return _measured(fd, num_bytes, start=start, is_direct=is_direct)


def probe_folder(folder: Path, os_io: OsIO) -> DeviceProfile:
    """Measure writes to a new file, and reads from it.

    Raises
    ------
    StoreOpenError
        No file can be made in ``folder``.
    OSError
        The device failed, or is full.
    """
    memory = mapped_bytes(2 * CHUNK_BYTES)
    fd, is_direct = open_scratch(folder, os_io)
    try:
        size, write_rate = _fill(fd, memory, os_io)
        profile = _measured(fd, size, start=0, is_direct=is_direct)
        # A second file, to measure a sweep over the first one in parallel with writes.
        second_fd, _ = open_scratch(folder, os_io)
        try:
            writes = WriteLoad(second_fd, noise(memory), os_io=os_io)
            filled, _ = writes.fill(seconds=PHASE_S, max_bytes=min(_SECOND_FILE_BYTES, _FILE_BYTES))
            mixed = _mixed_writes(fd, (0, size), second_fd, filled, memory, os_io)
        finally:
            close_quietly(second_fd, os_io=os_io)
    finally:
        close_quietly(fd, os_io=os_io)
    return replace(profile, write_bytes_per_s=write_rate, mixed_writes=mixed, is_scratch=True)


def probe_writes(
    folder: Path, swept: tuple[Path, tuple[int, int]] | None, os_io: OsIO
) -> tuple[float, float]:
    """Return the bytes per second for writing a new file in ``folder``, and `DeviceProfile.mixed_writes`.

    Parameters
    ----------
    folder : the new file's folder
    swept : another file on the same device, and the byte range to read during the writes. None means no such file.

    Raises
    ------
    StoreOpenError
        No file can be created in ``folder``.
    OSError
        The device failed, or is full.
    """
    memory = mapped_bytes(2 * CHUNK_BYTES)
    fd, _ = open_scratch(folder, os_io)
    try:
        size, rate = _fill(fd, memory, os_io)
        if swept is None:
            return rate, 1.0
        file, _ = open_existing(swept[0], os_io)
        with file as read_from:
            return rate, _mixed_writes(read_from, swept[1], fd, size, memory, os_io)
    finally:
        close_quietly(fd, os_io=os_io)


def _fill(fd: int, memory: Any, os_io: OsIO) -> tuple[int, float]:
    """Fill a new file; return its bytes and the bytes per second."""
    writes = WriteLoad(fd, noise(memory), os_io=os_io)
    return writes.fill(seconds=2 * PHASE_S, max_bytes=_FILE_BYTES)


def _mixed_writes(
    fd: int, span: tuple[int, int], write_fd: int, size: int, memory: Any, os_io: OsIO
) -> float:
    """Return the combined rate of a sweep over one file and writes to another, relative to taking turns.

    Parameters
    ----------
    fd, span : the file to sweep, and the range: its first byte, and its last plus one
    write_fd, size : the file to overwrite, and its size
    memory : (>= 8 MiB,) page-aligned, for the writes and the reads
    """
    writes = WriteLoad(write_fd, noise(memory), size=size, os_io=os_io)
    start, past = span
    swept = ProbedFile(fd=fd, num_bytes=past - start, memory=memory[CHUNK_BYTES:], start=start)
    return swept.mixed_writes(writes, seconds=_MIXED_S)


def _measured(fd: int, num_bytes: int, *, start: int, is_direct: bool) -> DeviceProfile:
    """Return a profile without write rates, from reads of ``num_bytes`` of an open file, from ``start`` on."""
    deep, wide = max(DEPTHS) * ALIGNMENT, WIDE_DEPTH * WIDE_BYTES
    memory = mapped_bytes(max(deep, DEFAULT_DEPTH * MEDIUM_BYTES, wide, 2 * CHUNK_BYTES))
    file = ProbedFile(fd=fd, num_bytes=num_bytes, memory=memory, start=start)
    rate, depth = file.best_depth(seconds=PHASE_S)
    random = partial(file.random_reads, seconds=PHASE_S)
    profile = DeviceProfile(
        random_reads_per_s=rate,
        medium_reads_per_s=random(depth=DEFAULT_DEPTH, read_bytes=MEDIUM_BYTES),
        wide_reads_per_s=random(depth=WIDE_DEPTH, read_bytes=WIDE_BYTES),
        read_bytes_per_s=file.sequential_reads(seconds=PHASE_S),
        write_bytes_per_s=0.0,
        queue_depth=depth,
        is_direct=is_direct,
        latency_s=file.latency(),
        mixed_reads=file.mixed_reads(seconds=_MIXED_S),
        measured_at=time.time(),
    )
    # Both rates are measured again. A device that is faster for the first second or two has slowed down by now.
    later, in_order = random(depth=depth), file.sequential_reads(seconds=PHASE_S)
    return profile.slowed(random_reads_per_s=later, read_bytes_per_s=in_order)
