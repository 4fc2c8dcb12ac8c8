"""How soon rows are used again: measured over a few batches, carried on to later ones, and what a cache makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache.curve import next_use_counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.cache.planner import PlannerName
    from gloader.types import IdArray

# Batches that are looked ahead to at most, a superbatch and a half of 512, and somewhat more.
_HORIZON: Final = 1024
_MOST: Final = 1.0 - 1e-6  # of a probability


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReuseProfile:
    """Of the rows of a batch, how many are used again how soon."""

    rows: float  # U, of a batch
    num_nodes: int  # N
    next_uses: NDArray[
        np.float64
    ]  # (D,) rows whose next use is 1, 2, ... D batches later; the others' is beyond


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CacheOutlook:
    """The misses of a batch in the long run, for every size of a cache. Falls, and never rises, with the size."""

    profile: ReuseProfile
    capacities: NDArray[np.float64]  # (K,) ascending, of slots
    hits: NDArray[np.float64]  # (K,) of a batch, at those
    distances: NDArray[np.float64]  # (K,) rows whose next use is nearer than that are hits

    def misses(self, capacity: int) -> float:
        """Return the rows of a batch that ``capacity`` slots miss. Pure."""
        return max(self.profile.rows - float(np.interp(capacity, self.capacities, self.hits)), 0.0)

    def distinct_misses(self, capacity: int, num_batches: int) -> float:
        """Return the different rows that ``num_batches`` batches together miss. Pure."""
        later = self.profile.next_uses[: num_batches - 1]
        distance = np.arange(1, len(later) + 1)
        nearest = float(np.interp(capacity, self.capacities, self.distances))
        # A row that is missed again within the superbatch is counted with its last miss alone.
        missed = np.clip(distance - nearest, 0.0, 1.0)
        again = float(((num_batches - distance) * missed * later).sum())
        each = self.misses(capacity)
        return min(max(num_batches * each - again, each), float(self.profile.num_nodes))


def measure_reuse(batches: Sequence[IdArray], num_nodes: int) -> ReuseProfile:
    """Measure how soon rows are used again in a few consecutive ``batches``, and carry it on to later ones. Pure.

    A node is in a batch with a probability of its own, batch by batch. Three batches tell three moments of these
    probabilities: the rows of one, those that two share, and those that three share. A beta distribution with these
    moments says how many rows are used next after any number of batches; on R-MAT it is off by a few percent.

    Parameters
    ----------
    batches : the unique ids of each, at least one batch
    num_nodes : N

    Raises
    ------
    PlanError
        An id is out of range or repeats within a batch.
    """
    rows = float(np.mean([len(batch) for batch in batches])) if batches else 0.0
    counts = next_use_counts(batches, num_nodes) if len(batches) > 1 else np.zeros((1, 1), np.int64)
    measured = [float(np.mean(np.diagonal(counts, distance))) for distance in range(1, len(batches))]
    found = np.zeros(_HORIZON)
    found[: len(measured)] = measured
    if rows > 0 and measured and measured[0] > 0:
        _carry_on(found, rows, measured)
    # No more rows are used again than there are; the estimates of later batches may say so.
    room = np.maximum(rows - np.concatenate([[0.0], np.cumsum(found)[:-1]]), 0.0)
    return ReuseProfile(rows=rows, num_nodes=num_nodes, next_uses=np.minimum(found, room))


def _carry_on(found: NDArray[np.float64], rows: float, measured: list[float]) -> None:
    """Fill what follows the ``measured`` distances."""
    first = min(measured[0] / rows, _MOST)  # of the rows of a batch, the share that is in the next one too
    second = min(max(1 - measured[1] / measured[0], first), _MOST) if len(measured) > 1 else first
    # Of a beta distribution with these moments; where all nodes are alike it is narrow, and the ratio constant.
    spread = second - first
    total = max(1 + first - 2 * second, 0.0) / spread if spread > 1e-9 else 0.0
    other = total - (first * (total + 1) - 1)
    for distance in range(len(measured), len(found)):
        ratio = (other + distance - 1) / (total + distance + 1) if spread > 1e-9 else 1 - first
        found[distance] = found[distance - 1] * min(max(ratio, 0.0), 1.0)


def cache_outlook(
    profile: ReuseProfile, policy: PlannerName, *, num_batches: int, is_reset: bool = False
) -> CacheOutlook:
    """Return what a cache of any size misses in the long run. Pure.

    Belady's policy keeps the rows that are used again soonest: all whose next use is nearer than some distance, each
    for that many batches. It sees its superbatch and the next one. The others are taken for LRU, which keeps every row
    until as many different ones were used since.

    Parameters
    ----------
    profile : of the batches
    policy : of the cache
    num_batches : S
    is_reset : each superbatch starts from an empty cache, and sees itself alone
    """
    distances = np.arange(1, len(profile.next_uses) + 1, dtype=np.float64)
    uses = profile.next_uses
    if policy == "none":
        uses = uses[:0]
    elif is_reset:
        uses = uses * np.maximum(1 - distances / num_batches, 0.0)
    elif policy == "belady":
        # From the middle of its superbatch, to the end of the next one.
        uses = uses * np.clip(1.5 * num_batches + 0.5 - distances, 0.0, 1.0)
    hits = np.concatenate([[0.0], np.cumsum(uses)])
    if policy == "belady":
        held = np.concatenate([[0.0], np.cumsum(distances[: len(uses)] * uses)])
    else:
        held = np.concatenate([[0.0], np.cumsum(profile.rows - hits[:-1])])
    inside = (held < profile.num_nodes) & (np.concatenate([[1.0], np.diff(held)]) > 0)
    # Slots that are left hold rows of which nothing is known; with a slot for each node nothing is missed.
    # A table without nodes has no size of a cache that is less than all of them.
    is_blind = (is_reset or policy == "none") and bool(inside.any())
    last = hits[inside][-1] if is_blind else profile.rows
    return CacheOutlook(
        profile=profile,
        capacities=np.append(held[inside], float(profile.num_nodes)),
        hits=np.append(hits[inside], last),
        distances=np.append(
            np.arange(len(held), dtype=np.float64)[inside], float(max(int(np.count_nonzero(inside)) - 1, 0))
        ),
    )
