"""One file in a mirror: it has its full size from the start, and is filled block by block, with a mark for each block.

A mirror is a local copy of a dataset in an object store. `MirroredFile` reads, writes and marks one file's blocks; the
`Keeper` decides which blocks to store. Several processes may share a mirror. They share blocks by locks on bytes of the
file of marks. A shared lock protects a block from eviction, and an exclusive lock permits its eviction. Another
exclusive lock claims the block for fetching, so that one process fetches it.

`MirrorRecord` identifies a mirror's folder and each object's version. `FileCheck` checks a file by its page checksums,
or by the digest of the entire file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.malformed import MALFORMED
from gloader.core.signals import uninterrupted
from gloader.errors import ChecksumError, FormatError
from gloader.ssd_store.format.checksum import PAGE_BYTES, Digest, checksum_pages
from gloader.ssd_store.format.manifest import DATA_OFFSET
from gloader.ssd_store.mirror.object_store import ObjectFacts
from gloader.ssd_store.os_io import is_unsupported, is_worth_repeating, open_regular, pwrite_full, read_full

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from gloader.ssd_store.format.manifest import ArrayRecord, Manifest
    from gloader.ssd_store.os_io import OsIO


MIRROR_RECORD: Final = "mirror.json"  # the owner record
FILES: Final = "files"  # the folder that is opened as a dataset
MARKS: Final = "blocks"  # the folder with a file of marks for each dataset file
BLOCK_BYTES: Final = 8 * 2**20  # bytes in a block, the unit of requests and of eviction
MAX_RECORD_BYTES: Final = 16 * 2**20  # longest owner record that is read
_FORMAT: Final = "gloader-mirror"  # `format` and `version` in the owner record
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRecord:
    """A mirror's owner record, ``mirror.json``. In a folder without this record, no file is used or removed."""

    url: str  # without credentials
    files: Mapping[str, ObjectFacts]  # facts about all array files, by name
    block_bytes: int = BLOCK_BYTES

    def to_bytes(self) -> bytes:
        """Return ``mirror.json``'s content. Pure."""
        body = {
            "format": _FORMAT,
            "version": _VERSION,
            "url": self.url,
            "block_bytes": self.block_bytes,
            "files": {name: [facts.size, facts.etag] for name, facts in self.files.items()},
        }
        return (json.dumps(body, indent=1) + "\n").encode("ascii")

    @classmethod
    def parse(cls, data: bytes, path: Path) -> Self:
        """Return the record from the result of `to_bytes`. Pure.

        Raises
        ------
        FormatError
            ``data`` is no record, or has another version.
        """
        try:
            body = json.loads(data)
            if (body["format"], body["version"]) != (_FORMAT, _VERSION):
                raise ValueError("another format or version")
            files = {
                str(name): ObjectFacts(size=size, etag=etag) for name, (size, etag) in body["files"].items()
            }
            record = cls(url=body["url"], files=files, block_bytes=body["block_bytes"])
            _check(record)
        except MALFORMED as error:
            raise FormatError(
                f"{path}: no owner record of a mirror that this build reads ({error}); give another --mirror-dir, or "
                "remove the folder"
            ) from error
        return record


def folder_name(url: str, record: bytes) -> str:
    """Return the name of the folder that mirrors ``url`` with the commit record ``record``. Pure."""
    return hashlib.sha256(url.encode() + b"\n" + record).hexdigest()[:32]


def _check(record: MirrorRecord) -> None:
    """Raise ValueError if a text or size in a parsed record is not valid. Pure."""
    texts = [record.url, *(facts.etag for facts in record.files.values())]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a text is missing")
    sizes = [record.block_bytes, *(facts.size for facts in record.files.values())]
    if not all(type(size) is int and size > 0 and size % PAGE_BYTES == 0 for size in sizes):
        raise ValueError("a size is not a multiple of 4096 bytes")


# The marks of a block. MISSING: not stored. HERE: stored and verified. WRITTEN: stored, but not verified, in a file
# that only a digest of the entire file can check.
MISSING, HERE, WRITTEN = range(3)
EVICTED: Final = -1  # replaces a block's number of pins while the block is evicted
_LOCK_ATTEMPTS: Final = 200  # together 2 s
_LOCK_PAUSE_S: Final = 0.01  # pause while another process evicts a block
_LOG = logging.getLogger(__name__)


