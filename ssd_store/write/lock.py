"""A private folder beside a target, held by one process at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from gloader.core.signals import uninterrupted
from gloader.errors import StoreLockedError
from gloader.ssd_store.os_io import REAL_OS, OsIO, close_quietly

_ATTEMPTS: Final = 100
_LOCKS: Final = Path("/proc/locks")


class LockedFolder:
    """An empty folder that this process alone works in, from `acquire` until `release` or `remove`.

    The lock is on the folder itself, so it leaves no file behind, ends with the process, and travels with the
    folder when that is renamed. What a dead process left in the folder is removed.
    """

    __slots__ = ("_fd", "_os_io", "path")

    def __init__(self, path: Path, *, os_io: OsIO = REAL_OS) -> None:
        self.path = path
        self._os_io = os_io
        self._fd = -1

    def acquire(self) -> None:
        """Create the folder, or take over the one of a dead process.

        Raises
        ------
        StoreLockedError
            A live process holds it.
        OSError
            The file system refuses.
        """
        try:
            # A signal between the lock and the line that keeps its descriptor would leave it held for good.
            with uninterrupted():
                self._acquire()
            # Outside: a dead creator may have left much, and removing it may be interrupted.
            empty_folder(self.path, os_io=self._os_io)
        except BaseException:
            self.remove()
            raise

    def release(self) -> None:
        """Give the lock up and leave the folder, which by now has another name. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            close_quietly(fd, os_io=self._os_io)

    def remove(self) -> None:
        """Remove the folder, then give the lock up. Idempotent.

        Raises
        ------
        OSError
            The folder cannot be removed; the next process to come here removes it.
        """
        # In this order: without the lock, another process could take the folder over while it is removed.
        try:
            if self._fd >= 0:
                remove_tree(self.path, os_io=self._os_io)
        finally:
            self.release()

    def _acquire(self) -> None:
        # The folder may be renamed or removed between its creation and its lock; then the name is free again.
        for _ in range(_ATTEMPTS):
            if self._try_acquire():
                return
        raise StoreLockedError(f"{self.path}: other processes create and finish here all the time; try again")

    def _try_acquire(self) -> bool:
        """Lock the folder; False if it was renamed or removed meanwhile."""
        is_created = _make_folder(self.path, self._os_io)
        try:
            fd = lock_folder(self.path, os_io=self._os_io)
            try:
                # The lock is on what was opened; only the folder that has the name now is worth it.
                is_same = os.path.samestat(self._os_io.fstat(fd), self._os_io.stat(self.path))
            except BaseException:
                close_quietly(fd, os_io=self._os_io)
                raise
        except FileNotFoundError:
            return False
        except OSError:
            if is_created:
                self._os_io.rmdir(self.path)
            raise
        if not is_same:
            close_quietly(fd, os_io=self._os_io)
            return False
        self._fd = fd
        return True


def lock_folder(path: Path, *, os_io: OsIO = REAL_OS) -> int:
    """Lock the folder ``path`` exclusively; return the descriptor that holds the lock until it is closed.

    Raises
    ------
    StoreLockedError
        Another process holds it.
    OSError
        There is no such folder, or the file system knows no locks.
    """
    # On the folder itself: a lock file would be left behind, and would not move with a rename.
    fd = os_io.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os_io.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        close_quietly(fd, os_io=os_io)
        raise StoreLockedError(
            f"{path}: another process is creating a store here; wait for it, or choose another path"
        ) from None
    except BaseException:
        close_quietly(fd, os_io=os_io)
        raise
    return fd


def holder_of(path: Path, *, os_io: OsIO = REAL_OS) -> int | None:
    """Return the process that holds the lock of `lock_folder`; None where the system does not say."""
    try:
        status = os_io.stat(path)
        lines = _LOCKS.read_text("ascii").splitlines()
    except OSError:
        return None
    device = status.st_dev
    name = f"{os.major(device):02x}:{os.minor(device):02x}:{status.st_ino}"
    fields = (line.split() for line in lines)
    pids = [int(field[4]) for field in fields if len(field) > 5 and field[1] == "FLOCK" and field[5] == name]
    # 0: of a process that this container does not see.
    return next((pid for pid in pids if pid > 0), None)


def empty_folder(path: Path, *, os_io: OsIO = REAL_OS) -> None:
    """Remove everything in the folder ``path``."""
    for name in os_io.listdir(path):
        try:
            os_io.unlink(path / name)
        except IsADirectoryError:
            os_io.rmtree(path / name)


def remove_tree(path: Path, *, os_io: OsIO = REAL_OS) -> None:
    """Remove a folder; one failure is tried again, since nothing but space is lost by trying."""
    try:
        os_io.rmtree(path)
    except FileNotFoundError:
        return
    except OSError:
        os_io.rmtree(path)


def _make_folder(path: Path, os_io: OsIO) -> bool:
    try:
        os_io.mkdir(path)
    except FileExistsError:
        return False
    return True
