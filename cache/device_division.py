"""The room for rows on a device, divided over the tables of several node types: the next byte where it saves most."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache.device_plan import cache_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Rows of about the same score are counted together: sixteen steps to a factor of two, down to 2**-64 of the most.
_STEPS: Final = 16
_OCTAVES: Final = 64
# What an access to a row that nobody was seen to want is worth beside the least that was seen.
_UNSEEN: Final = 1e-6
_BISECTIONS: Final = 100


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceShelf:
    """The rows of a table, as far as the division of a device has to know them."""

    scores: NDArray[np.integer] | NDArray[np.floating]  # (N,) accesses or chances, alike for all tables
    row_bytes: int  # R, as stored
    saved_bytes: int  # over the link, for each access to a row that is held
    has_scale: bool = False  # rows are int8, each with a float32 factor
    has_all_scales: bool = False  # the factors of all N rows are there too
    levels: _Levels = field(init=False)

    def __post_init__(self) -> None:
        """Count the rows of each score."""
        object.__setattr__(self, "levels", _Levels.of(self.scores))

    def num_bytes(self, num_rows: int) -> int:
        """Return the bytes of so many of the rows, with the map of a table that is not held whole."""
        return cache_bytes(
            num_rows,
            num_nodes=len(self.scores),
            row_bytes=self.row_bytes,
            has_scale=self.has_scale,
            has_all_scales=self.has_all_scales,
        )

    @cached_property
    def row_cost(self) -> int:
        """Bytes of one row."""
        return self.num_bytes(len(self.scores)) // max(len(self.scores), 1)

    @cached_property
    def map_cost(self) -> int:
        """Bytes beside the rows of a table that is not held whole."""
        return self.num_bytes(1) - self.row_cost if len(self.scores) > 1 else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Levels:
    """Rows counted by score, the hottest first; those without one are the last."""

    scores: NDArray[np.float64]  # (V,) of a row, descending
    counts: NDArray[np.int64]  # (V,) rows of that score

    @classmethod
    def of(cls, scores: NDArray[np.integer] | NDArray[np.floating]) -> _Levels:
        most = float(scores.max()) if len(scores) else 0.0
        if most <= 0:
            return cls(scores=np.zeros(1), counts=np.array([len(scores)]))
        # Wide enough that equal scores are in one level, narrow enough that small counts of accesses have one each.
        edges = most * 2.0 ** (np.arange(-_OCTAVES * _STEPS, 2) / _STEPS - 0.5 / _STEPS)
        # In pieces, as `np.histogram` counts: a table has no second array of all its rows.
        counts, _ = np.histogram(scores, bins=edges)
        sums, _ = np.histogram(scores, bins=edges, weights=scores)
        found = np.flatnonzero(counts)[::-1]
        means = sums[found] / counts[found]
        unseen = len(scores) - int(counts.sum())
        return cls(scores=np.append(means, _UNSEEN * means[-1]), counts=np.append(counts[found], unseen))


def divide_device_bytes(num_bytes: int, shelves: Sequence[DeviceShelf]) -> tuple[int, ...]:
    """Return the bytes of a device that each table gets, of which `rows_that_fit` makes rows. Pure.

    At one price of a byte, the same for all tables, each holds the rows that save more than they cost; the price is
    the lowest at which they fit. A table that is not held whole pays for the map of its slots too, or holds nothing.

    Parameters
    ----------
    num_bytes : for the rows of all tables together
    shelves : the tables
    """
    if len(shelves) == 1:
        return (num_bytes,)
    tables = [_Table(shelf) for shelf in shelves]
    if sum(table.whole_bytes for table in tables) <= num_bytes:
        return tuple(table.whole_bytes for table in tables)
    # High enough for nobody to hold anything: a byte saves no more than the hottest row's.
    low, high = 0.0, 1.0 + max(table.most_gain for table in tables)
    for _ in range(_BISECTIONS):
        price = (low + high) / 2
        if sum(table.at_price(price) for table in tables) <= num_bytes:
            high = price
        else:
            low = price
    held = [table.at_price(high) for table in tables]
    _spend(num_bytes - sum(held), held, tables)
    return tuple(held)


def _spend(left: int, held: list[int], tables: Sequence[_Table]) -> None:
    """Give the bytes that no price hands out where they save most: those of a level or a map. Changes ``held``."""
    for _ in range(2 * len(tables)):
        options = [table.most_within(mine + left) for table, mine in zip(tables, held, strict=True)]
        gains = [
            table.saved(option) - table.saved(mine)
            for table, option, mine in zip(tables, options, held, strict=True)
        ]
        best = int(np.argmax(gains))
        if gains[best] <= 0:
            return
        left -= options[best] - held[best]
        held[best] = options[best]


class _Table:
    """What bytes of a device save in the rows of a table."""

    def __init__(self, shelf: DeviceShelf) -> None:
        self._shelf = shelf
        levels = shelf.levels
        self._rows = np.concatenate([[0], np.cumsum(levels.counts)])
        per_row = levels.scores * shelf.saved_bytes
        self._saved = np.concatenate([[0.0], np.cumsum(per_row * levels.counts)])
        self._gains = per_row / max(shelf.row_cost, 1)  # of a byte, descending
        self.most_gain = float(self._gains[0])
        self.whole_bytes = shelf.num_bytes(len(shelf.scores))

    def at_price(self, price: float) -> int:
        """Return the bytes that pay where each costs ``price``."""
        paying = int(np.searchsorted(-self._gains, -price, side="left"))
        some = self._shelf.num_bytes(int(self._rows[paying]))
        options = (self.whole_bytes, some, 0)
        return max(options, key=lambda num_bytes: (self.saved(num_bytes) - price * num_bytes, -num_bytes))

    def most_within(self, num_bytes: int) -> int:
        """Return the most bytes of whole rows that ``num_bytes`` have room for."""
        if num_bytes >= self.whole_bytes:
            return self.whole_bytes
        rows = max(num_bytes - self._shelf.map_cost, 0) // max(self._shelf.row_cost, 1)
        return self._shelf.num_bytes(rows)

    def saved(self, num_bytes: int) -> float:
        """Return what `most_within` so many bytes saves."""
        if num_bytes >= self.whole_bytes:
            return float(self._saved[-1])
        rows = max(num_bytes - self._shelf.map_cost, 0) // max(self._shelf.row_cost, 1)
        return float(np.interp(rows, self._rows, self._saved))
