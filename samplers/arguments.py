"""Checks on sampler arguments and hop sizes, before a kernel runs.

Samplers call these functions, because a kernel does not check: a wrong id would read memory outside an array. Errors
name the wrong values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.core.fanouts import FanoutsLike, checked_fanouts, checked_hops
from gloader.core.ids import as_ids, outside
from gloader.errors import ConfigError, SeedError
from gloader.types import ANY_RELATION, CollectiveFanouts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gloader.types import BatchId, IdArray, Relation

__all__ = [
    "MAX_LOCAL",
    "checked_fanouts",
    "checked_hops",
    "checked_seed",
    "checked_seeds",
    "checked_total",
    "require_distinct",
    "resolve_fanouts",
    "split_seeds",
]

MAX_LOCAL = 2**31 - 2  # largest number of nodes or edges, because local ids and offsets are int32


def resolve_fanouts(fanouts: FanoutsLike, relations: Sequence[Relation]) -> tuple[tuple[int, ...], ...]:
    """Return the fan-outs by relation, as a tuple with L numbers for each relation. Pure.

    A fan-out is the number of neighbours that a hop samples per node; the hop next to the seeds comes first. With
    `CollectiveFanouts`, a node's draws are shared by all relations, and each relation gets the same fan-outs.

    Raises
    ------
    ConfigError
        ``fanouts`` are malformed, name an unknown relation, or lack a relation.
    """
    checked = checked_fanouts(fanouts)
    if isinstance(checked, CollectiveFanouts):
        return (checked.fanouts,) * len(relations)
    if isinstance(checked, tuple):
        return (checked,) * len(relations)
    given = dict(checked.by_relation)
    others = given.pop(ANY_RELATION, None)
    if unknown := [":".join(name) for name in given if name not in relations]:
        raise ConfigError(
            f"fanouts name {_listed(unknown)}, and the graph has {_listed(map(':'.join, relations))}"
        )
    if others is None and (missed := [":".join(name) for name in relations if name not in given]):
        raise ConfigError(
            f"fanouts have none for {_listed(missed)}; add {'it' if len(missed) == 1 else 'them'}, or '*' for all "
            "relations that are not named"
        )
    return tuple(given.get(relation, others or ()) for relation in relations)


def checked_seed(seed: int) -> int:
    """Return ``seed`` modulo 2**64. Pure.

    Raises
    ------
    ConfigError
        ``seed`` is not an integer.
    """
    if isinstance(seed, (bool, np.bool_)) or not isinstance(seed, (int, np.integer)):
        raise ConfigError(f"seed is {seed!r}; it must be an integer")
    return int(seed) % 2**64


def checked_seeds(seeds: IdArray, num_nodes: int) -> IdArray:
    """Return ``seeds`` (B,) as contiguous int64, after the check that they are in 0..num_nodes-1. Pure.

    Raises
    ------
    SeedError
        Seeds are not integers, have two dimensions, or are out of range; the message lists up to five.
    """
    ids = as_ids(seeds, noun="seeds", error=SeedError)
    if len(bad := outside(ids, num_nodes)):
        raise SeedError(f"{len(bad)} seeds are not in 0..{num_nodes - 1}, among them {bad[:5].tolist()}")
    return ids


def split_seeds(seeds: IdArray, type_starts: IdArray) -> list[IdArray]:
    """Return the seeds by type, as ids within their type and in their order, after the range check. Pure.

    Parameters
    ----------
    seeds : (B,) nodes with several types, in one numbering
    type_starts : (T + 1,) see `HeteroGraph.type_starts`

    Raises
    ------
    SeedError
        See `checked_seeds`.
    """
    checked = checked_seeds(seeds, int(type_starts[-1]))
    if len(type_starts) == 2:  # a single type
        return [checked]
    parts = [checked[:0]] * (len(type_starts) - 1)
    if len(checked):
        # The types of the smallest and the largest seed. Most batches have seeds of one type.
        ends = np.searchsorted(type_starts[1:], (checked.min(), checked.max()), side="right")
        first, last = ends.tolist()
        for number in range(first, last + 1):
            start, end = type_starts[number : number + 2]
            of_type = checked if first == last else checked[(checked >= start) & (checked < end)]
            parts[number] = of_type - start
    return parts


def require_distinct(seeds: IdArray, *, noun: str = "seeds") -> None:
    """Raise SeedError if a seed repeats; the message calls the seeds ``noun`` and lists up to five repeats. Pure."""
    values, counts = np.unique(seeds, return_counts=True)
    repeated = values[counts > 1]
    if len(repeated):
        raise SeedError(f"{len(repeated)} {noun} repeat within the batch, among them {repeated[:5].tolist()}")


def checked_total(total: int, hop: int, batch_id: BatchId, fanouts: tuple[int, ...]) -> int:
    """Return ``total``, a hop's number of edges or in-edges, after the check that int32 offsets can hold it. Pure.

    Parameters
    ----------
    total : number of edges; -1 if a kernel gave up counting
    hop, batch_id, fanouts : values for the message

    Raises
    ------
    ConfigError
        There are more than `MAX_LOCAL` edges.
    """
    if not 0 <= total <= MAX_LOCAL:
        raise ConfigError(
            f"hop {hop} of {batch_id} would have 2**31 edges or more; lower the batch size or fanouts={fanouts}"
        )
    return total


def _listed(names: Iterable[str]) -> str:
    """Return the names in quotes, separated by commas, for a message."""
    return ", ".join(map(repr, names)) or "no relations"
