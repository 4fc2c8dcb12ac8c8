"""The node table of Belady's planner: each node's next use, and later its slot in the cache.

A node's next use is the next batch that needs its row. A direct table has an entry for every node of the graph. A hash
table has a cell (key and entry) only for the nodes in the planned batches, so it is smaller if these nodes are few.
`plan_belady` begins and ends a plan on a `PlannerTable`; the loops in `belady_kernels` read and write its arrays.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.core.kernels import njit
from gloader.core.numba_ops import to_int
from gloader.errors import PlanError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

NOTHING: Final = -1  # the entry of a node without a slot and without a known next use
DEVICE: Final = -(2**31)  # the entry of a node whose row is on the device
_FIRST_BASE: Final = -2  # the first plan's entry for batch 0, below NOTHING
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # of Fibonacci hashing: 2**64 divided by the golden ratio
_MAX_LOAD: Final = 0.5  # share of occupied cells above which a hash table grows
_DIRECT_BYTES: Final = 4  # bytes per node in a direct table
_CELL_BYTES: Final = 12  # bytes per cell: an int64 key and an int32 entry
# Bytes per access if all nodes differ: an occupied cell and an empty one. The number of cells is then rounded up to a
# power of two.
_HASH_BYTES_PER_ACCESS: Final = 24


def table_bytes(num_nodes: int, num_accesses: int) -> int:
    """Return the maximum bytes of the table from `PlannerTable.for_trace`. Pure."""
    is_direct = _DIRECT_BYTES * num_nodes <= _HASH_BYTES_PER_ACCESS * num_accesses
    return _DIRECT_BYTES * num_nodes if is_direct else _hash_bytes(num_accesses)


def _hash_bytes(num_accesses: int) -> int:
    """Return the maximum bytes of a hash table with ``num_accesses`` distinct nodes. Pure."""
    cells = 1 << math.ceil(math.log2(max(num_accesses, 512) / _MAX_LOAD))
    return _CELL_BYTES * cells * 3 // 2  # during growth the smaller table exists as well


class PlannerTable:
    """One int32 entry per node: a slot (>= 0), a batch in the current plan, NOTHING or DEVICE. Not thread-safe.

    With ``num_nodes``, the table is direct, with 4 bytes per node. Without, it is a hash table that grows with its
    nodes. Batch t is stored as ``base - t``. Each plan takes a lower ``base``, so that earlier plans' entries are no
    batches of this plan and need not be cleared. ``keys`` (cells,) int64 holds each cell's node, -1 if free, and is
    empty in a direct table. ``values`` int32 holds the entries.
    """

    def __init__(self, num_nodes: int | None = None) -> None:
        self.num_nodes = num_nodes
        self.base = _FIRST_BASE
        self.num_keys = 0
        self._is_clean = True
        direct = num_nodes is not None
        # A hash table starts with 1024 cells. Their number is always a power of two, see `cell`.
        self.keys: IdArray = np.full(0 if direct else 1024, -1, dtype=np.int64)
        self.values = np.full(num_nodes if num_nodes is not None else 1024, NOTHING, dtype=np.int32)

    @classmethod
    def for_trace(cls, num_nodes: int, num_accesses: int) -> PlannerTable:
        """Return the table for a run's plans: of the kind that `table_bytes` counts in the memory plan.

        It is a hash table if this takes fewer bytes with ``num_accesses`` distinct nodes, before the number of cells is
        rounded up. Node ids are below ``num_nodes``.
        """
        is_direct = _DIRECT_BYTES * num_nodes <= _HASH_BYTES_PER_ACCESS * num_accesses
        return cls(num_nodes if is_direct else None)

    @classmethod
    def smallest(cls, num_nodes: int, num_accesses: int) -> PlannerTable:
        """Return the table with the smaller peak, for one use on few batches (`next_use_counts`).

        The peak includes the rounding of the number of cells, and growth. It is at most 4 bytes per node.
        """
        return cls(num_nodes if _DIRECT_BYTES * num_nodes <= _hash_bytes(num_accesses) else None)

    @property
    def num_bytes(self) -> int:
        """Bytes that the table's arrays take now."""
        return self.keys.nbytes + self.values.nbytes

    def begin(self, horizon: int) -> None:
        """Start a plan over ``horizon`` batches. No entry from before then means a batch, and a hash table is empty.

        In a direct table, an earlier plan's slots may stay. `belady_kernels` takes them for nodes without a next use.
        """
        if self.num_nodes is None:
            self.keys[:] = -1
            self.num_keys = 0
        # The entries of a direct table are cleared in two cases. An interrupted plan left batches that this plan would
        # take for its own batches. Or the base, which falls by the horizon in each plan, would come near to DEVICE. A
        # plan stores no value below ``base - horizon``; twice the horizon is a safe distance.
        if not self._is_clean or self.num_nodes is None or self.base - 2 * horizon <= DEVICE + 1:
            self.values[:] = NOTHING
            self.base = _FIRST_BASE
        self._is_clean = False

    def end(self, horizon: int) -> None:
        """End a plan, so that its batches become void. Slots stay, because they do no harm (see `begin`)."""
        # The next plan's batches have entries below this plan's, so the old entries mean no batch.
        self.base -= horizon
        self._is_clean = True

    def reserve(self, more: int) -> None:
        """Grow a hash table if ``more`` new nodes would fill over half of it. No effect on a direct table."""
        needed = self.num_keys + more
        if self.num_nodes is not None or needed <= _MAX_LOAD * len(self.keys):
            return
        size = 1 << int(np.ceil(np.log2(needed / _MAX_LOAD)))
        keys = np.full(size, -1, dtype=np.int64)
        values = np.full(size, NOTHING, dtype=np.int32)
        _rehash(self.keys, self.values, keys, values)
        self.keys, self.values = keys, values

    @property
    def valid_ids(self) -> str:
        """The valid node ids as text, for messages. A hash table accepts every id from 0 on."""
        return "0 or more" if self.num_nodes is None else f"in 0..{self.num_nodes}-1"

    def put(self, ids: IdArray, value: int) -> None:
        """Set one value for all ``ids``.

        Raises
        ------
        PlanError
            An id is out of range.
        """
        self.reserve(len(ids))
        added = _put(ids, np.int32(value), self.keys, self.values)
        if added < 0:
            raise PlanError(f"row ids must be {self.valid_ids}; got {int(ids.min())}..{int(ids.max())}")
        self.num_keys += added


