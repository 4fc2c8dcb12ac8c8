"""The shares of an edge split, as they are written: "80/10/10", or (0.8, 0.1, 0.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gloader.core.malformed import shown
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

EdgeShares: TypeAlias = tuple[float, float, float]
TRAIN = "train"
PARTS = (TRAIN, "valid", "test")
_TOLERANCE = 1e-6


def edge_shares(given: str | Sequence[float]) -> EdgeShares:
    """Return the shares of train, valid and test, which add up to 1. Pure.

    Parameters
    ----------
    given : "80/10/10" or three numbers; they add up to 1 or to 100

    Raises
    ------
    ConfigError
        They are not three numbers above 0, or do not add up.
    """
    try:
        shares = [float(each) for each in (given.split("/") if isinstance(given, str) else given)]
    except (TypeError, ValueError):
        shares = []
    if len(shares) != len(PARTS):
        raise ConfigError(
            f"edge split {shown(given)}: write the shares of train, valid and test, such as 80/10/10"
        )
    total = sum(shares)
    whole = 1.0 if abs(total - 1) <= abs(total - 100) else 100.0
    if not abs(total - whole) <= _TOLERANCE * whole:
        raise ConfigError(f"edge split {shown(given)} adds up to {total:g}; it must be 100, as 80/10/10 is")
    for name, share in zip(PARTS, shares, strict=True):
        if share <= 0:
            raise ConfigError(
                f"edge split {shown(given)} leaves the table {name!r} empty; each of the three must be above 0"
            )
    train, valid, test = (share / total for share in shares)
    return train, valid, test
