"""A file read from its start to its end, past the page cache, a block ahead of the reader."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from gloader.core.aligned_memory import aligned_bytes
from gloader.core.signals import uninterrupted
from gloader.ssd_store.os_io import REAL_OS, OsIO, StrPath, close_quietly, open_regular

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Two of them: one is handed out while the next is read. Large enough for the full rate of a disk with one request
# at a time, small enough to stay in the processor's cache from the read to the copy.
BLOCK_BYTES: Final = 4 * 2**20
_ALIGNMENT: Final = 4096


class StreamFile(io.RawIOBase):
    """A regular file as a seekable raw stream that leaves no page of it in the page cache.

    A large file that is read once would evict what others have there, and memory that the system must find for it
    costs more than the read. Where O_DIRECT is refused, reads are buffered and what was read is dropped from the cache.

    Owns its descriptor, and from the second block on a thread, until `close`. Not thread-safe.

    Parameters
    ----------
    path : of the file
    os_io : the system calls to make

    Raises
    ------
    OSError
        As the system does, from every method.
    """

    def __init__(self, path: StrPath, *, os_io: OsIO = REAL_OS) -> None:
        super().__init__()
        self._os_io = os_io
        self._position = 0
        self._block_start = 0
        self._block_end = 0
        self._spare: NDArray[np.uint8] | None = None
        self._ahead: tuple[int, Future[int]] | None = None
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
        """Move to ``offset`` from the start, the position or the end; return the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, f"byte {base + offset} lies before the file")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fill ``buffer``, or its first bytes; return how many, 0 at the end of the file."""
        target = memoryview(buffer).cast("B")
        if self._position < self._size and not self._block_start <= self._position < self._block_end:
            self._load(self._position // BLOCK_BYTES)
        at = self._position - self._block_start
        count = max(0, min(len(target), self._block_end - self._position))
        target[:count] = self._memory[at : at + count].data
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
        """Make block ``number`` the one that is handed out, and have the one behind it read."""
        start = number * BLOCK_BYTES
        is_next = 0 < self._block_end == start
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == number and self._spare is not None:
            count = ahead[1].result()
            self._memory, self._spare = self._spare, self._memory
        else:
            # Somebody moved: what was read ahead is of no use, good or bad.
            if ahead is not None:
                ahead[1].exception()
            self._block_end = self._block_start
            count = self._fill(number, self._memory)
        self._block_start, self._block_end = start, start + count
        # A thread only for who reads on, and only where there is more to read.
        if is_next and count == BLOCK_BYTES and self._block_end < self._size:
            self._read_ahead(number + 1)

    def _read_ahead(self, number: int) -> None:
        if self._spare is None:
            self._spare = aligned_bytes(BLOCK_BYTES)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="gloader-stream")
        self._ahead = number, self._pool.submit(self._fill, number, self._spare)

    def _fill(self, number: int, memory: NDArray[np.uint8]) -> int:
        """Read block ``number`` to ``memory``; return its bytes, fewer where the file is shorter than it was."""
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
                # Refused by the first read only, or behind a short one, which may end where O_DIRECT cannot go on.
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
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
