"""Traffic with an object store, such as S3: requests and bytes, and their price.

`ObjectTraffic` has the counts, and `ObjectPrice` the user's prices. `ObjectTraffic.describe` makes a line for a log.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Self

from gloader.core.malformed import shown
from gloader.core.units import format_bytes, format_count, format_seconds, parse_bytes
from gloader.errors import ConfigError

_FORM: Final = "write prices as 0.0004/1000req,0.09/GB: per number of requests, and per number of bytes"
# One price: an amount, then "/", then a number of requests ("1000req") or of bytes ("GB" or "10 GB").
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*(?:(\d*)\s*req|(\d*(?:\.\d+)?\s*[A-Za-z]+))", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPrice:
    """An object store's prices for requests and for received bytes, in any currency."""

    per_request: float = 0.0  # per sent request
    per_byte: float = 0.0  # per received byte

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the prices for a text such as "0.0004/1000req,0.09/GB". Pure. Raise ConfigError for any other form."""
        prices: dict[str, float] = {}
        for part in text.split(","):
            match = _PART.fullmatch(part.strip())
            if match is None or len(part) > 100:
                raise ConfigError(f"{shown(text)} is not a list of prices; {_FORM}")
            amount, requests, size = match.groups()
            name = "per_request" if size is None else "per_byte"
            units = (
                int(requests or 1) if size is None else parse_bytes(size if size[0].isdigit() else f"1{size}")
            )
            price = float(amount) / units if units else math.inf
            if name in prices or not math.isfinite(price):
                raise ConfigError(f"{shown(text)} gives a price twice, or for zero units; {_FORM}")
            prices[name] = price
        return cls(**prices)

    def cost(self, *, requests: float, num_bytes: float) -> float:
        """Return the cost for ``requests`` requests with ``num_bytes`` bytes. Pure."""
        return self.per_request * requests + self.per_byte * num_bytes


def format_cost(cost: float) -> str:
    """Return ``cost`` as text: with two decimals if it is at least 1, else with three digits, as '0.0123'. Pure."""
    return f"{cost:.2f}" if cost >= 1 or cost == 0 else f"{cost:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectTraffic:
    """The number of requests to an object store, and the bytes received."""

    requests: int = 0  # all requests, retries included
    num_bytes: int = 0  # received bytes
    retries: int = 0  # requests that repeat a failed request
    waited_s: float = 0.0  # seconds that requests waited: for the rate limit, or before a retry

    def since(self, before: ObjectTraffic) -> Self:
        """Return the traffic after ``before``. Pure."""
        return type(self)(
            requests=self.requests - before.requests,
            num_bytes=self.num_bytes - before.num_bytes,
            retries=self.retries - before.retries,
            waited_s=self.waited_s - before.waited_s,
        )

    def plus(self, other: ObjectTraffic) -> Self:
        """Return the sum of both. Pure."""
        return type(self)(
            requests=self.requests + other.requests,
            num_bytes=self.num_bytes + other.num_bytes,
            retries=self.retries + other.retries,
            waited_s=self.waited_s + other.waited_s,
        )

    def cost(self, price: ObjectPrice | None) -> float | None:
        """Return the traffic's cost, or None without prices. Pure."""
        return None if price is None else price.cost(requests=self.requests, num_bytes=self.num_bytes)

    def describe(self, price: ObjectPrice | None) -> str:
        """Return one readable line with the figures. Pure."""
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
