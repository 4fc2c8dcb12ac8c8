"""An object store that fails on demand: late, refused, cut, damaged or replaced answers of a real one."""

from __future__ import annotations

import errno
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from gloader.errors import StoreReadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Buffer

    from gloader.ssd_store.mirror.objects import ObjectFacts, ObjectStore

# What happens to one request: refused with an errno (EBUSY is 503), half of the bytes, more than were asked for, a
# flipped bit, or an answer that does not come while the store is held up. None: nothing.
Fault: TypeAlias = "int | Literal['cut', 'long', 'flip', 'hang', 'alien'] | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request for a part of an object."""

    name: str
    start: int
    length: int
    etag: str


class FaultyObjects:
    """The objects of ``objects``, each request for a part of one logged, and with the fault that ``fault`` says.

    Parameters
    ----------
    objects : the real store
    fault : asked for each request, with its number from 0; called by several threads
    delay_s : that each request takes longer
    is_away : every request fails as without a network
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
        self.go_on = threading.Event()  # ends what hangs

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
        """As `ObjectStore.get`, with a fault if it is time for one."""
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
