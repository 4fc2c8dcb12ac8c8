"""Actions: the host cache's treatment of each access in four bytes, and the step that a batch's actions encode.

An access is one feature row that one batch needs. Planners and policies write actions, and a `CachePlan` stores them,
often in ascending order of the batch's nodes. `batch_step` expands them into a `CacheStep` for the executor, which
lists the positions of hits, misses and admissions (misses that enter the cache). A position is an index in the batch's
own order of nodes. The batch's ``argsort`` maps the plan's order to positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from gloader.core.kernels import njit
from gloader.errors import PlanError
from gloader.types import CacheStep

if TYPE_CHECKING:
    from gloader.types import IdArray

Actions = NDArray[np.int32]

# An action's code is one number. A slot s >= 0 means a hit in slot s, and ADMIT - s a miss that enters slot s.
BYPASS: Final = -1  # a miss that is not kept
ADMIT: Final = -2
ON_DEVICE: Final = -(2**31)  # a row on the device (the GPU), which the host cache ignores
MAX_CAPACITY: Final = 2**31 - 4  # slots; their ADMIT codes fit int32 and differ from ON_DEVICE

_IDENTITY: Final = np.empty(0, dtype=np.int64)  # for `_expand`: the actions are in the batch's own order


def batch_step(
    actions: Actions,
    nodes: NDArray[np.integer],
    order: NDArray[np.integer] | None = None,
    *,
    num_places: int | None = None,
) -> CacheStep:
    """Return the step that ``actions`` (U,) encodes for a batch with ``nodes`` (U,). Pure.

    Rows on the device are neither hits nor misses.

    Parameters
    ----------
    actions : (U,) int32, a slot or one of the codes BYPASS, ADMIT - slot and ON_DEVICE
    nodes : (U,) in the actions' order: the batch's own order, or ascending if the plan is for a `Trace`
    order : (U,) int32 or int64, ``argsort`` of the batch's nodes if the nodes were sorted. The action for ``nodes[p]``
        concerns position ``order[p]``. Without ``order``, positions ascend; with ``order``, ``miss_row`` ascends.
    num_places : number of positions in the batch. It is more than U if a node occurs at several positions. ``order``
        then has one position for each of the U nodes. None means U.

    Raises
    ------
    PlanError
        The lengths differ, or ``order`` names a position outside the batch.
    """
    num = len(actions)
    mapped = _IDENTITY if order is None else np.ascontiguousarray(order)
    if len(nodes) != num or (order is not None and len(mapped) != num):
        raise PlanError(
            f"{num} actions for a batch of {len(nodes)} nodes"
            + ("" if order is None else f" in an order of {len(mapped)}")
            + ": the plan belongs to another batch"
        )
    # One array holds all six lists of the step, because their lengths are known only after the pass.
    out = np.empty((6, num), dtype=np.int64)
    places = num if num_places is None else num_places
    hits, misses, admits = _expand(np.ascontiguousarray(nodes), actions, mapped, places, out)
    if hits < 0:
        raise PlanError(f"the order of a batch of {num} nodes names positions outside 0..{places - 1}")
    hit_pos, hit_slot, miss_pos, miss_row, admit_pos, admit_slot = out
    return CacheStep(
        hit_pos=hit_pos[:hits],
        hit_slot=hit_slot[:hits],
        miss_pos=miss_pos[:misses],
        miss_row=miss_row[:misses],
        admit_pos=admit_pos[:admits],
        admit_slot=admit_slot[:admits],
    )


@njit(cache=True, nogil=True)
def _expand(
    nodes: NDArray[np.integer],
    actions: Actions,
    order: NDArray[np.integer],
    num_places: int,
    out: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Write the step's six arrays to ``out`` (6, U). Return the numbers of hits, misses and admissions.

    The number of hits is -1 if ``order`` has a position outside the batch. ``place`` is an index in ``actions``.
    """
    hit_pos, hit_slot, miss_pos, miss_row, admit_pos, admit_slot = (
        out[0],
        out[1],
        out[2],
        out[3],
        out[4],
        out[5],
    )
    hits, misses, admits = 0, 0, 0
    num = actions.shape[0]
    is_mapped = order.shape[0] > 0
    for place in range(num):
        action = np.int64(actions[place])
        position = np.int64(place)
        if is_mapped:
            position = np.int64(order[place])
            if position < 0 or position >= num_places:
                return -1, 0, 0
        if action >= 0:
            hit_pos[hits] = position
            hit_slot[hits] = action
            hits += 1
        elif action != ON_DEVICE:
            miss_pos[misses] = position
            miss_row[misses] = nodes[place]
            misses += 1
            if action <= ADMIT:
                admit_pos[admits] = position
                admit_slot[admits] = ADMIT - action
                admits += 1
    return hits, misses, admits


@njit(cache=True, nogil=True)
def select_misses(nodes: NDArray[np.integer], actions: Actions, rows: IdArray) -> int:
    """Write the node ids of the misses into ``rows``, at most ``len(rows)``, and return the number of misses."""
    misses = 0
    for place in range(actions.shape[0]):
        action = actions[place]
        if action < 0 and action != ON_DEVICE:
            # Misses are counted even if ``rows`` is full, so that the caller detects another batch's plan.
            if misses < rows.shape[0]:
                rows[misses] = nodes[place]
            misses += 1
    return misses


@njit(cache=True, nogil=True)
def count_actions(actions: Actions) -> tuple[int, int, int]:
    """Return the numbers of hits, misses and admissions. Pure."""
    hits, misses, admits = 0, 0, 0
    for place in range(actions.shape[0]):
        action = actions[place]
        hits += action >= 0
        misses += action < 0 and action != ON_DEVICE
        admits += action <= ADMIT and action != ON_DEVICE
    return hits, misses, admits
