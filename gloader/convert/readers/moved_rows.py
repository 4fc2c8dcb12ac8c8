"""Feature rows in another order, or more than once, than they are stored: of edges that a source streams so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gloader.convert.source import FeatureStream


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRows:
    """Each row twice: of edges whose reverse is streamed right behind them."""

    rows: FeatureStream

    @property
    def num_rows(self) -> int:
        """Twice as many."""
        return 2 * self.rows.num_rows

    @property
    def dim(self) -> int:
        """F."""
        return self.rows.dim

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the chunks."""
        return self.rows.dtype

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield (n, F) arrays of consecutive rows, n <= ``max_rows``, but at least a pair."""
        for chunk in self.rows.chunks(max(1, max_rows // 2)):
            yield np.repeat(chunk, 2, axis=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PickedRows:
    """The rows of an array by number."""

    rows: NDArray[np.generic]  # (M, F)
    numbers: NDArray[np.integer]  # (N,)

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self.numbers.shape[0])

    @property
    def dim(self) -> int:
        """F."""
        return int(self.rows.shape[1])

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The dtype of the chunks."""
        return self.rows.dtype

    def chunks(self, max_rows: int) -> Iterator[NDArray[np.generic]]:
        """Yield (n, F) arrays of consecutive rows, n <= ``max_rows``."""
        for start in range(0, self.num_rows, max_rows):
            yield self.rows[self.numbers[start : start + max_rows]]
