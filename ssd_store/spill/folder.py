"""The spill folder: temporary files on the SSD, within a budget, removed with their process.

Packs, sorts and activations spill to such files when memory is too small. `SpillFolder` owns the folder and shares out
its budget. `SpillFile` is one file that is open for writing. `SpillFiles` are the files of one writer, such as a pack.

A file is in use from `SpillFolder.reserve_file` until `SpillFolder.keep_file`, which makes it idle. An idle file stays
on the disk until the next writer reuses it, or its space is needed. On a file system that discards freed blocks,
removing a file of 100 MB took 0.15 to 0.3 s, half as long as writing it.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Self

from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError, ForkError, SpillError, StoreOpenError, StoreReadError
from gloader.ssd_store.os_io import (
    REAL_OS,
    OsIO,
    StrPath,
    close_quietly,
    free_bytes,
    is_unsupported,
    is_worth_repeating,
    require_spill_space,
    spill_errors,
)
from gloader.ssd_store.read.device_file import DeviceFile
from gloader.ssd_store.spill.claim import SpillClaim, remove_dead_spills, spill_parent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    from gloader.ssd_store.read.device_file import Direct


_LOG = logging.getLogger(__name__)


class SpillFile:
    """A file with ``num_bytes``, reserved on the device before the first write. Owns its descriptor until `close`.

    Every method raises the system's `OSError`. The creator removes the file.

    Parameters
    ----------
    path : a new file, or a file to use again
    num_bytes : bytes to write; a reused file may be longer, and is not shortened
    direct : bypass the page cache if the file system can
    is_new : True if the file must not exist yet
    os_io : the system calls
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
            # A refused O_DIRECT may leave the file that O_CREAT made, so the next opening accepts an existing file.
            self._fall_back()
        try:
            self._reserve(num_bytes)
        except BaseException:
            self.abandon()
            raise

    def write_fully(self, data: memoryview, offset: int) -> None:
        """Write ``data`` at ``offset``, in as many requests as needed.

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
        """Close the descriptor. Some network file systems report a full disk only at the close. Idempotent."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            self._os_io.close(fd)

    def abandon(self) -> None:
        """Close an abandoned file's descriptor. Idempotent."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            close_quietly(fd, os_io=self._os_io)

    def _open(self, flags: int) -> int:
        """Open the file for writing, and create it if it is missing; ``flags`` are further flags."""
        direct = os.O_DIRECT if self.is_direct else 0
        fd = self._os_io.open(self.path, os.O_WRONLY | os.O_CREAT | flags | direct, 0o600)
        try:
            self._os_io.set_blocking(fd)  # io_uring would answer EAGAIN instead of waiting for the device
        except BaseException:
            close_quietly(fd, os_io=self._os_io)
            raise
        return fd

    def _reserve(self, num_bytes: int) -> None:
        """Reserve the file's space on the device, if the file system can."""
        try:
            self._os_io.fallocate(self.fd, 0, num_bytes)
        except OSError as error:
            # The reservation only reports a full disk early; each write is still checked.
            if not is_unsupported(error):
                raise
            _LOG.debug("%s: space cannot be reserved: %s", self.path, error)

    def _recover(self, error: OSError, refusals: int) -> None:
        """Return if the write is worth repeating, else raise."""
        if is_worth_repeating(error, refusals):
            return
        # Some file systems accept the flag when the file is opened, and refuse the first write.
        if error.errno == errno.EINVAL and self.is_direct:
            self.abandon()
            self._fall_back()
            return
        raise error

    def _fall_back(self) -> None:
        """Open the file again, for writes through the page cache."""
        _LOG.warning("%s: the file system refuses O_DIRECT, writing through the page cache", self.path)
        self.is_direct = False
        self.fd = self._open(os.O_NOFOLLOW)  # without O_EXCL, because the file may exist with content


