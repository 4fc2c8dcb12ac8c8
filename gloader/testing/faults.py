"""Faults on demand for tests: failing system calls, and an object store with late or damaged answers.

All system calls of the library go through an `OsIO`, and reads of remote objects through an `ObjectStore`. A test
passes a `FaultyOS` or a `FaultyObjects` instead, which count the calls and fail the chosen ones.
"""

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


# Methods of `OsIO` that are not counted, because they are no system calls. Most ask a mirror, the local copy of remote
# features, about bytes that it may have to fetch. At a kill point, a crash test kills the process.
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
    """One byte of a file that every read returns changed."""

    offset: int  # the byte's position in the file
    mask: int  # bits to flip
    file: str = ""  # only files whose path ends with this text are affected; empty means every file


class FaultyOS(OsIO):
    """The real system calls, counted, with a fault at a chosen call. Thread-safe.

    Parameters
    ----------
    fail_at : number of the failing call (from 1, among ``calls``); 0 fails none
    error : errno of the failure
    repeat : number of consecutive calls that fail, from ``fail_at`` on
    calls : names of the counted methods; defaults to all
    short : largest number of bytes that one read or write moves; 0 means no limit
    corrupt : a byte that every read returns changed, or its offset and mask for all files
    refuse_flags : flags with which ``open`` fails, as on some file systems; 0 refuses none
    refuse_error : errno for refused flags

    Raises
    ------
    ValueError
        ``calls`` names a method that `OsIO` does not have.
    """

    is_real: ClassVar[bool] = False  # these are not the plain system calls

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
        self._paths: dict[int, str] = {}  # by file descriptor
        self.num_calls = 0  # counted calls so far
        self.history: list[str] = []  # names of the counted calls

    @property
    def was_hit(self) -> bool:
        """True if the failing call was reached."""
        return 0 < self._fail_from <= self.num_calls

    def _enter(self, name: str) -> None:
        """Count the call ``name``. Raises OSError if this call fails."""
        if name not in self._calls:
            return
        # Several read threads call at the same time. The lock gives each call its own number.
        with self._lock:
            self.num_calls += 1
            number = self.num_calls
            self.history.append(name)
        if self._fail_from <= number < self._fail_until:
            raise OSError(self._error, f"{os.strerror(self._error)} (injected into {name}, call {number})")

    def _limit(self, buffer: memoryview) -> memoryview:
        """Return the part of ``buffer`` that one call may move."""
        return buffer[: self._short] if self._short else buffer

    def open(self, path: StrPath, flags: int, mode: int = 0o666) -> int:
        """See `OsIO.open`."""
        self._enter("open")
        if flags & self._refuse_flags:
            raise OSError(self._refuse_error, "flags refused (injected)", os.fspath(path))
        fd = super().open(path, flags, mode)
        with self._lock:
            self._paths[fd] = os.fspath(path)
        return fd

    def duplicate(self, fd: int) -> int:
        """See `OsIO.duplicate`."""
        self._enter("duplicate")
        other = super().duplicate(fd)
        with self._lock:
            self._paths[other] = self._paths.get(fd, "")
        return other

    def close(self, fd: int) -> None:
        """See `OsIO.close`. The descriptor is closed even if the call fails, as on Linux."""
        # A failing close must not leak the descriptor: Linux closes it for any return value.
        try:
            self._enter("close")
        finally:
            super().close(fd)

    def pread_into(self, fd: int, buffer: memoryview, offset: int) -> int:
        """See `OsIO.pread_into`. The read is short or has a changed byte if configured."""
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
        """See `OsIO.write`. The write is short if configured."""
        self._enter("write")
        return super().write(fd, self._limit(data))

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        """See `OsIO.pwrite`. The write is short if configured."""
        self._enter("pwrite")
        return super().pwrite(fd, self._limit(data), offset)

    def set_direct(self, fd: int, *, is_direct: bool) -> None:
        """See `OsIO.set_direct`. The call fails if its flag is refused."""
        self._enter("set_direct")
        if is_direct and self._refuse_flags & os.O_DIRECT:
            raise OSError(self._refuse_error, "O_DIRECT refused (injected)")
        super().set_direct(fd, is_direct=is_direct)


