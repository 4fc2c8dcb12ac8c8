"""A lane: bounce memory with a backend, through which a file's extents are read.

- An extent is one aligned read; it may cover several rows and the holes between them.
- The bounce memory receives an extent's bytes. There they are verified, and then copied to the caller's array.
- A slot is the part of the bounce memory for one extent. As many extents as there are slots may be in flight.
- A backend makes the requests: an io_uring ring, threads that block in ``pread``, or single calls.

`ReadLane` takes the extents from `plan_extents`, and `ReadSettings` has the request method, the verification and the
memory.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import numpy as np

from gloader.core.aligned_memory import mapped_bytes
from gloader.errors import ChecksumError, ConfigError, StoreError
from gloader.ssd_store.format.checksum import FORMAT_VERSION
from gloader.ssd_store.format.manifest import DATA_OFFSET, VERIFY
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.read.backend import ExecutorKind, PlainBackend, PreadPool, choose_executor
from gloader.ssd_store.read.device_file import DIRECT_MODES, Direct
from gloader.ssd_store.read.extents import ALIGNMENT, Extents
from gloader.ssd_store.read.row_kernels import ReadJob, verify_and_copy
from gloader.ssd_store.read.uring import Uring

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.config import IoMode, Verify
    from gloader.ssd_store.read.device_file import DeviceFile
    from gloader.ssd_store.read.row_kernels import Target
    from gloader.types import IdArray


# A backend reads extents into bounce slots, verifies them and copies their rows out. An extent is copied completely or
# reported unfinished. When `read` returns or raises, no read is in flight.
Backend: TypeAlias = Uring | PreadPool | PlainBackend

IO_MODES = ("auto", "uring", "threads", "buffered")
VERIFY_MODES = ("read", "open", "off")
DEFAULT_RING_BYTES = 8 * 2**20  # bytes of bounce memory


class ReadKeywords(TypedDict, total=False):
    """The keywords that `FeatureStore.open` accepts for a `ReadSettings`."""

    io: IoMode
    verify: Verify
    direct: Direct
    queue_depth: int | None
    gap_bytes: int | None
    ring_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """Settings for a store's reads; `FeatureStore.open` describes each field.

    Raises
    ------
    ConfigError
        A value is unknown or out of range.
    """

    io: IoMode = "auto"
    verify: Verify = "read"
    direct: Direct = "auto"
    queue_depth: int | None = None
    gap_bytes: int | None = None
    ring_bytes: int = DEFAULT_RING_BYTES

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("verify", self.verify, VERIFY_MODES),
            ("io", self.io, IO_MODES),
            ("direct", self.direct, DIRECT_MODES),
        ):
            if value not in allowed:
                raise ConfigError(f"{name}={value!r} is unknown; choose one of {', '.join(allowed)}")
        if self.gap_bytes is not None and self.gap_bytes < 0:
            raise ConfigError(f"gap_bytes={self.gap_bytes} must be at least 0")
        if self.queue_depth is not None and self.queue_depth < 1:
            raise ConfigError(f"queue_depth={self.queue_depth} must be at least 1")

    @property
    def file_mode(self) -> Direct:
        """The mode for opening the file: ``io="buffered"`` overrides ``direct``."""
        return "off" if self.io == "buffered" else self.direct


DEFAULT_DEPTH = 256  # reads in flight with io_uring; more than the device needs, to cover waits for a core
DEFAULT_THREADS = 16  # reads in flight with threads


class ReadLane:
    """Reads extents from files into callers' arrays. Thread-safe: callers take turns.

    Owns the bounce memory and a ring or threads until `close`; files stay with their owners. A forked child inherits
    none of these, and creates a new set at its first read.

    Rows always pass through the bounce memory, even if the caller's array is aligned: the bounce memory is registered
    with io_uring once, and pinning another array's pages at each read would cost as much as the copy.

    Parameters
    ----------
    bounce_bytes : bytes for the bounce memory
    io : the request method
    is_direct : True if the files are open with O_DIRECT
    depth : requests in flight; defaults to ``ring_depth`` with io_uring and 16 with threads
    ring_depth : requests in flight that keep the device busy
    os_io : the system calls
    when_closed : message for a read after `close`, such as "the store is closed; open it again"

    Raises
    ------
    ConfigError
        ``io`` is "uring" and io_uring is not available.
    """

    def __init__(
        self,
        bounce_bytes: int,
        *,
        io: IoMode,
        is_direct: bool,
        depth: int | None = None,
        ring_depth: int = DEFAULT_DEPTH,
        os_io: OsIO = REAL_OS,
        when_closed: str,
    ) -> None:
        # Called now, and again at the first read of a forked child.
        def open_backend() -> tuple[NDArray[np.uint8], Backend]:
            bounce = mapped_bytes(bounce_bytes)

            def make(kind: ExecutorKind) -> Backend:
                if kind == "uring":
                    return Uring(depth or ring_depth, bounce)
                return PreadPool(depth or DEFAULT_THREADS) if kind == "threads" else PlainBackend()

            return bounce, choose_executor(io, is_direct=is_direct, is_real=os_io.is_real, make=make)

        self._lock = threading.Lock()
        self._when_closed = when_closed
        self._open_backend = open_backend
        self._bounce, self._backend = open_backend()
        self._is_inherited = False  # True in a forked child until its first read
        self._is_closed = False
        _LANES.add(self)

    @property
    def backend(self) -> str:
        """The request method: "uring", "threads" or "plain"."""
        return self._backend.name

    @property
    def bounce_bytes(self) -> int:
        """Bounce memory in bytes; 0 after `close`."""
        return self._bounce.nbytes

    def read(
        self,
        file: DeviceFile,
        extents: Extents,
        target: Target,
        *,
        data_offset: int,
        checksums: NDArray[np.uint64],
        format_version: int = FORMAT_VERSION,
    ) -> tuple[int, int]:
        """Read ``extents``, verify their pages and copy their rows to ``target``.

        Parameters
        ----------
        file : the file to read
        extents : X reads, none longer than the bounce memory
        target : target for the extents' rows
        data_offset : offset of page 0 and row 0 in the file
        checksums : (P,) checksums of the pages from there on; empty without verification
        format_version : the checksums' format version

        Returns
        -------
        int, int
            The requests made, and the first page that differs from its checksum, or -1. After a bad page the rows
            of ``target`` are undefined.

        Raises
        ------
        StoreReadError, TruncatedStoreError
            See `DeviceFile.read_fully`.
        StoreError
            The lane is closed.
        """
        # Callers wait here for their turn, because the bounce memory serves one call at a time.
        with self._lock:
            if self._is_closed:
                raise StoreError(f"{file.path}: {self._when_closed}")
            if self._is_inherited:
                self._bounce, self._backend = self._open_backend()
                self._is_inherited = False
            job = ReadJob(
                offset=extents.offset,
                length=extents.length,
                row_begin=extents.row_begin,
                row_end=extents.row_end,
                data_offset=data_offset,
                checksums=checksums,
                format_version=format_version,
                bounce=self._bounce,
                bounce_halves=self._bounce.view(np.uint16),
                bounce_words=self._bounce.view(np.uint64),
                slot_bytes=slot_distance(extents, self._bounce.shape[0]),
                target=target,
            )
            return _run_all(self._backend, file, job)

    def close(self, file: DeviceFile | None = None) -> None:
        """Wait for the read in progress, then release everything, and close ``file``. Idempotent."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                if not self._is_inherited:  # an inherited lane's threads belong to the parent
                    # The backend closes first: while its ring exists, the kernel may write to the bounce memory.
                    self._backend.close()
                self._bounce = np.empty(0, np.uint8)
            if file is not None:
                file.close()

    def leave_to_parent(self) -> None:
        """Make the lane of a forked child independent of the parent; called before any other code in the child."""
        # Another thread in the parent may hold the lock, in the middle of a read.
        self._lock = threading.Lock()
        self._is_inherited = True


