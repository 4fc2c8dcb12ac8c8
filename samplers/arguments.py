"""Checks of a sampler's arguments, before a kernel runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.core.ids import as_ids, outside
from gloader.errors import ConfigError, SeedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.types import IdArray

MAX_LOCAL = 2**31 - 2  # local ids and offsets are int32


def checked_fanouts(fanouts: Sequence[int], *, noun: str = "fanouts") -> tuple[int, ...]:
    """Return ``fanouts``, which the user knows as ``noun``, as a tuple of integers. Pure.

    Raises
    ------
    ConfigError
        There is none, or one is not an integer >= -1.
    """
    if isinstance(fanouts, (str, bytes)) or not hasattr(fanouts, "__iter__"):
        raise ConfigError(f"{noun} is {fanouts!r}; pass one integer per hop, such as [15, 10, 5]")
    checked = tuple(fanouts)
    if not checked:
        raise ConfigError(f"{noun} is empty; pass one integer per hop, such as [15, 10, 5]")
    for hop, fanout in enumerate(checked):
        if isinstance(fanout, (bool, np.bool_)) or not isinstance(fanout, (int, np.integer)):
            raise ConfigError(f"{noun}[{hop}] is {fanout!r}; it must be an integer, -1 for all neighbours")
        if not -1 <= fanout <= MAX_LOCAL:
            raise ConfigError(f"{noun}[{hop}] is {fanout}; it must be at least 0, or -1 for all neighbours")
    return tuple(int(fanout) for fanout in checked)


def checked_seed(seed: int) -> int:
    """Return ``seed`` modulo 2**64. Pure.

    Raises
    ------
    ConfigError
        It is no integer.
    """
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)):
        raise ConfigError(f"seed is {seed!r}; it must be an integer")
    return int(seed) % 2**64


def checked_seeds(seeds: IdArray, num_nodes: int) -> IdArray:
    """Return ``seeds`` as contiguous int64 after the range check; no kernel sees an unchecked id. Pure.

    Raises
    ------
    SeedError
        They are no integers, have two dimensions or are out of range; the message lists up to five.
    """
    ids = as_ids(seeds, noun="seeds", error=SeedError)
    if len(bad := outside(ids, num_nodes)):
        raise SeedError(f"{len(bad)} seeds are not in 0..{num_nodes - 1}, among them {bad[:5].tolist()}")
    return ids
