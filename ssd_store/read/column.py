"""A column of a store as the manifest describes it, with what its rows need in memory: scales and page checksums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.errors import ConfigError, FormatError, ShapeError
from gloader.ssd_store.format.array_reader import load_array, load_page_checksums
from gloader.ssd_store.format.format import ArrayRecord, check_record
from gloader.ssd_store.os_io import REAL_OS, OsIO

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.core.row_ranges import HeldRows
    from gloader.ssd_store.format.format import Manifest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """A matrix of a store that can be read row by row."""

    path: Path  # of its file
    record: ArrayRecord
    scale: NDArray[np.float32] | None  # (N,) factor of each int8 row
    checksums: NDArray[np.uint64]  # (P,) one per page; empty: do not verify
    held: HeldRows | None = None  # the rows that are here; None: all


def load_column(
    root: Path, name: str, manifest: Manifest, *, is_verified: bool = True, os_io: OsIO = REAL_OS
) -> Column:
    """Check the files of a column and load its scales and page checksums.

    Parameters
    ----------
    root : Path
        The folder of a store or dataset.
    name : str
        Of the column.
    manifest : Manifest
        The folder's commit record.
    is_verified : bool
        Whether reads will be checked, so that the page checksums are needed.
    os_io : OsIO
        The system calls to make.

    Raises
    ------
    StoreOpenError, IncompleteStoreError, TruncatedStoreError
        A file is missing or cannot be read.
    FormatError, ChecksumError
        It is damaged, or the scales are not one for each row.
    ConfigError
        There is no such column.
    ShapeError
        The column is not a matrix.
    """
    arrays = manifest.arrays
    if name not in arrays:
        raise ConfigError(f"{root} has no column {name!r}; it has {', '.join(arrays) or 'none'}")
    record = arrays[name]
    if len(record.shape) != 2 or record.shape[1] < 1:
        raise ShapeError(
            f"{root}: column {name!r} has shape {record.shape}; only an (N, F >= 1) matrix has rows"
        )
    check_record(root, record, os_io=os_io)
    scale = None
    if record.dtype == "int8" and (factors := arrays.get(f"{name}.scale")) is not None:
        # Kernels take the scale of a row by its number.
        if (factors.dtype, factors.shape) != ("float32", record.shape[:1]):
            raise FormatError(
                f"{root / factors.file}: the scales of {name!r} are {factors.dtype} of shape {factors.shape}; they "
                f"must be float32 of shape {record.shape[:1]}"
            )
        check_record(root, factors, os_io=os_io)
        scale = writable(load_array(root, factors, os_io=os_io))
    checksums = np.empty(0, np.uint64)
    if is_verified:
        checksums = writable(load_page_checksums(root, record, os_io=os_io))
    return Column(
        path=root / record.file,
        record=record,
        scale=scale,
        checksums=checksums,
        held=manifest.held_rows(name),
    )


def writable(array: NDArray[Any]) -> NDArray[Any]:
    """Lift the write protection: to numba a read-only array is another type, to be compiled for again."""
    array.setflags(write=True)
    return array
