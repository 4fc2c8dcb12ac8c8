"""Open data files, read without the page cache if the file system allows it.

O_DIRECT is the system's flag for files that are read and written without the page cache. Some file systems refuse it
when the file is opened, others only at the first read; reads are then buffered. `DeviceFile` is the open file of a
store, for reads at any offset. `StreamFile` reads a source file of a conversion from start to end, one block ahead of
its reader.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Literal

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.signals import close_in_finalizer, uninterrupted
from gloader.errors import StoreError, StoreOpenError, StoreReadError, TruncatedStoreError
from gloader.ssd_store.format.format import open_error
from gloader.ssd_store.format.manifest import CHECK_DEVICE, RESTORE
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath, close_quietly, is_worth_repeating, open_regular
from gloader.ssd_store.read.extents import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from gloader.types import IdArray


_LOG = logging.getLogger(__name__)

Direct = Literal["auto", "require", "off"]
DIRECT_MODES = ("auto", "require", "off")


class DeviceFile:
    """A file opened with O_DIRECT, or buffered if O_DIRECT is refused. Owns its descriptor until `close`.

    Parameters
    ----------
    path : the file
    direct : "auto" falls back to buffered reads, "require" raises instead, "off" never tries O_DIRECT
    os_io : the system calls
    like : another owner of the open file; None means that the path is opened

    Raises
    ------
    StoreOpenError
        The file cannot be opened, or refuses O_DIRECT although ``direct="require"``.
    """

    def __init__(
        self,
        path: Path,
        *,
        direct: Direct = "auto",
        os_io: OsIO = REAL_OS,
        like: DeviceFile | None = None,
    ) -> None:
        self.path = path
        self._os_io = os_io
        self._require = direct == "require"
        self.is_direct: bool = like.is_direct if like else direct != "off" and hasattr(os, "O_DIRECT")
        self.fd = -1
        self._tail_fd = -1  # a buffered descriptor for the rest after a short read
        try:
            with uninterrupted():
                self.fd = os_io.duplicate(like.fd) if like else self._open(direct=self.is_direct)
        except OSError as error:
            if not self.is_direct or error.errno != errno.EINVAL:
                raise open_error(path, error) from error
            if self._require:
                message = "the file system refuses O_DIRECT; use direct='auto' to read through the page cache"
                raise StoreOpenError(errno.EINVAL, message, str(path)) from error
            self._fall_back()

    def duplicate(self) -> DeviceFile:
        """Return another owner of the open file, even if another file now has its path; raises as the constructor."""
        return DeviceFile(
            self.path, direct="require" if self._require else "auto", os_io=self._os_io, like=self
        )

    @property
    def num_bytes(self) -> int:
        """The file's current size in bytes."""
        return self._os_io.fstat(self.fd).st_size

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the open file.

        Raises
        ------
        StoreOpenError
            The file has no status.
        """
        try:
            status = self._os_io.fstat(self.fd)
        except OSError as error:
            raise open_error(self.path, error) from error
        return status.st_dev, status.st_ino

    def read_fully(self, buffer: memoryview, offset: int) -> int:
        """Fill ``buffer`` from ``offset``, in as many requests as needed, and return their number.

        Continues after short reads and signals. If the file system refuses O_DIRECT only now, falls back to buffered
        reads.

        Raises
        ------
        StoreReadError
            The device failed, or refused repeatedly.
        TruncatedStoreError
            The file ends before the buffer is full.
        """
        done, requests, refusals = 0, 0, 0
        while done < len(buffer):
            # A short read may end within a sector, where O_DIRECT cannot continue. Another descriptor reads the rest.
            fd = self.fd if done % ALIGNMENT == 0 or not self.is_direct else self._buffered()
            requests += 1
            try:
                count = self._os_io.pread_into(fd, buffer[done:], offset + done)
            except StoreError:  # a mirror's error, which names the object and has advice
                raise
            except OSError as error:
                refusals += 1
                self._recover(error, offset + done, refusals)
                continue
            if count == 0:
                self._raise_truncated(offset, len(buffer))
            done += count
            refusals = 0
        return requests

    def portions(self, offsets: IdArray, lengths: IdArray) -> Iterator[tuple[int, int]]:
        """Yield ranges of extents whose bytes are on this disk, for reads through `fd`, as `OsIO.portions`.

        Parameters
        ----------
        offsets, lengths : (X,) the extents, in file order
        """
        return self._os_io.portions(self.fd, offsets, lengths)

    def refetch(self, offset: int) -> bool:
        """Return True if the damaged page at byte ``offset`` was fetched again, for another read."""
        return self._os_io.refetch(self.fd, offset)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        with uninterrupted():
            for fd in (self.fd, self._tail_fd):
                if fd >= 0:
                    close_quietly(fd, os_io=self._os_io)
            self.fd = self._tail_fd = -1

    def __del__(self) -> None:
        # A signal may arrive before the opener holds a reference, and nothing else would close the file then.
        if getattr(self, "fd", -1) >= 0:
            close_in_finalizer(self.close)

    def _recover(self, error: OSError, offset: int, refusals: int) -> None:
        """Return if the read is worth repeating, else raise."""
        if is_worth_repeating(error, refusals):
            return
        # Some file systems accept O_DIRECT at the opening, and refuse the first read.
        if error.errno == errno.EINVAL and self.is_direct and not self._require:
            close_quietly(self.fd, os_io=self._os_io)
            self.fd = -1
            self._fall_back()
            return
        code = error.errno or errno.EIO
        message = f"reading at byte {offset} failed: {os.strerror(code)}; {CHECK_DEVICE}"
        raise StoreReadError(code, message, str(self.path)) from error

    def _raise_truncated(self, offset: int, length: int) -> None:
        """Raise the error for a file that ends before ``length`` bytes from ``offset`` on."""
        message = (
            f"{self.path}: bytes {offset} to {offset + length} are needed, but the file now has "
            f"{self.num_bytes}; it was truncated after it was opened: {RESTORE}"
        )
        raise TruncatedStoreError(message)

    def _open(self, *, direct: bool) -> int:
        return open_regular(self.path, os.O_RDONLY | (os.O_DIRECT if direct else 0), os_io=self._os_io)

    def _fall_back(self) -> None:
        """Open the file again for reads through the page cache."""
        _LOG.warning("%s: the file system refuses O_DIRECT, reading through the page cache", self.path)
        self.is_direct = False
        try:
            with uninterrupted():
                self.fd = self._open(direct=False)
        except OSError as error:
            raise open_error(self.path, error) from error

    def _buffered(self) -> int:
        """Return a descriptor that can continue after a short read at an unaligned byte."""
        if self._tail_fd < 0:
            try:
                self._tail_fd = self._open(direct=False)
            except OSError as error:
                raise open_error(self.path, error) from error
        return self._tail_fd


# Bytes in a block of `StreamFile`, which has two: one is in use while the next is read. A block is large enough for a
# disk's full rate with one request in flight, and small enough to stay in the processor's cache until the copy.
BLOCK_BYTES: Final = 4 * 2**20
_ALIGNMENT: Final = 4096


class StreamFile(io.RawIOBase):
    """A regular file as a seekable raw stream that leaves none of its pages in the page cache.

    A large file that is read once would evict other programs' pages from the cache. If O_DIRECT is refused, reads are
    buffered, and the pages are then dropped from the cache.

    Owns its descriptor, and from the second block on a thread, until `close`. Not thread-safe.

    Parameters
    ----------
    path : the file
    os_io : the system calls

    Raises
    ------
    OSError
        Every method raises the system's error.
    """

    def __init__(self, path: StrPath, *, os_io: OsIO = REAL_OS) -> None:
        super().__init__()
        self._os_io = os_io
        self._position = 0
        self._block_start = 0  # range of the current block's bytes in the file
        self._block_end = 0
        self._spare: NDArray[np.uint8] | None = None  # memory for the next block
        self._ahead: tuple[int, Future[int]] | None = None  # number of the next block, and its read
        self._pool: ThreadPoolExecutor | None = None
        self._is_direct = False
        self._fd = -1
        with uninterrupted():
            self._fd = open_regular(path, os_io=os_io)
        try:
            self._size = os_io.fstat(self._fd).st_size
            self._memory = aligned_bytes(min(BLOCK_BYTES, _whole_pages(self._size)))
            with contextlib.suppress(OSError):
                os_io.set_direct(self._fd, is_direct=True)
                self._is_direct = True
        except BaseException:
            self.close()
            raise

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position, in bytes from the start."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move to ``offset`` from the start, the position or the end; return the new position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, f"byte {base + offset} lies before the file")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fill ``buffer``, or its first bytes, and return the number of bytes; 0 at the end of the file."""
        target = memoryview(buffer).cast("B")
        if self._position < self._size and not self._block_start <= self._position < self._block_end:
            self._load(self._position // BLOCK_BYTES)
        begin = self._position - self._block_start
        count = max(0, min(len(target), self._block_end - self._position))
        target[:count] = self._memory[begin : begin + count].data
        self._position += count
        return count

    def close(self) -> None:
        """Close the file and end the thread. Idempotent."""
        if not self.closed:
            with uninterrupted():
                if self._pool is not None:
                    self._pool.shutdown()
                if self._fd >= 0:
                    close_quietly(self._fd, os_io=self._os_io)
                self._fd = -1
        super().close()

    def _load(self, number: int) -> None:
        """Make block ``number`` the current block, and begin to read the next one if the reader moves in order."""
        start = number * BLOCK_BYTES
        is_next = 0 < self._block_end == start  # the block follows the current block
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == number and self._spare is not None:
            count = ahead[1].result()
            self._memory, self._spare = self._spare, self._memory
        else:
            # The reader moved, so the block read ahead is useless.
            if ahead is not None:
                ahead[1].exception()  # waits for the read to end, and ignores its error
            self._block_end = self._block_start
            count = self._fill(number, self._memory)
        self._block_start, self._block_end = start, start + count
        # A thread is only used for a reader in order, and only if there is more to read.
        if is_next and count == BLOCK_BYTES and self._block_end < self._size:
            self._read_ahead(number + 1)

    def _read_ahead(self, number: int) -> None:
        """Begin to read block ``number`` into the spare memory, on the stream's thread."""
        if self._spare is None:
            self._spare = aligned_bytes(BLOCK_BYTES)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="gloader-stream")
        self._ahead = number, self._pool.submit(self._fill, number, self._spare)

    def _fill(self, number: int, memory: NDArray[np.uint8]) -> int:
        """Read block ``number`` into ``memory``. Return its number of bytes, which is lower in a truncated file."""
        start = number * BLOCK_BYTES
        wanted = min(BLOCK_BYTES, self._size - start)
        target = memory[: _whole_pages(wanted)].data
        done = 0
        while done < wanted:
            try:
                count = self._os_io.pread_into(self._fd, target[done:], start + done)
            except InterruptedError:
                continue
            except OSError as error:
                # A file with O_DIRECT refuses the first read, or a read after a short one, which may begin unaligned.
                if error.errno != errno.EINVAL or not self._is_direct:
                    raise
                self._is_direct = False
                self._os_io.set_direct(self._fd, is_direct=False)
                continue
            if count == 0:
                break
            done += count
        if not self._is_direct:
            self._os_io.drop_cache(self._fd, start, done)
        return min(done, wanted)


def _whole_pages(num_bytes: int) -> int:
    """Return ``num_bytes`` rounded up to whole pages, as O_DIRECT needs. Pure."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
