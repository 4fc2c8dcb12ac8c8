"""The system calls on data and manifest files, all of them: the seam where tests inject faults.

Nothing else in `gloader.ssd_store` opens, reads, writes, renames or removes a file. Whatever does I/O takes
``os_io: OsIO = REAL_OS``; `gloader.testing.faults` and `gloader.testing.crash` wrap it.
"""

# The calls are made here; pathlib would hide which ones.
# ruff: noqa: PTH102, PTH104, PTH105, PTH106, PTH108, PTH116, PTH208

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import signal
import stat
import struct
import time
from typing import TYPE_CHECKING, ClassVar, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from gloader.ssd_store.sweep.sources import SweepSource
    from gloader.types import IdArray

StrPath: TypeAlias = str | os.PathLike[str]

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # of fallocate
KILL_AT_VARIABLE = "GLOADER_KILL_AT"
MAX_RETRIES = 100  # EINTR and EAGAIN in a row; anything else is raised at once
_RETRY_PAUSE_S = 0.001  # after EAGAIN: 0.1 s in all until a device that keeps refusing counts as failed


class OsIO:
    """The system calls, one method each, raising `OSError` as `os` does. Thread-safe."""

    is_real: ClassVar[bool] = True  # False in wrappers: kernels then go through `pread_into`, not around it

    # --- file descriptors ---

    def open(self, path: StrPath, flags: int, mode: int = 0o666) -> int:
        """Open ``path`` without ever blocking on a FIFO and without leaking the descriptor to a child.

        Parameters
        ----------
        path, flags, mode : as of `os.open`
        """
        return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)

    def duplicate(self, fd: int) -> int:
        """Return another descriptor of the file that ``fd`` is open on, whatever is at its path by now."""
        return os.dup(fd)

    def close(self, fd: int) -> None:
        """Close ``fd``."""
        os.close(fd)

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """Return the number of bytes that one request read, 0 at the end of the file.

        Parameters
        ----------
        fd : of the file
        buffer : to fill
        offset : byte of the file
        """
        return os.preadv(fd, [buffer], offset)

    def write(self, fd: int, data: memoryview) -> int:
        """Write ``data`` at the file position; return how many bytes were taken."""
        return os.write(fd, data)

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """Return how many bytes of ``data`` one request wrote.

        Parameters
        ----------
        fd : of the file
        data : to write
        offset : byte of the file
        """
        return os.pwrite(fd, data, offset)

    def seek(self, fd: int, offset: int) -> None:
        """Move the file position to byte ``offset``, beyond the end perhaps: what is skipped is a hole."""
        os.lseek(fd, offset, os.SEEK_SET)

    def truncate(self, fd: int, num_bytes: int) -> None:
        """Set the size of the file; bytes that it had not are zeros that take no space."""
        os.ftruncate(fd, num_bytes)

    def fsync(self, fd: int) -> None:
        """Force the content of ``fd`` to the device. A failure is final: the kernel may drop the pages."""
        os.fsync(fd)

    def datasync(self, fd: int) -> None:
        """Force the bytes of ``fd`` to the device, and what is needed to find them; its times may be lost."""
        os.fdatasync(fd)

    def fstat(self, fd: int) -> os.stat_result:
        """Return the status of ``fd``."""
        return os.fstat(fd)

    def set_blocking(self, fd: int) -> None:
        """Clear O_NONBLOCK: io_uring would answer EAGAIN instead of waiting for the device."""
        os.set_blocking(fd, True)

    def set_direct(self, fd: int, *, is_direct: bool) -> None:
        """Set or clear O_DIRECT of an open file; EINVAL if the file system knows none."""
        flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | (os.O_DIRECT if is_direct else 0))

    def drop_cache(self, fd: int, offset: int, num_bytes: int) -> None:
        """Tell the page cache that nobody needs these bytes of a file again.

        Parameters
        ----------
        fd : of the file
        offset, num_bytes : the bytes of the file
        """
        os.posix_fadvise(fd, offset, num_bytes, os.POSIX_FADV_DONTNEED)

    def flock(self, fd: int, operation: int) -> None:
        """Take or release an advisory lock; see `fcntl.flock`."""
        fcntl.flock(fd, operation)

    def fallocate(self, fd: int, offset: int, num_bytes: int) -> None:
        """Reserve space on the device, so that later writes cannot find it full.

        Parameters
        ----------
        fd : of the file
        offset, num_bytes : the bytes of the file to reserve
        """
        os.posix_fallocate(fd, offset, num_bytes)

    def punch_hole(self, fd: int, offset: int, num_bytes: int) -> None:
        """Give the space of a part of a file back; it reads as zeros from here on. EOPNOTSUPP where there is no way.

        Parameters
        ----------
        fd : of the file
        offset, num_bytes : the bytes of the file
        """
        function = _libc().fallocate
        function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
        if function(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, num_bytes) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def lock_range(self, fd: int, operation: int, offset: int, num_bytes: int) -> None:
        """Take or release a lock on a part of a file, for everybody who has not opened it by ``fd``; never waits.

        It ends with the last descriptor of this opening, so with the process. `BlockingIOError` where another has it.

        Parameters
        ----------
        fd : of the file, open for reading and, for LOCK_EX, writing
        operation : LOCK_SH, LOCK_EX or LOCK_UN of `fcntl`
        offset, num_bytes : the bytes of the file
        """
        kinds = {fcntl.LOCK_SH: fcntl.F_RDLCK, fcntl.LOCK_EX: fcntl.F_WRLCK, fcntl.LOCK_UN: fcntl.F_UNLCK}
        # struct flock of Linux, 64-bit: type, whence, start, length, pid (0: the lock is the opening's).
        request = struct.pack("hhqqi4x", kinds[operation], os.SEEK_SET, offset, num_bytes, 0)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)
        except PermissionError as error:  # EACCES is as good as EAGAIN here, says POSIX
            raise BlockingIOError(errno.EAGAIN, error.strerror) from error

    # --- files that may not be here whole ---

    @property
    def is_whole(self) -> bool:
        """Whether every byte is on this disk; what is not comes in blocks, which a sweep brings once."""
        return True

    def limit_memory(self, _num_bytes: int, /) -> int:
        """Take at most so many bytes, or the least that works, for what is on its way here; return how many."""
        return 0

    def portions(self, _fd: int, offsets: IdArray, _lengths: IdArray, /) -> Iterator[tuple[int, int]]:
        """Yield runs of extents, ``first`` to ``past - 1``, that are on this disk until the next run is asked for.

        Together they are all extents, in order. For kernels: `pread_into` brings what it reads.

        Parameters
        ----------
        fd : of the file
        offsets, lengths : (X,) the extents, in file order
        """
        if len(offsets):
            yield 0, len(offsets)

    def source(self, _fd: int, _pages: NDArray[np.uint64], _data_offset: int, /) -> SweepSource | None:
        """Return what brings the pages of a sweep, for the caller to close; None: they are all on this disk.

        Parameters
        ----------
        fd : of the file
        pages : a bit for each page, set if it is wanted
        data_offset : byte of the file at which page 0 begins
        """
        return None

    def download_s(self, _fd: int, _pages: NDArray[np.uint64], _data_offset: int, /) -> float:
        """Return about how many seconds a sweep waits for a download that one over many more rows waits for, too.

        0 where what is wanted is here, or little of what is not.

        Parameters
        ----------
        fd, pages, data_offset : as of `source`
        """
        return 0.0

    def refetch(self, _fd: int, _offset: int, /) -> bool:
        """Return whether damaged bytes were brought anew, so that reading them once more may help.

        Asked before a `ChecksumError` is raised; answers true a few times at most for a place of a file.

        Parameters
        ----------
        fd : of the file
        offset : byte of the file that begins a damaged page
        """
        return False

    # --- names ---

    def stat(self, path: StrPath) -> os.stat_result:
        """Return the status of ``path``, links followed."""
        return os.stat(path)

    def lstat(self, path: StrPath) -> os.stat_result:
        """Return the status of ``path`` itself, which may be a link."""
        return os.lstat(path)

    def listdir(self, path: StrPath) -> list[str]:
        """Return the names in the folder ``path``, sorted."""
        return sorted(os.listdir(path))

    def statvfs(self, path: StrPath) -> os.statvfs_result:
        """Return the status of the file system of ``path``."""
        return os.statvfs(path)

    def mkdir(self, path: StrPath, mode: int = 0o777) -> None:
        """Create one folder; raises `FileExistsError` if there is one."""
        os.mkdir(path, mode)

    def replace(self, source: StrPath, target: StrPath) -> None:
        """Rename ``source`` to ``target``, atomically replacing a file or an empty folder."""
        os.replace(source, target)

    def rename_noreplace(self, source: StrPath, target: StrPath) -> None:
        """Rename ``source`` to ``target``; raises `FileExistsError` if there is one.

        A file system without such a call makes a plain rename, which still refuses a folder with content.
        """
        try:
            _renameat2(source, target, _RENAME_NOREPLACE)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            os.rename(source, target)

    def exchange(self, first: StrPath, second: StrPath) -> None:
        """Swap two names atomically; ENOSYS or EINVAL if the file system cannot."""
        _renameat2(first, second, _RENAME_EXCHANGE)

    def unlink(self, path: StrPath) -> None:
        """Remove a file."""
        os.unlink(path)

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
        """Die by SIGKILL here if the environment says so (crash tests); otherwise nothing."""
        if os.environ.get(KILL_AT_VARIABLE) == name:
            os.kill(os.getpid(), signal.SIGKILL)


