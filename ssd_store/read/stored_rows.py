"""The rows in a store's file: where they lie, what they look like and how they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gloader.ssd_store.format.format import replaced_error
from gloader.ssd_store.read.device_file import DeviceFile

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from gloader.ssd_store.os_io import OsIO
    from gloader.ssd_store.read.read_settings import ReadSettings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredRows:
    """All that a sweep or another lane needs to read the rows of an open `FeatureStore` beside it.

    Shares the store's arrays, not its descriptor: it stays valid when the store is closed.
    """

    path: Path
    identity: tuple[int, int]  # device and inode of the file that the store has open
    num_rows: int  # N
    dim: int  # F
    row_bytes: int  # R
    dtype: np.dtype[Any]  # uint16 for bfloat16
    is_bfloat16: bool
    scale: NDArray[np.float32] | None  # (N,) of int8 rows
    checksums: NDArray[np.uint64]  # (P,) one per page; empty: do not verify
    format_version: int  # of the format that they were made by
    gap_bytes: int  # longest hole that a batch's reads read through
    settings: ReadSettings
    os_io: OsIO

    def open_file(self) -> DeviceFile:
        """Open the file once more; the caller owns the descriptor.

        Raises
        ------
        StoreOpenError
            The file cannot be opened, or is not the one that the store has open.
        """
        file = DeviceFile(self.path, direct=self.settings.file_mode, os_io=self.os_io)
        try:
            is_same = file.identity == self.identity
        except BaseException:
            file.close()
            raise
        if is_same:
            return file
        # The checksums that the store holds are those of its own file, not of a newer one at the same path.
        file.close()
        raise replaced_error(self.path)
