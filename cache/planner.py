"""Planners for consecutive superbatches: Belady's planner, and every other policy in the same form.

A superbatch is a number of consecutive batches that are planned together. A planner turns its trace (each batch's
unique node ids) into a `CachePlan`: the host cache's action for each access. An action is a hit in a slot, a miss that
bypasses the cache, a miss that enters a slot, or a row on the device. The planner works ahead of the execution, so it
keeps the cache content that its last plan will leave behind. `make_planner` makes a planner by name for the loader's
inspect stage; `slot_bytes` and `node_bytes` give its memory for the memory plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

import numpy as np

from gloader.cache.actions import ON_DEVICE, count_actions
from gloader.cache.baselines import ONLINE_KERNELS, PolicyName, make_policy
from gloader.cache.belady import plan_belady
from gloader.cache.cache_plan import CachePlan, initial_content
from gloader.cache.next_use import PlannerTable
from gloader.cache.trace import NO_ROWS, BatchReader
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.cache.actions import Actions
    from gloader.cache.baselines import Policy
    from gloader.types import IdArray

    Accesses = Sequence[NDArray[np.integer]]

PlannerName = Literal["belady", PolicyName]

# Bytes per slot, in addition to its feature row.
_TAG_BYTES: Final = 8  # every policy: the id of the row in the slot
_BELADY_BYTES: Final = 8 + 8 + 4  # the row's id in two consecutive plans, an entry in the free list
# An online policy: the row's id in the current plan, in the next plan and in the policy. Then its queue's entries, see
# `QueueState`: two int32 links to the neighbours, a 1-byte mark (visits), and a stamp (the step in which it entered).
_QUEUE_BYTES: Final = 8 + 8 + 8 + 8 + 1 + 8
# Bytes per node.
_MAP_BYTES: Final = 4  # its slot
_GHOST_BYTES: Final = 8  # S3-FIFO: its number as a ghost, an evicted row that is still remembered


class SuperbatchPlanner(Protocol):
    """Plans superbatches in execution order. Not thread-safe."""

    @property
    def resident(self) -> IdArray:
        """(C,) row in each slot when the next plan begins, -1 if empty; shorter if a `StaticPolicy` has fewer rows."""
        ...

    def plan(self, accesses: Accesses, lookahead: Accesses = ()) -> CachePlan:
        """Plan ``accesses``. The planner assumes that the plan is executed.

        Parameters
        ----------
        accesses : the next superbatch's trace; each batch's ids ascend, as in a `Trace`
        lookahead : the following superbatch's trace
        """
        ...

    def restart(self, resident: IdArray) -> None:
        """Start anew after plans that were not executed completely, from the rows that are really in the cache.

        Parameters
        ----------
        resident : (C,) `SlotCache.resident`, the row in each slot, -1 if empty
        """
        ...


class BeladyPlanner:
    """Belady's MIN. Each plan begins with the last plan's final content, and knows the uses in its look-ahead.

    Parameters
    ----------
    num_nodes : N, the number of nodes
    capacity : C, the number of slots
    resident : (<= C,) row in each slot, -1 if empty; further slots are empty
    reset : True if every superbatch starts from an empty cache without look-ahead (Park et al., "Ginex", VLDB'22)
    device_resident : ids whose rows are on the device (the GPU), which the host cache ignores
    expected_accesses : accesses in a superbatch and its look-ahead, which decide the kind of the planner's node table,
        see `PlannerTable.for_trace`. None means a table with an entry for every node.

    Raises
    ------
    PlanError
        ``resident`` does not fit the capacity.
    """

    def __init__(
        self,
        num_nodes: int,
        capacity: int,
        *,
        resident: IdArray = NO_ROWS,
        reset: bool = False,
        device_resident: IdArray = NO_ROWS,
        expected_accesses: int | None = None,
    ) -> None:
        self._capacity = capacity
        self._reset = reset
        self._device_resident = device_resident
        self._resident = NO_ROWS
        self._table = (
            PlannerTable(num_nodes)
            if expected_accesses is None
            else PlannerTable.for_trace(num_nodes, expected_accesses)
        )
        self.restart(resident)

    @property
    def resident(self) -> IdArray:
        """(C,) row in each slot when the next plan begins, -1 if empty."""
        return self._resident

    def plan(self, accesses: Accesses, lookahead: Accesses = ()) -> CachePlan:
        """Plan ``accesses`` with the fewest misses over them and ``lookahead``; see `plan_belady`.

        Raises
        ------
        PlanError
            An id is out of range or repeats within a batch.
        """
        plan = plan_belady(
            accesses,
            capacity=self._capacity,
            resident=self._resident,
            lookahead=() if self._reset else lookahead,
            device_resident=self._device_resident,
            table=self._table,
        )
        # The next plan starts from this plan's final content, long before this plan is executed.
        if not self._reset:
            self._resident = plan.resident_after
        return plan

    def restart(self, resident: IdArray) -> None:
        """Continue from ``resident`` (<= C,), the row in each slot; further slots are empty.

        If a row is in two slots, only the first one counts.

        Raises
        ------
        PlanError
            There are more rows than slots, or an entry is below -1.
        """
        self._resident = initial_content(NO_ROWS if self._reset else resident, self._capacity)
        # A slot that a plan freed keeps its row until another row enters it. Meanwhile the same row may enter a second
        # slot, but a plan must find each row once. So later slots with the same row count as empty.
        filled = np.flatnonzero(self._resident >= 0)
        _, first = np.unique(self._resident[filled], return_index=True)
        again = np.ones(len(filled), dtype=np.bool_)
        again[first] = False
        self._resident[filled[again]] = -1


class PolicyPlanner:
    """A policy without look-ahead, run over the trace. Superbatch boundaries do not change its steps.

    Parameters
    ----------
    policy : decides the actions; its `resident` rows are the slots' initial content
    on_device : (N,) bool, True for ids on the device, which the policy ignores. None means that there are none.
    """

    def __init__(self, policy: Policy, *, on_device: NDArray[np.bool_] | None = None) -> None:
        self._policy = policy
        self._on_device = on_device

    @property
    def resident(self) -> IdArray:
        """(C,) row in each slot when the next plan begins, -1 if empty; shorter if a `StaticPolicy` has fewer rows."""
        return self._policy.resident

    def plan(self, accesses: Accesses, lookahead: Accesses = ()) -> CachePlan:  # noqa: ARG002  SuperbatchPlanner's
        """Let the policy decide ``accesses``, batch by batch. ``lookahead`` is not used.

        Raises
        ------
        PlanError
            An id is out of range. The policy has then taken the steps before it; call `restart`.
        """
        reader = BatchReader(accesses, "accesses")
        offsets = np.concatenate([[0], np.cumsum(reader.lengths)])
        actions = np.empty(reader.num_accesses, dtype=np.int32)
        counts = np.zeros((3, len(reader)), dtype=np.int64)
        for batch in range(len(reader)):
            part = actions[offsets[batch] : offsets[batch + 1]]
            self._decide(reader.read(batch), part)
            counts[:, batch] = count_actions(part)
        after = self._policy.resident
        return CachePlan(
            capacity=len(after),
            accesses=reader.batches,
            offsets=offsets,
            actions=actions,
            hits=counts[0],
            misses=counts[1],
            admissions=counts[2],
            resident_after=after,
        )

    def restart(self, resident: IdArray) -> None:  # noqa: ARG002  SuperbatchPlanner's
        """Start from the policy's initial content. ``resident`` is not used.

        A static policy's rows are still in their slots. An online policy starts with empty slots and overwrites the
        rows in the cache.
        """
        self._policy.restart()

    def _decide(self, nodes: NDArray[np.integer], actions: Actions) -> None:
        """Write one batch's actions; rows on the device get ON_DEVICE."""
        if self._on_device is None:
            self._policy.decide(nodes, actions)
            return
        # Rows on the device are hidden from the policy, which would give them slots.
        on_host = ~np.take(self._on_device, nodes)
        decided = np.empty(int(np.count_nonzero(on_host)), dtype=np.int32)
        self._policy.decide(nodes[on_host], decided)
        actions[:] = ON_DEVICE
        actions[on_host] = decided


def make_planner(
    name: PlannerName,
    *,
    num_nodes: int,
    capacity: int,
    hot: IdArray = NO_ROWS,
    reset: bool = False,
    device_resident: IdArray = NO_ROWS,
    expected_accesses: int | None = None,
) -> SuperbatchPlanner:
    """Return the planner ``name``: Belady's planner, or the policy with this name as a planner.

    Parameters
    ----------
    name : a `PlannerName`
    num_nodes : N, the number of nodes
    capacity : C, the number of slots
    hot : a static cache's rows, hottest first; other policies ignore them
    device_resident : ids whose rows are on the device (the GPU), which the host cache ignores
    reset, expected_accesses : see `BeladyPlanner`; other policies ignore them

    Raises
    ------
    ConfigError
        The name is unknown, or the capacity is out of range.
    PlanError
        A hot row is out of range or repeats.
    """
    if name == "belady":
        return BeladyPlanner(
            num_nodes,
            capacity,
            reset=reset,
            device_resident=device_resident,
            expected_accesses=expected_accesses,
        )
    if name not in get_args(PolicyName):
        raise ConfigError(f"policy {name!r} is not one of belady, {', '.join(get_args(PolicyName))}")
    # The policies get a mask instead of the list of ids, because they look up every access.
    on_device = None
    if len(device_resident):
        on_device = np.zeros(num_nodes, dtype=np.bool_)
        on_device[device_resident] = True
    return PolicyPlanner(
        make_policy(name, num_nodes=num_nodes, capacity=capacity, hot=hot), on_device=on_device
    )


def slot_bytes(name: PlannerName) -> int:
    """Return the bytes per slot that planner, plan and `SlotCache` take together, without the feature row. Pure."""
    if name == "none":
        return 0
    if name == "static":
        return _TAG_BYTES + 8  # the hot row's id in the policy
    return _TAG_BYTES + (_BELADY_BYTES if name == "belady" else _QUEUE_BYTES)


def node_bytes(name: PlannerName) -> int:
    """Return the planner's bytes per graph node. Pure.

    Belady's planner may need less, see `gloader.cache.next_use.table_bytes`.
    """
    kernel = ONLINE_KERNELS.get(name)
    return _MAP_BYTES + (_GHOST_BYTES if kernel and kernel.has_ghosts else 0)
