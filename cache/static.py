"""Hot sets: which nodes' rows are worth keeping in memory for a whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from gloader.cache.trace import NO_ROWS
from gloader.errors import PlanError
from gloader.types import CacheStep

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from gloader.types import IdArray


@njit(cache=True, nogil=True)
def _count_occurrences(ids: NDArray[np.integer], counts: IdArray) -> None:
    for i in range(ids.shape[0]):
        counts[ids[i]] += 1


def hottest_by_degree(degrees: IdArray, num_rows: int) -> IdArray:
    """Return the ``num_rows`` nodes of largest out-degree (PaGraph, SoCC'20, section 4.2), ascending. Pure.

    A node that many others name as in-neighbour is sampled often. Nodes that nobody names are left out
    even if there is room; ties go to the smaller id.

    Parameters
    ----------
    degrees : (N,) int64 out-degrees

    Returns
    -------
    (min(num_rows, nodes with an out-edge),) int64
    """
    return np.sort(hottest_first(degrees, num_rows))


def hottest_first(scores: NDArray[np.integer] | NDArray[np.floating], num_rows: int | None = None) -> IdArray:
    """Return the ``num_rows`` nodes of largest score above zero, or all of these, the hottest first. Pure.

    Ties go to the smaller id. Scores are out-degrees (PaGraph), presampled access counts (GNNLab, EuroSys'22,
    section 6.3) or inclusion probabilities (SALIENT++, MLSys'23).
    """
    candidates = np.flatnonzero(scores > 0)
    order = np.argsort(-scores[candidates], kind="stable")
    return candidates[order if num_rows is None else order[: max(num_rows, 0)]]


def access_counts(accesses: Iterable[NDArray[np.integer]], num_nodes: int) -> IdArray:
    """Count how often each node is in ``accesses``, in O(N) memory. Pure.

    Parameters
    ----------
    accesses : int32 or int64 ids in 0..num_nodes-1: the batches of a presampled trace, or pieces of a graph's edges, of
        which each names a node once more as somebody's in-neighbour

    Returns
    -------
    (N,) int64
    """
    counts = np.zeros(num_nodes, dtype=np.int64)
    for nodes in accesses:
        _count_occurrences(np.ascontiguousarray(nodes), counts)
    return counts


class SlotMap:
    """The nodes of a static host cache: slot i holds the row of ``cached[i]``. Thread-safe.

    Costs 4 bytes a node.

    Parameters
    ----------
    num_nodes : N
    cached : (C,) unique node ids

    Raises
    ------
    PlanError
        A cached id is out of range or repeats.
    """

    def __init__(self, num_nodes: int, cached: IdArray) -> None:
        if len(cached) and (cached.min() < 0 or cached.max() >= num_nodes):
            raise PlanError(f"cached ids must be in 0..{num_nodes - 1}, got {cached.min()}..{cached.max()}")
        self._slot_of = np.full(num_nodes, -1, dtype=np.int32)
        self._slot_of[cached] = np.arange(len(cached), dtype=np.int32)
        if np.count_nonzero(self._slot_of >= 0) != len(cached):
            raise PlanError("a node has two slots: cached ids must not repeat")
        self._cached = cached

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self._slot_of)

    @property
    def slot_of(self) -> NDArray[np.int32]:
        """(N,) the slot of each node, -1 where it has none."""
        return self._slot_of

    def look_up(self, nodes: NDArray[np.integer], slots: NDArray[np.int32]) -> None:
        """Write the slot of each of ``nodes`` (U,), ids in range, -1 where it has none."""
        np.take(self._slot_of, nodes, out=slots, mode="clip")  # the mode that writes without a buffer

    def split(self, nodes: IdArray) -> CacheStep:
        """Return which positions of ``nodes`` (U,) are hits, and in which slot, and which are misses.

        Raises
        ------
        PlanError
            A hit's slot does not hold its node.
        """
        n = len(nodes)
        hit_pos, hit_slot, miss_pos, miss_row = np.empty((4, n), dtype=np.int64)
        hits = _split(nodes, self._slot_of, hit_pos, hit_slot, miss_pos, miss_row)
        step = CacheStep(
            hit_pos=hit_pos[:hits],
            hit_slot=hit_slot[:hits],
            miss_pos=miss_pos[: n - hits],
            miss_row=miss_row[: n - hits],
            admit_pos=NO_ROWS,
            admit_slot=NO_ROWS,
        )
        # The map and the list of rows are two arrays; a hit is believed only if they agree.
        if not np.array_equal(self._cached[step.hit_slot], nodes[step.hit_pos]):
            raise PlanError("a hit's slot holds another node: the slot map is corrupted")
        return step


@njit(cache=True, nogil=True)
def _split(
    nodes: NDArray[np.int64],
    slot_of: NDArray[np.int32],
    hit_pos: NDArray[np.int64],
    hit_slot: NDArray[np.int64],
    miss_pos: NDArray[np.int64],
    miss_row: NDArray[np.int64],
) -> int:
    hits = 0
    misses = 0
    for position in range(nodes.shape[0]):
        slot = slot_of[nodes[position]]
        if slot >= 0:
            hit_pos[hits] = position
            hit_slot[hits] = slot
            hits += 1
        else:
            miss_pos[misses] = position
            miss_row[misses] = nodes[position]
            misses += 1
    return hits
