"""Which seeds make up which batch: a permutation keyed by (seed, epoch), cut into batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gloader.errors import ConfigError, SeedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the splitmix64 finaliser of each element (Steele et al., OOPSLA'14). Pure."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def epoch_permutation(num_items: int, *, seed: int, epoch: int) -> IdArray:
    """Return a permutation of ``range(num_items)`` that depends on (seed, epoch) alone. Pure.

    Positions are ordered by a hash of (seed, epoch, position), so the result depends neither on a
    generator's state nor on the version of a random library.

    Returns
    -------
    (num_items,) int64
    """
    keys = np.array([seed % 2**64, epoch % 2**64], dtype=np.uint64)
    key = _mix(_mix(keys[:1]) + keys[1:] * _GOLDEN)
    positions = np.arange(1, num_items + 1, dtype=np.uint64)
    return np.argsort(_mix(positions * _GOLDEN + key), kind="stable").astype(np.int64)


def _check_seeds(seeds: IdArray, num_nodes: int) -> None:
    """Raise SeedError listing up to five seeds that are no node ids or that repeat."""
    outside = seeds[(seeds < 0) | (seeds >= num_nodes)]
    if len(outside):
        raise SeedError(
            f"seeds must be node ids in 0..{num_nodes - 1}; these are not: {outside[:5].tolist()}"
        )
    values, counts = np.unique(seeds, return_counts=True)
    if len(values) != len(seeds):
        raise SeedError(f"seeds must not repeat; these do: {values[counts > 1][:5].tolist()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOrder:
    """The batches of every epoch, for one rank of ``world_size``.

    A step takes ``batch_size * world_size`` consecutive seeds of the epoch's permutation, and rank r takes
    the r-th of ``world_size`` equal parts of them. All ranks have equally many batches: a last step with
    fewer seeds than ranks is dropped, one with more is shared as evenly as possible.
    """

    seeds: IdArray  # (n,) unique node ids
    num_nodes: int  # N
    batch_size: int  # per rank
    seed: int
    shuffle: bool = True
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is {self.batch_size}; it must be at least 1")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank {self.rank} is not in 0..{self.world_size - 1} (world_size {self.world_size})"
            )
        if self.batch_size > len(self.seeds) > 0:
            raise ConfigError(
                f"batch_size {self.batch_size} is larger than the {len(self.seeds)} seeds; lower batch_size"
            )
        _check_seeds(self.seeds, self.num_nodes)
        if self.world_size > 1 and self.num_batches == 0:
            raise SeedError(
                f"{len(self.seeds)} seeds give {self.world_size} ranks no batch; they would wait forever"
            )

    @property
    def global_batch_size(self) -> int:
        """Seeds that all ranks together take per step."""
        return self.batch_size * self.world_size

    @property
    def num_batches(self) -> int:
        """Batches per epoch, the same on every rank."""
        full, rest = divmod(len(self.seeds), self.global_batch_size)
        return full + int(rest >= self.world_size and not self.drop_last)

    def epoch_seeds(self, epoch: int) -> IdArray:
        """Return the seeds of ``epoch`` in the order in which they are taken. Pure."""
        if not self.shuffle:
            return self.seeds
        return self.seeds[epoch_permutation(len(self.seeds), seed=self.seed, epoch=epoch)]

    def batch_seeds(self, ordered: IdArray, index: int) -> IdArray:
        """Return this rank's seeds of step ``index`` out of ``ordered``, a result of `epoch_seeds`. Pure."""
        step = ordered[index * self.global_batch_size : (index + 1) * self.global_batch_size]
        low = self.rank * len(step) // self.world_size
        high = (self.rank + 1) * len(step) // self.world_size
        return step[low:high]
