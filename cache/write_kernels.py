"""The loops in the planner of an embedding's slots. They check nothing; the caller checks ids, dtypes and capacities.

`write_plan` explains the plan. Each slot is in one chain, a doubly linked list of slots. The chains are

- 0 to ``horizon`` - 1: slots of rows whose next use is this batch of the plan or of its look-ahead;
- ``horizon``: slots of rows without a known next use;
- the next ``depth`` chains, the pins: slots that the last ``depth`` steps used, by the step's number modulo ``depth``;
- the last one: empty slots.

A step, of one or several batches, is released when its slots leave their pin for the chains of their next uses. Victims
come from these chains alone. Each access enters at most two chains, so a plan takes O(1) time per access. The kernels share these arguments:

- keys, values, base: the arrays of a `PlannerTable`. An entry is a slot (>= 0), ``base - t`` for a row whose first
  use is batch t, ``base - horizon`` for a row in a forward piece, and ``base - horizon - 1`` for a late row;
- content: (C,) the row in each slot, -1 if empty;
- records: (C, 4) int32, the columns below; heads, tails: each chain's first and last slot, negative if it is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gloader.cache.next_use import NOTHING, cell
from gloader.core.kernels import njit
from gloader.core.numba_ops import prefetch, to_int

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gloader.types import IdArray

# The source of a load.
FORWARD: Final = 0  # the forward piece of its batch
TABLE: Final = 1  # the rows that the staging of the superbatch read from the table
LATE: Final = 2  # the table, read at the load, because the staging may have read it before the row's eviction

# The columns of a slot's record.
BEFORE: Final = 0  # the slot before it in its chain, or -1 - chain
AFTER: Final = 1  # the slot after it, or -1 - chain
USE: Final = 2  # its row's next use: a batch of the plan or of the look-ahead, or the horizon
LAST: Final = 3  # number of the step that used its row last, -1 before all steps
NUM_COLUMNS: Final = 4
NUM_MARKS: Final = 2  # entries below those of the horizon's batches: forward and late
# Accesses between the prefetch of a table entry and its read.
_AHEAD: Final = 24


@njit(cache=True, nogil=True, inline="always")
def _append(
    slot: int, chain: int, records: NDArray[np.int32], heads: NDArray[np.int32], tails: NDArray[np.int32]
) -> None:
    """Make ``slot`` the last one of ``chain``."""
    tail = to_int(tails[chain])
    records[slot, AFTER] = -1 - chain
    if tail < 0:
        records[slot, BEFORE] = -1 - chain
        heads[chain] = slot
    else:
        records[slot, BEFORE] = tail
        records[tail, AFTER] = slot
    tails[chain] = slot


@njit(cache=True, nogil=True, inline="always")
def _unlink(slot: int, records: NDArray[np.int32], heads: NDArray[np.int32], tails: NDArray[np.int32]) -> None:
    """Take ``slot`` out of its chain."""
    before, after = to_int(records[slot, BEFORE]), to_int(records[slot, AFTER])
    if before < 0:
        heads[-1 - before] = after
    else:
        records[before, AFTER] = after
    if after < 0:
        tails[-1 - after] = before
    else:
        records[after, BEFORE] = before


@njit(cache=True, nogil=True)
def _first_use(row: int, keys: IdArray, values: NDArray[np.int32], base: int, horizon: int) -> int:
    """Return the first batch that uses ``row``, or -1 if none does or its entry is a slot or a mark."""
    place = cell(keys, row)
    if keys.shape[0] and keys[place] == -1:
        return -1
    batch = to_int(base) - to_int(values[place])
    return batch if 0 <= batch < horizon else -1


@njit(cache=True, nogil=True)
def mark_forward(
    rows: NDArray[np.integer],
    targets: IdArray,
    keys: IdArray,
    values: NDArray[np.int32],
    base: int,
    horizon: int,
) -> int:
    """Mark ``rows`` as lying in the forward pieces of the batches ``targets``, batches of this plan or later ones.

    Returns the index of the first row whose first use is another batch, or -1.
    """
    for index in range(rows.shape[0]):
        row = to_int(rows[index])
        use = _first_use(row, keys, values, base, horizon)
        if targets[index] >= horizon:
            if use >= 0:
                return index
        elif use != targets[index]:
            return index
        else:
            values[cell(keys, row)] = to_int(base) - horizon
    return -1


@njit(cache=True, nogil=True)
def mark_late(
    rows: NDArray[np.integer], keys: IdArray, values: NDArray[np.int32], base: int, horizon: int
) -> None:
    """Mark those of ``rows`` that the plan uses and that are neither in a slot nor in a forward piece as late."""
    for index in range(rows.shape[0]):
        row = to_int(rows[index])
        if _first_use(row, keys, values, base, horizon) >= 0:
            values[cell(keys, row)] = to_int(base) - horizon - 1


@njit(cache=True, nogil=True)
def chain_slots(
    content: IdArray,
    keys: IdArray,
    values: NDArray[np.int32],
    base: int,
    horizon: int,
    records: NDArray[np.int32],
    heads: NDArray[np.int32],
    tails: NDArray[np.int32],
    depth: int,
    released: int,
    oldest: int,
    unknown: int,
) -> None:
    """Put every slot into its chain for a new plan, and the slots of known rows into the table.

    ``released`` is the number of released steps. ``unknown`` is the last plan's horizon, and ``oldest`` the first
    slot in its chain of rows without a known next use. This chain keeps its order: the row used last is its last one.
    """
    for slot in range(content.shape[0]):
        if content[slot] < 0:
            _append(slot, horizon + 1 + depth, records, heads, tails)
        elif records[slot, LAST] >= released or records[slot, USE] != unknown:
            _chain_slot(slot, content, keys, values, base, horizon, records, heads, tails, depth, released)
    slot = to_int(oldest)
    while slot >= 0:
        after = to_int(records[slot, AFTER])
        _chain_slot(slot, content, keys, values, base, horizon, records, heads, tails, depth, released)
        slot = after


@njit(cache=True, nogil=True)
def _chain_slot(
    slot: int,
    content: IdArray,
    keys: IdArray,
    values: NDArray[np.int32],
    base: int,
    horizon: int,
    records: NDArray[np.int32],
    heads: NDArray[np.int32],
    tails: NDArray[np.int32],
    depth: int,
    released: int,
) -> None:
    """Put one slot with a row into its chain, see `chain_slots`."""
    row = content[slot]
    use = _first_use(row, keys, values, base, horizon)
    if use >= 0:
        values[cell(keys, row)] = slot
    else:
        use = to_int(horizon)
    records[slot, USE] = use
    last = to_int(records[slot, LAST])
    chain = horizon + 1 + last % depth if last >= released else use
    _append(slot, chain, records, heads, tails)


@njit(cache=True, nogil=True)
def _release(
    pin: int,
    horizon: int,
    far: int,
    records: NDArray[np.int32],
    heads: NDArray[np.int32],
    tails: NDArray[np.int32],
) -> int:
    """Move the slots of the chain ``pin`` to the chains of their next uses. Return the new ``far``, see `assign`."""
    slot = to_int(heads[pin])
    heads[pin] = -1
    tails[pin] = -1
    while slot >= 0:
        after = to_int(records[slot, AFTER])
        use = to_int(records[slot, USE])
        _append(slot, use, records, heads, tails)
        if far < use < horizon:
            far = use
        slot = after
    return far


@njit(cache=True, nogil=True)
def assign(
    nodes: NDArray[np.integer],
    slots: NDArray[np.int32],
    keys: IdArray,
    values: NDArray[np.int32],
    base: int,
    horizon: int,
    content: IdArray,
    records: NDArray[np.int32],
    heads: NDArray[np.int32],
    tails: NDArray[np.int32],
    depth: int,
    released: int,
    far: int,
    last: int,
    step: int,
    positions: NDArray[np.int32],
    sources: NDArray[np.int8],
    victims: NDArray[np.integer],
    targets: NDArray[np.int32],
) -> tuple[int, int, int, int]:
    """Give each of a batch's rows its slot.

    Returns the number of loads, the number of released steps, the batch's `WriteStep.wait_for`, and ``far``. The number
    of loads is -1 if the step's rows do not fit in the slots.

    ``step`` is the number of the batch's step since the planner's start, and ``last`` the place of the step's last batch
    in the plan. ``slots`` (V,) has the rows' next uses, and gets the slot s of a row that is in a slot, or -1 - s for a
    load. No chain of a batch between ``far`` and the horizon has a slot. For each load, ``sources`` gets its source, ``victims`` the evicted row
    or -1, and ``targets`` the batch that the evicted row goes forward to, or -1. ``positions`` is scratch.
    """
    pin = horizon + 1 + step % depth
    forward = to_int(base) - horizon
    while released <= step - depth:
        far = _release(horizon + 1 + released % depth, horizon, far, records, heads, tails)
        released += 1
    # The batch's rows that are in slots are pinned first, so that none of them is a victim.
    num_loads = 0
    fetch_end = 0 if keys.shape[0] else nodes.shape[0] - _AHEAD
    for position in range(nodes.shape[0]):
        if position < fetch_end:
            prefetch(values, to_int(nodes[position + _AHEAD]))
        value = to_int(values[cell(keys, to_int(nodes[position]))])
        if value >= 0:
            _unlink(value, records, heads, tails)
            records[value, USE] = slots[position]
            records[value, LAST] = step
            _append(value, pin, records, heads, tails)
            slots[position] = value
        else:
            sources[num_loads] = FORWARD if value == forward else LATE if value == forward - 1 else TABLE
            positions[num_loads] = position
            num_loads += 1
    wait_for = 0
    for load in range(num_loads):
        slot = to_int(heads[horizon + 1 + depth])
        while slot < 0:
            slot = to_int(heads[horizon])
            if slot < 0:
                while far > last and heads[far] < 0:
                    far -= 1
                if far > last:
                    slot = to_int(heads[far])
                elif released >= step:
                    return -1, released, wait_for, far
                else:
                    far = _release(horizon + 1 + released % depth, horizon, far, records, heads, tails)
                    released += 1
        _unlink(slot, records, heads, tails)
        victim = to_int(content[slot])
        target = NOTHING
        if victim >= 0:
            wait_for = max(wait_for, to_int(records[slot, LAST]) + 1)
            if records[slot, USE] < horizon:
                target = to_int(records[slot, USE])
                values[cell(keys, victim)] = forward
        victims[load] = victim
        targets[load] = target
        position = to_int(positions[load])
        node = to_int(nodes[position])
        values[cell(keys, node)] = slot
        content[slot] = node
        records[slot, USE] = slots[position]
        records[slot, LAST] = step
        _append(slot, pin, records, heads, tails)
        slots[position] = -1 - slot
    return num_loads, released, wait_for, far
