"""All system calls on data files and manifests, and the errors for a full or failing disk.

`OsIO` is the seam at which tests inject faults: no other module of `gloader.ssd_store` opens, reads, writes, renames or
removes a file. A function that does I/O takes ``os_io: OsIO = REAL_OS``; `gloader.testing.faults` and
`gloader.testing.crash` wrap it. `Descriptor` owns a file that is open for reading. `write_errors` and `spill_errors`
turn an `OSError` into a gloader error that has the path and the needed bytes. To spill is to write temporary files.

An extent is one aligned read. A sweep is one pass over a file, in file order, that reads only the needed pages of
4 KiB. A wrapper such as `MirrorIO` may present a file of which this disk holds only a part. `SweepSource` then brings
the missing bytes to a sweep. A kill point is a named line at which a crash test ends the process.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import signal
import stat
import struct
import time
from contextlib import contextmanager, suppress
from io import FileIO
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

from gloader.core.signals import Cancellation, uninterrupted
from gloader.core.units import format_bytes
from gloader.errors import SpillError, StoreError, StoreWriteError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from gloader.types import IdArray


# The calls are made directly, because pathlib would hide them.
# ruff: noqa: PTH102, PTH104, PTH105, PTH106, PTH108, PTH116, PTH208


StrPath: TypeAlias = str | os.PathLike[str]

_AT_FDCWD = -100  # renameat2: paths are relative to the working folder
_RENAME_NOREPLACE = 1  # flags for renameat2
_RENAME_EXCHANGE = 2
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # flags for fallocate
KILL_AT_VARIABLE = "GLOADER_KILL_AT"  # environment variable: the kill point at which the process ends
MAX_RETRIES = 100  # failures by EINTR or EAGAIN in a row; other errors are raised at once
_RETRY_PAUSE_S = 0.001  # pause after EAGAIN; a device that refuses for 0.1 s in total counts as failed


class OsIO:
    """The system calls, one method each, which raise `OSError` as `os` does. Thread-safe."""

    # False in wrappers that inject faults: kernels then make no system calls, and all reads go through `pread_into`.
    is_real: ClassVar[bool] = True

    # --- file descriptors ---

    def open(self, path: StrPath, flags: int, mode: int = 0o666) -> int:
        """Open ``path`` without ever blocking on a FIFO and without leaking the descriptor to a child.

        Parameters
        ----------
        path, flags, mode : as in `os.open`
        """
        return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)

    def duplicate(self, fd: int) -> int:
        """Return another descriptor for the file under ``fd``, even if another file now has its path."""
        return os.dup(fd)

    def close(self, fd: int) -> None:
        """Close ``fd``."""
        os.close(fd)

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """Return the number of bytes that one request read, 0 at the end of the file.

        Parameters
        ----------
        fd : the open file
        buffer : the buffer to fill
        offset : offset in the file
        """
        return os.preadv(fd, [buffer], offset)

    def write(self, fd: int, data: memoryview) -> int:
        """Write ``data`` at the file position, and return the number of bytes written."""
        return os.write(fd, data)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Write ``data`` in one request, and return the number of bytes written.

        Parameters
        ----------
        fd : the open file
        data : bytes to write
        offset : offset in the file
        """
        return os.pwrite(fd, data, offset)

    def seek(self, fd: int, offset: int) -> None:
        """Move the file position to byte ``offset``, perhaps beyond the end; skipped bytes become a hole."""
        os.lseek(fd, offset, os.SEEK_SET)

    def truncate(self, fd: int, num_bytes: int) -> None:
        """Set the file's size. New bytes are zeros without disk space."""
        os.ftruncate(fd, num_bytes)

    def fsync(self, fd: int) -> None:
        """Force the content under ``fd`` to the device. A failure is final: the kernel may drop the pages."""
        os.fsync(fd)

    def datasync(self, fd: int) -> None:
        """Force the bytes under ``fd`` to the device, with the metadata needed to find them. Times may be lost."""
        os.fdatasync(fd)

    def fstat(self, fd: int) -> os.stat_result:
        """Return ``fd``'s status."""
        return os.fstat(fd)

    def set_blocking(self, fd: int) -> None:
        """Clear O_NONBLOCK, because io_uring would return EAGAIN instead of waiting for the device."""
        os.set_blocking(fd, True)

    def set_direct(self, fd: int, *, is_direct: bool) -> None:
        """Set or clear O_DIRECT on an open file; EINVAL if the file system does not support it."""
        flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | (os.O_DIRECT if is_direct else 0))

    def drop_cache(self, fd: int, offset: int, num_bytes: int) -> None:
        """Drop a file's bytes from the page cache, because they will not be needed again.

        Parameters
        ----------
        fd : the open file
        offset, num_bytes : range in the file
        """
        os.posix_fadvise(fd, offset, num_bytes, os.POSIX_FADV_DONTNEED)

    def flock(self, fd: int, operation: int) -> None:
        """Take or release an advisory lock; see `fcntl.flock`."""
        fcntl.flock(fd, operation)

    def fallocate(self, fd: int, offset: int, num_bytes: int) -> None:
        """Reserve space on the device, so that later writes cannot find it full.

        Parameters
        ----------
        fd : the open file
        offset, num_bytes : range in the file to reserve
        """
        os.posix_fallocate(fd, offset, num_bytes)

    def punch_hole(self, fd: int, offset: int, num_bytes: int) -> None:
        """Free the space of a file's part, which then reads as zeros. EOPNOTSUPP without support.

        Parameters
        ----------
        fd : the open file
        offset, num_bytes : range in the file
        """
        function = _libc().fallocate
        function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        if function(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, num_bytes) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def lock_range(self, fd: int, operation: int, offset: int, num_bytes: int) -> None:
        """Lock or unlock a part of a file against all other openings of the file; never waits.

        The lock ends with the last descriptor for this opening, so at the latest with the process. `BlockingIOError` if
        another opening holds the lock.

        Parameters
        ----------
        fd : the open file, for reading and, with LOCK_EX, for writing
        operation : LOCK_SH, LOCK_EX or LOCK_UN from `fcntl`
        offset, num_bytes : range in the file, which may lie beyond its end
        """
        kinds = {fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}
        # Linux's struct flock, 64-bit: type, whence, start, length, pid. With pid 0 the opening owns the lock.
        request = struct.pack("hhqqi4x", kinds[operation], os.SEEK_SET, offset, num_bytes, 0)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)
        except PermissionError as error:  # POSIX allows EACCES in place of EAGAIN here
            raise BlockingIOError(errno.EAGAIN, error.strerror) from error

    # --- files that may be partly stored ---

    @property
    def is_whole(self) -> bool:
        """True if every byte is on this disk. Missing bytes would come in blocks, which a sweep fetches once."""
        return True

    def limit_memory(self, _num_bytes: int, /) -> int:
        """Limit the memory for downloads in flight to ``num_bytes``, or to the least that works; return the limit.

        The limit is 0 if nothing is downloaded.
        """
        return 0

    def portions(self, _fd: int, offsets: IdArray, _lengths: IdArray, /) -> Iterator[tuple[int, int]]:
        """Fetch the missing bytes for a read, and yield ranges of extents whose bytes are on this disk.

        A range is ``(first, past)``: extents ``first`` to ``past - 1``. Their bytes stay on this disk until the next
        range is requested. Together the ranges are all extents, in order. Only kernels need this call, because
        `pread_into` fetches missing bytes itself.

        Parameters
        ----------
        fd : the open file
        offsets, lengths : (X,) int64, each extent's offset in the file and its length, in bytes, in file order
        """
        if len(offsets):
            yield 0, len(offsets)

    def source(self, _fd: int, _pages: NDArray[np.uint64], _data_offset: int, /) -> SweepSource | None:
        """Return the source for a sweep's pages, which the caller closes, or None if all pages are on this disk.

        Parameters
        ----------
        fd : the open file
        pages : one bit per page, set for needed pages
        data_offset : page 0's offset in the file, in bytes
        """
        return None

    def download_s(self, _fd: int, _pages: NDArray[np.uint64], _data_offset: int, /) -> float:
        """Return the approximate seconds to download a sweep's missing pages.

        The result is 0 if the needed pages are on this disk, or are few of the missing pages. Otherwise a sweep over
        many more rows would share this download, so one larger sweep is worth while.

        Parameters
        ----------
        fd, pages, data_offset : as in `source`
        """
        return 0.0

    def refetch(self, _fd: int, _offset: int, /) -> bool:
        """Fetch damaged bytes again if possible. Return True if this happened, so that another read may help.

        Called before a `ChecksumError` is raised. Returns True only a few times for one place in a file.

        Parameters
        ----------
        fd : the open file
        offset : a damaged page's offset in the file
        """
        return False

    # --- names ---

    def stat(self, path: StrPath) -> os.stat_result:
        """Return ``path``'s status, links followed."""
        return os.stat(path)

    def lstat(self, path: StrPath) -> os.stat_result:
        """Return the status of ``path`` itself, also for a link."""
        return os.lstat(path)

    def listdir(self, path: StrPath) -> list[str]:
        """Return the names in the folder ``path``, sorted."""
        return sorted(os.listdir(path))

    def statvfs(self, path: StrPath) -> os.statvfs_result:
        """Return the status of the file system that holds ``path``."""
        return os.statvfs(path)

    def mkdir(self, path: StrPath, mode: int = 0o777) -> None:
        """Create one folder; raises `FileExistsError` if the name exists."""
        os.mkdir(path, mode)

    def replace(self, source: StrPath, target: StrPath) -> None:
        """Rename ``source`` to ``target``, atomically replacing a file or an empty folder."""
        os.replace(source, target)

    def rename_noreplace(self, source: StrPath, target: StrPath) -> None:
        """Rename ``source`` to ``target``; raises `FileExistsError` if ``target`` exists.

        On a file system without this call, a plain rename is made, which still refuses a folder with content.
        """
        try:
            _renameat2(source, target, _RENAME_NOREPLACE)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            os.rename(source, target)

    def exchange(self, first: StrPath, second: StrPath) -> None:
        """Exchange two names atomically; ENOSYS or EINVAL if the file system cannot."""
        _renameat2(first, second, _RENAME_EXCHANGE)

    def link(self, source: StrPath, target: StrPath) -> None:
        """Give the file ``source`` the second name ``target``; raises `FileExistsError` if ``target`` exists."""
        os.link(source, target)

    def unlink(self, path: StrPath) -> None:
        """Remove a file."""
        os.unlink(path)

    def chmod(self, path: StrPath, mode: int) -> None:
        """Set the permissions of ``path``."""
        os.chmod(path, mode)  # noqa: PTH101 - as the other calls

    def rmdir(self, path: StrPath) -> None:
        """Remove an empty folder."""
        os.rmdir(path)

    def rmtree(self, path: StrPath) -> None:
        """Remove a folder and everything in it."""
        shutil.rmtree(path)

    def fsync_dir(self, path: StrPath) -> None:
        """Force the names in the folder ``path`` to the device."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    # --- tests ---

    def kill_point(self, name: str) -> None:
        """Send SIGKILL to this process if the environment names this point (crash tests)."""
        if os.environ.get(KILL_AT_VARIABLE) == name:
            os.kill(os.getpid(), signal.SIGKILL)


REAL_OS = OsIO()

# Errors of an operation that the system or the file system does not have.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})


def is_unsupported(error: OSError) -> bool:
    """Return True if ``error`` means that the file system does not support the operation. Pure."""
    return error.errno in _UNSUPPORTED


def is_worth_repeating(error: OSError, refusals: int) -> bool:
    """Return True if a refused request is worth repeating. Waits a moment first after EAGAIN.

    Parameters
    ----------
    error : the last attempt's error
    refusals : attempts that failed in a row, including the last
    """
    if error.errno not in {errno.EINTR, errno.EAGAIN} or refusals >= MAX_RETRIES:
        return False
    if error.errno == errno.EAGAIN:
        time.sleep(_RETRY_PAUSE_S)
    return True


# --- raw entry points for kernels that run without the GIL -----------------------------------------


def libc_address(name: str) -> int:
    """Return the address of the C library's function ``name``, for calls from a nogil kernel.

    Raises
    ------
    OSError
        The C library has no such function (errno ENOSYS).
    """
    try:
        function = getattr(_libc(), name)
    except AttributeError as error:
        raise OSError(errno.ENOSYS, f"the C library has no function {name}") from error
    address = ctypes.cast(function, ctypes.c_void_p).value
    if not address:
        raise OSError(errno.ENOSYS, f"the C library has no function {name}")
    return address


def pread_address() -> int:
    """Return the address of ``ssize_t pread(int, void*, size_t, int64)``."""
    try:
        return libc_address("pread64")
    except OSError:
        return libc_address("pread")


def errno_location_address() -> int:
    """Return the address of ``int *__errno_location(void)``, which gives the calling thread's errno."""
    return libc_address("__errno_location")


