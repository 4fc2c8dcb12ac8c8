"""System calls that fail on demand: the seam of `os_io` as tests of faults fill it."""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gloader.ssd_store.os_io import OsIO, StrPath

if TYPE_CHECKING:
    from collections.abc import Collection

# Which bytes are here is no call of the system, and a kill point is none either.
NO_CALLS: Collection[str] = frozenset(
    {"limit_memory", "portions", "source", "download_s", "refetch", "kill_point"}
)
EVERY_CALL: Collection[str] = frozenset(
    name
    for name, member in vars(OsIO).items()
    if callable(member) and not name.startswith("_") and name not in NO_CALLS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """A byte that comes back changed from every read."""

    offset: int  # in the file
    mask: int  # bits to flip
    file: str = ""  # only where the path ends so; empty: every file


class FaultyOS(OsIO):
    """The real system calls, counted, with a fault at a chosen call. Thread-safe.

    Parameters
    ----------
    fail_at : number of the call (from 1, among ``calls``) that fails; 0 fails none
    error : the errno it fails with
    repeat : how many calls fail from there on
    calls : names of the methods that count; all by default
    short : reads and writes transfer at most this many bytes; 0 does not limit
    corrupt : a byte that reads return changed
    refuse_flags : ``open`` with any of these flags fails, as on some file systems; 0 refuses none
    refuse_error : the errno that refused flags fail with

    Raises
    ------
    ValueError
        ``calls`` names a method that `OsIO` does not have.
    """

    is_real: ClassVar[bool] = False

    def __init__(
        self,
        *,
        fail_at: int = 0,
        error: int = errno.EIO,
        repeat: int = 1,
        calls: Collection[str] = EVERY_CALL,
        short: int = 0,
        corrupt: Corruption | tuple[int, int] | None = None,
        refuse_flags: int = 0,
        refuse_error: int = errno.EINVAL,
    ) -> None:
        unknown = set(calls) - set(EVERY_CALL)
        if unknown:
            raise ValueError(f"OsIO has no calls {sorted(unknown)}")
        self._fail_from = fail_at
        self._fail_until = fail_at + repeat if fail_at else 0
        self._error = error
        self._calls = frozenset(calls)
        self._short = short
        self._corrupt = (
            Corruption(offset=corrupt[0], mask=corrupt[1]) if isinstance(corrupt, tuple) else corrupt
        )
        self._refuse_flags = refuse_flags
        self._refuse_error = refuse_error
        self._lock = threading.Lock()
        self._paths: dict[int, str] = {}
        self.num_calls = 0  # counted calls so far
        self.history: list[str] = []  # their names

    @property
    def was_hit(self) -> bool:
        """Whether the call that was to fail was reached."""
        return 0 < self._fail_from <= self.num_calls

    def _enter(self, name: str) -> None:
        if name not in self._calls:
            return
        # Read threads call at once; the number decides which of them fails.
        with self._lock:
            self.num_calls += 1
            number = self.num_calls
            self.history.append(name)
        if self._fail_from <= number < self._fail_until:
            raise OSError(self._error, f"{os.strerror(self._error)} (injected into {name}, call {number})")

    def _limit(self, buffer: memoryview) -> memoryview:
        return buffer[: self._short] if self._short else buffer

    def open(self, path: StrPath, flags: int, mode: int = 0o666) -> int:
        """As `OsIO.open`."""
        self._enter("open")
        if flags & self._refuse_flags:
            raise OSError(self._refuse_error, "flags refused (injected)", os.fspath(path))
        fd = super().open(path, flags, mode)
        with self._lock:
            self._paths[fd] = os.fspath(path)
        return fd

    def duplicate(self, fd: int) -> int:
        """As `OsIO.duplicate`."""
        self._enter("duplicate")
        other = super().duplicate(fd)
        with self._lock:
            self._paths[other] = self._paths.get(fd, "")
        return other

    def close(self, fd: int) -> None:
        """As `OsIO.close`; the descriptor is closed even where the call fails, as on Linux."""
        # A failing close must not leak the descriptor: Linux has closed it, whatever it returned.
        try:
            self._enter("close")
        finally:
            super().close(fd)

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """As `OsIO.pread_into`, short or with a changed byte if asked for."""
        self._enter("pread_into")
        limited = self._limit(buffer)
        count = super().pread_into(fd, limited, offset)
        corruption = self._corrupt
        if corruption is not None and self._paths.get(fd, "").endswith(corruption.file):
            position = corruption.offset - offset
            if 0 <= position < count:
                limited.cast("B")[position] ^= corruption.mask
        return count

    def write(self, fd: int, data: memoryview) -> int:
        """As `OsIO.write`, short if asked for."""
        self._enter("write")
        return super().write(fd, self._limit(data))

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """As `OsIO.pwrite`, short if asked for."""
        self._enter("pwrite")
        return super().pwrite(fd, self._limit(data), offset)

    def seek(self, fd: int, offset: int) -> None:
        """As `OsIO.seek`."""
        self._enter("seek")
        super().seek(fd, offset)

    def truncate(self, fd: int, num_bytes: int) -> None:
        """As `OsIO.truncate`."""
        self._enter("truncate")
        super().truncate(fd, num_bytes)

    def fsync(self, fd: int) -> None:
        """As `OsIO.fsync`."""
        self._enter("fsync")
        super().fsync(fd)

    def datasync(self, fd: int) -> None:
        """As `OsIO.datasync`."""
        self._enter("datasync")
        super().datasync(fd)

    def fstat(self, fd: int) -> os.stat_result:
        """As `OsIO.fstat`."""
        self._enter("fstat")
        return super().fstat(fd)

    def set_blocking(self, fd: int) -> None:
        """As `OsIO.set_blocking`."""
        self._enter("set_blocking")
        super().set_blocking(fd)

    def set_direct(self, fd: int, *, is_direct: bool) -> None:
        """As `OsIO.set_direct`; refused where the flag is."""
        self._enter("set_direct")
        if is_direct and self._refuse_flags & os.O_DIRECT:
            raise OSError(self._refuse_error, "O_DIRECT refused (injected)")
        super().set_direct(fd, is_direct=is_direct)

    def drop_cache(self, fd: int, offset: int, num_bytes: int) -> None:
        """As `OsIO.drop_cache`."""
        self._enter("drop_cache")
        super().drop_cache(fd, offset, num_bytes)

    def flock(self, fd: int, operation: int) -> None:
        """As `OsIO.flock`."""
        self._enter("flock")
        super().flock(fd, operation)

    def fallocate(self, fd: int, offset: int, num_bytes: int) -> None:
        """As `OsIO.fallocate`."""
        self._enter("fallocate")
        super().fallocate(fd, offset, num_bytes)

    def punch_hole(self, fd: int, offset: int, num_bytes: int) -> None:
        """As `OsIO.punch_hole`."""
        self._enter("punch_hole")
        super().punch_hole(fd, offset, num_bytes)

    def lock_range(self, fd: int, operation: int, offset: int, num_bytes: int) -> None:
        """As `OsIO.lock_range`."""
        self._enter("lock_range")
        super().lock_range(fd, operation, offset, num_bytes)

    def stat(self, path: StrPath) -> os.stat_result:
        """As `OsIO.stat`."""
        self._enter("stat")
        return super().stat(path)

    def lstat(self, path: StrPath) -> os.stat_result:
        """As `OsIO.lstat`."""
        self._enter("lstat")
        return super().lstat(path)

    def listdir(self, path: StrPath) -> list[str]:
        """As `OsIO.listdir`."""
        self._enter("listdir")
        return super().listdir(path)

    def statvfs(self, path: StrPath) -> os.statvfs_result:
        """As `OsIO.statvfs`."""
        self._enter("statvfs")
        return super().statvfs(path)

    def mkdir(self, path: StrPath, mode: int = 0o777) -> None:
        """As `OsIO.mkdir`."""
        self._enter("mkdir")
        super().mkdir(path, mode)

    def replace(self, source: StrPath, target: StrPath) -> None:
        """As `OsIO.replace`."""
        self._enter("replace")
        super().replace(source, target)

    def rename_noreplace(self, source: StrPath, target: StrPath) -> None:
        """As `OsIO.rename_noreplace`."""
        self._enter("rename_noreplace")
        super().rename_noreplace(source, target)

    def exchange(self, first: StrPath, second: StrPath) -> None:
        """As `OsIO.exchange`."""
        self._enter("exchange")
        super().exchange(first, second)

    def unlink(self, path: StrPath) -> None:
        """As `OsIO.unlink`."""
        self._enter("unlink")
        super().unlink(path)

    def rmdir(self, path: StrPath) -> None:
        """As `OsIO.rmdir`."""
        self._enter("rmdir")
        super().rmdir(path)

    def rmtree(self, path: StrPath) -> None:
        """As `OsIO.rmtree`."""
        self._enter("rmtree")
        super().rmtree(path)

    def fsync_dir(self, path: StrPath) -> None:
        """As `OsIO.fsync_dir`."""
        self._enter("fsync_dir")
        super().fsync_dir(path)
