"""Sizes of superbatches: those that are tried, and those that lead up to the one that is taken. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALLEST, LARGEST = 2, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class SuperbatchSize:
    """S, and why it is what it is."""

    num_batches: int
    reason: str


def superbatch_sizes(num_batches_total: int | None = None) -> tuple[int, ...]:
    """Return the sizes that are worth a try: powers of two, the largest of which holds the whole run. Pure.

    Parameters
    ----------
    num_batches_total : of the run; None: not known
    """
    sizes = [SMALLEST]
    while sizes[-1] < LARGEST and (num_batches_total is None or sizes[-1] < num_batches_total):
        sizes.append(2 * sizes[-1])
    return tuple(sizes)


def ramp(size: int, first: int = 1) -> Iterator[int]:
    """Yield the sizes of successive superbatches without end: 1, 2, 4, ..., S, S, S, ..., or ``first`` and its doubles.

    Small ones come first, so that the first batch need not wait for a whole superbatch to be sampled and planned.

    Raises
    ------
    ConfigError
        ``size`` is not positive.
    """
    if size < 1:
        raise ConfigError(f"a superbatch of {size} batches cannot be; use at least 1")
    return _ramp(size, first)


def _ramp(size: int, first: int) -> Iterator[int]:
    current = first
    while True:
        yield current
        current = min(2 * current, size)