def syscall_address() -> int:
    """Return the address of ``long syscall(long number, ...)``."""
    return libc_address("syscall")


# --- loops for every caller ------------------------------------------------------------------------


def open_regular(path: StrPath, flags: int = os.O_RDONLY, *, os_io: OsIO = REAL_OS) -> int:
    """Open an existing regular file, in blocking mode; a FIFO, folder or device is refused at once.

    Parameters
    ----------
    path, flags : as in `os.open`
    os_io : the system calls

    Raises
    ------
    OSError
        As in `os.open`; EISDIR or EINVAL if ``path`` is not a regular file.
    """
    fd = os_io.open(path, flags)
    try:
        mode = os_io.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(code, "not a regular file", os.fspath(path))  # noqa: TRY301
        os_io.set_blocking(fd)
    except BaseException:
        os_io.close(fd)
        raise
    return fd


def close_quietly(fd: int, *, os_io: OsIO = REAL_OS) -> None:
    """Close a descriptor for reads, for a lock, or for an abandoned file. Errors of the close do not matter there."""
    with suppress(OSError):
        os_io.close(fd)


def read_full(fd: int, buffer: memoryview, offset: int, *, os_io: OsIO = REAL_OS) -> int:
    """Read until ``buffer`` is full or the file ends; return the number of bytes read.

    Short reads and EINTR are continued; any other error is raised at once, as `OSError`.

    Parameters
    ----------
    fd : the open file
    buffer : the buffer to fill
    offset : offset in the file
    os_io : the system calls
    """
    done = 0
    while done < len(buffer):
        try:
            count = os_io.pread_into(fd, buffer[done:], offset + done)
        except InterruptedError:
            continue
        if count == 0:
            break
        done += count
    return done


