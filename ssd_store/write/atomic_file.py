"""Files that appear completely or not at all, and folders that one process at a time holds.

A draft is a file before it gets its final name: `write_chunks_atomically` writes it next to the final name, forces it
to the device, then renames it. A live process holds a lock on its draft, so drafts without a lock are left from
processes that were killed. `LockedFolder` is one process's private folder next to a target, such as a store that the
process creates; the folder's lock ends with the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gloader.core.signals import uninterrupted
from gloader.core.units import format_bytes
from gloader.errors import StoreExistsError, StoreLockedError
from gloader.ssd_store.os_io import REAL_OS, OsIO, close_quietly, make_folders, write_errors, write_full

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_ATTEMPTS: Final = 100  # attempts to lock a folder that other processes create and rename
_LOCKS: Final = Path("/proc/locks")  # the system's list of locks


class LockedFolder:
    """A folder for only this process, from `acquire` until `release` or `remove`.

    The lock is on the folder itself, so it leaves no file behind, ends with the process, and moves with the folder at a
    rename.

    Parameters
    ----------
    path : the folder, in an existing folder
    mode : the permissions of a new folder
    os_io : the system calls
    """

    __slots__ = ("_fd", "_mode", "_os_io", "path")

    def __init__(self, path: Path, *, mode: int = 0o777, os_io: OsIO = REAL_OS) -> None:
        self.path = path
        self._mode = mode
        self._os_io = os_io
        self._fd = -1

    def acquire(self, *, is_kept: bool = False) -> None:
        """Create the folder, or take over a dead process's folder. Its files are removed, unless ``is_kept``.

        Raises
        ------
        StoreLockedError
            A live process holds the folder.
        OSError
            The file system refuses.
        """
        try:
            # After a signal between the lock and the line that stores its descriptor, nothing would release the lock.
            with uninterrupted():
                self._acquire()
            # Interrupts are allowed here, because removing a dead process's files may take long.
            if not is_kept:
                empty_folder(self.path, os_io=self._os_io)
        except BaseException:
            self.remove()
            raise

    def release(self) -> None:
        """Release the lock and leave the folder, which may have another name now. Idempotent."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            close_quietly(fd, os_io=self._os_io)

    def remove(self) -> None:
        """Remove the folder, then release the lock. Idempotent.

        Raises
        ------
        OSError
            The folder cannot be removed; the next process here removes it.
        """
        # The folder is removed before the release: without the lock, another process could take it over meanwhile.
        try:
            if self._fd >= 0:
                remove_tree(self.path, os_io=self._os_io)
        finally:
            self.release()

    def _acquire(self) -> None:
        """Create or find the folder, and lock it; raises as `acquire`."""
        # Another process may rename or remove the folder before it is locked here. Then the name is free again.
        for _ in range(_ATTEMPTS):
            if self._try_acquire():
                return
        raise StoreLockedError(
            f"{self.path}: other processes keep creating stores at this path; try again later"
        )

    def _try_acquire(self) -> bool:
        """Lock the folder. Return False if it was renamed or removed meanwhile."""
        is_created = _make_folder(self.path, self._mode, self._os_io)
        try:
            fd = lock_folder(self.path, os_io=self._os_io)
            try:
                # The lock is on the opened folder, which must still be the folder at the path.
                is_same = os.path.samestat(self._os_io.fstat(fd), self._os_io.stat(self.path))
            except BaseException:
                close_quietly(fd, os_io=self._os_io)
                raise
        except FileNotFoundError:
            return False
        except OSError:  # not StoreLockedError: another process then holds the folder, so it stays
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
        Another process holds the lock.
    OSError
        There is no such folder, or the file system does not support locks.
    """
    # The lock is on the folder itself: a lock file would be left behind, and would not move with a rename.
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
    """Return the id of the process that holds the lock from `lock_folder`, or None if it is not reported."""
    try:
        status = os_io.stat(path)
        lines = _LOCKS.read_text("ascii").splitlines()
    except OSError:
        return None
    device = status.st_dev
    name = f"{os.major(device):02x}:{os.minor(device):02x}:{status.st_ino}"
    # A line is "1: FLOCK ADVISORY WRITE 4711 fd:01:1234 0 EOF", with the process in field 4 and the file in field 5.
    fields = (line.split() for line in lines)
    pids = [int(field[4]) for field in fields if len(field) > 5 and field[1] == "FLOCK" and field[5] == name]
    # The number 0 stands for a process outside this container.
    return next((pid for pid in pids if pid > 0), None)


def empty_folder(path: Path, *, os_io: OsIO = REAL_OS) -> None:
    """Remove everything in the folder ``path``."""
    for name in os_io.listdir(path):
        try:
            os_io.unlink(path / name)
        except IsADirectoryError:
            os_io.rmtree(path / name)


def remove_tree(path: Path, *, os_io: OsIO = REAL_OS) -> None:
    """Remove a folder, with a second attempt after an error. A folder that remains only costs space."""
    with contextlib.suppress(FileNotFoundError):
        try:
            os_io.rmtree(path)
        except FileNotFoundError:
            raise
        except OSError:
            os_io.rmtree(path)


def _make_folder(path: Path, mode: int, os_io: OsIO) -> bool:
    """Create a folder. Return False if it exists already."""
    try:
        os_io.mkdir(path, mode)
    except FileExistsError:
        return False
    return True


_LOG = logging.getLogger(__name__)

_NAMES = 100  # names tried for a draft; a taken name is an attack, or a chance of 1 in 2^64
# O_EXCL implies O_NOFOLLOW, but some file systems support only one of them.
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
# Names of the kinds of files that are never replaced, for messages.
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def write_atomically(path: Path, content: bytes | memoryview, *, os_io: OsIO = REAL_OS) -> None:
    """Replace ``path`` by a file with ``content``. On an error the old file stays; see `write_chunks_atomically`.

    Parameters
    ----------
    path : the file, in an existing folder
    content : all bytes in the new file

    Raises
    ------
    StoreExistsError
        ``path`` exists and is no regular file.
    StoreWriteError
        Writing failed; for a full disk the message has needed and free bytes.
    """
    with write_errors(path, "writing", needed_bytes=len(content), os_io=os_io):
        write_chunks_atomically(path, [content], os_io=os_io)


def write_chunks_atomically(
    path: Path,
    chunks: Iterable[bytes | memoryview],
    *,
    temporary: Path | None = None,
    label: str = "file",
    os_io: OsIO = REAL_OS,
) -> None:
    """Replace ``path`` by a file with all ``chunks``. On an error before the rename the old file stays.

    If only forcing the folder to the device fails, the new file has the name already. Without ``temporary``, dead
    processes' drafts for the same file are removed first.

    Parameters
    ----------
    path : the file, in an existing folder
    chunks : the file's bytes, piece by piece
    temporary : the file's name until it is complete, in a folder of only this process; by default an unpredictable name
    label : first part of the names of kill points, the lines at which crash tests end the process

    Raises
    ------
    StoreExistsError
        ``path`` exists and is no regular file.
    OSError
        Writing failed. No temporary file is left, not even if ``chunks`` raises.
    """
    if temporary is None:
        require_file_target(path, os_io=os_io)
        remove_dead_drafts(path, os_io=os_io)
    draft, fd = None, -1
    try:
        # After a signal between the file's creation and the assignment of its name, nothing would remove the file.
        with uninterrupted():
            draft, fd = _open_draft(path, os_io) if temporary is None else _create(temporary, os_io)
        for chunk in chunks:
            write_full(fd, memoryview(chunk), os_io=os_io)
        os_io.kill_point(f"{label}.after_write")
        # The bytes reach the device before the name. Otherwise a power loss could leave an empty file under the name.
        os_io.fsync(fd)
        os_io.kill_point(f"{label}.after_fsync")
        # The rename precedes the close, because the descriptor's lock shows that the draft belongs to a live process.
        os_io.replace(draft, path)
        os_io.kill_point(f"{label}.after_rename")
    except BaseException:
        if draft is not None:
            with contextlib.suppress(OSError):  # the first error is more precise
                os_io.unlink(draft)
        raise
    finally:
        if fd >= 0:
            close_quietly(fd, os_io=os_io)  # the fsync has reported all errors
    os_io.fsync_dir(path.parent)
    os_io.kill_point(f"{label}.after_folder_fsync")


def append_durably(path: Path, data: bytes, *, os_io: OsIO = REAL_OS) -> None:
    """Append ``data`` to the file ``path``. On return it is on the device; a crash may leave a part of it.

    Raises
    ------
    StoreWriteError
        Writing failed; a part of ``data`` may be there.
    """
    with write_errors(path, "writing", needed_bytes=len(data), os_io=os_io):
        fd = os_io.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        try:
            write_full(fd, memoryview(data), os_io=os_io)
            os_io.fsync(fd)
        finally:
            os_io.close(fd)


def require_file_target(path: Path, *, os_io: OsIO = REAL_OS) -> None:
    """Check that ``path`` is free or a regular file, which may be replaced; links are not followed.

    Raises
    ------
    StoreExistsError
        ``path`` is a folder, a link, a device, a FIFO or a socket.
    """
    try:
        mode = os_io.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise StoreExistsError(
            errno.EEXIST, f"is {kind}, which is never replaced by a file; give another path", str(path)
        )


def make_output_folder(folder: Path, *, os_io: OsIO = REAL_OS) -> list[Path]:
    """Create ``folder`` and its missing parents; their names are on the device on return.

    A new folder is logged, because it may be the mount point of a missing disk.

    Returns
    -------
    The new folders, the topmost first.

    Raises
    ------
    StoreWriteError
        The file system refuses, or another kind of file has the name.
    """
    with write_errors(folder, "creating the folder", os_io=os_io):
        made = make_folders(folder, os_io=os_io)
    if made:
        _LOG.info("made the folder %s (%s free)", folder, format_bytes(shutil.disk_usage(folder).free))
    return made


def remove_empty(folders: Sequence[Path], *, os_io: OsIO = REAL_OS) -> None:
    """Remove each of ``folders`` that is empty, last to first; the list has parents first. Errors are ignored."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            os_io.rmdir(folder)


