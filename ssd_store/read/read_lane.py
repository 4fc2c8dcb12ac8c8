"""A way to read files of one kind that nobody else waits on: staging memory and a backend of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from gloader.core.aligned_memory import mapped_bytes
from gloader.errors import StoreError
from gloader.ssd_store.read.engine import choose_backend, run_reads, slot_distance
from gloader.ssd_store.read.verify_and_copy import Delivery

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.ssd_store.os_io import OsIO
    from gloader.ssd_store.read.device_file import DeviceFile
    from gloader.ssd_store.read.engine import IoMode
    from gloader.ssd_store.read.extents import Extents
    from gloader.ssd_store.read.row_copy import Target


class ReadLane:
    """Reads extents of any file into a caller's array. Thread-safe: callers take turns.

    Owns ``num_bytes`` of staging memory and a ring or threads until `close`.

    Raises
    ------
    ConfigError
        ``io`` is "uring" and there is none.
    """

    def __init__(self, num_bytes: int, *, io: IoMode, is_direct: bool, os_io: OsIO) -> None:
        self._lock = threading.Lock()
        self._staged = mapped_bytes(num_bytes)
        self._backend = choose_backend(io, None, self._staged, is_direct=is_direct, os_io=os_io)
        self._closed = False

    @property
    def backend(self) -> str:
        """How reads are made: "uring", "threads" or "plain"."""
        return self._backend.name

    def read(
        self,
        file: DeviceFile,
        extents: Extents,
        target: Target,
        *,
        data_offset: int,
        checksums: NDArray[np.uint64],
    ) -> tuple[int, int]:
        """Read ``extents`` and copy their rows to ``target``; return the requests and the first bad page, or -1.

        Parameters
        ----------
        data_offset : byte of the file where page 0 and row 0 start
        checksums : of the pages from there on; empty: do not verify

        Raises
        ------
        StoreReadError, TruncatedStoreError
            As `DeviceFile.read_fully`.
        StoreError
            The lane is closed.
        """
        work = Delivery(
            offset=extents.offset,
            length=extents.length,
            row_begin=extents.row_begin,
            row_end=extents.row_end,
            data_offset=data_offset,
            checksums=checksums,
            staged=self._staged,
            staged_halves=self._staged.view(np.uint16),
            staged_words=self._staged.view(np.uint64),
            slot_bytes=slot_distance(extents, self._staged.shape[0]),
            target=target,
        )
        with self._lock:
            if self._closed:
                raise StoreError(f"{file.path}: the lane that reads it is closed")
            return run_reads(self._backend, file, work)

    def close(self) -> None:
        """Wait for the read in progress, then release everything. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._backend.close()
                self._staged = np.empty(0, np.uint8)
