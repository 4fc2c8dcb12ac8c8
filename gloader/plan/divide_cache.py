"""Division of the host cache over the tables: the next byte goes where it saves most bytes of reading. Pure."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Of what is shared out for missing rows, evenly: the first batches miss what a cache holds later. Less than what a plan
# adds to the rows that it predicts, so that the rest still holds those.
_EVEN_SHARE: Final = 1 / 16


class HitCurve(Protocol):
    """The hits of a cache of any size: linear between corners. A `CacheOutlook` is one. Equal to itself alone."""

    @property
    def capacities(self) -> NDArray[np.float64]:
        """(K,) ascending, of slots, the first is 0."""
        ...

    @property
    def hits(self) -> NDArray[np.float64]:
        """(K,) at those, of the same time in all tables."""
        ...


class CachedTable(NamedTuple):
    """A table as the host cache sees it."""

    num_rows: int  # N_t
    row_bytes: int  # that a miss reads
    held_bytes: int  # of a row in the cache, with what is kept beside it


class _Stretch(NamedTuple):
    """Rows of a table that save alike."""

    table: int
    num_rows: int
    saved: float  # bytes of reading, of a batch, by a byte of the cache


def divide_cache(
    num_bytes: int, tables: Sequence[CachedTable], curves: Sequence[HitCurve]
) -> tuple[int, ...]:
    """Return how many rows of each table are cached: the next byte goes where it saves most bytes of reading. Pure.

    A curve that falls slowly first and steeply later counts as the straight line between the ends of that: its lower
    convex hull. Bytes that save nothing go to the tables in turn, as rows of which nothing is known may be used again.
    Never fewer rows of any table for more bytes, and what is left over has no room for the row that would be next.

    Parameters
    ----------
    num_bytes : of the whole cache, at least 0
    tables : that share it
    curves : of each
    """
    counts = [0] * len(tables)
    left = num_bytes
    for stretch in _stretches(tuple(tables), tuple(curves)):
        held_bytes = tables[stretch.table].held_bytes
        taken = min(stretch.num_rows, left // held_bytes)
        counts[stretch.table] += taken
        left -= taken * held_bytes
        # What is too little for this row is not spent on a smaller one: it would be taken back for a byte more.
        if taken < stretch.num_rows:
            break
    return tuple(counts)


def share_out(num_bytes: int, missed_bytes: Sequence[int]) -> tuple[int, ...]:
    """Return the part of ``num_bytes`` that each table gets for the rows that it misses, in proportion to those. Pure.

    Parameters
    ----------
    num_bytes : of memory or of disk
    missed_bytes : that each table is predicted to miss, as in `MemoryPlan.missed_bytes`
    """
    total = sum(missed_bytes)
    even = int(num_bytes * (_EVEN_SHARE if total else 1.0)) // max(len(missed_bytes), 1)
    rest = num_bytes - even * len(missed_bytes)
    return tuple(even + rest * missed // max(total, 1) for missed in missed_bytes)


@lru_cache(maxsize=16)  # plans try many sizes of the cache for one size of superbatches
def _stretches(tables: tuple[CachedTable, ...], curves: tuple[HitCurve, ...]) -> tuple[_Stretch, ...]:
    """Return the stretches of all tables, those that save most first; of those that save alike, in their order."""
    found = [
        stretch
        for number, (table, curve) in enumerate(zip(tables, curves, strict=True))
        for stretch in _of_table(number, table, curve)
    ]
    return tuple(sorted(found, key=lambda stretch: -stretch.saved))


def _of_table(number: int, table: CachedTable, curve: HitCurve) -> list[_Stretch]:
    """Return the stretches of one table, those that save most first."""
    # Between two corners a curve is straight. Whole rows are cached: corners are those beside them.
    corners = np.concatenate([np.floor(curve.capacities), np.ceil(curve.capacities), [0, table.num_rows]])
    rows = np.unique(np.clip(corners, 0, table.num_rows))
    hits = np.interp(rows, curve.capacities, curve.hits)
    kept = _concave_corners(rows, hits)
    price = table.row_bytes / table.held_bytes
    return [
        _Stretch(
            table=number,
            num_rows=int(rows[right] - rows[left]),
            saved=float(hits[right] - hits[left]) / float(rows[right] - rows[left]) * price,
        )
        for left, right in pairwise(kept)
    ]


def _concave_corners(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[int]:
    """Return the corners of the smallest concave curve that is nowhere below (x, y), x ascending. Pure."""
    kept: list[int] = []
    for point in range(len(x)):
        while len(kept) > 1:
            first, last = kept[-2:]
            rise = (y[last] - y[first]) * (x[point] - x[first])
            if rise > (y[point] - y[first]) * (x[last] - x[first]):
                break
            kept.pop()
        kept.append(point)
    return kept
