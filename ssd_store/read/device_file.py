"""One open data file, read around the page cache if the file system allows it."""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING, Literal

from gloader.core.signals import close_in_finalizer, uninterrupted
from gloader.errors import StoreError, StoreOpenError, StoreReadError, TruncatedStoreError
from gloader.ssd_store.format.format import open_error
from gloader.ssd_store.os_io import REAL_OS, OsIO, close_quietly, is_worth_repeating, open_regular
from gloader.ssd_store.read.extents import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gloader.types import IdArray

_LOG = logging.getLogger(__name__)

Direct = Literal["auto", "require", "off"]
DIRECT_MODES = ("auto", "require", "off")


class DeviceFile:
    """A file opened with O_DIRECT, or buffered if that is refused. Owns its descriptor until `close`.

    Parameters
    ----------
    path : of the file
    direct : "auto" falls back to buffered reads, "require" raises instead, "off" never tries O_DIRECT
    os_io : the system calls to make
    like : has the file open; None: it is opened by its path

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
        self._tail_fd = -1
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
        """Return another owner of the open file, whatever is at its path by now; raises as the constructor."""
        return DeviceFile(
            self.path, direct="require" if self._require else "auto", os_io=self._os_io, like=self
        )

    @property
    def num_bytes(self) -> int:
        """Bytes that the file has now."""
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
        """Fill ``buffer`` from ``offset``, whatever it takes; return the number of requests.

        Continues after short reads and signals, and falls back to buffered reads if the file system refuses
        O_DIRECT only now.

        Raises
        ------
        StoreReadError
            The device failed, or kept refusing.
        TruncatedStoreError
            The file ends before the buffer is full.
        """
        done, requests, refusals = 0, 0, 0
        while done < len(buffer):
            # A short read may end within a sector, where O_DIRECT cannot go on: another descriptor reads the rest.
            fd = self.fd if done % ALIGNMENT == 0 or not self.is_direct else self._buffered()
            requests += 1
            try:
                count = self._os_io.pread_into(fd, buffer[done:], offset + done)
            except StoreError:  # of a mirror: it names the object, and what to do
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
        """Yield runs of extents whose bytes are on this disk, for those who read through `fd`: see `OsIO.portions`.

        Parameters
        ----------
        offsets, lengths : (X,) the extents, in file order
        """
        return self._os_io.portions(self.fd, offsets, lengths)

    def refetch(self, offset: int) -> bool:
        """Return whether the damaged page at byte ``offset`` was brought anew, to be read once more."""
        return self._os_io.refetch(self.fd, offset)

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        with uninterrupted():
            for fd in (self.fd, self._tail_fd):
                if fd >= 0:
                    close_quietly(fd, os_io=self._os_io)
            self.fd = self._tail_fd = -1

    def __del__(self) -> None:
        # A signal may arrive before whoever opened the file holds it; nobody would close it then.
        if getattr(self, "fd", -1) >= 0:
            close_in_finalizer(self.close)

    def _recover(self, error: OSError, offset: int, refusals: int) -> None:
        """Return if the read is worth repeating, else raise."""
        if is_worth_repeating(error, refusals):
            return
        # Some file systems take O_DIRECT when a file is opened and refuse the first read.
        if error.errno == errno.EINVAL and self.is_direct and not self._require:
            close_quietly(self.fd, os_io=self._os_io)
            self.fd = -1
            self._fall_back()
            return
        code = error.errno or errno.EIO
        message = (
            f"reading at byte {offset} failed: {os.strerror(code)}; check the device and `gloader verify`"
        )
        raise StoreReadError(code, message, str(self.path)) from error

    def _raise_truncated(self, offset: int, length: int) -> None:
        message = (
            f"{self.path}: bytes {offset} to {offset + length} are needed, but the file now has "
            f"{self.num_bytes}; it was truncated after it was opened: prepare it again"
        )
        raise TruncatedStoreError(message)

    def _open(self, *, direct: bool) -> int:
        return open_regular(self.path, os.O_RDONLY | (os.O_DIRECT if direct else 0), os_io=self._os_io)

    def _fall_back(self) -> None:
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
