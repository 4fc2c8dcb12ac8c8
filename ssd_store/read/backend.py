"""Backends that execute planned reads, by plain calls or threads, and the rule that chooses a backend.

A job is a list of extents (aligned reads) with the rows that each covers. A backend reads each extent into a slot of
the bounce memory, verifies its pages and copies its rows to the caller's array. `PreadPool` reads in threads that each
block in ``pread`` without the GIL. `PlainBackend` leaves the reads to the caller. `uring` has the backend for io_uring.
`ReadLane` owns a backend. `choose_executor` chooses it, and in the same way the driver of a sweep, a pass over a file.
"""

from __future__ import annotations

import errno
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import numba
import numpy as np

from gloader.core.kernels import njit
from gloader.core.signals import thread_errors
from gloader.core.thread_times import helping
from gloader.errors import ConfigError
from gloader.ssd_store.machine_ops import call_pread, fetch_add64, store64
from gloader.ssd_store.os_io import pread_address
from gloader.ssd_store.read.row_kernels import ReadJob, verify_and_copy_fields

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.config import IoMode
    from gloader.types import IdArray


_LOG = logging.getLogger(__name__)
_Executor = TypeVar("_Executor")

# An executor makes requests to the system: a backend for reads, or a driver for sweeps.
ExecutorKind: TypeAlias = Literal["uring", "threads", "plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadProgress:
    """A backend's progress through a job's extents."""

    next: int  # the first extent not started
    # Extents before ``next`` whose read failed or was short; the caller reads them with `DeviceFile.read_fully`.
    unfinished: IdArray
    bad_page: int = -1  # a page with a wrong checksum, or -1


class PlainBackend:
    """Leaves every extent to the caller, which reads one at a time through `OsIO`. Tests inject faults on this path."""

    name = "plain"

    def read(self, _fd: int, job: ReadJob, start: int, /) -> ReadProgress:
        """Start nothing. ``job`` and ``start`` are as in `PreadPool.read`."""
        count = job.offset.shape[0]
        return ReadProgress(next=count, unfinished=np.arange(start, count, dtype=np.int64))

    def close(self) -> None:
        """Do nothing."""


def choose_executor(
    io: IoMode,
    *,
    is_direct: bool,
    is_real: bool,
    make: Callable[[ExecutorKind], _Executor],
) -> _Executor:
    """Return the fastest executor that ``io`` and the system allow, for reads and for sweeps.

    Parameters
    ----------
    io : IoMode
        The user's choice; "auto" takes io_uring if the file is open with O_DIRECT.
    is_direct : bool
        True if the file is open with O_DIRECT. Through the page cache, io_uring would use threads for most reads.
    is_real : bool
        True if the system calls are the real ones. Kernels cannot make others, so otherwise only "plain" is correct.
    make : callable
        Creates an executor of a kind, or raises `OSError` if the system forbids it.

    Raises
    ------
    ConfigError
        ``io`` is "uring" and io_uring is not available.
    """
    if not is_real:
        return make("plain")
    if io == "uring" or (io == "auto" and is_direct):
        try:
            return make("uring")
        except OSError as error:
            reason = error.strerror or str(error)
            if io == "uring":
                raise ConfigError(f"io='uring' is not available here: {reason}; use io='auto'") from error
            _LOG.info("io_uring is not available, using threads: %s", reason)
    try:
        return make("threads")
    except OSError as error:
        _LOG.info("threads are not available, making one request at a time: %s", error.strerror or error)
        return make("plain")


CHUNK = 8  # consecutive extents that a thread takes together
WORTH_A_THREAD = 16  # extents per thread; with fewer, another thread costs more than it gains
# Positions in a thread's report: the range of extents that it took and did not finish, and a damaged page or -1.
FIRST, END, BAD_PAGE = range(3)
# Positions in the threads' shared state, each an int64 that only changes atomically: the next extent to take, 1 to stop
# all threads, and the number of threads at work.
UPCOMING, STOP, ACTIVE = range(3)
_LOOK_S = 0.0005  # pause between two checks that no thread is at work; a stopped thread ends after one read


class PreadPool:
    """A pool of ``depth`` reading threads. Owns them until `close`; they start when first needed.

    Raises
    ------
    OSError
        numba's compiler is off, so that threads would wait for the GIL.
    """

    name = "threads"

    def __init__(self, depth: int) -> None:
        if numba.config.DISABLE_JIT:
            raise OSError(errno.ENOSYS, "reading threads need compiled kernels, and NUMBA_DISABLE_JIT is set")
        self.depth = max(depth, 1)
        self._pread = pread_address()
        self._pool = ThreadPoolExecutor(self.depth, thread_name_prefix="gloader-pread")

    def read(self, fd: int, job: ReadJob, start: int, /) -> ReadProgress:
        """Read extents from ``start`` on. All threads stop soon after a thread fails.

        Parameters
        ----------
        fd : the file's descriptor
        job : the extents, with their rows' target
        start : first extent to read
        """
        count = job.offset.shape[0]
        slots = min(self.depth, job.bounce.shape[0] // job.slot_bytes)
        threads = max(1, min(slots, (count - start) // WORTH_A_THREAD))
        shared = np.array([start, 0, 0], np.int64)
        reports = np.empty((threads, 3), np.int64)
        # If there are few reads, this thread makes them: other threads take longer to wake than some devices to answer.
        if threads == 1:
            _work(self._pread, fd, job, 0, shared, reports[0])
        else:
            self._run(fd, job, shared, reports)
        unfinished = [np.arange(report[FIRST], report[END]) for report in reports]
        return ReadProgress(
            next=min(int(shared[UPCOMING]), count),
            unfinished=np.concatenate(unfinished),
            bad_page=int(reports[:, BAD_PAGE].max()),
        )

    def close(self) -> None:
        """End and join the threads. Idempotent."""
        self._pool.shutdown()

    def _run(self, fd: int, job: ReadJob, shared: IdArray, reports: IdArray) -> None:
        """Read in one thread for each of ``reports`` (threads, 3), which are written; return when all have ended."""
        work = helping(_work)
        futures: list[Future[None]] = []
        try:
            for slot, report in enumerate(reports):
                with thread_errors():
                    futures.append(self._pool.submit(work, self._pread, fd, job, slot, shared, report))
            for future in futures:
                future.result()
        finally:
            # On Ctrl-C the threads still write to the caller's array, so they are stopped and awaited. A submitted task
            # may be missing in the list. If it begins later, it stops at once.
            _stop(shared.ctypes.data)
            wait(futures)
            while shared[ACTIVE]:
                time.sleep(_LOOK_S)


@njit(cache=True, nogil=True)
def _stop(state: int) -> None:
    """Stop all threads; ``state`` is the address of the shared state."""
    store64(state + 8 * STOP, 1)


@njit(cache=True, nogil=True)
def _work(pread: int, fd: int, job: ReadJob, slot: int, shared: IdArray, report: IdArray) -> None:
    """Read and deliver chunks of extents until none is left or another thread stops the job."""
    # A thread is counted while it may write to the caller's array: `read` returns only after the count is zero.
    state = np.int64(shared.ctypes.data)
    fetch_add64(state + 8 * ACTIVE, 1)
    _serve(pread, fd, job, slot, state, report)
    fetch_add64(state + 8 * ACTIVE, -1)


@njit(cache=True, nogil=True)
def _serve(pread: int, fd: int, job: ReadJob, slot: int, state: int, report: IdArray) -> None:
    """Take chunks of extents, and read, verify and copy each; a failed read or a bad page stops all threads.

    Parameters
    ----------
    pread : address of the function ``pread``
    fd, job : the open file, and the extents
    slot : number of the thread, and of its slot in the bounce memory
    state : address of the shared state
    report : (3,) the thread's report, written
    """
    (
        offset, length, row_begin, row_end, data_offset, checksums, format_version, bounce, halves, words,
        slot_bytes, target,
    ) = job  # fmt: skip
    rows, position, out_bytes, out_floats, scale, mode, row_bytes, dim = target
    count = offset.shape[0]
    slot_offset = np.int64(slot) * slot_bytes
    address = np.int64(bounce.ctypes.data) + slot_offset
    report[FIRST] = 0
    report[END] = 0
    report[BAD_PAGE] = -1
    while fetch_add64(state + 8 * STOP, 0) == 0:
        # An atomic counter distributes the chunks, so a delayed thread takes fewer of them.
        chunk = fetch_add64(state + 8 * UPCOMING, CHUNK)
        if chunk >= count:
            return
        end = min(chunk + CHUNK, count)
        for extent in range(chunk, end):
            wanted = length[extent]
            if call_pread(pread, fd, address, wanted, offset[extent]) != wanted:
                # The caller reads the rest of this chunk.
                report[FIRST] = extent
                report[END] = end
                _stop(state)
                return
            page = verify_and_copy_fields(
                extent, slot_offset, offset, length, row_begin, row_end, data_offset, checksums, format_version,
                bounce, halves, words, rows, position, out_bytes, out_floats, scale, mode, row_bytes, dim,
            )  # fmt: skip
            if page >= 0:
                report[BAD_PAGE] = page
                _stop(state)
                return
