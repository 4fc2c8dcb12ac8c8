"""An array of rows that is read row by row, as its rows are asked for: verified whenever they come from the disk."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.ssd_store.cost.profile import default_row_gap_bytes
from gloader.ssd_store.format.array_reader import load_page_checksums
from gloader.ssd_store.format.format import DATA_OFFSET, ArrayRecord, check_array_file, stored_dtype
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.read.column import writable
from gloader.ssd_store.read.copy_kernels import make_target
from gloader.ssd_store.read.device_file import DeviceFile
from gloader.ssd_store.read.extents import min_extent_bytes, plan_extents
from gloader.ssd_store.read.lane import mismatch

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.config import IoMode
    from gloader.ssd_store.read.lane import ReadLane
    from gloader.ssd_store.read.row_request import RowRequest

_MAX_EXTENT_BYTES: Final = 128 * 1024
_BYTE: Final = np.dtype(np.uint8)


class RowArray:
    """Rows of an array of any shape and dtype on the SSD. Thread-safe. Owns a descriptor until `close`.

    Unlike a `FeatureStore` it converts nothing, and reads through a lane that others may share.

    Parameters
    ----------
    root : the directory
    record : what its commit record says of the array, whose rows have a byte or more
    io : how requests are made
    os_io : the system calls to make

    Raises
    ------
    StoreOpenError, IncompleteStoreError, TruncatedStoreError, FormatError, StoreReadError, ChecksumError
        A file cannot be opened or read, is not as long as the record says, or its checksums are damaged.
    """

    def __init__(
        self, root: Path, record: ArrayRecord, *, io: IoMode = "auto", os_io: OsIO = REAL_OS
    ) -> None:
        path = root / record.file
        check_array_file(path, record.dtype, record.shape, os_io=os_io)
        self._record = record
        self._dtype = stored_dtype(record.dtype)
        self._checksums = writable(load_page_checksums(root, record, os_io=os_io))
        self._gap_bytes = default_row_gap_bytes(path.parent, record.row_bytes)
        self._extent_bytes = max(_MAX_EXTENT_BYTES, min_extent_bytes(record.row_bytes))
        self._file = DeviceFile(path, direct="off" if io == "buffered" else "auto", os_io=os_io)

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def is_direct(self) -> bool:
        """Whether reads go around the page cache."""
        return self._file.is_direct

    @property
    def max_extent_bytes(self) -> int:
        """Longest read, for which a lane must have room."""
        return self._extent_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes that are held, beside the lane."""
        return self._checksums.nbytes

    def read(self, lane: ReadLane, request: RowRequest) -> NDArray[Any]:
        """Return the rows of ``request``, which ascend, as (M, *shape[1:]) of the stored dtype, in its positions.

        Raises
        ------
        ChecksumError, StoreReadError, TruncatedStoreError
            The bytes on disk are not those that were written, or cannot be read; names file, page and rows.
        StoreError
            The lane is closed.
        """
        count, shape = len(request.rows), self._record.shape[1:]
        values = np.empty((count, math.prod(shape)), dtype=self._dtype)
        extents = plan_extents(
            request.rows,
            row_bytes=self._record.row_bytes,
            data_offset=DATA_OFFSET,
            max_gap_bytes=self._gap_bytes,
            max_extent_bytes=self._extent_bytes,
        )
        # As bytes, for which the kernels are compiled already.
        out = values.view(np.uint8).reshape(count, self._record.row_bytes)
        _, page = lane.read(
            self._file,
            extents,
            make_target(request.rows, request.position, out, dtype=_BYTE),
            data_offset=DATA_OFFSET,
            checksums=self._checksums,
            format_version=self._record.version,
        )
        if page >= 0:
            raise mismatch(
                self.path, page, request.rows, row_bytes=self._record.row_bytes, data_offset=DATA_OFFSET
            )
        return values.reshape(count, *shape)

    def close(self) -> None:
        """Close the file. Idempotent; no read may be in progress."""
        self._file.close()
