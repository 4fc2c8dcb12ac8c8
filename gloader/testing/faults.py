"""Faults on demand: system calls that fail, and an object store with late, refused, cut or damaged answers."""

from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from gloader.errors import StoreReadError
from gloader.ssd_store.os_io import OsIO, StrPath

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from typing_extensions import Buffer

    from gloader.ssd_store.mirror.object_store import ObjectFacts, ObjectStore


# Methods that are not counted: a query of present bytes is no system call, and neither is a kill point.
NO_CALLS: Collection[str] = frozenset(
    {"limit_memory", "portions", "source", "download_s", "refetch", "kill_point"}
)
EVERY_CALL: frozenset[str] = frozenset(
    name
    for name, member in vars(OsIO).items()
    if callable(member) and not name.startswith("_") and name not in NO_CALLS
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """A byte that is changed in every read."""

    offset: int  # in the file
    mask: int  # bits to flip
    file: str = ""  # only in files whose path ends so; empty for every file


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
        """True if the failing call was reached."""
        return 0 < self._fail_from <= self.num_calls

    def _enter(self, name: str) -> None:
        if name not in self._calls:
            return
        # Read threads call concurrently; the number decides which of them fails.
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
        """As `OsIO.close`; the descriptor is closed even if the call fails, as on Linux."""
        # A failing close must not leak the descriptor: Linux has closed it, for any return value.
        try:
            self._enter("close")
        finally:
            super().close(fd)

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """As `OsIO.pread_into`, short or with a changed byte if configured."""
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
        """As `OsIO.write`, short if configured."""
        self._enter("write")
        return super().write(fd, self._limit(data))

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """As `OsIO.pwrite`, short if configured."""
        self._enter("pwrite")
        return super().pwrite(fd, self._limit(data), offset)

    def set_direct(self, fd: int, *, is_direct: bool) -> None:
        """As `OsIO.set_direct`; refused together with its flag."""
        self._enter("set_direct")
        if is_direct and self._refuse_flags & os.O_DIRECT:
            raise OSError(self._refuse_error, "O_DIRECT refused (injected)")
        super().set_direct(fd, is_direct=is_direct)


def _counted(name: str) -> Callable[..., Any]:
    """Return the method of `FaultyOS` that counts the call ``name``, or fails, and then performs it."""

    @wraps(getattr(OsIO, name))
    def counted(self: FaultyOS, *arguments: Any, **keywords: Any) -> Any:
        self._enter(name)
        return getattr(super(FaultyOS, self), name)(*arguments, **keywords)

    return counted


for _name in EVERY_CALL - vars(FaultyOS).keys():
    setattr(FaultyOS, _name, _counted(_name))

# The fault of one request: refused with an errno (EBUSY is 503), half of the bytes, more than requested, a
# flipped bit, or an answer that does not come while the store is held up. None for no fault.
Fault: TypeAlias = "int | Literal['cut', 'long', 'flip', 'hang', 'alien'] | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request for a part of an object."""

    name: str
    start: int
    length: int
    etag: str


class FaultyObjects:
    """The objects of ``objects``, with a log of each request for a part of one, and faults from ``fault``.

    Parameters
    ----------
    objects : the real store
    fault : returns the fault of each request, from its number (0, ...); called by several threads
    delay_s : additional time of each request
    is_away : whether every request fails as without a network
    """

    def __init__(
        self,
        objects: ObjectStore,
        *,
        fault: Callable[[int, Asked], Fault] = lambda _number, _asked: None,
        delay_s: float = 0.0,
        is_away: bool = False,
    ) -> None:
        self._objects = objects
        self._fault = fault
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self.is_away = is_away
        self.asked: list[Asked] = []
        self.num_others = 0  # requests that were not for a part of an object
        self.num_running = 0
        self.most_running = 0
        self.go_on = threading.Event()  # ends hanging requests

    @property
    def url(self) -> str:
        """As `ObjectStore.url`."""
        return self._objects.url

    def head(self, name: str, /) -> ObjectFacts | None:
        """As `ObjectStore.head`."""
        self._count(name)
        return self._objects.head(name)

    def read(self, name: str, /, *, max_bytes: int) -> tuple[bytes, ObjectFacts]:
        """As `ObjectStore.read`."""
        self._count(name)
        return self._objects.read(name, max_bytes=max_bytes)

    def get(self, name: str, start: int, length: int, etag: str, /) -> Buffer:
        """As `ObjectStore.get`, perhaps with a fault."""
        asked = Asked(name=name, start=start, length=length, etag=etag)
        with self._lock:
            number = len(self.asked)
            self.asked.append(asked)
            self.num_running += 1
            self.most_running = max(self.most_running, self.num_running)
        try:
            time.sleep(self._delay_s)
            self._require_here(name)
            return self._get(asked, self._fault(number, asked))
        finally:
            with self._lock:
                self.num_running -= 1

    def put(self, name: str, source: Path | bytes | Iterator[bytes], /) -> None:
        """As `ObjectStore.put`."""
        self._objects.put(name, source)

    def list(self, prefix: str = "", /) -> list[str]:
        """As `ObjectStore.list`."""
        return self._objects.list(prefix)

    def delete(self, name: str, /) -> None:
        """As `ObjectStore.delete`."""
        self._objects.delete(name)

    def _get(self, asked: Asked, fault: Fault) -> Buffer:
        if isinstance(fault, int):
            raise StoreReadError(fault, f"refused with errno {fault} (injected)", f"{self.url}/{asked.name}")
        if fault == "alien":
            raise RuntimeError("what no store should raise (injected)")
        if fault == "hang":
            self.go_on.wait()
        data = self._objects.get(asked.name, asked.start, asked.length, asked.etag)
        if fault == "cut":
            return bytes(data)[: asked.length // 2]
        if fault == "long":
            return bytes(data) + bytes(asked.length)
        if fault == "flip":
            damaged = bytearray(data)
            damaged[len(damaged) // 2] ^= 16
            return bytes(damaged)
        return data

    def _count(self, name: str) -> None:
        with self._lock:
            self.num_others += 1
        self._require_here(name)

    def _require_here(self, name: str) -> None:
        if self.is_away:
            raise StoreReadError(errno.ECONNRESET, "there is no network (injected)", f"{self.url}/{name}")
