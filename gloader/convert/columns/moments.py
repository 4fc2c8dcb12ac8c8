"""Statistics of numbers that come block by block: mean, standard deviation and quantiles.

`Moments` merges means and squared distances. `Sample` holds values, or a sample of them by row number, for quantiles.
Both give the same result whenever the same blocks come, and use no random generator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.hashing import mixed_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Number of quantiles, as in scikit-learn's QuantileTransformer.
NUM_QUANTILES: Final = 1000
_SAMPLE_KEY: Final = 0x517CC1B727220A95  # keeps the sample of rows apart from other hashes of row numbers


@dataclass(slots=True)
class Moments:
    """Count, mean and sum of squared distances from the mean of numbers (w,), in float64.

    Blocks are merged by Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample
    variances" (1979), which is stable where the mean is far from 0.
    """

    count: NDArray[np.int64]
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]

    @classmethod
    def of_width(cls, width: int) -> Moments:
        """Return the moments of no values."""
        return cls(np.zeros(width, np.int64), np.zeros(width), np.zeros(width))

    def add(self, values: NDArray[np.float64]) -> None:
        """Add values (n, w). Values that are not finite are left out."""
        is_finite = np.isfinite(values)
        count = np.count_nonzero(is_finite, axis=0)
        total = np.maximum(self.count + count, 1)
        known = np.where(is_finite, values, 0)
        # Rows of a block are summed in one fixed order, column by column.
        mean = known.sum(axis=0) / np.maximum(count, 1)
        squares = np.where(is_finite, (values - mean) ** 2, 0).sum(axis=0)
        distance = mean - self.mean
        self.squares += squares + distance**2 * (self.count * count / total)
        self.mean += distance * (count / total)
        self.count += count

    def deviation(self) -> NDArray[np.float64]:
        """Return the standard deviations (w,), and 1 where all values are equal."""
        deviation = np.sqrt(self.squares / np.maximum(self.count, 1))
        # Rounding of the mean leaves a tiny rest where all values are equal.
        is_equal = deviation <= 16 * np.finfo(np.float64).eps * np.abs(self.mean)
        return np.where(is_equal, 1.0, deviation)


@dataclass(slots=True)
class Sample:
    """The numbers of at most about ``limit`` rows: all of them, or a sample by the hash of the row's number."""

    limit: int
    num_rows: int  # the number of rows that may come
    held: list[NDArray[np.float64]] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """True if every row is taken."""
        return self.num_rows <= self.limit

    def add(self, values: NDArray[np.float64], rows: NDArray[np.int64]) -> None:
        """Add the finite ``values`` (n,) of the rows with the numbers ``rows``."""
        is_taken = np.isfinite(values)
        if not self.is_whole:
            words = mixed_words(rows.astype(np.uint64) ^ np.uint64(_SAMPLE_KEY))
            is_taken &= words < np.uint64(int(2**64 * (self.limit / self.num_rows)))
        self.held.append(values[is_taken])

    def quantiles(self) -> NDArray[np.float64]:
        """Return at most `NUM_QUANTILES` quantiles in rising order, with linear interpolation between values."""
        values = np.sort(np.concatenate([np.empty(0), *self.held]))
        self.held = [values]
        count = min(NUM_QUANTILES, len(values))
        # The places are computed with integers. A rounded place beside the last of equal values would lie between it
        # and the next value, so that equal values would not get the middle of their shares.
        place, rest = np.divmod(np.arange(count) * (len(values) - 1), max(1, count - 1))
        below, above = values[place], values[np.minimum(place + 1, len(values) - 1)]
        quantiles: NDArray[np.float64] = np.minimum(
            above, below + (above - below) * (rest / max(1, count - 1))
        )
        return quantiles
