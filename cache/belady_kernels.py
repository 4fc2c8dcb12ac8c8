"""The loops in Belady's planner. They check ids; the callers check dtypes and shapes.

`belady` explains the algorithm. Each access pushes its row as an entry on the bucket of the row's next use. When more
than C entries are live, the furthest buckets drop entries. The kernels share these arguments:

- keys, values, base: the arrays of a `PlannerTable`, which holds each node's next use and later its slot. Batch t is
  stored as ``base - t``;
- horizon: number of batches with known uses; levels: (N,) hotness of the nodes, or empty;
- live, dropped: number of live and of dropped entries in each bucket; ranks: number of entries visited so far;
- content: (C,) the row in each slot, -1 if empty; free: a stack of the empty slots;
- buckets, actions: (U,) int32, the same array: first each access's bucket, in the end its action.

The planner calls them in this order: `link`, `push_resident`, `push_and_drop`, `keep_resident`, `assign`. A ``place``
is a node's index in ``values``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache.actions import ADMIT, BYPASS, ON_DEVICE
from gloader.cache.next_use import DEVICE, NOTHING, cell
from gloader.core.kernels import njit
from gloader.core.numba_ops import prefetch, to_int

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray

NO_ACTIONS: Final = np.empty(0, dtype=np.int32)  # the ``buckets`` of a look-ahead batch: `link` writes none
_TOP_LEVEL: Final = 255  # the hottest level
# Accesses between the prefetch of a table entry and its read. Without prefetches each branch waits for a random load.
_AHEAD: Final = 24


@njit(cache=True, nogil=True)
def _bucket(value: int, node: int, base: int, horizon: int, levels: NDArray[np.uint8]) -> int:
    """Return the bucket of ``node`` with the table entry ``value``: its next use's batch, or a later one by hotness.

    A node beyond the end of ``levels`` counts as hottest. Pure.
    """
    batch = base - value
    if 0 <= batch < horizon:
        return batch
    if levels.shape[0] == 0:
        return horizon
    if node >= levels.shape[0]:
        return horizon + _TOP_LEVEL
    return horizon + _TOP_LEVEL - to_int(levels[node])


@njit(cache=True, nogil=True)
def link(
    nodes: NDArray[np.integer],
    keys: IdArray,
    values: NDArray[np.int32],
    base: int,
    batch: int,
    horizon: int,
    levels: NDArray[np.uint8],
    buckets: NDArray[np.int32],
) -> tuple[int, int]:
    """Process one batch in the backward pass: write the accesses' buckets, and make ``batch`` their nodes' next use.

    Returns the number of new keys, and the first position with a bad id, or -1. An id is bad if it is out of range or
    occurs twice.
    """
    stored_batch = to_int(base) - batch
    is_hashed = keys.shape[0] > 0
    added = 0
    fetch_end = 0 if is_hashed else nodes.shape[0] - _AHEAD
    for position in range(nodes.shape[0]):
        if position < fetch_end:
            prefetch(values, to_int(nodes[position + _AHEAD]))
        node = to_int(nodes[position])
        if node < 0 or (not is_hashed and node >= values.shape[0]):
            return added, position
        place = cell(keys, node)
        if is_hashed and keys[place] == -1:
            keys[place] = node
            added += 1
        # If the node is already linked to this batch, the batch contains it twice.
        value = to_int(values[place])
        if value == stored_batch:
            return added, position
        if buckets.shape[0]:
            if value == DEVICE:
                buckets[position] = ON_DEVICE
            else:
                buckets[position] = _bucket(value, node, base, horizon, levels)
        if value != DEVICE:
            values[place] = stored_batch
    return added, -1


@njit(cache=True, nogil=True)
def push_resident(
    content: IdArray,
    keys: IdArray,
    values: NDArray[np.int32],
    base: int,
    horizon: int,
    levels: NDArray[np.uint8],
    live: IdArray,
) -> int:
    """Push the rows that are cached at the beginning, except rows on the device.

    Returns the number of pushed rows, or -1 if an id is out of range.
    """
    total = 0
    for slot in range(content.shape[0]):
        node = content[slot]
        if node < 0:
            continue
        if keys.shape[0] == 0 and node >= values.shape[0]:
            return -1
        value = _lookup(node, keys, values)
        if value != DEVICE:
            live[_bucket(value, node, base, horizon, levels)] += 1
            total += 1
    return total


@njit(cache=True, nogil=True)
def _lookup(node: int, keys: IdArray, values: NDArray[np.int32]) -> int:
    """Return the table entry of ``node``, or NOTHING for a node outside a hash table."""
    place = cell(keys, node)
    if keys.shape[0] and keys[place] == -1:
        return NOTHING
    return to_int(values[place])


@njit(cache=True, nogil=True)
def push_and_drop(
    buckets: NDArray[np.int32],
    live: IdArray,
    dropped: IdArray,
    horizon: int,
    far: int,
    total: int,
    capacity: int,
) -> tuple[int, int, int]:
    """Push a batch's accesses, then drop entries of the furthest buckets until ``capacity`` are live.

    ``total`` is the number of live entries. No bucket between ``far`` and the horizon is occupied, so the search for
    the furthest bucket starts at ``far`` instead of the end of a long trace. Returns the new ``far`` and ``total``, and
    the number of the batch's accesses to rows that are not on the device.
    """
    pushed = 0
    for position in range(buckets.shape[0]):
        bucket = buckets[position]
        if bucket >= 0:
            live[bucket] += 1
            pushed += 1
            if far < bucket < horizon:
                far = bucket
    total += pushed
    unknown = live.shape[0] - 1
    # Rows without a known next use leave first, the coldest ones first. Then the furthest batch's rows leave.
    while total > capacity:
        while unknown >= horizon and live[unknown] == 0:
            unknown -= 1
        while unknown < horizon and live[far] == 0:
            far -= 1
        furthest = unknown if unknown >= horizon else far
        excess = min(total - capacity, live[furthest])
        live[furthest] -= excess
        dropped[furthest] += excess
        total -= excess
    return far, total, pushed


@njit(cache=True, nogil=True)
def keep_resident(
    content: IdArray,
    keys: IdArray,
    values: NDArray[np.int32],
    base: int,
    horizon: int,
    levels: NDArray[np.uint8],
    ranks: IdArray,
    dropped: IdArray,
    free: NDArray[np.int32],
) -> int:
    """Write the slots of the resident rows that stay into the table, and push all other slots on ``free``.

    Resident rows are the first entries of their buckets, so this runs before the first `assign`. Returns the number of
    free slots.
    """
    # Slots are visited from the last one down, so that the first slots are on top of the free list and are used first.
    num_free = 0
    for slot in range(content.shape[0] - 1, -1, -1):
        node = content[slot]
        value = DEVICE if node < 0 else _lookup(node, keys, values)
        if value != DEVICE:
            bucket = _bucket(value, node, base, horizon, levels)
            rank = ranks[bucket]
            ranks[bucket] += 1
            place = cell(keys, node)
            is_known = keys.shape[0] == 0 or keys[place] != -1
            if rank >= dropped[bucket]:
                # A row outside the trace needs no entry, because no access looks it up.
                if is_known:
                    values[place] = slot
                continue
            if is_known:
                values[place] = NOTHING
        content[slot] = -1
        free[num_free] = slot
        num_free += 1
    return num_free


@njit(cache=True, nogil=True)
def assign(
    nodes: NDArray[np.integer],
    actions: NDArray[np.int32],
    keys: IdArray,
    values: NDArray[np.int32],
    ranks: IdArray,
    dropped: IdArray,
    free: NDArray[np.int32],
    num_free: int,
    content: IdArray,
    hits: NDArray[np.int32],
) -> tuple[int, int, int]:
    """Turn one batch's buckets in ``actions`` into actions. Return hits, admissions and free slots (-1 if too few).

    A bucket's first entries are dropped, so the order of visits decides which rows stay. Misses are visited before
    hits, because keeping a row that already has a slot costs no copy. Admitted rows get their slots last: hits are
    copied out before rows enter, so a slot freed by a hit may be used. ``hits`` (2, U) is scratch for positions and
    slots.
    """
    num_hits, waiting = 0, 0  # waiting: misses to admit, which get their slots at the end
    fetch_end = 0 if keys.shape[0] else nodes.shape[0] - _AHEAD
    for position in range(nodes.shape[0]):
        if position < fetch_end:
            prefetch(values, to_int(nodes[position + _AHEAD]))
        bucket = to_int(actions[position])
        if bucket == ON_DEVICE:
            continue
        slot = to_int(values[cell(keys, to_int(nodes[position]))])
        if slot >= 0:
            hits[0, num_hits] = position
            hits[1, num_hits] = slot
            num_hits += 1
            continue
        is_kept = ranks[bucket] >= dropped[bucket]
        ranks[bucket] += 1
        actions[position] = ADMIT if is_kept else BYPASS
        waiting += is_kept
    for hit in range(num_hits):
        position, slot = to_int(hits[0, hit]), to_int(hits[1, hit])
        bucket = to_int(actions[position])
        actions[position] = slot
        if ranks[bucket] < dropped[bucket]:
            values[cell(keys, to_int(nodes[position]))] = NOTHING
            content[slot] = -1
            free[num_free] = slot
            num_free += 1
        ranks[bucket] += 1
    if waiting > num_free:
        return num_hits, waiting, -1
    if waiting:
        for position in range(nodes.shape[0]):
            if actions[position] != ADMIT:
                continue
            num_free -= 1
            slot = to_int(free[num_free])
            node = to_int(nodes[position])
            actions[position] = ADMIT - slot
            values[cell(keys, node)] = slot
            content[slot] = node
    return num_hits, waiting, num_free
