"""The file of one spilled record, every byte of which is checked when it is read.

What must be found in it is known to whoever wrote it: a `SpillRef` holds the size and the digest, so that a
record that is cut, damaged or exchanged never passes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.aligned_memory import aligned_bytes
from gloader.errors import ChecksumError
from gloader.ssd_store.checksum import PAGE_BYTES, checksum_pages, digest_of
from gloader.ssd_store.descriptor import Descriptor
from gloader.ssd_store.os_io import REAL_OS, OsIO, close_quietly, read_full, write_full
from gloader.ssd_store.spill_errors import spill_errors
from gloader.ssd_store.spill_layout import (
    RecordLayout,
    SpillKey,
    describe_key,
    parse_header,
    record_file_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

_BUFFER_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillRef:
    """A written record: where it is and what must be found there."""

    key: SpillKey
    path: Path
    num_pages: int  # header and data
    digest: str  # of their checksums

    @property
    def num_bytes(self) -> int:
        """Bytes of the file."""
        return record_file_bytes(self.num_pages)


def write_record_file(
    path: Path,
    key: SpillKey,
    layout: RecordLayout,
    arrays: Mapping[str, NDArray[Any]],
    *,
    os_io: OsIO = REAL_OS,
) -> SpillRef:
    """Write a record into the new file ``path``, through one buffer whatever its size.

    Not forced to the device: a spill does not outlive its process.

    Raises
    ------
    OSError
        As `os`; the file, which may be there in part, is the caller's to remove.
    """
    checksums = np.empty(layout.num_pages, dtype=np.uint64)
    fd = os_io.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        pages = _PageWriter(fd, checksums, os_io)
        pages.append(np.frombuffer(layout.header, dtype=np.uint8))
        for array in layout.arrays:
            pages.pad_to(len(layout.header) + array.offset)
            pages.append(np.asarray(arrays[array.name], order="C").reshape(-1).view(np.uint8))
        os_io.kill_point("spill.in_record")
        pages.pad_to(layout.num_pages * PAGE_BYTES)
        pages.flush()  # completes the checksums
        pages.append(checksums.view(np.uint8))
        pages.pad_to(layout.num_bytes)
        pages.flush()
    except BaseException:
        close_quietly(fd, os_io=os_io)
        raise
    os_io.close(fd)  # some network file systems report a full disk only here
    return SpillRef(key=key, path=path, num_pages=layout.num_pages, digest=digest_of(checksums))


def read_record_file(ref: SpillRef, *, os_io: OsIO = REAL_OS) -> dict[str, NDArray[Any]]:
    """Read the record ``ref`` and check every byte of it.

    Returns
    -------
    The arrays by name, in the order they were written; views of one new buffer

    Raises
    ------
    ChecksumError
        The file is not, byte for byte, what was written; names key, path and offset.
    SpillError
        The device fails, or the file is gone.
    """
    data = _read_pages(ref, os_io)
    key, start, arrays = parse_header(data)
    if key != ref.key:
        raise ChecksumError(f"{describe_key(ref.key)} ({ref.path}): byte 0 holds the {describe_key(key)}")
    return {
        array.name: data[start + array.offset : start + array.offset + array.num_bytes]
        .view(array.dtype)
        .reshape(array.shape)
        for array in arrays
    }


class _PageWriter:
    """Appends bytes to a file through a buffer, and keeps the checksums of its first pages."""

    __slots__ = ("_buffer", "_checksums", "_fd", "_filled", "_os_io", "_written")

    def __init__(self, fd: int, checksums: NDArray[np.uint64], os_io: OsIO) -> None:
        self._fd = fd
        self._checksums = checksums
        self._os_io = os_io
        self._buffer = aligned_bytes(_BUFFER_BYTES)
        self._filled = 0
        self._written = 0

    def append(self, data: NDArray[np.uint8]) -> None:
        done = 0
        while done < data.size:
            count = min(data.size - done, _BUFFER_BYTES - self._filled)
            self._buffer[self._filled : self._filled + count] = data[done : done + count]
            self._filled += count
            done += count
            if self._filled == _BUFFER_BYTES:
                self.flush()

    def pad_to(self, offset: int) -> None:
        """Add zeros up to byte ``offset`` of the file."""
        self.append(np.zeros(offset - self._written - self._filled, dtype=np.uint8))

    def flush(self) -> None:
        """Write the buffer, which holds whole pages."""
        pages = self._buffer[: self._filled]
        first = self._written // PAGE_BYTES
        checksums = self._checksums[first : first + self._filled // PAGE_BYTES]
        if checksums.size:
            checksum_pages(pages[: checksums.size * PAGE_BYTES], first, checksums)
        write_full(self._fd, pages.data, os_io=self._os_io)
        self._written += self._filled
        self._filled = 0


def _read_pages(ref: SpillRef, os_io: OsIO) -> NDArray[np.uint8]:
    """Return the verified header and data pages of ``ref``."""
    what = describe_key(ref.key)
    with (
        spill_errors(ref.path, f"reading the {what}", os_io=os_io),
        Descriptor(ref.path, os.O_RDONLY | os.O_NOFOLLOW, os_io=os_io) as fd,
    ):
        size = os_io.fstat(fd).st_size
        # The size first: a file of another size is not worth the memory.
        buffer = aligned_bytes(ref.num_bytes if size == ref.num_bytes else 0)
        count = read_full(fd, buffer.data, 0, os_io=os_io) if buffer.size else size
    if count != ref.num_bytes:
        raise _damage(ref, min(count, ref.num_bytes), f"it has {count} bytes, {ref.num_bytes} were written")
    data, tail = np.split(buffer, [ref.num_pages * PAGE_BYTES])
    computed = np.empty(ref.num_pages, dtype=np.uint64)
    checksum_pages(data, 0, computed)
    offset = _first_difference(computed, tail, digest=ref.digest)
    if offset >= 0:
        raise _damage(
            ref, offset, f"the page at byte {offset // PAGE_BYTES * PAGE_BYTES} does not match its checksum"
        )
    return data


def _first_difference(computed: NDArray[np.uint64], tail: NDArray[np.uint8], *, digest: str) -> int:
    """Return the byte of the file at which the damage starts, as nearly as can be told, or -1. Pure.

    Parameters
    ----------
    computed : (num_pages,) checksums of the pages as they are now
    tail : the bytes of the file behind those pages
    digest : of the pages that were written
    """
    expected = np.zeros(tail.size, dtype=np.uint8)
    expected[: computed.nbytes] = computed.view(np.uint8)
    differs = tail != expected
    at = int(differs.argmax()) if differs.any() else -1
    if digest_of(computed) == digest:  # the pages are right, so the tail is damaged
        return at if at < 0 else computed.size * PAGE_BYTES + at
    return at // 8 * PAGE_BYTES if 0 <= at < computed.nbytes else 0  # 0: as written, but by somebody else


def _damage(ref: SpillRef, offset: int, what: str) -> ChecksumError:
    return ChecksumError(
        f"{describe_key(ref.key)} ({ref.path}) is damaged at byte {offset}: {what}; it was changed after it was "
        "written: check the disk and resume from the last checkpoint"
    )
