"""A column of a store as the manifest describes it, with what its rows need in memory: scales and page checksums."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.errors import ConfigError, ShapeError
from gloader.ssd_store.format.array_reader import load_array, load_page_checksums
from gloader.ssd_store.format.format import ArrayRecord, find_manifest_name, load_manifest
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """A matrix of a store that can be read row by row."""

    path: Path  # of its file
    record: ArrayRecord
    scale: NDArray[np.float32] | None  # (N,) factor of each int8 row
    checksums: NDArray[np.uint64]  # (P,) one per page; empty: do not verify


def load_column(
    path: StrPath,
    name: str,
    *,
    manifest_name: str | None = None,
    is_verified: bool = True,
    os_io: OsIO = REAL_OS,
) -> Column:
    """Find a column in the manifest and load its scales and page checksums.

    Parameters
    ----------
    path : path
        The folder of a store or dataset.
    name : str
        Of the column.
    manifest_name : str, optional
        ``store.json`` or ``dataset.json``; defaults to whichever is there.
    is_verified : bool
        Whether reads will be checked, so that the page checksums are needed.
    os_io : OsIO
        The system calls to make.

    Raises
    ------
    StoreOpenError, NotAStoreError, IncompleteStoreError, TruncatedStoreError
        There is no complete store at ``path``.
    FormatError, VersionError, ChecksumError
        It is damaged, or of another version.
    ConfigError
        It has no such column.
    ShapeError
        The column is not a matrix.
    """
    root = Path(path)
    manifest = manifest_name or find_manifest_name(root, os_io=os_io)
    arrays = load_manifest(root, manifest, os_io=os_io).arrays
    if name not in arrays:
        raise ConfigError(f"{root} has no column {name!r}; it has {', '.join(arrays) or 'none'}")
    record = arrays[name]
    if len(record.shape) != 2 or record.shape[1] < 1:
        raise ShapeError(
            f"{root}: column {name!r} has shape {record.shape}; only an (N, F >= 1) matrix has rows"
        )
    scale = None
    if record.dtype == "int8" and f"{name}.scale" in arrays:
        scale = _writable(load_array(root, arrays[f"{name}.scale"], os_io=os_io)).reshape(-1)
    checksums = np.empty(0, np.uint64)
    if is_verified:
        checksums = _writable(load_page_checksums(root, record, os_io=os_io))
    return Column(path=root / record.file, record=record, scale=scale, checksums=checksums)


def _writable(array: NDArray[Any]) -> NDArray[Any]:
    """Lift the write protection: to numba a read-only array is another type, to be compiled for again."""
    array.setflags(write=True)
    return array