def write_full(fd: int, data: memoryview, *, os_io: OsIO = REAL_OS) -> None:
    """Write all of ``data`` at the file position; short writes and EINTR are continued.

    Parameters
    ----------
    fd : the open file
    data : the bytes to write
    os_io : the system calls

    Raises
    ------
    OSError
        As in `os.write`; EIO if the file takes no byte and reports no error.
    """
    done = 0
    while done < len(data):
        try:
            count = os_io.write(fd, data[done:])
        except InterruptedError:
            continue
        if count == 0:
            raise OSError(errno.EIO, "the file takes no more bytes and reports no error")
        done += count


def pwrite_full(fd: int, data: memoryview, offset: int, *, os_io: OsIO = REAL_OS) -> None:
    """Write all of ``data`` from byte ``offset`` on; short writes and EINTR are continued.

    Parameters
    ----------
    fd : the open file
    data : the bytes to write
    offset : offset in the file
    os_io : the system calls

    Raises
    ------
    OSError
        As in `os.pwrite`.
    """
    done = 0
    while done < len(data):
        with suppress(InterruptedError):
            done += os_io.pwrite(fd, data[done:], offset + done)


def make_folders(path: Path, *, os_io: OsIO = REAL_OS) -> list[Path]:
    """Create the folder ``path`` and its missing parents; their names are on the device on return.

    Returns
    -------
    The new folders, the topmost first.

    Raises
    ------
    OSError
        As in `os.mkdir`; ENOTDIR if another kind of file has the name.
    """
    try:
        mode = os_io.stat(path).st_mode
    except FileNotFoundError:
        made = make_folders(path.parent, os_io=os_io)
        # Another process may have created the folder first.
        with suppress(FileExistsError):
            os_io.mkdir(path)
            made.append(path)
        # Files inside are lost if the folder's own name is not on the device.
        os_io.fsync_dir(path.parent)
        return made
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))
    return []


