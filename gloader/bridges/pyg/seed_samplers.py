"""torch's samplers of positions as draws of seeds, which are addressed by (seed, epoch) instead of a generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from torch.utils.data import (
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from gloader.core.draws import DrawnSeeds, Draws
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from gloader.types import IdArray


_KNOWN = (WeightedRandomSampler, RandomSampler, SubsetRandomSampler, SequentialSampler)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOrder:
    """What an epoch takes of the seeds that a loader is given."""

    shuffle: bool
    draws: Draws | None = None  # None: each once

    @classmethod
    def take(cls, settings: dict[str, Any], num_seeds: int, *, shuffle: bool) -> Self:
        """Take a sampler of torch out of ``settings``, where gloader's own ``sampler`` is a name.

        Raises
        ------
        ConfigError
            It is none whose draws are known, is for another number of seeds, or comes with another order beside it.
        """
        if settings.get("batch_sampler") is not None:
            raise ConfigError("batch_sampler: give its sampler as sampler=, with batch_size= and drop_last=")
        settings.pop("batch_sampler", None)
        if not isinstance(sampler := settings.get("sampler"), Sampler):
            return cls(shuffle=shuffle)
        _require_known(sampler, shuffle=shuffle)
        del settings["sampler"]
        if isinstance(sampler, SubsetRandomSampler):
            return cls(shuffle=True, draws=_subset(np.asarray(sampler.indices, np.int64), num_seeds))
        if isinstance(sampler, WeightedRandomSampler):
            weights = sampler.weights.numpy()
            _require_as_many(sampler, len(weights), num_seeds)
            draws = Draws(num_draws=sampler.num_samples, weights=weights, replace=sampler.replacement)
            return cls(shuffle=True, draws=draws)
        if isinstance(sampler, RandomSampler):
            _require_as_many(sampler, len(sampler.data_source), num_seeds)
            if not sampler.replacement and sampler.num_samples == num_seeds:
                return cls(shuffle=True)
            return cls(shuffle=True, draws=Draws(num_draws=sampler.num_samples, replace=sampler.replacement))
        if isinstance(sampler, SequentialSampler):
            _require_as_many(sampler, len(sampler), num_seeds)
        return cls(shuffle=False)

    def apply(self, ids: IdArray, name: str | None, *, has_times: bool) -> tuple[Any, int]:
        """Return what a loader takes as seeds in place of ``ids`` (n,), and how many seeds an epoch has.

        Parameters
        ----------
        ids : of the nodes
        name : of their type, where there are several
        has_times : whether each asks at a time: those may repeat as they are, each with neighbours of its own
        """
        nodes = ids if name is None else {name: ids}
        if self.draws is not None:
            return DrawnSeeds(nodes=nodes, draws=self.draws), self.draws.num_draws
        ordered = np.sort(ids)
        repeats = bool((ordered[1:] == ordered[:-1]).any())
        return DrawnSeeds(nodes=nodes) if repeats and not has_times else nodes, len(ids)


def _require_as_many(sampler: Sampler[Any], given: int, num_seeds: int) -> None:
    if given != num_seeds:
        raise ConfigError(
            f"sampler={type(sampler).__name__} draws from {given} items, and there are {num_seeds} input_nodes"
        )


def _subset(positions: IdArray, num_seeds: int) -> Draws:
    """Return draws of each of ``positions`` once, in an order of chance: all others have no weight."""
    weights = np.bincount(positions[(positions >= 0) & (positions < num_seeds)], minlength=num_seeds)
    if weights.sum() != len(positions) or weights.max(initial=0) > 1 or not len(positions):
        raise ConfigError(
            f"sampler=SubsetRandomSampler: its indices are positions in the {num_seeds} input_nodes, each once"
        )
    return Draws(num_draws=len(positions), weights=weights.astype(np.float64), replace=False)


def _require_known(sampler: Sampler[Any], *, shuffle: bool) -> None:
    name = type(sampler).__name__
    if not any(isinstance(sampler, known) and type(sampler).__iter__ is known.__iter__ for known in _KNOWN):
        known = ", ".join(known.__name__ for known in _KNOWN)
        raise ConfigError(
            f"sampler={name}: its order could not be resumed; {known} and ImbalancedSampler are taken, and a fixed "
            "order is that of input_nodes. Among ranks a loader takes its part by itself"
        )
    if shuffle:
        raise ConfigError(f"sampler={name} says the order of the seeds; leave out shuffle=True")
    if getattr(sampler, "generator", None) is not None:
        raise ConfigError(
            f"sampler={name}(generator=...): draws follow from the loader's seed=; leave it out"
        )