REAL_OS = OsIO()

_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP})


def is_unsupported(error: OSError) -> bool:
    """Return whether ``error`` means that the file system does not know the operation. Pure."""
    return error.errno in _UNSUPPORTED


def is_worth_repeating(error: OSError, refusals: int) -> bool:
    """Return whether to make a refused request again; waits a moment first if the system asked for it.

    Parameters
    ----------
    error : of the last attempt
    refusals : attempts that failed in a row, this one included
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


# --- loops that every caller needs -----------------------------------------------------------------


def open_regular(path: StrPath, flags: int = os.O_RDONLY, *, os_io: OsIO = REAL_OS) -> int:
    """Open an existing regular file, in blocking mode; a FIFO, folder or device is refused at once.

    Parameters
    ----------
    path, flags : as of `os.open`
    os_io : the system calls to make

    Raises
    ------
    OSError
        As `os.open`; EISDIR or EINVAL if ``path`` is not a regular file.
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
    """Close a descriptor whose content is not at stake: only read from, a lock, or given up."""
    with contextlib.suppress(OSError):
        os_io.close(fd)


def read_full(fd: int, buffer: memoryview, offset: int, *, os_io: OsIO = REAL_OS) -> int:
    """Read until ``buffer`` is full or the file ends; return the bytes read.

    Parameters
    ----------
    fd : of the file
    buffer : to fill
    offset : byte of the file
    os_io : the system calls to make

    Short reads and EINTR are continued; any other error is raised at once, as `OSError`.
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
    fd : of the file
    data : to write
    os_io : the system calls to make

    Raises
    ------
    OSError
        As `os.write`; EIO if the file takes no byte and reports no error.
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
    fd : of the file
    data : to write
    offset : byte of the file
    os_io : the system calls to make

    Raises
    ------
    OSError
        As `os.pwrite`.
    """
    done = 0
    while done < len(data):
        with contextlib.suppress(InterruptedError):
            done += os_io.pwrite(fd, data[done:], offset + done)


