"""The requests that a range server answered, and their sums."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from gloader.testing.served_faults import FaultKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One answered request."""

    method: str
    name: str  # path below the folder
    start: int = 0  # first byte that was asked for
    length: int = 0  # bytes of the answer's body that were sent, or of the request's that were received
    status: int = 0  # 0: the connection ended without one
    fault: FaultKind | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCounts:
    """What a server was asked for so far."""

    requests: int
    gets: int
    bytes_sent: int
    bytes_received: int
    faults: int
    gets_of: dict[str, int]  # by name

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