def _libc() -> ctypes.CDLL:
    """Return the C library of this process; its calls leave their errno in `ctypes.get_errno`."""
    return ctypes.CDLL(None, use_errno=True)


def _renameat2(source: StrPath, target: StrPath, flags: int) -> None:
    """Rename ``source`` to ``target`` with Linux's ``renameat2``, for which Python has no function."""
    try:
        function = _libc().renameat2
    except AttributeError as error:
        raise OSError(errno.ENOSYS, "the C library has no function renameat2") from error
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    first, second = os.fsencode(source), os.fsencode(target)
    if function(_AT_FDCWD, first, _AT_FDCWD, second, flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), os.fspath(source), None, os.fspath(target))


class SweepSource(Protocol):
    """The source of a file's needed pages, in file order, for one sweep. Used if this disk lacks some of the pages."""

    def read(self, buffer: memoryview, offset: int, /, *, cancellation: Cancellation) -> None:
        """Wait for the bytes from ``offset`` on, and fill ``buffer`` with them. The offsets of successive calls ascend.

        The buffer begins and ends with a needed page. Unneeded pages in between, less than 1 MiB in a row, may stay
        unchanged, because they are not used. All calls come from one thread.

        Parameters
        ----------
        buffer : entire pages, at most 1 MiB
        offset : offset after the file's header: page p begins at 4096 p

        Raises
        ------
        GloaderError
            The error that ended the source, such as a lost machine.
        ChannelClosedError
            The work was cancelled.
        """
        ...

    def close(self) -> None:
        """Request nothing more, and release all resources. Idempotent."""
        ...


