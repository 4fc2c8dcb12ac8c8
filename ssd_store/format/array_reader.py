"""Readers of whole arrays: into memory, verified against their digest on the way."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.errors import ChecksumError
from gloader.ssd_store.format.checksum import PAGE_BYTES, Digest, checksum_pages, digest_of, num_pages_of
from gloader.ssd_store.format.format import DATA_OFFSET, ArrayRecord, open_error, read_exactly, stored_dtype
from gloader.ssd_store.os_io import REAL_OS, OsIO
from gloader.ssd_store.read.descriptor import Descriptor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_STEP_BYTES: Final = 4 * 2**20  # enough for a disk's full speed, little beside any budget


def load_array(
    root: Path | str, record: ArrayRecord, *, verify: bool = True, os_io: OsIO = REAL_OS
) -> NDArray[np.generic]:
    """Read the whole array ``record`` of the store ``root`` into memory; verified while it is read.

    Parameters
    ----------
    root : the directory
    record : what its commit record says of the array
    verify : compare the bytes with the digest of the record

    Returns
    -------
    Read-only array of ``record.shape`` in the stored dtype (bfloat16 as uint16)

    Raises
    ------
    ChecksumError
        The bytes are not those that were written.
    StoreOpenError, StoreReadError, TruncatedStoreError
        The file cannot be read in full.
    """
    path = Path(root) / record.file
    data = _read_data(path, record.num_pages, digest=record.digest if verify else None, os_io=os_io)
    return as_stored(data, record)


def as_stored(data: NDArray[np.uint8], record: ArrayRecord) -> NDArray[np.generic]:
    """Return the bytes ``data`` of ``record``, padding included, as the read-only array they are. Pure."""
    array = data[: record.num_bytes].view(stored_dtype(record.dtype)).reshape(record.shape)
    # It is shared by whoever asks, and a write to it would not reach the disk.
    array.flags.writeable = False
    return array


def load_page_checksums(
    root: Path | str, record: ArrayRecord, *, os_io: OsIO = REAL_OS
) -> NDArray[np.uint64]:
    """Read the page checksums of ``record``, themselves verified against its digest.

    Parameters
    ----------
    root : the directory
    record : what its commit record says of the array

    Returns
    -------
    (record.num_pages,) uint64, read-only

    Raises
    ------
    ChecksumError
        The array has no checksums, or they do not match the digest.
    StoreOpenError, StoreReadError, TruncatedStoreError
        The file cannot be read in full.
    """
    if record.pages_file is None:
        raise ChecksumError(f"{root}: array {record.name!r} was written without page checksums")
    path = Path(root) / record.pages_file
    data = _read_data(path, num_pages_of(record.num_pages * 8), digest=None, os_io=os_io)
    checksums = data.view(np.uint64)[: record.num_pages]
    # The digest is over the checksums, so it vouches for this file too; the padding it does not cover must be zero.
    if digest_of(checksums) != record.digest or data[record.num_pages * 8 :].any():
        raise ChecksumError(
            f"{path}: the page checksums of {record.name!r} do not match the digest {record.digest} of the "
            "commit record; the file is damaged: restore it from a copy or prepare it again"
        )
    checksums.flags.writeable = False
    return checksums


def _read_data(path: Path, num_pages: int, *, digest: str | None, os_io: OsIO) -> NDArray[np.uint8]:
    """Read the ``num_pages`` of the data region of ``path``, checking ``digest`` on the way."""
    data = aligned_bytes(num_pages * PAGE_BYTES)
    with open_array(path, os_io=os_io) as fd:
        for _ in read_pages(fd, path, num_pages, digest=digest, out=data, os_io=os_io):
            pass
    return data


def open_array(path: Path, *, os_io: OsIO = REAL_OS) -> Descriptor:
    """Open the file ``path`` for reading.

    Raises
    ------
    StoreOpenError
        It cannot be opened.
    """
    try:
        return Descriptor(path, os_io=os_io)
    except OSError as error:
        raise open_error(path, error) from error


def read_pages(
    fd: int,
    path: Path,
    num_pages: int,
    *,
    digest: str | None,
    out: NDArray[np.uint8] | None = None,
    os_io: OsIO = REAL_OS,
) -> Iterator[NDArray[np.uint8]]:
    """Read the ``num_pages`` of the data region of ``fd`` in file order, a few MB at a time.

    Parameters
    ----------
    digest : of all pages; checked when the last was read, so that nothing may be believed before the iterator ends
    out : (num_pages * 4096,) aligned uint8 to read into; None: one buffer is used again and again

    Yields
    ------
    The bytes just read, a view of ``out`` or of the buffer

    Raises
    ------
    ChecksumError, StoreReadError, TruncatedStoreError
        As `load_array`.
    """
    size = num_pages * PAGE_BYTES
    buffer = aligned_bytes(min(_STEP_BYTES, size)) if out is None else out
    running, checksums = Digest(), np.empty(_STEP_BYTES // PAGE_BYTES, dtype=np.uint64)
    for start in range(0, size, _STEP_BYTES):
        step = buffer[: size - start] if out is None else out[start : start + _STEP_BYTES]
        read_exactly(fd, step.data, DATA_OFFSET + start, path=path, os_io=os_io)
        # Before the piece is handed on, while it is in the processor's cache.
        if digest is not None:
            part = checksums[: step.size // PAGE_BYTES]
            checksum_pages(step, start // PAGE_BYTES, part)
            running.update(part)
        yield step
    if digest is not None and running.hexdigest() != digest:
        raise ChecksumError(
            f"{path}: the bytes do not match the digest {digest} of the commit record; the file is damaged: "
            "restore it from a copy or prepare it again (`gloader verify` lists the pages)"
        )
