"""A file of a spill folder, written at any offset and, if the file system can, around the page cache."""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING

from gloader.ssd_store.os_io import REAL_OS, OsIO, close_quietly, is_unsupported, is_worth_repeating

if TYPE_CHECKING:
    from pathlib import Path

_LOG = logging.getLogger(__name__)


class SpillFile:
    """A file of ``num_bytes``, reserved on the device before a byte is written. Owns its descriptor until `close`.

    Raises `OSError` as the system does; whoever made the file removes it.

    Parameters
    ----------
    path : of a file that does not exist yet, or is used again
    num_bytes : that are written; a file that is used again may have more, and keeps them
    direct : write around the page cache if the file system can
    is_new : whether the file must not exist yet
    """

    def __init__(
        self, path: Path, num_bytes: int, *, direct: bool, is_new: bool = True, os_io: OsIO = REAL_OS
    ) -> None:
        self.path = path
        self.is_direct = direct and hasattr(os, "O_DIRECT")
        self._os_io = os_io
        self.fd = -1
        try:
            self.fd = self._open(os.O_EXCL if is_new else os.O_NOFOLLOW)
        except OSError as error:
            if not self.is_direct or not is_unsupported(error):
                raise
            # A refused O_DIRECT may leave the file that O_CREAT made.
            self._fall_back()
        try:
            self._reserve(num_bytes)
        except BaseException:
            self.abandon()
            raise

    def write_fully(self, data: memoryview, offset: int) -> None:
        """Write ``data`` at ``offset``, whatever it takes.

        Continues after short writes and signals, and through the page cache if O_DIRECT is refused only now.
        """
        done, refusals = 0, 0
        while done < len(data):
            try:
                count = self._os_io.pwrite(self.fd, data[done:], offset + done)
            except OSError as error:
                refusals += 1
                self._recover(error, refusals)
                continue
            if count == 0:
                raise OSError(errno.EIO, "the file takes no more bytes and reports no error")
            done += count
            refusals = 0

    def close(self) -> None:
        """Close the descriptor, which some network file systems use to report a full disk. Idempotent."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            self._os_io.close(fd)

    def abandon(self) -> None:
        """Close the descriptor of a file that is given up. Idempotent."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            close_quietly(fd, os_io=self._os_io)

    def _open(self, how: int) -> int:
        direct = os.O_DIRECT if self.is_direct else 0
        fd = self._os_io.open(self.path, os.O_WRONLY | os.O_CREAT | how | direct, 0o600)
        try:
            self._os_io.set_blocking(fd)  # io_uring would answer EAGAIN instead of waiting for the device
        except BaseException:
            close_quietly(fd, os_io=self._os_io)
            raise
        return fd

    def _reserve(self, num_bytes: int) -> None:
        try:
            self._os_io.fallocate(self.fd, 0, num_bytes)
        except OSError as error:
            # Reserving only makes a full disk show early; each write is checked all the same.
            if not is_unsupported(error):
                raise
            _LOG.debug("%s: space cannot be reserved: %s", self.path, error)

    def _recover(self, error: OSError, refusals: int) -> None:
        """Return if the write is worth repeating, else raise."""
        if is_worth_repeating(error, refusals):
            return
        # Some file systems take the flag when the file is opened and refuse the first write.
        if error.errno == errno.EINVAL and self.is_direct:
            self.abandon()
            self._fall_back()
            return
        raise error

    def _fall_back(self) -> None:
        _LOG.warning("%s: the file system refuses O_DIRECT, writing through the page cache", self.path)
        self.is_direct = False
        self.fd = self._open(os.O_NOFOLLOW)  # without O_EXCL: the file may be there, with bytes in it