class Descriptor:
    """The descriptor for an existing regular file. Owns it until `close`; a context manager.

    A signal may arrive between the line that opens the file and the block that closes it, or just after the block.
    The file is then closed by Python's own file object, which closes itself when its last reference ends. A ``__del__``
    here would swallow a Ctrl-C that arrives inside it, and files are opened very often.

    Parameters
    ----------
    path : the file
    flags : flags for `os.open`
    os_io : the system calls

    Raises
    ------
    OSError
        As in `open_regular`.
    """

    __slots__ = ("_file",)

    def __init__(self, path: StrPath, flags: int = os.O_RDONLY, *, os_io: OsIO = REAL_OS) -> None:
        self._file: FileIO | None = None
        try:
            with uninterrupted():
                self._file = FileIO(open_regular(path, flags, os_io=os_io))
        except BaseException:
            self.close()
            raise

    @property
    def number(self) -> int:
        """The descriptor; -1 after `close`."""
        return -1 if self._file is None or self._file.closed else self._file.fileno()

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if self._file is not None:
            with suppress(OSError):  # the file was only read, so a failed close loses nothing
                self._file.close()

    def __enter__(self) -> int:
        return self.number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# Errors that more space can end: a full disk, quota or file-size limit. The message then has the needed bytes.
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_SPILL_ADVICE = "free some space, or set GLOADER_SPILL_DIR to a folder on a larger disk"