def make_parents(path: Path, *, os_io: OsIO = REAL_OS) -> list[Path]:
    """Create the folders above ``path`` that are missing; see `make_folders`."""
    return make_folders(path.parent, os_io=os_io)


def make_folders(path: Path, *, os_io: OsIO = REAL_OS) -> list[Path]:
    """Create the folder ``path`` and those above it that are missing; their names are on the device on return.

    Returns
    -------
    Those that it made, the topmost first.

    Raises
    ------
    OSError
        As `os.mkdir`; ENOTDIR if something else has the name.
    """
    try:
        mode = os_io.stat(path).st_mode
    except FileNotFoundError:
        made = make_folders(path.parent, os_io=os_io)
        # Another process may have been faster.
        with contextlib.suppress(FileExistsError):
            os_io.mkdir(path)
            made.append(path)
        # Whatever is forced to the device inside is lost with a folder whose own name is not there.
        os_io.fsync_dir(path.parent)
        return made
    if not stat.S_ISDIR(mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(path))
    return []


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _renameat2(source: StrPath, target: StrPath, flags: int) -> None:
    try:
        function = _libc().renameat2
    except AttributeError as error:
        raise OSError(errno.ENOSYS, "the C library has no function renameat2") from error
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    first, second = os.fsencode(source), os.fsencode(target)
    if function(_AT_FDCWD, first, _AT_FDCWD, second, flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), os.fspath(source), None, os.fspath(target))
