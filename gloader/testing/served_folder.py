"""The folder of a test server: its speed, the faults of its answers, and counts of the answered requests.

`gloader.testing.range_server` serves the folder over HTTP, like an object store. For each request it asks the
`ServedFolder` for the fault, if any, and reports the answer to it. A fault is an error status ("500", "503"), an answer
with half of the bytes ("cut"), or no answer ("stall").
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, Literal, Self
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


FaultKind = Literal["500", "503", "cut", "stall"]
FAULT_KINDS: Final[tuple[FaultKind, ...]] = ("500", "503", "cut", "stall")
_BURST_S = 0.01  # seconds: a thread that sends late may catch up at most this much unused time


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """A random choice of faulty answers. It depends on the seed and the request, and not on time."""

    rate: float = 0.0  # share of the requests that fail, 0 to 1
    kinds: tuple[FaultKind, ...] = FAULT_KINDS  # a failing request has each kind with equal probability
    methods: tuple[str, ...] = ("GET",)  # HTTP methods whose requests fail
    seed: int = 0
    stall_s: float = 60.0  # seconds without an answer before a stalled connection ends

    def of(self, method: str, name: str, start: int, attempt: int) -> FaultKind | None:
        """Return a request's fault, or None. Pure.

        Parameters
        ----------
        method : the HTTP method
        name : the file's path below the folder
        start : the first requested byte
        attempt : number of earlier requests with the same method, name and start
        """
        if self.rate <= 0 or method not in self.methods:
            return None
        draw = Random(f"{self.seed}/{method}/{name}/{start}/{attempt}")  # noqa: S311 - no secret
        return draw.choice(self.kinds) if draw.random() < self.rate else None


NO_FAULTS: Final = Faults()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A byte of a served file that every answer has changed."""

    name: str  # path below the folder
    offset: int  # position in the file
    mask: int = 1  # bits to flip


class RateCap:
    """A cap on bytes per second over all connections together. Thread-safe.

    Parameters
    ----------
    bytes_per_s : bytes per second; None means no cap
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self._rate = bytes_per_s
        self._lock = threading.Lock()
        self._free_at_s = time.monotonic()  # the time at which all bytes so far are sent at the cap's rate

    @property
    def piece_bytes(self) -> int:
        """Bytes to send between two calls of `wait`: the cap's bytes in 2 ms, within bounds, or 1 GiB without a cap."""
        return 1 << 30 if self._rate is None else int(min(max(0.002 * self._rate, 1 << 14), 1 << 20))

    def wait(self, num_bytes: int) -> None:
        """Reserve the time for ``num_bytes`` bytes, and wait until they may be sent."""
        if self._rate is None:
            return
        now = time.monotonic()
        with self._lock:
            start = max(self._free_at_s, now - _BURST_S)
            self._free_at_s = start + num_bytes / self._rate
        if start > now:
            time.sleep(start - now)


def flipped(data: bytearray, start: int, flips: Mapping[int, int]) -> bytearray:
    """Change bits of ``data`` in place, and return it.

    Parameters
    ----------
    data : bytes of a file from ``start`` on
    start : position in the file
    flips : by position in the file: the mask with the bits to flip
    """
    for offset, mask in flips.items():
        if start <= offset < start + len(data):
            data[offset - start] ^= mask
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One answered request."""

    method: str  # the HTTP method
    name: str  # path below the folder
    start: int = 0  # first requested byte
    # Sent bytes of the answer's body, or received bytes of the request's body.
    length: int = 0
    status: int = 0  # 0 if the connection ended without an answer
    fault: FaultKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCounts:
    """Sums over the requests to a server so far."""

    requests: int
    gets: int
    bytes_sent: int  # in bodies of answers to GET
    bytes_received: int  # in bodies of PUT requests
    faults: int  # requests with a fault
    gets_of: dict[str, int]  # number of GET requests by name

    @classmethod
    def of(cls, log: list[Served]) -> Self:
        """Return the sums of ``log``. Pure."""
        gets = [each for each in log if each.method == "GET"]
        return cls(
            requests=len(log),
            gets=len(gets),
            bytes_sent=sum(each.length for each in gets),
            bytes_received=sum(each.length for each in log if each.method == "PUT"),
            faults=sum(each.fault is not None for each in log),
            gets_of=dict(Counter(each.name for each in gets)),
        )


class ServedFolder:
    """A served folder with its speed and faults. Thread-safe. `latency_s`, `faults` and `flips` may be set at any time.

    Parameters
    ----------
    folder : the served folder; uploads are written there, completely or not at all
    latency_s : seconds before each answer
    bytes_per_s : cap over all connections; None means no cap
    faults : faulty answers
    flips : bytes changed in every answer
    """

    def __init__(
        self,
        folder: Path,
        *,
        latency_s: float = 0.0,
        bytes_per_s: float | None = None,
        faults: Faults = NO_FAULTS,
        flips: tuple[Flip, ...] = (),
    ) -> None:
        self.folder = folder.resolve()
        self.latency_s = latency_s
        self.faults = faults
        self.flips = flips
        self.pace = RateCap(bytes_per_s)
        self.is_closing = threading.Event()  # set by the server: waiting threads end
        self._log: list[Served] = []
        self._replacements: dict[str, tuple[int, Path]] = {}  # by name: remaining requests, and the new file
        self._attempts: Counter[tuple[str, str, int]] = Counter()  # by method, name and first byte
        self._lock = threading.Lock()

    @property
    def counts(self) -> ServedCounts:
        """The requests so far."""
        return ServedCounts.of(self.log)

    @property
    def log(self) -> list[Served]:
        """Every answered request, in order."""
        with self._lock:
            return [*self._log]

    def forget(self) -> None:
        """Reset the counts."""
        with self._lock:
            self._log.clear()

    def replace_after(self, name: str, *, gets: int, by: Path) -> None:
        """Replace ``name`` by the file ``by`` after ``gets`` further GET requests for ``name``."""
        with self._lock:
            self._replacements[name] = (gets, by)

    def note(self, served: Served) -> None:
        """Count an answered request."""
        with self._lock:
            self._log.append(served)

    def begin(self, method: str, name: str, start: int) -> FaultKind | None:
        """Return a request's fault, or None. First makes a due replacement of the file, see `replace_after`.

        Parameters
        ----------
        method, name, start : the request, see `Faults.of`
        """
        with self._lock:
            attempt = self._attempts[method, name, start]
            self._attempts[method, name, start] += 1
            if method == "GET" and name in self._replacements:
                left, by = self._replacements.pop(name)
                if left:
                    self._replacements[name] = (left - 1, by)
                else:
                    by.replace(self.folder / name)
        return self.faults.of(method, name, start, attempt)

    def path_of(self, target: str) -> Path | None:
        """Return the file of a request's path, or None outside the folder."""
        path = (self.folder / unquote(urlsplit(target).path).lstrip("/")).resolve()
        return path if path.is_relative_to(self.folder) else None
