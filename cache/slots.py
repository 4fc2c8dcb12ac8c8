"""Where a cached row lives: the map from nodes to slots, and the split of a batch into hits and misses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from gloader.errors import PlanError
from gloader.types import CacheStep, IdArray

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NOTHING = np.empty(0, dtype=np.int64)


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
            admit_pos=_NOTHING,
            admit_slot=_NOTHING,
        )
        if not np.array_equal(self._cached[step.hit_slot], nodes[step.hit_pos]):
            raise PlanError("a hit's slot holds another node: the slot map is corrupted")
        return step
