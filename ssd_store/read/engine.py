"""Executes planned reads of one data file: staging memory, a backend, and care for whatever goes wrong."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Literal

import numpy as np

from gloader.core.aligned_memory import mapped_bytes
from gloader.errors import ChecksumError, ConfigError, StoreError
from gloader.ssd_store.format.format import open_error
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.read.backend import Backend, PlainBackend
from gloader.ssd_store.read.device_file import DIRECT_MODES, DeviceFile, Direct
from gloader.ssd_store.read.extents import ALIGNMENT, Extents
from gloader.ssd_store.read.preadpool import PreadPool
from gloader.ssd_store.read.uring import Uring
from gloader.ssd_store.read.verify_and_copy import Delivery, deliver
from gloader.types import ReadStats

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.ssd_store.read.row_copy import Target
    from gloader.types import IdArray

_LOG = logging.getLogger(__name__)

IoMode = Literal["auto", "uring", "threads", "buffered"]
IO_MODES = ("auto", "uring", "threads", "buffered")
DEFAULT_DEPTH = 256  # reads in flight with io_uring; more than the device needs, for when we wait for a core
DEFAULT_THREADS = 16  # reads in flight with threads
DEFAULT_RING_BYTES = 8 * 2**20


class ReadEngine:
    """Reads aligned extents of one file into a caller's array. Thread-safe: callers take turns.

    Owns the descriptor, the ring or the threads, and ``ring_bytes`` of staging memory until `close`.

    Rows always pass through the staging memory, even where the caller's array is aligned: it is registered with
    io_uring, and pinning the pages of an array that is not costs the processor what the copy would have.

    Raises
    ------
    ConfigError
        ``io`` is unknown, or cannot be had on this system.
    StoreOpenError
        As `DeviceFile`.
    """

    def __init__(
        self,
        path: Path,
        *,
        io: IoMode = "auto",
        direct: Direct = "auto",
        depth: int | None = None,
        ring_bytes: int = DEFAULT_RING_BYTES,
        max_extent_bytes: int,
        data_offset: int,
        checksums: NDArray[np.uint64] | None = None,
        os_io: OsIO = REAL_OS,
    ) -> None:
        if io not in IO_MODES:
            raise ConfigError(f"io={io!r} is unknown; choose one of {', '.join(IO_MODES)}")
        if direct not in DIRECT_MODES:
            raise ConfigError(f"direct={direct!r} is unknown; choose one of {', '.join(DIRECT_MODES)}")
        self._lock = threading.Lock()
        self.io = io
        self.direct = direct
        self.os_io = os_io
        self._checksums = checksums if checksums is not None else np.empty(0, np.uint64)
        self._data_offset = data_offset
        self._staged = mapped_bytes(max(ring_bytes, max_extent_bytes))
        self._file = DeviceFile(path, direct="off" if io == "buffered" else direct, os_io=os_io)
        try:
            self._backend = choose_backend(
                io, depth, self._staged, is_direct=self._file.is_direct, os_io=os_io
            )
        except BaseException:
            self._file.close()
            raise
        self._closed = False

    @property
    def resident_bytes(self) -> int:
        """Bytes of staging memory and checksums."""
        return int(self._staged.nbytes + self._checksums.nbytes)

    @property
    def backend(self) -> str:
        """How reads are made: "uring", "threads" or "plain"."""
        return self._backend.name

    @property
    def checksums(self) -> NDArray[np.uint64]:
        """What pages are verified against; empty where they are not."""
        return self._checksums

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the open file.

        Raises
        ------
        StoreError
            The engine is closed, or the file has no status.
        """
        if self._closed:
            raise StoreError(f"{self._file.path}: the store is closed; open it again")
        try:
            status = self.os_io.fstat(self._file.fd)
        except OSError as error:
            raise open_error(self._file.path, error) from error
        return status.st_dev, status.st_ino

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def staging_bytes(self) -> int:
        """Size of the staging memory."""
        return self._staged.nbytes

    @property
    def is_direct(self) -> bool:
        """Whether reads go around the page cache."""
        return self._file.is_direct

    def read(self, extents: Extents, target: Target) -> ReadStats:
        """Read ``extents`` and copy their rows to ``target``; all of them, or raise.

        Raises
        ------
        StoreReadError, TruncatedStoreError
            As `DeviceFile.read_fully`.
        ChecksumError
            A page that holds a wanted row is not what was written.
        StoreError
            The engine is closed.
        """
        slot_bytes = slot_distance(extents, self._staged.shape[0])
        work = Delivery(
            offset=extents.offset,
            length=extents.length,
            row_begin=extents.row_begin,
            row_end=extents.row_end,
            data_offset=self._data_offset,
            checksums=self._checksums,
            staged=self._staged,
            staged_halves=self._staged.view(np.uint16),
            staged_words=self._staged.view(np.uint64),
            slot_bytes=slot_bytes,
            target=target,
        )
        with self._lock:
            if self._closed:
                raise StoreError(f"{self._file.path}: the store is closed; open it again")
            requests, page = run_reads(self._backend, self._file, work)
        if page >= 0:
            raise mismatch(
                self._file.path, page, target.rows, row_bytes=target.row_bytes, data_offset=self._data_offset
            )
        return ReadStats(rows=target.rows.shape[0], requests=requests, bytes_read=extents.num_bytes)

    def trust(self) -> None:
        """Stop verifying: every page has been verified once."""
        self._checksums = np.empty(0, np.uint64)

    def close(self) -> None:
        """Wait for the read in progress, then release everything. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._backend.close()
                self._file.close()
                self._staged = np.empty(0, np.uint8)


def run_reads(backend: Backend, file: DeviceFile, work: Delivery) -> tuple[int, int]:
    """Read and deliver all extents of ``work``; return the requests made and the first bad page, or -1.

    Raises
    ------
    StoreReadError, TruncatedStoreError
        As `DeviceFile.read_fully`.
    """
    count = work.offset.shape[0]
    requests, start = count, 0
    while start < count:
        progress = backend.read(file.fd, work, start)
        if progress.bad_page >= 0:
            return requests, progress.bad_page
        for extent in progress.unfinished.tolist():
            length = int(work.length[extent])
            requests += file.read_fully(work.staged[:length].data, int(work.offset[extent])) - 1
            with np.errstate(over="ignore"):  # interpreted checksums wrap around
                page = deliver(work, extent, 0)
            if page >= 0:
                return requests, page
        start = progress.next
    return requests, -1


def mismatch(path: Path, page: int, rows: IdArray, *, row_bytes: int, data_offset: int) -> ChecksumError:
    """Return the error for a page that is not what was written; ``rows`` ascend and are those asked for. Pure."""
    first, last = page * ALIGNMENT // row_bytes, ((page + 1) * ALIGNMENT - 1) // row_bytes
    wanted = rows[np.searchsorted(rows, first) : np.searchsorted(rows, last, "right")]
    listed = ", ".join(str(row) for row in np.unique(wanted)[:5])
    return ChecksumError(
        f"{path}: page {page} at byte {data_offset + page * ALIGNMENT}, with rows {first} to {last} (asked for: "
        f"{listed}), does not match its checksum: the file was damaged after it was written; "
        "run `gloader verify`, then restore the file or prepare it again"
    )


def slot_distance(extents: Extents, ring_bytes: int) -> int:
    """Return the distance of staging slots: as tight as the longest extent allows."""
    longest = int(extents.length.max(initial=ALIGNMENT))
    # Slots a large power of two apart would compete for the same sets of the processor's caches.
    padded = longest + ALIGNMENT if longest >= 4 * ALIGNMENT else longest
    return padded if padded * 8 <= ring_bytes else longest


def choose_backend(
    io: IoMode, depth: int | None, staged: NDArray[np.uint8], *, is_direct: bool, os_io: OsIO
) -> Backend:
    """Return the fastest backend that ``io`` and the system allow.

    Raises
    ------
    ConfigError
        ``io`` is "uring" and there is none.
    """
    if not os_io.is_real:
        return PlainBackend()
    if io == "uring" or (io == "auto" and is_direct):
        try:
            return Uring(depth or DEFAULT_DEPTH, staged)
        except OSError as error:
            reason = error.strerror or str(error)
            if io == "uring":
                raise ConfigError(f"io='uring' is not available here: {reason}; use io='auto'") from error
            _LOG.info("io_uring is not available, reading with threads: %s", reason)
    try:
        return PreadPool(depth or DEFAULT_THREADS)
    except OSError as error:
        _LOG.info("threads are not available, reading one request at a time: %s", error.strerror or error)
        return PlainBackend()