class SpillFolder:
    """A private folder of temporary files, within a budget. Owns the folder until `close`. Thread-safe.

    The constructor first removes the spill folders in ``parent`` whose owners are dead.

    Parameters
    ----------
    parent : an existing folder; by default $GLOADER_SPILL_DIR, else the system's temporary folder
    budget_bytes : maximum bytes for all files on disk
    os_io : the system calls

    Raises
    ------
    ConfigError
        The budget is negative.
    SpillError
        The folder cannot be created.
    """

    def __init__(self, parent: StrPath | None = None, *, budget_bytes: int, os_io: OsIO = REAL_OS) -> None:
        if budget_bytes < 0:
            raise ConfigError(f"the spill budget is {budget_bytes} bytes; give 0 or more")
        self.budget_bytes = budget_bytes
        self._os_io = os_io
        self._lock = threading.Lock()  # protects the files and the budget
        self._files: dict[Path, int] = {}  # files in use, and their reserved bytes
        self._used_bytes = 0  # sum of the reserved bytes
        self._idle: dict[Path, int] = {}  # unused files and their bytes
        self._numbers = count()  # numbers for the names of new files
        self._pid = os.getpid()
        self._is_open = True
        # Dead folders are removed first, so that they do not count against this run's space.
        folder = spill_parent(parent)
        remove_dead_spills(folder, os_io=os_io)
        self._claim = SpillClaim(folder, os_io=os_io)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except SpillError as failure:
            if error is None:
                raise
            error.add_note(f"and {failure}")

    @property
    def path(self) -> Path:
        """The folder."""
        return self._claim.path

    @property
    def os_io(self) -> OsIO:
        """The folder's system calls."""
        return self._os_io

    @property
    def used_bytes(self) -> int:
        """Bytes of the budget that files in use take, including files being written."""
        return self._used_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes that may be written now: the unused budget or the disk space, whichever is less."""
        unused = max(self.budget_bytes - self._used_bytes, 0)
        with spill_errors(self.path, "checking the free disk space", os_io=self._os_io):
            return min(unused, free_bytes(self.path, os_io=self._os_io) + self._idle_bytes)

    def split_off(self, num_bytes: int) -> SpillFolder:
        """Return another folder with the same parent and ``num_bytes`` from this budget. The caller owns it.

        Raises
        ------
        BudgetError
            The unused budget is smaller.
        SpillError
            The folder cannot be created, or this folder is closed.
        """
        with self._lock:
            self._require_usable()
            unused = self.budget_bytes - self._used_bytes
            if num_bytes > unused:
                raise BudgetError(
                    f"another spill folder needs {num_bytes} bytes ({format_bytes(num_bytes)}), and {unused} of the "
                    f"spill budget of {self.budget_bytes} bytes are unused; raise spill_budget"
                )
            other = SpillFolder(self.path.parent, budget_bytes=num_bytes, os_io=self._os_io)
            self.budget_bytes -= num_bytes
        return other

    def require_room(self, num_bytes: int, what: str = "a spill") -> None:
        """Require that ``num_bytes`` more fit into the budget and onto the disk. Idle files count as free space.

        Parameters
        ----------
        num_bytes : bytes to write
        what : the content, the first words of a message

        Raises
        ------
        BudgetError
            The bytes exceed the budget; the message has needed and allowed bytes.
        SpillError
            The bytes exceed the free disk space (the message has needed and free bytes), or the folder is closed.
        ForkError
            The folder belongs to the parent process.
        """
        self._require_usable()
        allowed = self.budget_bytes - self._used_bytes
        if num_bytes > allowed:
            raise BudgetError(
                f"{what} needs {num_bytes} bytes ({format_bytes(num_bytes)}) on disk and {allowed} are allowed: "
                f"the spill budget is {self.budget_bytes} bytes, {self._used_bytes} of them in use; raise "
                "spill_budget or use smaller superbatches"
            )
        with spill_errors(self.path, f"checking the free disk space for {what}", os_io=self._os_io):
            more = max(num_bytes - self._idle_bytes, 0)
            require_spill_space(self.path, more, f"{what} does not fit on the disk", os_io=self._os_io)

    def reuse_file(self, num_bytes: int) -> Path | None:
        """Take ``num_bytes`` from the budget for a write to an idle file, and return the file.

        The result is None if no file is idle, or if the budget has no room for a file with this size. The file may be
        shorter.

        Raises
        ------
        SpillError
            Another idle file, which no longer fits the budget, cannot be removed; or the folder is closed.
        ForkError
            The folder belongs to the parent process.
        """
        with self._lock:
            self._require_usable()
            # The best file is the smallest that is large enough. If none is, the largest file has to grow least.
            path = min(self._idle, key=lambda idle: _misfit(self._idle[idle], num_bytes), default=None)
            size = 0 if path is None else max(self._idle[path], num_bytes)
            if path is None or self._used_bytes + size > self.budget_bytes:
                return None
            idle_size = self._idle.pop(path)
            try:
                self._remove_idle(self.budget_bytes - self._used_bytes - size)
            except BaseException:
                self._idle[path] = idle_size  # the caller does not receive the file
                raise
            self._files[path] = size
            self._used_bytes += size
        return path

    def keep_file(self, path: Path) -> None:
        """Return a file's bytes to the budget, and keep the file for `reuse_file`. Idempotent."""
        with self._lock:
            if path in self._files:
                self._idle[path] = self._files.pop(path)
                self._used_bytes -= self._idle[path]

    def reserve_file(self, num_bytes: int, what: str) -> Path:
        """Take ``num_bytes`` from the budget for a new file, and return its path. Idle files are removed first.

        Raises
        ------
        BudgetError
            The bytes exceed the budget; the message has needed and allowed bytes.
        SpillError
            The bytes exceed the free disk space, an idle file cannot be removed, or the folder is closed.
        ForkError
            The folder belongs to the parent process.
        """
        # One lock covers check and reservation: two packs at the same time must not count on the same bytes.
        with self._lock:
            self.require_room(num_bytes, what)
            self._remove_idle(0)
            path = self.path / f"{next(self._numbers):08d}.spill"
            self._files[path] = num_bytes
            self._used_bytes += num_bytes
        return path

    def remove_file(self, path: Path) -> None:
        """Remove a file that `reserve_file` named, if it exists, and return its bytes to the budget. Idempotent.

        Raises
        ------
        SpillError
            The file cannot be removed; its bytes stay in use until `close`.
        """
        if path not in self._files:
            return
        with spill_errors(path, "removing a spilled file", os_io=self._os_io):
            self._unlink(path)
        self._return(path)

    def close(self) -> None:
        """Remove the folder and everything in it. Idempotent; in a forked child it removes nothing.

        Raises
        ------
        SpillError
            A file cannot be removed; the next run removes it after this process has ended.
        """
        self._is_open = False
        # A forked child has a copy of this object, but the folder belongs to its parent.
        if os.getpid() != self._pid:
            self._claim.release()
            return
        self._claim.remove()
        with self._lock:
            self._files.clear()
            self._idle.clear()
            self._used_bytes = 0

    @property
    def _idle_bytes(self) -> int:
        """Bytes of all idle files."""
        return sum(self._idle.values())

    def _remove_idle(self, room_bytes: int) -> None:
        """Remove idle files, the smallest first, until the remaining files fit ``room_bytes``."""
        for path in sorted(self._idle, key=lambda idle: self._idle[idle]):
            if self._idle_bytes <= room_bytes:
                return
            with spill_errors(path, "removing a spilled file", os_io=self._os_io):
                self._unlink(path)
            del self._idle[path]

    def _unlink(self, path: Path) -> None:
        """Remove a file, if it exists; raises `OSError`."""
        try:
            try:
                self._os_io.unlink(path)
            except FileNotFoundError:
                raise
            except OSError:  # a second attempt is enough, because a file that remains only costs space
                self._os_io.unlink(path)
        except FileNotFoundError:  # the file was never created, or is gone with the folder
            _LOG.debug("%s does not exist, so it is not removed", path)

    def _return(self, path: Path) -> None:
        """Return a removed file's bytes to the budget."""
        with self._lock:
            self._used_bytes -= self._files.pop(path, 0)

    def _require_usable(self) -> None:
        """Raise SpillError if the folder is closed, ForkError in a child of its process."""
        if not self._is_open:
            raise SpillError(errno.EBADF, "the spill folder is closed", str(self.path))
        if os.getpid() != self._pid:
            raise ForkError(
                f"{self.path} belongs to process {self._pid}, which forked this one; create a spill folder in "
                "each process, or start workers with the spawn method"
            )