@njit(cache=True, nogil=True)
def cell(keys: IdArray, node: int) -> int:
    """Return the index of ``node`` in ``values``: the node itself in a direct table, its cell in a hash table.

    If the node is not in the hash table, the result is the free cell in which it belongs.
    """
    size = keys.shape[0]
    if size == 0:
        return node
    mask = size - 1
    # The size is a power of two, so the mask takes the remainder. The product's upper half is well mixed.
    place = to_int((np.uint64(node) * _MULTIPLIER) >> np.uint64(32)) & mask
    while keys[place] != node and keys[place] != -1:
        place = (place + 1) & mask
    return place


@njit(cache=True, nogil=True)
def _put(ids: IdArray, value: np.int32, keys: IdArray, values: NDArray[np.int32]) -> int:
    """Set ``value`` for all ``ids``; return the number of new keys, or -1 if an id is out of range."""
    added = 0
    for i in range(ids.shape[0]):
        node = ids[i]
        if node < 0 or (keys.shape[0] == 0 and node >= values.shape[0]):
            return -1
        place = cell(keys, node)
        if keys.shape[0] and keys[place] == -1:
            keys[place] = node
            added += 1
        values[place] = value
    return added


@njit(cache=True, nogil=True)
def _rehash(
    old_keys: IdArray, old_values: NDArray[np.int32], keys: IdArray, values: NDArray[np.int32]
) -> None:
    """Copy all occupied cells into the new, larger and empty table ``keys`` and ``values``."""
    for i in range(old_keys.shape[0]):
        if old_keys[i] >= 0:
            place = cell(keys, old_keys[i])
            keys[place] = old_keys[i]
            values[place] = old_values[i]