@contextmanager
def write_errors(path: Path, doing: str, *, needed_bytes: int = 0, os_io: OsIO = REAL_OS) -> Iterator[None]:
    """Turn an `OSError` in the block into a `StoreWriteError` with the operation and ``path``.

    Parameters
    ----------
    path : file or folder to write
    doing : the operation, the message's first words, such as "writing" or "committing"
    needed_bytes : total bytes to write, for a full disk's message

    Raises
    ------
    StoreWriteError
        The block raised `OSError`; gloader's errors pass unchanged.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        text = f"{doing} failed: {error.strerror or error}; nothing was written"
        if error.errno in _NO_SPACE:
            text += "; " + _store_space_text(path, needed_bytes, os_io)
        raise StoreWriteError(error.errno, text, str(path)) from error


@contextmanager
def spill_errors(path: Path, doing: str, *, needed_bytes: int = 0, os_io: OsIO = REAL_OS) -> Iterator[None]:
    """Turn an `OSError` in the block into a `SpillError` with the operation and ``path``.

    Parameters
    ----------
    path : spill file or folder
    doing : the operation, the message's first words, such as "creating the pack"
    needed_bytes : total bytes to write, for a full disk's message

    Raises
    ------
    SpillError
        The block raised `OSError`; gloader's errors pass unchanged.
    """
    try:
        yield
    except StoreError:
        raise
    except OSError as error:
        text = f"{doing} failed: {error.strerror or error}"
        if error.errno in _NO_SPACE:
            text += f"; {_spill_space_text(path.parent, needed_bytes, os_io)}; {_SPILL_ADVICE}"
        raise SpillError(error.errno or errno.EIO, text, str(path)) from error


def require_free_space(folder: Path, needed_bytes: int, *, os_io: OsIO = REAL_OS) -> None:
    """Check that the folder's file system has room for a store with ``needed_bytes``.

    Parameters
    ----------
    folder : an existing folder
    needed_bytes : bytes to be written

    Raises
    ------
    StoreWriteError
        The file system has no room (errno ENOSPC); the message has needed and free bytes.
    """
    free = free_bytes(folder, os_io=os_io)
    if free < needed_bytes:
        raise StoreWriteError(
            errno.ENOSPC,
            f"writing needs {needed_bytes} bytes ({format_bytes(needed_bytes)}), the file system has "
            f"{free} bytes ({format_bytes(free)}) free; free some space or choose another folder; nothing was written",
            str(folder),
        )


def require_spill_space(folder: Path, needed_bytes: int, doing: str, *, os_io: OsIO = REAL_OS) -> None:
    """Check that the spill folder's file system has room for ``needed_bytes``.

    Parameters
    ----------
    folder : an existing folder
    needed_bytes : bytes to be written
    doing : the message's first words, such as "the pack does not fit on the disk"

    Raises
    ------
    SpillError
        The file system has no room (errno ENOSPC); the message has needed and free bytes.
    """
    if free_bytes(folder, os_io=os_io) < needed_bytes:
        text = (
            f"{doing}: {_spill_space_text(folder, needed_bytes, os_io)}; {_SPILL_ADVICE}; nothing was written"
        )
        raise SpillError(errno.ENOSPC, text, str(folder))


def free_bytes(folder: Path, *, os_io: OsIO = REAL_OS) -> int:
    """Return the bytes that an ordinary user may still write to ``folder``'s file system."""
    status = os_io.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _store_space_text(path: Path, needed_bytes: int, os_io: OsIO) -> str:
    """Return the needed and the free bytes, with advice, for a store that does not fit."""
    try:
        free = free_bytes(path.parent, os_io=os_io)
    except OSError:  # the disk fails entirely; the caller reports the first error
        return f"needed {needed_bytes} bytes; free some space or choose another folder"
    return f"needed {needed_bytes} bytes, {free} bytes are free; free some space or choose another folder"


def _spill_space_text(folder: Path, needed_bytes: int, os_io: OsIO) -> str:
    """Return the needed and the free bytes for temporary files that do not fit."""
    needed = f"needed {needed_bytes} bytes ({format_bytes(needed_bytes)})"
    try:
        free = free_bytes(folder, os_io=os_io)
    except OSError:
        return needed
    return f"{needed}, {free} bytes ({format_bytes(free)}) are free"
