"""Policies that do not know the future, online and static. They answer with the steps that a plan holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, get_args

import numpy as np

from gloader.cache.actions import BYPASS, MAX_CAPACITY, batch_step
from gloader.cache.baseline_kernels import FIRST_GHOST, ONLINE_KERNELS, STEP, QueueState
from gloader.cache.static import SlotMap
from gloader.cache.trace import NO_ROWS
from gloader.config import OnlineName
from gloader.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.cache.actions import Actions
    from gloader.types import CacheStep, IdArray

PolicyName = Literal[OnlineName, "static", "none"]


class Policy(Protocol):
    """Decides batch by batch what the host cache does. Not thread-safe: one gather owns it."""

    @property
    def resident(self) -> IdArray:
        """(C,) the row that each slot holds after the last step, -1 where empty."""
        ...

    def step(self, nodes: NDArray[np.integer], /) -> CacheStep:
        """Return what the cache does for a batch of unique ids (U,), and count on it being done."""
        ...

    def decide(self, nodes: NDArray[np.integer], actions: Actions, /) -> None:
        """Write the same as the actions (U,) of a plan."""
        ...

    def restart(self) -> None:
        """Forget every step: `resident` is again what it was at first."""
        ...


class OnlinePolicy:
    """LRU, FIFO, CLOCK, SIEVE or S3-FIFO over slots. Costs 4 bytes a node and 30 a slot (S3-FIFO: 12 and 30).

    A batch's hits are decided before any of its rows enters. A row that enters stays at least until the next
    step; once every slot has been filled in this step, the remaining misses bypass the cache.

    Parameters
    ----------
    name : FIFO; CLOCK (Corbato 1968); LRU; SIEVE (Zhang et al., NSDI'24); S3-FIFO (Yang et al., SOSP'23)
    num_nodes : N
    capacity : C

    Raises
    ------
    ConfigError
        The policy is unknown, or the capacity is out of range.
    """

    def __init__(self, name: OnlineName, *, num_nodes: int, capacity: int) -> None:
        if name not in ONLINE_KERNELS:
            raise ConfigError(f"policy {name!r} is not one of {', '.join(ONLINE_KERNELS)}")
        if not 0 <= capacity <= MAX_CAPACITY:
            raise ConfigError(f"capacity is {capacity}; it must be in 0..{MAX_CAPACITY} slots")
        kernel = ONLINE_KERNELS[name]
        self._decide = kernel.decide
        self._state = QueueState(
            slot_of=np.empty(num_nodes, dtype=np.int32),
            content=np.empty(capacity, dtype=np.int64),
            links=np.empty((2, capacity), dtype=np.int32),
            marks=np.empty(capacity, dtype=np.uint8),
            stamps=np.empty(capacity, dtype=np.int64),
            ends=np.empty((2, 3), dtype=np.int64),
            cursor=np.empty(3, dtype=np.int64),
            ghosts=np.empty(num_nodes if kernel.has_ghosts else 0, dtype=np.int64),
        )
        self.restart()

    @property
    def resident(self) -> IdArray:
        """(C,) the row that each slot holds, -1 where empty; a copy."""
        return self._state.content.copy()

    def step(self, nodes: NDArray[np.integer], /) -> CacheStep:
        """Return what the cache does for a batch of unique ids (U,), and count on it being done.

        Raises
        ------
        PlanError
            An id is out of range.
        """
        actions = np.empty(len(nodes), dtype=np.int32)
        self.decide(nodes, actions)
        return batch_step(actions, nodes)

    def decide(self, nodes: NDArray[np.integer], actions: Actions, /) -> None:
        """Write the same as the actions (U,) of a plan.

        Raises
        ------
        PlanError
            An id is out of range.
        """
        ids = np.ascontiguousarray(nodes)
        _require_ids(ids, len(self._state.slot_of))
        actions[:] = BYPASS
        if len(self._state.content):
            self._state.cursor[STEP] += 1
            self._decide(ids, actions, self._state)

    def restart(self) -> None:
        """Empty the cache and forget what was visited."""
        state = self._state
        for nothing in (state.slot_of, state.content, state.links):
            nothing.fill(-1)
        for zero in (state.marks, state.stamps, state.ghosts):
            zero.fill(0)
        # Empty queues, no step taken, the hand at the first slot.
        state.ends[:] = (-1, -1, 0)
        state.cursor[:] = (0, 0, FIRST_GHOST)


class StaticPolicy:
    """The same rows for the whole run: slot i holds ``hot[i]``. Costs 4 bytes a node. Thread-safe.

    Raises
    ------
    PlanError
        A hot row is out of range or repeats.
    """

    def __init__(self, hot: IdArray, *, num_nodes: int) -> None:
        self._slots = SlotMap(num_nodes, hot)
        self._hot = hot

    @property
    def resident(self) -> IdArray:
        """(C,) the hot rows."""
        return self._hot

    def step(self, nodes: NDArray[np.integer], /) -> CacheStep:
        """Return hits and misses of a batch of ids (U,)."""
        ids = np.ascontiguousarray(nodes)
        _require_ids(ids, self._slots.num_nodes)
        return self._slots.split(ids)

    def decide(self, nodes: NDArray[np.integer], actions: Actions, /) -> None:
        """Write the slot of each hit (U,), BYPASS for misses."""
        _require_ids(nodes, self._slots.num_nodes)
        self._slots.look_up(nodes, actions)

    def restart(self) -> None:
        """Do nothing: steps leave nothing behind."""


def make_policy(name: PolicyName, *, num_nodes: int, capacity: int, hot: IdArray = NO_ROWS) -> Policy:
    """Return the policy ``name``.

    Parameters
    ----------
    name : of `PolicyName`
    num_nodes : N
    capacity : C
    hot : rows of a static cache, the hottest first; it keeps the first C

    Raises
    ------
    ConfigError
        The policy is unknown.
    """
    if name not in get_args(PolicyName):
        raise ConfigError(f"policy {name!r} is not one of {', '.join(get_args(PolicyName))}")
    if name == "none":
        return StaticPolicy(NO_ROWS, num_nodes=num_nodes)
    if name == "static":
        return StaticPolicy(hot[:capacity], num_nodes=num_nodes)
    return OnlinePolicy(name, num_nodes=num_nodes, capacity=capacity)


def _require_ids(nodes: NDArray[np.integer], num_nodes: int) -> None:
    if nodes.size and (nodes.min() < 0 or nodes.max() >= num_nodes):
        raise PlanError(
            f"node ids must be in 0..{num_nodes - 1}; a batch holds {int(nodes.min())}..{int(nodes.max())}"
        )
