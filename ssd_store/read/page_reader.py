"""Pages of an array on the SSD, in file order: each verified whenever it is read, and its elements checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.ssd_store.format.array_reader import damaged_pages, load_page_checksums
from gloader.ssd_store.format.checksum import PAGE_BYTES
from gloader.ssd_store.format.format import DATA_OFFSET, ArrayRecord, check_array_file, stored_dtype
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.read.column import writable
from gloader.ssd_store.read.copy_kernels import make_target
from gloader.ssd_store.read.device_file import DeviceFile
from gloader.ssd_store.read.extents import plan_extents
from gloader.types import ReadStats

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.config import IoMode
    from gloader.ssd_store.read.lane import ReadLane
    from gloader.ssd_store.read.paged_array import Rule
    from gloader.types import IdArray

MAX_EXTENT_BYTES: Final = 128 * 1024
_IN_ORDER: IdArray = np.empty(0, dtype=np.int64)
_BYTE: Final = np.dtype(np.uint8)


class PageReader:
    """Reads pages of a one-dimensional array. Owns a descriptor until `close`. For one thread.

    Parameters
    ----------
    root : the directory
    record : what its commit record says of the array
    rule : what every element of the array obeys
    io : how requests are made
    os_io : the system calls to make

    Raises
    ------
    StoreOpenError, TruncatedStoreError, FormatError, StoreReadError, ChecksumError
        A file cannot be opened or read, is not as long as the record says, or its checksums are damaged.
    """

    def __init__(
        self, root: Path, record: ArrayRecord, *, rule: Rule, io: IoMode = "auto", os_io: OsIO = REAL_OS
    ) -> None:
        path = root / record.file
        check_array_file(path, record.dtype, record.shape, os_io=os_io)
        self.dtype: np.dtype[Any] = stored_dtype(record.dtype)
        self.num_pages = record.num_pages
        self._record = record
        self._rule = rule
        self._checksums = writable(load_page_checksums(root, record, os_io=os_io))
        self._file = DeviceFile(path, direct="off" if io == "buffered" else "auto", os_io=os_io)

    @property
    def per_page(self) -> int:
        """Elements in a page."""
        return PAGE_BYTES // self.dtype.itemsize

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def is_direct(self) -> bool:
        """Whether reads go around the page cache."""
        return self._file.is_direct

    @property
    def resident_bytes(self) -> int:
        """Bytes that are held."""
        return self._checksums.nbytes

    def read(
        self, lane: ReadLane, pages: IdArray, content: NDArray[np.uint8], *, gap_bytes: int
    ) -> ReadStats:
        """Read ``pages`` into ``content``, verified; those in between are read over, and not looked at.

        Parameters
        ----------
        lane : to read with
        pages : (P,) int64, ascending, none twice
        content : (P, 4096) uint8, C-contiguous
        gap_bytes : longest hole between two pages that is read over

        Raises
        ------
        Exception
            An element breaks the rule of the array, though its bytes are as they were written; the rule's own error.
        ChecksumError, StoreReadError, TruncatedStoreError
            The bytes on disk are not those that were written, or cannot be read; names file and page.
        """
        extents = plan_extents(
            pages,
            row_bytes=PAGE_BYTES,
            data_offset=DATA_OFFSET,
            max_gap_bytes=gap_bytes,
            max_extent_bytes=min(MAX_EXTENT_BYTES, lane.bounce_bytes),
        )
        requests, bad = lane.read(
            self._file,
            extents,
            make_target(pages, _IN_ORDER, content, dtype=_BYTE),
            data_offset=DATA_OFFSET,
            checksums=self._checksums,
            format_version=self._record.version,
        )
        if bad >= 0:
            raise damaged_pages(self.path, self._record, np.array([bad]))
        elements = content.view(self.dtype)
        at = self._rule.first_wrong(elements.reshape(-1))
        if at >= 0:
            row, column = divmod(at, self.per_page)
            raise self._rule.error(int(pages[row]) * self.per_page + column, elements[row, column])
        return ReadStats(rows=len(pages), requests=requests, bytes_read=extents.num_bytes)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()