class MirroredFile:
    """One file's stored blocks. Thread-safe. Owns descriptors until `close`.

    Parameters
    ----------
    path : the file, sparse and with its full size
    marks_path : the file of marks, a byte for each block
    name : the object's name
    facts : the object's size and ETag
    block_bytes : bytes in a block, whole pages
    os_io : the system calls

    Raises
    ------
    OSError
        The files cannot be opened, or have another size.
    """

    def __init__(
        self,
        path: Path,
        marks_path: Path,
        *,
        name: str,
        facts: ObjectFacts,
        block_bytes: int,
        os_io: OsIO,
    ) -> None:
        self.path = path
        self.name = name
        self.size = facts.size
        self.etag = facts.etag
        self.block_bytes = block_bytes
        self.num_blocks = -(-facts.size // block_bytes)
        self._os_io = os_io
        # Python's file objects close the descriptors with their last reference.
        self._file = _opened(path, os_io)
        self._writer: FileIO | None = None  # a second opening, which bypasses the page cache if possible
        self._is_direct = False
        self._lock = threading.Lock()  # protects the marks, the claims and the writer
        self.marks = np.zeros(self.num_blocks, np.uint8)  # the marks as last read or set
        try:
            self._marks = _opened(marks_path, os_io)
        except BaseException:
            self._file.close()
            raise
        try:
            status = os_io.fstat(self._file.fileno())
            if (status.st_size, os_io.fstat(self._marks.fileno()).st_size) != (self.size, self.num_blocks):
                text = "it has another size than its mirror's record says"
                raise OSError(errno.EINVAL, text, str(path))  # noqa: TRY301
            self.reload()
        except BaseException:
            self.close()
            raise
        # (num_blocks,) how often each block was used; recent uses count more.
        self.uses = np.zeros(self.num_blocks, np.float32)
        # Number of pins per block; EVICTED during an eviction.
        self.pins = np.zeros(self.num_blocks, np.int32)

    def start_of(self, block: int) -> int:
        """Return ``block``'s offset in bytes. Pure."""
        return block * self.block_bytes

    def length_of(self, block: int) -> int:
        """Return the block's number of bytes. The last block may be shorter. Pure."""
        return min(self.block_bytes, self.size - block * self.block_bytes)

    def blocks_of(self, offset: int, num_bytes: int) -> tuple[int, int]:
        """Return the first block that a read touches, and the last plus one; (0, 0) for the header alone. Pure."""
        past = min(offset + num_bytes, self.size)
        if past <= max(offset, DATA_OFFSET):  # the header page is always here
            return 0, 0
        return offset // self.block_bytes, -(-past // self.block_bytes)

    def reload(self, first: int = 0, past: int | None = None) -> None:
        """Read marks again, because another process may have set some; raises `OSError`."""
        past = self.num_blocks if past is None else past
        content = bytearray(past - first)
        # The lock excludes `mark`: marks read before an eviction must not be recorded after it.
        with self._lock:
            read_full(self._marks.fileno(), memoryview(content), first, os_io=self._os_io)
            marks = np.frombuffer(content, np.uint8)
            self.marks[first:past] = np.where(marks <= WRITTEN, marks, MISSING)  # any other value is damage

    def write(self, block: int, data: NDArray[np.uint8]) -> None:
        """Write a block. On return it is on the device. Raises `OSError`."""
        fd, offset, unwritten = self._open_writer(), self.start_of(block), data.data
        refusals = 0
        while unwritten:
            try:
                count = self._os_io.pwrite(fd, unwritten, offset)
            except OSError as error:
                refusals += 1
                if is_worth_repeating(error, refusals):
                    continue
                # Some file systems refuse the first write instead of the flag.
                if error.errno != errno.EINVAL or not self._is_direct:
                    raise
                self._leave_direct(fd)
                continue
            unwritten, offset, refusals = unwritten[count:], offset + count, 0
            if unwritten:  # the rest after a short write may begin at an offset that O_DIRECT refuses
                self._leave_direct(fd)
        self._os_io.kill_point("mirror.after_block_write")  # a crash test may end the process at a kill point
        # The sync precedes the block's mark, which promises that the bytes are on the device.
        self._os_io.datasync(fd)
        self._os_io.kill_point("mirror.after_block_sync")

    def read(self, buffer: memoryview, offset: int) -> int:
        """Read from the file on this disk, regardless of its marks; raises `OSError`."""
        return read_full(self._file.fileno(), buffer, offset, os_io=self._os_io)

    def mark(self, block: int, mark: int, *, is_durable: bool = False) -> None:
        """Set a block's mark. A lost mark only costs a request. Raises `OSError`."""
        with self._lock:
            pwrite_full(self._marks.fileno(), memoryview(bytes([mark])), block, os_io=self._os_io)
            self.marks[block] = mark
        if is_durable:
            self._os_io.datasync(self._marks.fileno())
        self._os_io.kill_point("mirror.after_mark")

    def punch(self, block: int) -> None:
        """Free the disk space of a block. Its mark must already be MISSING on the device. Raises `OSError`."""
        start, length = self.start_of(block), self.length_of(block)
        # The header stays, because it is never fetched.
        skipped = DATA_OFFSET if start == 0 else 0
        if length > skipped:
            self._os_io.punch_hole(self._file.fileno(), start + skipped, length - skipped)

    def share(self, first: int, past: int) -> None:
        """Lock blocks ``first`` to ``past - 1`` against eviction. Waits for a current eviction, at most 2 s.

        Raises
        ------
        OSError
            The lock was refused; `BlockingIOError` after the wait.
        """
        for attempt in range(_LOCK_ATTEMPTS):
            try:
                self._os_io.lock_range(self._marks.fileno(), fcntl.LOCK_SH, first, past - first)
            except BlockingIOError:
                if attempt == _LOCK_ATTEMPTS - 1:
                    raise
                time.sleep(_LOCK_PAUSE_S)
            except OSError as error:
                self._require_unsupported(error)
                return
            else:
                return

    def own(self, block: int) -> bool:
        """Lock a block for eviction. Return False if another process uses it.

        This process must not have the block locked with `share`, because the new lock would replace the shared lock.
        """
        try:
            self._os_io.lock_range(self._marks.fileno(), fcntl.LOCK_EX, block, 1)
        except BlockingIOError:
            return False
        except OSError as error:
            self._require_unsupported(error)
        return True

    def claim(self, block: int) -> bool:
        """Lock a block for fetching. Return False if another process fetches it now."""
        with self._lock:
            # This lock's range lies beyond the marks, so it is independent of `share` and of evictions.
            return self.own(self.num_blocks + block)

    def unclaim(self, block: int) -> None:
        """Release the lock from `claim`; closing the file releases all such locks."""
        # If the release fails, other processes wait for this block, but not longer than for a request.
        with self._lock, suppress(OSError):
            if not self._marks.closed:
                self.release(self.num_blocks + block, self.num_blocks + block + 1)

    def release(self, first: int, past: int) -> None:
        """Release the lock from `share` or `own`."""
        try:
            self._os_io.lock_range(self._marks.fileno(), fcntl.LOCK_UN, first, past - first)
        except OSError as error:
            self._require_unsupported(error)

    def close(self) -> None:
        """Close the descriptors, which ends the locks. Idempotent."""
        with self._lock:
            for file in (self._file, self._marks, self._writer):
                if file is not None:
                    file.close()

    def _open_writer(self) -> int:
        """Return the descriptor for writes, opened at the first call."""
        with self._lock:
            if self._writer is None:
                self._writer = _opened(self.path, self._os_io)
                try:
                    self._os_io.set_direct(self._writer.fileno(), is_direct=True)
                    self._is_direct = True
                except OSError:  # writes then use the page cache, and are still synced to the device
                    _LOG.debug("%s is written through the page cache", self.path)
            return self._writer.fileno()

    def _leave_direct(self, fd: int) -> None:
        """Let later writes through ``fd`` use the page cache."""
        if self._is_direct:
            self._is_direct = False
            self._os_io.set_direct(fd, is_direct=False)

    def _require_unsupported(self, error: OSError) -> None:
        """Raise ``error``, unless it means that the file system has no locks."""
        # Some network file systems have no such locks. Processes can share a mirror there only without a budget.
        if not is_unsupported(error) and error.errno != errno.ENOLCK:
            raise error


def _opened(path: Path, os_io: OsIO) -> FileIO:
    """Open a regular file, not a link, for reading and writing; raises `OSError`."""
    with uninterrupted():
        return FileIO(open_regular(path, os.O_RDWR | os.O_NOFOLLOW, os_io=os_io), "r+")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheck:
    """The check for one dataset file."""

    array: ArrayRecord  # the entry in the commit record for the file's array
    header: bytes  # the file's first page
    is_sums: bool  # the file holds the array's page checksums, not its elements

    @property
    def pages_name(self) -> str | None:
        """The name of the file with the page checksums. None if only the digest of the entire file checks this file."""
        return None if self.is_sums else self.array.pages_file

    def require_header(self, data: NDArray[np.uint8], url: str) -> None:
        """Check the first page of block 0; raises `ChecksumError`."""
        if data[:DATA_OFFSET].tobytes() != self.header:
            raise ChecksumError(
                f"{url}: block 0: the header is not that of {self.array.dtype} of shape {self.array.shape}, as the "
                "dataset's record says; the object is damaged or was replaced: upload the dataset again"
            )

    def require_pages(
        self, file: MirroredFile, block: int, data: NDArray[np.uint8], sums: MirroredFile, url: str
    ) -> None:
        """Check a fetched block's pages against the checksums in the file ``sums``, which is completely stored.

        Parameters
        ----------
        file, block : the block's file and number
        data : the block's bytes, page-aligned
        sums : the file of page checksums
        url : the object's URL, for messages

        Raises
        ------
        ChecksumError
            A page differs; names the block and the page.
        OSError
            The checksums cannot be read.
        """
        skipped = DATA_OFFSET if block == 0 else 0
        pages = data[skipped:]
        first = (file.start_of(block) + skipped - DATA_OFFSET) // PAGE_BYTES
        expected, actual = np.empty((2, pages.size // PAGE_BYTES), np.uint64)
        # A checksum has 8 bytes; page ``first`` is the first page in ``pages``.
        sums.read(expected.view(np.uint8).data, DATA_OFFSET + 8 * first)
        checksum_pages(pages, first, actual, self.array.version)
        wrong = np.flatnonzero(actual != expected)
        if wrong.size:
            page = first + int(wrong[0])
            raise ChecksumError(
                f"{url}: block {block}: page {page} at byte {DATA_OFFSET + page * PAGE_BYTES} does not match its "
                "checksum: the object is damaged in the store or on its way; check the copy that it was uploaded from "
                "with `gloader verify` and upload it again"
            )

    def is_sound(self, file: MirroredFile) -> bool:
        """Return True if the entire file equals the written file; raises `OSError`."""
        digest, pages_left = Digest(self.array.version), self.array.num_pages
        buffer = aligned_bytes(min(file.block_bytes, file.size - DATA_OFFSET))
        sums = np.empty(buffer.size // PAGE_BYTES, np.uint64)
        for start in range(DATA_OFFSET, file.size, max(buffer.size, 1)):
            part = buffer[: file.size - start]
            file.read(part.data, start)
            # The digest is over the page checksums: they are in the file itself, or computed from its pages.
            if self.is_sums:
                words = part.view(np.uint64)
                count = min(pages_left, words.size)
                digest.update(words[:count])
                if words[count:].any():  # the padding must be zero, and no digest covers it
                    return False
            else:
                count = part.size // PAGE_BYTES
                checksum_pages(part, digest.num_pages, sums[:count], self.array.version)
                digest.update(sums[:count])
            pages_left -= count
        return digest.hexdigest() == self.array.digest


def checks_of(manifest: Manifest, headers: dict[str, tuple[bytes, int]]) -> dict[str, FileCheck]:
    """Return the check for each array file in ``manifest``, by name. Pure."""
    checks: dict[str, FileCheck] = {}
    for array in manifest.arrays.values():
        for name in filter(None, (array.file, array.pages_file)):
            is_sums = name == array.pages_file
            checks[name] = FileCheck(array=array, header=headers[name][0], is_sums=is_sums)
    return checks
