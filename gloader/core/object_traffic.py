"""What came from an object store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from gloader.core.object_price import format_cost
from gloader.core.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from gloader.core.object_price import ObjectPrice


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectTraffic:
    """What was asked of an object store, and what it brought."""

    requests: int = 0
    num_bytes: int = 0
    retries: int = 0  # requests that were made again
    waited_s: float = 0.0  # that requests were held back, by a limit or before they were made again

    def since(self, before: ObjectTraffic) -> Self:
        """Return what came after ``before``. Pure."""
        return type(self)(
            requests=self.requests - before.requests,
            num_bytes=self.num_bytes - before.num_bytes,
            retries=self.retries - before.retries,
            waited_s=self.waited_s - before.waited_s,
        )

    def plus(self, other: ObjectTraffic) -> Self:
        """Return the sums. Pure."""
        return type(self)(
            requests=self.requests + other.requests,
            num_bytes=self.num_bytes + other.num_bytes,
            retries=self.retries + other.retries,
            waited_s=self.waited_s + other.waited_s,
        )

    def cost(self, price: ObjectPrice | None) -> float | None:
        """Return what it cost; None where no prices are known. Pure."""
        return None if price is None else price.cost(requests=self.requests, num_bytes=self.num_bytes)

    def describe(self, price: ObjectPrice | None) -> str:
        """Return the figures as people read them, in one line. Pure."""
        cost = self.cost(price)
        parts = [
            f"{format_bytes(self.num_bytes)} in {format_count(self.requests)} {_requests(self.requests)}",
            f"{format_count(self.retries)} of them again" if self.retries else "",
            f"held back {format_seconds(self.waited_s)}" if self.waited_s >= 1 else "",
            "" if cost is None else f"cost {format_cost(cost)}",
        ]
        return ", ".join(filter(None, parts))


def _requests(count: int) -> str:
    return "request" if count == 1 else "requests"
