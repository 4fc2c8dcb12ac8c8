"""The order of the rows of a table: a permutation keyed by (seed, epoch) that is computed, so that none is held."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from numba import njit

from gloader.core.hashing import GOLDEN, mix64, mix_int
from gloader.core.order import EPOCHS_HELD, EpochOrder, HeldEpochs, StepCut, epoch_permutation
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gloader.types import AnySeeds, BatchId, IdArray

# Up to here the permutation is one of hashes, which is held: half a MB. Halves of fewer than nine bits would leave a
# network few orders to choose from.
_MOST_HELD: Final = 1 << 16
# Luby and Rackoff ("How to construct pseudorandom permutations from pseudorandom functions", SIAM J. Comput. 1988) need
# four; two more cost nothing beside the reading of a row.
_ROUNDS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrder:
    """The batches of every epoch over the rows of a table, for one rank of ``world_size``; cut as by `EpochOrder`.

    A table may have more rows than a graph has nodes: nothing is held for each of them. Thread-safe.
    """

    num_items: int  # rows
    batch_size: int  # per rank
    seed: int
    shuffle: bool = True
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    expand: Callable[[BatchId, IdArray], AnySeeds] | None = None  # what rows become; None: they are seeds
    expand_bytes: int = 0  # memory that a call of it for a batch takes at its peak
    seed_blocks: int = 1
    _held: HeldEpochs = field(
        init=False, repr=False, compare=False, default_factory=lambda: HeldEpochs(EPOCHS_HELD)
    )

    def __post_init__(self) -> None:
        """Refuse what would give no batch."""
        if self.seed_blocks != 1:
            raise ConfigError(
                f"seed_blocks is {self.seed_blocks}; rows of a table have no neighbours: it must be 1"
            )
        self.cut.check(noun="edges")

    @property
    def cut(self) -> StepCut:
        """How an epoch is cut into steps."""
        return StepCut(
            num_items=self.num_items,
            batch_size=self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
        )

    @property
    def global_batch_size(self) -> int:
        """Rows that all ranks together take per step."""
        return self.cut.global_batch_size

    @property
    def num_batches(self) -> int:
        """Batches per epoch, the same on every rank."""
        return self.cut.num_batches

    @property
    def num_held(self) -> int:
        """Items for which something is held in memory."""
        return 0

    def ready_epoch(self, epoch: int) -> None:
        """Work out what is held of ``epoch``."""
        if self.shuffle and self.num_items <= _MOST_HELD:
            self._permutation(epoch)

    def batch_items(self, batch: BatchId, *, rank: int | None = None) -> IdArray:
        """Return the rows (B,) of one batch of a rank, by default this one. Pure."""
        first, last = self.cut.bounds(batch.index, rank=rank)
        if not self.shuffle:
            return np.arange(first, last, dtype=np.int64)
        if self.num_items <= _MOST_HELD:
            return self._permutation(batch.epoch)[first:last]
        return permuted_range(first, last, self.num_items, seed=self.seed, epoch=batch.epoch)

    def seeds_of(self, batch: BatchId, *, rank: int | None = None) -> AnySeeds:
        """Return what the rows of one batch become."""
        rows = self.batch_items(batch, rank=rank)
        return rows if self.expand is None else self.expand(batch, rows)

    def _permutation(self, epoch: int) -> IdArray:
        return self._held.positions(
            epoch, lambda: epoch_permutation(self.num_items, seed=self.seed, epoch=epoch)
        )


AnyOrder: TypeAlias = EpochOrder | RowOrder


def permuted_range(first: int, last: int, num_items: int, *, seed: int, epoch: int) -> IdArray:
    """Return entries ``first:last`` of a permutation of ``range(num_items)`` that depends on (seed, epoch). Pure.

    A Feistel network over the next even number of bits, walked until it comes back into the range (Black and Rogaway,
    "Ciphers with arbitrary finite domains", CT-RSA 2002, section 4).

    Parameters
    ----------
    first, last : of the entries
    num_items : at most 2**62
    seed, epoch : integers, taken modulo 2**64
    """
    half = max(-(-(num_items - 1).bit_length() // 2), 1)
    keys = np.empty(_ROUNDS, dtype=np.uint64)
    key = mix_int((mix_int(seed % 2**64) + epoch * int(GOLDEN)) % 2**64)
    for number in range(_ROUNDS):
        key = mix_int((key + int(GOLDEN)) % 2**64)
        keys[number] = key
    out = np.empty(last - first, dtype=np.int64)
    with np.errstate(over="ignore"):  # interpreted hashes wrap around
        _permute(first, num_items, half, keys, out)
    return out


@njit(cache=True, nogil=True)
def _permute(first: int, num_items: int, half: int, keys: NDArray[np.uint64], out: IdArray) -> None:
    shift = np.uint64(half)
    mask = (np.uint64(1) << shift) - np.uint64(1)
    end = np.uint64(num_items)
    for i in range(out.shape[0]):
        at = np.uint64(first + i)
        while True:
            left, right = at >> shift, at & mask
            for key in keys:
                left, right = right, left ^ (mix64(right ^ key) & mask)
            at = (left << shift) | right
            # Outside of the range it is a place like any other of the cycle, which leads back into it.
            if at < end:
                break
        out[i] = np.int64(at)
