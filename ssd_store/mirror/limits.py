"""What a user allows of an object store: bytes and requests a second, shared by all threads."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING, Final, Self

from gloader.core.malformed import shown
from gloader.core.units import format_bytes, parse_bytes
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

# What a store gives a machine: between 6 and 20 Gb/s were measured of S3.
_LIKELY_BYTES_PER_S: Final = 1e9
_BURST_S: Final = 0.25  # what may be saved up while nothing is asked for
_REQUESTS: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*req/s", re.IGNORECASE)
_ALLOWED: Final = "bytes and requests a second, as in 500MB/s,3000req/s, or one of them"


class TokenBucket:
    """A rate that nobody exceeds for longer than a moment. Thread-safe; whoever asks first is served first.

    Parameters
    ----------
    per_s : what comes in every second, at least more than 0
    clock : seconds, as of `time.monotonic`
    """

    def __init__(self, per_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.per_s = per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock() - _BURST_S  # when all that was taken has come in

    def take(self, amount: float) -> float:
        """Take ``amount``, which may be more than is there; return the seconds to wait before it is used."""
        with self._lock:
            now = self._clock()
            begin = max(self._free_at, now - _BURST_S)
            self._free_at = begin + amount / self.per_s
            # It waits for what came before it, not for itself: a block is larger than any burst.
            return max(0.0, begin - now)


class Limits:
    """The limits on an object store; none by default. Thread-safe.

    Parameters
    ----------
    bytes_per_s, requests_per_s : rates of all requests together; None: no limit
    clock : seconds, as of `time.monotonic`

    Raises
    ------
    ConfigError
        A rate is not above 0.
    """

    def __init__(
        self,
        *,
        bytes_per_s: float | None = None,
        requests_per_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        rates = (bytes_per_s, requests_per_s)
        if any(rate is not None and not rate > 0 for rate in rates):
            raise ConfigError(f"a limit of an object store must be above 0, not {rates}; give {_ALLOWED}")
        self.bytes_per_s = bytes_per_s
        self.requests_per_s = requests_per_s
        self._bytes = TokenBucket(bytes_per_s, clock=clock) if bytes_per_s else None
        self._requests = TokenBucket(requests_per_s, clock=clock) if requests_per_s else None

    @classmethod
    def parse(cls, text: str | None) -> Self:
        """Return the limits that ``text`` says, such as "500MB/s,3000req/s"; None or nothing: no limits. Pure.

        Raises
        ------
        ConfigError
            The text says something else, or one of them twice.
        """
        rates: dict[str, float | None] = {"bytes_per_s": None, "requests_per_s": None}
        for part in filter(None, map(str.strip, (text or "").split(","))):
            requests = _REQUESTS.fullmatch(part)
            name = "requests_per_s" if requests else "bytes_per_s"
            if rates[name] is not None:
                raise ConfigError(f"{shown(text)} gives the same limit twice; allowed are {_ALLOWED}")
            rates[name] = float(requests[1]) if requests else _bytes_of(part, text)
        return cls(bytes_per_s=rates["bytes_per_s"], requests_per_s=rates["requests_per_s"])

    @property
    def likely_bytes_per_s(self) -> float:
        """What comes in a second, until the reads of a run say better."""
        return self.bytes_per_s or _LIKELY_BYTES_PER_S

    def take(self, num_bytes: int) -> float:
        """Take a request of ``num_bytes``; return the seconds to wait before it is made."""
        waits = [self._bytes.take(num_bytes)] if self._bytes else []
        waits += [self._requests.take(1)] if self._requests else []
        return max(waits, default=0.0)

    def __str__(self) -> str:
        rates = [f"{format_bytes(self.bytes_per_s)}/s"] if self.bytes_per_s else []
        rates += [f"{self.requests_per_s:g}req/s"] if self.requests_per_s else []
        return ",".join(rates) or "none"


def _bytes_of(part: str, text: str | None) -> float:
    size = part[: -len("/s")] if part.lower().endswith("/s") else ""
    try:
        rate = parse_bytes(size) if size[:1].isdigit() else 0
    except ConfigError:
        rate = 0
    if rate <= 0:
        raise ConfigError(f"{shown(text)} is no limit of an object store; allowed are {_ALLOWED}")
    return float(rate)
