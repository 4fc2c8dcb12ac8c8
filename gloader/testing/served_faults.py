"""What a range server does to those who ask it: late, slow, broken and wrong answers."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

FaultKind = Literal["500", "503", "cut", "stall"]
FAULT_KINDS: Final[tuple[FaultKind, ...]] = ("500", "503", "cut", "stall")
_BURST_S = 0.01  # of the cap: what a thread that woke late makes up for


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Answers that go wrong; which ones depends on the seed and on what is asked, not on when."""

    rate: float = 0.0  # share of the requests that fail
    kinds: tuple[FaultKind, ...] = FAULT_KINDS  # a failing one is of either with equal probability
    methods: tuple[str, ...] = ("GET",)
    seed: int = 0
    stall_s: float = 60.0  # no answer for as long, then the connection ends

    def of(self, method: str, name: str, start: int, attempt: int) -> FaultKind | None:
        """Return what happens to a request, None: nothing. Pure.

        Parameters
        ----------
        method, name, start : what is asked for, from which byte on
        attempt : how often it was asked for before
        """
        if self.rate <= 0 or method not in self.methods:
            return None
        draw = Random(f"{self.seed}/{method}/{name}/{start}/{attempt}")  # noqa: S311 - no secret
        return draw.choice(self.kinds) if draw.random() < self.rate else None


NO_FAULTS: Final = Faults()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A byte of an object that is served changed."""

    name: str
    offset: int  # of the object
    mask: int = 1  # bits that are changed


class Pace:
    """A cap on bytes per second over all connections together. Thread-safe.

    Parameters
    ----------
    bytes_per_s : None: no cap
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self._rate = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    @property
    def piece_bytes(self) -> int:
        """Bytes to send at once: all of them without a cap, else what the cap passes in 2 ms."""
        return 1 << 30 if self._rate is None else int(min(max(0.002 * self._rate, 1 << 14), 1 << 20))

    def wait(self, num_bytes: int) -> None:
        """Wait until ``num_bytes`` more may be sent."""
        if self._rate is None:
            return
        now = time.monotonic()
        with self._lock:
            start = max(self._free_at, now - _BURST_S)
            self._free_at = start + num_bytes / self._rate
        if start > now:
            time.sleep(start - now)


def flipped(data: bytearray, start: int, flips: Mapping[int, int]) -> bytearray:
    """Return ``data``, whose first byte is byte ``start`` of an object, with the bits of ``flips`` changed."""
    for offset, mask in flips.items():
        if start <= offset < start + len(data):
            data[offset - start] ^= mask
    return data