def _misfit(size: int, num_bytes: int) -> tuple[bool, int]:
    """Return how badly a file with ``size`` fits ``num_bytes``: too small is worse than too large. Pure."""
    return size < num_bytes, abs(size - num_bytes)


class SpillFiles:
    """One writer's files in a spill folder. Thread-safe.

    Owns each file until it is kept for another writer, or until `close`.

    Parameters
    ----------
    folder : folder for the files, within its budget
    label : the files' content in messages, such as "the pack of superbatch 3"
    is_direct : True if files bypass the page cache; becomes False once the file system refuses O_DIRECT
    """

    def __init__(self, folder: SpillFolder, label: str, *, is_direct: bool = True) -> None:
        self.folder = folder
        self.is_direct = is_direct
        self._label = label
        self._lock = threading.Lock()
        self._paths: list[Path] = []  # files that were neither returned nor removed
        self._writing: list[SpillFile] = []  # files that are open for writing

    @property
    def is_gone(self) -> bool:
        """True if every file was returned or removed."""
        return not self._paths

    def reserve(self, num_bytes: int) -> tuple[Path, bool]:
        """Reserve a file with ``num_bytes``. Return its path, and True if the file is new; raises as `reserve_file`."""
        path = self.folder.reuse_file(num_bytes)
        is_new = path is None
        if path is None:
            path = self.folder.reserve_file(num_bytes, self._label)
        self._paths.append(path)
        return path, is_new

    def create(self, path: Path, num_bytes: int, *, is_new: bool, needed_bytes: int) -> SpillFile:
        """Open a reserved file for writing. If it cannot be created or grow, the caller calls `give_up`.

        Parameters
        ----------
        path, is_new : values from `reserve`
        num_bytes : the file's size
        needed_bytes : bytes in all files together, for a full disk's message

        Raises
        ------
        SpillError
            The disk is full or fails.
        """
        os_io = self.folder.os_io
        with spill_errors(path, f"creating {self._label}", needed_bytes=needed_bytes, os_io=os_io):
            file = SpillFile(path, num_bytes, direct=self.is_direct, is_new=is_new, os_io=os_io)
        self.is_direct &= file.is_direct
        self._writing.append(file)
        return file

    def complete(self, *files: SpillFile) -> None:
        """Finish writing ``files``, by default all files.

        Raises
        ------
        SpillError
            The device reports a late failure.
        """
        for file in files or tuple(self._writing):
            self._writing.remove(file)
            with spill_errors(file.path, f"completing {self._label}", os_io=self.folder.os_io):
                file.close()

    def give_up(self, error: BaseException) -> None:
        """Remove all files because of ``error``, which gets a note if the removal fails too."""
        while self._writing:
            self._writing.pop().abandon()
        try:
            self.close()
        except SpillError as failure:
            error.add_note(f"and a part of {self._label} could not be removed ({failure})")

    @contextmanager
    def reading(self, path: Path, what: str) -> Iterator[DeviceFile]:
        """Yield a file that is open for reading, and is not removed during the block.

        Parameters
        ----------
        path : a complete file
        what : the content to read, for messages

        Raises
        ------
        SpillError
            The file was returned or removed, cannot be opened, or the device fails.
        """
        # The lock is held during the read, so that the file is not removed. Readers take turns in the lane anyway.
        with self._lock:
            if path not in self._paths:
                raise SpillError(errno.ENOENT, f"{what} was released", str(self.folder.path))
            try:
                direct: Direct = "auto" if self.is_direct else "off"
                file = DeviceFile(path, direct=direct, os_io=self.folder.os_io)
            except StoreOpenError as error:
                text = f"opening {what} failed: {error.strerror}"
                raise SpillError(error.errno or errno.EIO, text, str(path)) from error
            try:
                yield file
            except StoreReadError as error:
                text = f"reading {what} failed: {error.strerror}"
                raise SpillError(error.errno or errno.EIO, text, str(path)) from error
            finally:
                file.close()

    def keep(self, path: Path) -> None:
        """Return a file to the folder for another writer. Idempotent."""
        with self._lock:
            if path in self._paths:
                self.folder.keep_file(path)
                self._paths.remove(path)

    def close(self) -> None:
        """Remove the files that were not returned. Idempotent.

        Raises
        ------
        SpillError
            A file cannot be removed; the other files are removed.
        """
        # A failed removal must not keep the other files on the disk.
        failure: SpillError | None = None
        with self._lock:
            for path in list(self._paths):
                try:
                    self.folder.remove_file(path)
                    self._paths.remove(path)
                except SpillError as error:
                    failure = failure or error
        if failure is not None:
            raise failure
