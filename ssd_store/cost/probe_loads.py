"""Loads that measure a device: reads and writes that are timed and dropped, one at a time or two at once."""

from __future__ import annotations

import errno
import math
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from gloader.core.thread_start import run_together
from gloader.ssd_store.format.checksum import FORMAT_VERSION
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.read.backend import Backend, ExecutorKind, PlainBackend, choose_executor
from gloader.ssd_store.read.copy_kernels import make_target
from gloader.ssd_store.read.extents import ALIGNMENT, Extents
from gloader.ssd_store.read.preadpool import PreadPool
from gloader.ssd_store.read.uring import Uring
from gloader.ssd_store.read.verify_kernels import ReadJob

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_MAX_THREADS: Final = 32
# A device, or its host, may give more for a moment than it keeps up: phases are repeated until two in turn are alike,
# but not for ever. What outlasts them is learnt from runs.
_MOST_PHASES: Final = 5
_STEADY: Final = 0.85  # of the faster of two phases
_MOST_S: Final = 6.0  # phases: a device that stalls is not waited for
_SETTLED: Final = 1 / 8  # of a phase: so much a step takes, or its own beginning and end are most of it
# Reads of the first step: of a device that does hundreds in a second, more would take seconds.
_FEW: Final = 32
# Two loads at most do not notice one another; what looks like more, or like far less, is a moment of another load.
_LEAST_TOGETHER, _MOST_TOGETHER = 0.25, 2.0


class ReadLoad:
    """Reads of a file, again and again, whose bytes are dropped. Owns a ring or threads until `close`.

    Parameters
    ----------
    fd : of the file
    extents : what is read, in this order and then from the beginning
    memory : (>= depth * length,) uint8, page-aligned; overwritten
    depth : reads in flight
    most : reads of a step

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
        """Return this load, whose steps take a good part of ``seconds`` from now on."""
        while self.step_seconds() < seconds * _SETTLED and self._batch < self._most:
            self._batch *= 2
        return self

    def step_seconds(self) -> float:
        """Return the seconds that the next step takes."""
        began = time.perf_counter()
        self.step()
        return time.perf_counter() - began

    def step(self) -> int:
        """Read a few extents; return how many.

        Raises
        ------
        OSError
            None of them could be read.
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
    """Writes of one chunk after the other into a file.

    Parameters
    ----------
    fd : of the file
    chunk : uint8, page-aligned where the file is open with O_DIRECT
    size : bytes of the file: behind them it is begun again; None: it grows
    os_io : the system calls to make
    """

    def __init__(self, fd: int, chunk: Any, *, size: int | None = None, os_io: OsIO = REAL_OS) -> None:
        self._fd, self._chunk, self._os_io = fd, chunk, os_io
        self._size, self._offset = size, 0

    def fill(self, *, seconds: float, max_bytes: int) -> tuple[int, float]:
        """Write for a while, fsync included; return the bytes, and how many in a second.

        Parameters
        ----------
        seconds : how long to write, fsync not counted
        max_bytes : at which to stop earlier

        Raises
        ------
        OSError
            The device failed, or is full.
        """
        size, start = 0, time.perf_counter()
        while size < max_bytes and (size == 0 or time.perf_counter() - start < seconds):
            size += self.step()
        # Inside the timing: before it, the bytes may be anywhere but on the device.
        self._os_io.fsync(self._fd)
        return size, size / (time.perf_counter() - start)

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


def steady_rate(
    step: Callable[[], int], *, seconds: float, now: Callable[[], float] = time.perf_counter
) -> float:
    """Return how much of a load a device keeps up in a second: the mean of two phases in turn that are alike.

    Parameters
    ----------
    step : does some of the load; returns how much
    seconds : of a phase, at least
    now : the seconds of a clock
    """
    before, start = math.inf, now()
    for _ in range(_MOST_PHASES):
        done, began = 0, now()
        while (passed := now() - began) < seconds:
            done += step()
        rate = done / passed
        if min(rate, before) >= _STEADY * max(rate, before):
            return (before + rate) / 2
        before = rate
        if now() - start > _MOST_S * seconds:
            break
    # It never was: what it did last is nearest to what comes next.
    return before


def shares_together(
    one: Callable[[], int],
    other: Callable[[], int],
    *,
    seconds: float,
    now: Callable[[], float] = time.perf_counter,
) -> float:
    """Return what a device does of two loads at once, over what it does of them in turns: 1 where nothing is gained.

    Parameters
    ----------
    one, other : do some of a load, from a thread each; return how much
    seconds : how long either runs alone, and both together
    now : the seconds of a clock
    """

    def rate(step: Callable[[], int]) -> float:
        done, began = 0, now()
        while (passed := now() - began) < seconds:
            done += step()
        return done / passed

    alone = [rate(one), rate(other)]
    tasks = [partial(rate, one), partial(rate, other)]
    together = run_together(tasks, threads=2, name="gloader-probe")
    gained = sum(both / apart for both, apart in zip(together, alone, strict=True))
    return min(max(gained, _LEAST_TOGETHER), _MOST_TOGETHER)


def read_job(extents: Extents, memory: Any, first: int, past: int) -> ReadJob:
    """Return the job of the reads ``first`` to ``past``, which bring no rows and are not verified."""
    out = np.empty((0, 1), np.uint8)
    nobody = np.empty(0, np.int64)
    return ReadJob(
        offset=extents.offset[first:past],
        length=extents.length[first:past],
        row_begin=extents.row_begin[first:past],
        row_end=extents.row_end[first:past],
        data_offset=0,
        checksums=np.empty(0, np.uint64),
        format_version=FORMAT_VERSION,
        bounce=memory,
        bounce_halves=memory.view(np.uint16),
        bounce_words=memory.view(np.uint64),
        slot_bytes=int(extents.length[0]),
        target=make_target(nobody, nobody, out, dtype=out.dtype),
    )