def remove_dead_drafts(path: Path, *, os_io: OsIO = REAL_OS) -> None:
    """Remove the drafts for ``path`` whose processes were killed. A draft that cannot be removed is logged.

    A live process holds its draft's lock. Only gloader's files are considered, by their exact names.
    """
    pattern = re.compile(rf"\.{re.escape(path.name)}\.\d+\.[0-9a-f]{{16}}\.tmp")
    try:
        drafts = [path.with_name(name) for name in os_io.listdir(path.parent) if pattern.fullmatch(name)]
        for draft in drafts:
            _remove_if_dead(draft, os_io)
    except OSError as error:
        _LOG.info("drafts of killed processes next to %s could not be removed: %s", path, error)


def _create(path: Path, os_io: OsIO) -> tuple[Path, int]:
    """Create the file ``path``; return its path and its descriptor."""
    return path, os_io.open(path, _CREATE)


def _open_draft(path: Path, os_io: OsIO) -> tuple[Path, int]:
    """Create a draft for ``path`` under an unpredictable name, and lock it; return name and descriptor."""
    for _ in range(_NAMES):
        # The process number is for human readers. The random part keeps another user from planting a link here.
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(8)}.tmp")
        try:
            _, fd = _create(draft, os_io)
        except FileExistsError:
            continue
        try:
            if _lock_draft(fd, os_io):
                return draft, fd
        except BaseException:
            with contextlib.suppress(OSError):
                os_io.unlink(draft)
            close_quietly(fd, os_io=os_io)
            raise
        # Before the lock, another process took the file for a dead draft and removed it, or is removing it.
        close_quietly(fd, os_io=os_io)
    raise FileExistsError(errno.EEXIST, "every name tried for a temporary file is taken", str(path))


def _lock_draft(fd: int, os_io: OsIO) -> bool:
    """Lock a new draft. Return False if another process has removed the draft, or is removing it."""
    try:
        os_io.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # the file system has no locks, so dead drafts will stay there
        _LOG.debug("a temporary file cannot be locked: %s", error)
    return os_io.fstat(fd).st_nlink > 0


def _remove_if_dead(draft: Path, os_io: OsIO) -> None:
    """Remove a draft if no process holds its lock."""
    try:
        fd = os_io.open(draft, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:  # a link, another user's file, or a removed file
        return
    try:
        status = os_io.fstat(fd)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            os_io.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os_io.unlink(draft)
    except (BlockingIOError, FileNotFoundError):  # the process lives, or the draft is gone
        return
    finally:
        close_quietly(fd, os_io=os_io)
