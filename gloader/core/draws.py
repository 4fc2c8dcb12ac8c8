"""Seeds of which an epoch takes draws: some more than once, others perhaps not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.hashing import GOLDEN, mix_int
from gloader.core.order import epoch_permutation, hashed_words
from gloader.errors import SeedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

_TO_UNIT: Final = 2.0**-53  # of the upper 53 bits of a word, which a float64 holds exactly
_LOW_BITS: Final = np.uint64(11)
_DRAWS: Final = 0xD1B54A32D192ED03  # another key than that of the permutation of an epoch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Draws:
    """How an epoch draws among n items: by the hash of (seed, epoch, draw), so that a resumed epoch draws the same.

    Thread-safe.
    """

    num_draws: int  # of an epoch
    weights: NDArray[np.float64] | None = None  # (n,) by which items are drawn; None: all alike
    replace: bool = True

    def check(self, num_items: int) -> None:
        """Raise SeedError where ``num_items`` items cannot be drawn from like this."""
        if self.weights is None:
            return
        if self.weights.shape != (num_items,):
            raise SeedError(f"{self.weights.shape[0]} weights for {num_items} seeds; give one for each seed")
        if not np.all(np.isfinite(self.weights)) or (self.weights < 0).any() or not self.weights.any():
            raise SeedError("weights of seeds must be finite, at least 0, and not all 0")
        if not self.replace and self.num_draws > (possible := int(np.count_nonzero(self.weights))):
            raise SeedError(
                f"{self.num_draws} draws without replacement of {possible} seeds whose weight is above 0; draw fewer"
            )

    def positions(self, num_items: int, *, seed: int, epoch: int) -> IdArray:
        """Return (num_draws,) int64, the items in the order in which ``epoch`` draws them. Pure."""
        key = mix_int((seed + _DRAWS) % 2**64)
        if self.replace:
            chances = _chances(self.num_draws, key, epoch)
            if self.weights is None:
                return np.minimum((chances * num_items).astype(np.int64), num_items - 1)
            sums = np.cumsum(self.weights)
            last = int(
                np.flatnonzero(self.weights)[-1]
            )  # a chance next to 1 may be rounded up to the whole sum
            return np.minimum(np.searchsorted(sums, chances * sums[-1], side="right"), last)
        if self.weights is None:
            # As torch does: whole permutations, and a part of one more.
            rounds = -(-self.num_draws // num_items)
            return np.concatenate(
                [
                    epoch_permutation(num_items, seed=key + part * int(GOLDEN), epoch=epoch)
                    for part in range(rounds)
                ]
            )[: self.num_draws]
        # The first of independent exponential times (Efraimidis and Spirakis, IPL 97, 2006).
        with np.errstate(divide="ignore", invalid="ignore"):  # of weight 0, set below
            times = -np.log1p(-_chances(num_items, key, epoch)) / self.weights
        times[self.weights == 0] = np.inf
        return np.argsort(times, kind="stable")[: self.num_draws]

    def facts(self) -> dict[str, Any]:
        """Return what tells these draws from others, beside their weights, as JSON values by name."""
        return {"num_draws": self.num_draws, "replace": self.replace, "is_weighted": self.weights is not None}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawnSeeds:
    """Seeds that may repeat, in place of the ids that a loader of nodes takes as ``seeds``.

    A batch has each node once; ``loader.seed_positions`` says which of the seeds it was drawn for.
    """

    nodes: Any  # ids (n,), or ids by node type, as of `gloader.Loader`; they may repeat
    draws: Draws | None = None  # None: an epoch takes each of them once


def _chances(count: int, key: int, epoch: int) -> NDArray[np.float64]:
    """Return (count,) numbers in [0, 1)."""
    words = hashed_words(count, seed=key, epoch=epoch)
    return (words >> _LOW_BITS).astype(np.float64) * _TO_UNIT