def _counted(name: str) -> Callable[..., Any]:
    """Return a method for the call ``name`` that counts the call, and then fails it or performs it."""

    @wraps(getattr(OsIO, name))
    def counted(self: FaultyOS, *arguments: Any, **keywords: Any) -> Any:
        self._enter(name)
        return getattr(super(FaultyOS, self), name)(*arguments, **keywords)

    return counted


# Every counted call without a method above gets one.
for _name in EVERY_CALL - vars(FaultyOS).keys():
    setattr(FaultyOS, _name, _counted(_name))

# A request's fault, or None. An errno refuses the request (EBUSY stands for HTTP's 503). "cut" returns half of the
# bytes, and "long" more than requested. "flip" changes a bit. "hang" returns no answer before `FaultyObjects.go_on` is
# set. "alien" raises an error that no store raises.
Fault: TypeAlias = "int | Literal['cut', 'long', 'flip', 'hang', 'alien'] | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request for a part of an object."""

    name: str  # the object
    start: int  # first requested byte
    length: int  # requested bytes
    etag: str  # identifies the expected version of the object


class FaultyObjects:
    """An `ObjectStore` over another one, with a log of all partial reads, and with faults. Thread-safe.

    Parameters
    ----------
    objects : the real store
    fault : returns a partial read's fault from its number (0, ...) and the request; called by several threads
    delay_s : additional seconds per partial read
    is_away : whether every request fails as if there were no network
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
        self.asked: list[Asked] = []  # the requests for partial reads so far
        self.num_others = 0  # requests other than partial reads
        self.num_running = 0  # partial reads under way
        self.most_running = 0  # largest number of partial reads under way at the same time
        self.go_on = threading.Event()  # ends hanging requests

    @property
    def url(self) -> str:
        """See `ObjectStore.url`."""
        return self._objects.url

    def head(self, name: str, /) -> ObjectFacts | None:
        """See `ObjectStore.head`."""
        self._count(name)
        return self._objects.head(name)

    def read(self, name: str, /, *, max_bytes: int) -> tuple[bytes, ObjectFacts]:
        """See `ObjectStore.read`."""
        self._count(name)
        return self._objects.read(name, max_bytes=max_bytes)

    def get(self, name: str, start: int, length: int, etag: str, /) -> Buffer:
        """See `ObjectStore.get`. The answer may have a fault."""
        request = Asked(name=name, start=start, length=length, etag=etag)
        with self._lock:
            number = len(self.asked)
            self.asked.append(request)
            self.num_running += 1
            self.most_running = max(self.most_running, self.num_running)
        try:
            time.sleep(self._delay_s)
            self._require_here(name)
            return self._get(request, self._fault(number, request))
        finally:
            with self._lock:
                self.num_running -= 1

    def put(self, name: str, source: Path | bytes | Iterator[bytes], /) -> None:
        """See `ObjectStore.put`."""
        self._objects.put(name, source)

    def list(self, prefix: str = "", /) -> list[str]:
        """See `ObjectStore.list`."""
        return self._objects.list(prefix)

    def delete(self, name: str, /) -> None:
        """See `ObjectStore.delete`."""
        self._objects.delete(name)

    def _get(self, request: Asked, fault: Fault) -> Buffer:
        """Answer a partial read, with its fault."""
        if isinstance(fault, int):
            raise StoreReadError(
                fault, f"refused with errno {fault} (injected)", f"{self.url}/{request.name}"
            )
        if fault == "alien":
            raise RuntimeError("an error that no store should raise (injected)")
        if fault == "hang":
            self.go_on.wait()
        data = self._objects.get(request.name, request.start, request.length, request.etag)
        if fault == "cut":
            return bytes(data)[: request.length // 2]
        if fault == "long":
            return bytes(data) + bytes(request.length)
        if fault == "flip":
            damaged = bytearray(data)
            damaged[len(damaged) // 2] ^= 16
            return bytes(damaged)
        return data

    def _count(self, name: str) -> None:
        """Count a request that is no partial read. Raises StoreReadError without a network."""
        with self._lock:
            self.num_others += 1
        self._require_here(name)

    def _require_here(self, name: str) -> None:
        """Raise StoreReadError if the store is away."""
        if self.is_away:
            raise StoreReadError(errno.ECONNRESET, "there is no network (injected)", f"{self.url}/{name}")