# All lanes in this process, for a forked child.
_LANES: weakref.WeakSet[ReadLane] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Make all lanes of a forked child independent of the parent."""
    for lane in list(_LANES):
        lane.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


def _run_all(backend: Backend, file: DeviceFile, job: ReadJob) -> tuple[int, int]:
    """Execute ``job`` part by part, each once its bytes are on this disk; return as `_run`."""
    count, requests = job.offset.shape[0], 0
    for first, past in file.portions(job.offset, job.length):
        part = job
        if past - first < count:
            part = job._replace(
                offset=job.offset[first:past],
                length=job.length[first:past],
                row_begin=job.row_begin[first:past],
                row_end=job.row_end[first:past],
            )
        more, page = _run(backend, file, part)
        requests += more
        # A mirror, a local copy of an object store's file, fetches a damaged page again a few times.
        while page >= 0 and file.refetch(job.data_offset + page * ALIGNMENT):
            more, page = _run(backend, file, part)
            requests += more
        if page >= 0:
            return requests, page
    return requests, -1


def _run(backend: Backend, file: DeviceFile, job: ReadJob) -> tuple[int, int]:
    """Execute ``job``; return the number of requests and the first bad page, or -1.

    The backend makes the reads, and stops early after a failed read. `DeviceFile.read_fully` then reads the unfinished
    extents one by one, and the backend continues after them.
    """
    count = job.offset.shape[0]
    requests, start = count, 0
    while start < count:
        progress = backend.read(file.fd, job, start)
        if progress.bad_page >= 0:
            return requests, progress.bad_page
        # No request is in flight now, so the first slot is free for careful reads one after another.
        for extent in progress.unfinished.tolist():
            length = int(job.length[extent])
            # One request for this extent is counted already.
            requests += file.read_fully(job.bounce[:length].data, int(job.offset[extent])) - 1
            with np.errstate(over="ignore"):  # interpreted checksums wrap around
                page = verify_and_copy(job, extent, 0)
            if page >= 0:
                return requests, page
        start = progress.next
    return requests, -1


def mismatch(path: Path, page: int, rows: IdArray | None, *, row_bytes: int) -> ChecksumError:
    """Return the error for a damaged page. Pure.

    Parameters
    ----------
    path : the file
    page : the page's number, counted from the first row
    rows : (M,) int64, the requested rows, ascending; None if unknown
    row_bytes : R
    """
    first, last = page * ALIGNMENT // row_bytes, ((page + 1) * ALIGNMENT - 1) // row_bytes
    listed = ""
    if rows is not None:
        on_page = rows[np.searchsorted(rows, first) : np.searchsorted(rows, last, "right")]
        listed = f" (requested: {', '.join(str(row) for row in np.unique(on_page)[:5])})"
    return ChecksumError(
        f"{path}: page {page} at byte {DATA_OFFSET + page * ALIGNMENT}, with rows {first} to {last}{listed}, "
        f"does not match its checksum: the file was damaged after it was written; {VERIFY}"
    )


def slot_distance(extents: Extents, bounce_bytes: int) -> int:
    """Return the distance between bounce slots in bytes: the longest extent, perhaps with one more page."""
    longest = int(extents.length.max(initial=ALIGNMENT))
    # Slots at a distance of a large power of two would compete for the same sets of the processor's caches. The extra
    # page is added only to extents of 16 KiB or more, and only if at least 8 slots fit.
    padded = longest + ALIGNMENT if longest >= 4 * ALIGNMENT else longest
    return padded if padded * 8 <= bounce_bytes else longest
