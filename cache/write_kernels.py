"""The loops in the planner of an embedding's slots. They check nothing; the caller checks ids, dtypes and capacities.

`write_plan` explains the plan. A slot is pinned while a batch of one of the last steps used it. Each other slot is in
one chain. Its first slots become victims first. The chains are

- 0 to ``horizon`` - 1: slots of rows whose next use is this batch of the plan or of its look-ahead;
- ``horizon``: slots of rows without a known next use, the one used last at the end;
- ``horizon`` + 1: empty slots.

A chain is as many linked lists as there are lanes, and a slot's lane is its remainder. A list alone would wait for each
slot's record until it knows the next slot. The lanes take turns, so that the next records are fetched meanwhile.

When a batch is planned, all slots of its chain are hits, so the chain is left behind as a whole, and no slot is
searched in a chain. An access enters at most one chain, so a plan takes O(1) time per access. The kernels share these
arguments:

- keys, values, base: the arrays of a `PlannerTable`. An entry is a slot (>= 0), ``base - t`` for a row whose first
  use is batch t, ``base - horizon`` for a row in a forward piece, and ``base - horizon - 1`` for a late row;
- content: (C,) the row in each slot, -1 if empty;
- records: (C, 3) int32, the columns below;
- heads, tails: (chains, lanes) int32, each list's first and last slot, -1 if it is empty; lengths: each chain's slots;
- far: no chain of a batch between ``far`` and the horizon has a slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gloader.cache.next_use import cell
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
AFTER: Final = 0  # the slot after it in its list, or -1
USE: Final = 1  # its row's next use: a batch of the plan or of the look-ahead, or the horizon
LAST: Final = 2  # number of the batch that used its row last, -1 before all batches
NUM_COLUMNS: Final = 3
NUM_MARKS: Final = 2  # entries below those of the horizon's batches: forward and late
NUM_LANES: Final = (
    8  # a power of two; along a chain of 10**7 slots, 1 takes 150 ns per slot, and 8 take 20 ns
)
_LANE: Final = NUM_LANES - 1
# Accesses between the prefetch of a table entry or of a slot's record and its read.
_AHEAD: Final = 24


@njit(cache=True, nogil=True, inline="always")
def _append(
    slot: int,
    chain: int,
    records: NDArray[np.int32],
    heads: NDArray[np.int32],
    tails: NDArray[np.int32],
    lengths: NDArray[np.int32],
) -> None:
    """Make ``slot`` the last one of ``chain``."""
    lane = slot & _LANE
    tail = to_int(tails[chain, lane])
    records[slot, AFTER] = -1
    if tail < 0:
        heads[chain, lane] = slot
    else:
        records[tail, AFTER] = slot
    tails[chain, lane] = slot
    lengths[chain] += 1


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
    fetch_end = 0 if keys.shape[0] else rows.shape[0] - _AHEAD
    for index in range(rows.shape[0]):
        if index < fetch_end:
            prefetch(values, to_int(rows[index + _AHEAD]))
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
    fetch_end = 0 if keys.shape[0] else rows.shape[0] - _AHEAD
    for index in range(rows.shape[0]):
        if index < fetch_end:
            prefetch(values, to_int(rows[index + _AHEAD]))
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
    lengths: NDArray[np.int32],
    released: int,
    oldest: NDArray[np.int32],
    unknown: int,
) -> None:
    """Put every slot that is not pinned into its chain for a new plan, and the slots of known rows into the table.

    The batches from ``released`` on pin their slots. ``unknown`` is the last plan's horizon, and ``oldest`` the
    heads of its chain of rows without a known next use. This chain keeps its order.
    """
    for slot in range(content.shape[0]):
        if content[slot] < 0:
            _append(slot, horizon + 1, records, heads, tails, lengths)
        elif records[slot, LAST] >= released or records[slot, USE] != unknown:
            _chain_slot(slot, content, keys, values, base, horizon, records, heads, tails, lengths, released)
    for lane in range(oldest.shape[0]):
        slot = to_int(oldest[lane])
        while slot >= 0:
            after = to_int(records[slot, AFTER])
            _chain_slot(slot, content, keys, values, base, horizon, records, heads, tails, lengths, released)
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
    lengths: NDArray[np.int32],
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
    if records[slot, LAST] < released:
        _append(slot, use, records, heads, tails, lengths)


@njit(cache=True, nogil=True)
def release(
    codes: NDArray[np.int32],
    number: int,
    horizon: int,
    records: NDArray[np.int32],
    heads: NDArray[np.int32],
    tails: NDArray[np.int32],
    lengths: NDArray[np.int32],
    far: int,
) -> int:
    """Put the slots that batch ``number`` was the last to use into their chains. Return the new ``far``.

    ``codes`` (V,) has the batch's slots, see `load`.
    """
    flat = records.ravel()
    for position in range(codes.shape[0]):
        if position + _AHEAD < codes.shape[0]:
            code = to_int(codes[position + _AHEAD])
            prefetch(flat, NUM_COLUMNS * (code if code >= 0 else -1 - code))
        code = to_int(codes[position])
        slot = code if code >= 0 else -1 - code
        if records[slot, LAST] == number:
            use = to_int(records[slot, USE])
            _append(slot, use, records, heads, tails, lengths)
            if far < use < horizon:
                far = use
    return far


@njit(cache=True, nogil=True)
def find(
    nodes: NDArray[np.integer],
    codes: NDArray[np.int32],
    keys: IdArray,
    values: NDArray[np.int32],
    base: int,
    horizon: int,
    records: NDArray[np.int32],
    number: int,
    entries: NDArray[np.int32],
    positions: NDArray[np.int32],
    sources: NDArray[np.int8],
) -> int:
    """Pin the slots of batch ``number``'s rows that are in slots, and list the other rows. Return their number L.

    ``codes`` (V,) has the rows' next uses, and gets the slots of rows in slots. ``positions`` (>= L,) gets the
    positions of the other rows, and ``sources`` (>= L,) their sources. ``entries`` (>= V,) is scratch.
    """
    flat = records.ravel()
    forward = to_int(base) - horizon
    num_nodes, num_loads = nodes.shape[0], 0
    fetch_end = 0 if keys.shape[0] else num_nodes - _AHEAD
    # The entry at a step's position is read, and then the record of the slot in the entry read _AHEAD steps before.
    for step in range(num_nodes + _AHEAD):
        if step < num_nodes:
            if step < fetch_end:
                prefetch(values, to_int(nodes[step + _AHEAD]))
            entry = to_int(values[cell(keys, to_int(nodes[step]))])
            entries[step] = entry
            if entry >= 0:
                prefetch(flat, NUM_COLUMNS * entry)
        position = step - _AHEAD
        if position < 0:
            continue
        entry = to_int(entries[position])
        if entry >= 0:
            records[entry, USE] = codes[position]
            records[entry, LAST] = number
            codes[position] = entry
        else:
            sources[num_loads] = FORWARD if entry == forward else LATE if entry == forward - 1 else TABLE
            positions[num_loads] = position
            num_loads += 1
    return num_loads


@njit(cache=True, nogil=True)
def load(
    nodes: NDArray[np.integer],
    codes: NDArray[np.int32],
    keys: IdArray,
    values: NDArray[np.int32],
    base: int,
    horizon: int,
    content: IdArray,
    records: NDArray[np.int32],
    heads: NDArray[np.int32],
    tails: NDArray[np.int32],
    lengths: NDArray[np.int32],
    far: int,
    last: int,
    number: int,
    positions: NDArray[np.int32],
    start: int,
    wait_for: int,
    victims: NDArray[np.integer],
    targets: NDArray[np.int32],
) -> tuple[int, int, int]:
    """Give the rows at ``positions[start:]`` their slots, while there are empty slots or victims.

    Returns the number of rows at ``positions`` that have slots, ``wait_for`` and ``far``.

    Parameters
    ----------
    codes : (V,) the rows' next uses; gets -1 - s for a row that is loaded into slot s
    last : the place in the plan of the last batch of the batch's step
    number : the batch's number since the planner's start
    positions : (L,) positions of the rows without a slot
    wait_for : the batches whose steps the evictions so far wait for
    victims : (>= L,) gets the row that each load evicts, -1 if its slot was empty
    targets : (>= L,) gets the batch of the plan that the evicted row goes forward to, -1 if there is none
    """
    flat = records.ravel()
    lane = _LANE
    for index in range(start, positions.shape[0]):
        chain = horizon + 1
        if lengths[chain] == 0:
            chain = to_int(horizon)
            if lengths[chain] == 0:
                while far > last and lengths[far] == 0:
                    far -= 1
                if far <= last:
                    return index, wait_for, far
                chain = to_int(far)
        lane = (lane + 1) & _LANE
        while heads[chain, lane] < 0:
            lane = (lane + 1) & _LANE
        slot = to_int(heads[chain, lane])
        after = to_int(records[slot, AFTER])
        heads[chain, lane] = after
        lengths[chain] -= 1
        if after < 0:
            tails[chain, lane] = -1
        else:
            prefetch(flat, NUM_COLUMNS * after)
            prefetch(content, after)
        victim = to_int(content[slot])
        victims[index] = victim
        targets[index] = -1
        if victim >= 0:
            wait_for = max(wait_for, to_int(records[slot, LAST]) + 1)
            if chain < horizon:
                targets[index] = chain
                values[cell(keys, victim)] = to_int(base) - horizon
        position = to_int(positions[index])
        node = to_int(nodes[position])
        values[cell(keys, node)] = slot
        content[slot] = node
        records[slot, USE] = codes[position]
        records[slot, LAST] = number
        codes[position] = -1 - slot
    return positions.shape[0], wait_for, far
