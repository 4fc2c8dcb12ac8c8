"""Cache policies without knowledge of the future, online and static, and the online policies' kernels.

An online policy decides which row to evict from past accesses only. A static policy never evicts. `make_policy` makes
a policy by name. `PolicyPlanner` runs it over a trace, and the bridges to DGL and PyG take one step per batch.

A step turns one batch's nodes into actions: for each node the slot of a hit, BYPASS (a miss that is not cached), or
ADMIT - slot (a miss that enters the slot). A visit is a hit of a cached row, and a row's mark counts its visits. The
hand of FIFO, CLOCK and SIEVE is the slot at which the next search for a victim begins. A ghost is a row that S3-FIFO
evicted after at most one visit.

All kernels work alike. The caller fills ``actions`` with BYPASS and checks the ids; the capacity is at least 1. Hits
are decided before any row of the batch enters. A row that enters stays until the next batch, because its batch may
still be reading it. After every slot has been filled in a step, the remaining misses bypass the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, get_args

import numpy as np

from gloader.cache.actions import ADMIT, BYPASS, MAX_CAPACITY, batch_step
from gloader.cache.static import SlotMap
from gloader.cache.trace import NO_ROWS
from gloader.config import OnlineName
from gloader.core.kernels import njit
from gloader.errors import ConfigError, PlanError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gloader.cache.actions import Actions
    from gloader.types import CacheStep, IdArray

    Nodes = NDArray[np.integer]


STEP, HAND, GHOSTS = 0, 1, 2  # indices in `QueueState.cursor`
HEAD, TAIL, LENGTH = 0, 1, 2  # columns of `QueueState.ends`
# Ghosts are numbered from here on. Number 0 means "never a ghost". Only the newest ghosts count, those with numbers
# above a bound, and this large start keeps the bound above 0.
FIRST_GHOST: Final = 1 << 40
# As in the S3-FIFO paper, visits are counted in two bits, and the small queue has a tenth of the slots.
_MAX_MARKS: Final = 3
_SMALL, _MAIN = 0, 1  # S3-FIFO's queues: rows of `QueueState.ends`
_SMALL_SHARE: Final = 10


class QueueState(NamedTuple):
    """An online policy's arrays, which its kernel reads and writes. A queue is a doubly linked list of slots."""

    slot_of: NDArray[np.int32]  # (N,) each node's slot, -1 if not cached
    content: IdArray  # (C,) each slot's row, -1 if empty
    links: NDArray[np.int32]  # (2, C) the next slot towards the head, and towards the tail; -1 at the end
    marks: NDArray[np.uint8]  # (C,) visits since the row entered or was last spared from eviction
    stamps: IdArray  # (C,) the step in which the row entered
    ends: IdArray  # (2, 3) HEAD, TAIL and LENGTH of each queue; only S3-FIFO has a second queue
    # (3,) STEP: number of steps so far; HAND: the hand's slot, or for LRU and S3-FIFO the number of slots used so far;
    # GHOSTS: the newest ghost's number.
    cursor: IdArray
    # (N,) each node's number as a ghost; 0 means never. Empty for policies without ghosts.
    ghosts: IdArray


@njit(cache=True, nogil=True)
def _unlink(links: NDArray[np.int32], ends: IdArray, slot: int) -> None:
    """Take ``slot`` out of the queue with ``ends`` (3,)."""
    before, after = links[0, slot], links[1, slot]
    if before >= 0:
        links[1, before] = after
    else:
        ends[HEAD] = after
    if after >= 0:
        links[0, after] = before
    else:
        ends[TAIL] = before
    ends[LENGTH] -= 1


@njit(cache=True, nogil=True)
def _push_head(links: NDArray[np.int32], ends: IdArray, slot: int) -> None:
    """Add ``slot`` at the head of the queue with ``ends`` (3,)."""
    head = ends[HEAD]
    links[0, slot] = -1
    links[1, slot] = head
    if head >= 0:
        links[0, head] = slot
    else:
        ends[TAIL] = slot
    ends[HEAD] = slot
    ends[LENGTH] += 1


@njit(cache=True, nogil=True)
def _enter(state: QueueState, actions: Actions, position: int, node: int, slot: int) -> None:
    """Assign ``slot`` to ``node``, in place of its current row, if any."""
    old = state.content[slot]
    if old >= 0:
        state.slot_of[old] = -1
    state.content[slot] = node
    state.slot_of[node] = slot
    state.marks[slot] = 0
    state.stamps[slot] = state.cursor[STEP]
    actions[position] = ADMIT - slot


@njit(cache=True, nogil=True)
def _mark_hits(nodes: Nodes, actions: Actions, state: QueueState, most: int) -> None:
    """Write the action of each hit, and add 1 to its row's mark, unless the mark is ``most`` already."""
    for position in range(nodes.shape[0]):
        slot = state.slot_of[nodes[position]]
        if slot >= 0:
            actions[position] = slot
            if state.marks[slot] < most:
                state.marks[slot] += 1


@njit(cache=True, nogil=True)
def fifo(nodes: Nodes, actions: Actions, state: QueueState) -> None:
    """Evict the row that entered first. The slots are a ring, and the hand is the oldest row's slot."""
    capacity = state.content.shape[0]
    _mark_hits(nodes, actions, state, 0)  # FIFO ignores visits
    entered = 0
    for position in range(nodes.shape[0]):
        if actions[position] == BYPASS and entered < capacity:
            slot = state.cursor[HAND]
            state.cursor[HAND] = (slot + 1) % capacity
            _enter(state, actions, position, nodes[position], slot)
            entered += 1


@njit(cache=True, nogil=True)
def clock(nodes: Nodes, actions: Actions, state: QueueState) -> None:
    """Evict as FIFO does, but spare a visited row once. The hand clears the row's mark and moves on."""
    capacity = state.content.shape[0]
    _mark_hits(nodes, actions, state, 1)
    entered = 0
    for position in range(nodes.shape[0]):
        if actions[position] != BYPASS or entered == capacity:
            continue
        while True:
            slot = state.cursor[HAND]
            state.cursor[HAND] = (slot + 1) % capacity
            # Rows from this step must stay. At least one slot holds an earlier row, so the hand finds a slot.
            if state.stamps[slot] == state.cursor[STEP]:
                continue
            if state.marks[slot] == 0:
                break
            state.marks[slot] = 0
        _enter(state, actions, position, nodes[position], slot)
        entered += 1


@njit(cache=True, nogil=True)
def lru(nodes: Nodes, actions: Actions, state: QueueState) -> None:
    """Keep the C most recently used rows, ordered within a batch by position.

    The queue is in order of use, the latest at the head. First the hits leave the queue. Then the batch's last C rows
    join the head in their order; a miss takes an unused slot, or else the slot at the tail.
    """
    capacity = state.content.shape[0]
    ends = state.ends[0]
    # In a batch with more rows than slots, the last C rows are the most recent.
    first_kept = max(nodes.shape[0] - capacity, 0)
    for position in range(nodes.shape[0]):
        slot = state.slot_of[nodes[position]]
        if slot >= 0:
            actions[position] = slot
            _unlink(state.links, ends, slot)
            if position < first_kept:
                # The slot is freed in this step, so it moves to the end of the queue as an empty slot.
                state.slot_of[nodes[position]] = -1
                state.content[slot] = -1
                _push_tail(state.links, ends, slot)
    for position in range(first_kept, nodes.shape[0]):
        slot = actions[position]
        if slot == BYPASS:
            if state.cursor[HAND] < capacity:
                slot = state.cursor[HAND]
                state.cursor[HAND] += 1
            else:
                slot = ends[TAIL]
                _unlink(state.links, ends, slot)
            _enter(state, actions, position, nodes[position], slot)
        _push_head(state.links, ends, slot)


@njit(cache=True, nogil=True)
def _push_tail(links: NDArray[np.int32], ends: IdArray, slot: int) -> None:
    """Add ``slot`` at the tail of the queue with ``ends`` (3,)."""
    tail = ends[TAIL]
    links[0, slot] = tail
    links[1, slot] = -1
    if tail >= 0:
        links[1, tail] = slot
    else:
        ends[HEAD] = slot
    ends[TAIL] = slot
    ends[LENGTH] += 1


@njit(cache=True, nogil=True)
def sieve(nodes: Nodes, actions: Actions, state: QueueState) -> None:
    """Evict an unvisited row. The queue is in entry order, the latest at the head.

    The hand moves from the tail to the head. It spares visited rows, clears their marks, and evicts the first row
    without a mark.
    """
    capacity = state.content.shape[0]
    ends = state.ends[0]
    _mark_hits(nodes, actions, state, 1)
    entered = 0
    for position in range(nodes.shape[0]):
        if actions[position] != BYPASS or entered == capacity:
            continue
        if ends[LENGTH] < capacity:
            slot = ends[LENGTH]  # the next slot that was never used
        else:
            # The cursor holds the hand's slot + 1. The value 0 stands for the tail.
            slot = state.cursor[HAND] - 1
            while True:
                if slot < 0:
                    slot = ends[TAIL]
                if state.stamps[slot] != state.cursor[STEP]:
                    if state.marks[slot] == 0:
                        break
                    state.marks[slot] = 0
                slot = state.links[0, slot]
            state.cursor[HAND] = state.links[0, slot] + 1
            _unlink(state.links, ends, slot)
        _enter(state, actions, position, nodes[position], slot)
        _push_head(state.links, ends, slot)
        entered += 1


@njit(cache=True, nogil=True)
def s3fifo(nodes: Nodes, actions: Actions, state: QueueState) -> None:
    """Admit rows to a small queue, a tenth of the slots, and move rows in demand to the main queue.

    A row moves to the main queue if it was visited twice. A missed row that is a recent ghost enters the main queue
    directly.
    """
    capacity = state.content.shape[0]
    num_ghosts = capacity - max(capacity // _SMALL_SHARE, 1)
    _mark_hits(nodes, actions, state, _MAX_MARKS)
    entered_small, entered_main = 0, 0
    for position in range(nodes.shape[0]):
        if actions[position] != BYPASS or entered_small + entered_main == capacity:
            continue
        node = nodes[position]
        if state.cursor[HAND] < capacity:
            slot = state.cursor[HAND]
            state.cursor[HAND] += 1
        else:
            slot = _evict_s3fifo(state, entered_small, entered_main)
        if state.ghosts[node] > state.cursor[GHOSTS] - num_ghosts:
            # The row is among the newest ``num_ghosts`` ghosts. One number per node stands in for a queue of ghosts.
            state.ghosts[node] = 0
            _push_head(state.links, state.ends[_MAIN], slot)
            entered_main += 1
        else:
            _push_head(state.links, state.ends[_SMALL], slot)
            entered_small += 1
        _enter(state, actions, position, node, slot)


@njit(cache=True, nogil=True)
def _evict_s3fifo(state: QueueState, entered_small: int, entered_main: int) -> int:
    """Unlink a slot whose row did not enter in this step, and return the slot. `_enter` overwrites the row.

    The small queue evicts while it is above its target size: a row visited twice moves to the main queue, any other
    row becomes a ghost and leaves. Otherwise the main queue evicts its first row without a mark, as in CLOCK.
    """
    target = max(state.content.shape[0] // _SMALL_SHARE, 1)
    small, main = state.ends[_SMALL], state.ends[_MAIN]
    while True:
        has_small, has_main = small[LENGTH] > entered_small, main[LENGTH] > entered_main
        if has_small and (small[LENGTH] >= target or not has_main):
            # A row from this step is never at this tail, because rows enter at the head and older rows remain.
            slot = small[TAIL]
            _unlink(state.links, small, slot)
            if state.marks[slot] <= 1:
                state.cursor[GHOSTS] += 1
                state.ghosts[state.content[slot]] = state.cursor[GHOSTS]
                return slot
            state.marks[slot] = 0
            _push_head(state.links, main, slot)
            continue
        slot = main[TAIL]
        _unlink(state.links, main, slot)
        if state.stamps[slot] != state.cursor[STEP]:
            if state.marks[slot] == 0:
                return slot
            state.marks[slot] -= 1
        _push_head(state.links, main, slot)


class OnlineKernel(NamedTuple):
    """One entry in the table of online policies."""

    decide: Callable[[Nodes, Actions, QueueState], None]  # the kernel for one batch
    has_ghosts: bool = False  # True if the policy remembers evicted rows, in 8 bytes per node


# A new online policy is a kernel above and a line here. Its name joins `gloader.config.OnlineName`.
ONLINE_KERNELS: Final[dict[str, OnlineKernel]] = {
    "lru": OnlineKernel(lru),
    "fifo": OnlineKernel(fifo),
    "clock": OnlineKernel(clock),
    "sieve": OnlineKernel(sieve),
    "s3fifo": OnlineKernel(s3fifo, has_ghosts=True),
}


PolicyName = Literal[OnlineName, "static", "none"]


class Policy(Protocol):
    """Decides the host cache's actions, batch by batch. Not thread-safe: each step changes its state."""

    @property
    def resident(self) -> IdArray:
        """(C,) row in each slot after the last step, -1 if empty."""
        ...

    def step(self, nodes: NDArray[np.integer], /) -> CacheStep:
        """Return the cache's step for a batch with unique ids (U,). The policy assumes that the step is executed."""
        ...

    def decide(self, nodes: NDArray[np.integer], actions: Actions, /) -> None:
        """Take the same step as `step`, and write its codes to ``actions`` (U,)."""
        ...

    def restart(self) -> None:
        """Undo every step, so that `resident` is the initial content again."""
        ...


class OnlinePolicy:
    """LRU, FIFO, CLOCK, SIEVE or S3-FIFO over slots. Not thread-safe.

    Costs 4 bytes per node (S3-FIFO 12) and 25 bytes per slot. The module's docstring has the rules for a step.

    Parameters
    ----------
    name : FIFO; CLOCK (Corbato 1968); LRU; SIEVE (Zhang et al., NSDI'24); S3-FIFO (Yang et al., SOSP'23)
    num_nodes : N, the number of nodes
    capacity : C, the number of slots

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
        """(C,) row in each slot, -1 if empty; a copy."""
        return self._state.content.copy()

    def step(self, nodes: NDArray[np.integer], /) -> CacheStep:
        """Return the cache's step for a batch with unique ids (U,). The policy assumes that the step is executed.

        Raises
        ------
        PlanError
            An id is out of range.
        """
        actions = np.empty(len(nodes), dtype=np.int32)
        self.decide(nodes, actions)
        return batch_step(actions, nodes)

    def decide(self, nodes: NDArray[np.integer], actions: Actions, /) -> None:
        """Take the same step as `step`, and write its codes to ``actions`` (U,).

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
        """Empty the cache and delete the record of visits and ghosts."""
        state = self._state
        for nothing in (state.slot_of, state.content, state.links):
            nothing.fill(-1)
        for zero in (state.marks, state.stamps, state.ghosts):
            zero.fill(0)
        # The queues are empty, no step was taken, and the hand is at the first slot.
        state.ends[:] = (-1, -1, 0)
        state.cursor[:] = (0, 0, FIRST_GHOST)


class StaticPolicy:
    """The same rows for the whole run: slot i holds ``hot[i]``. Costs 4 bytes per node. Thread-safe.

    Parameters
    ----------
    hot : (C,) distinct node ids
    num_nodes : N, the number of nodes

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
        """(C,) the row in each slot."""
        return self._hot

    def step(self, nodes: NDArray[np.integer], /) -> CacheStep:
        """Return hits and misses for a batch with ids (U,)."""
        ids = np.ascontiguousarray(nodes)
        _require_ids(ids, self._slots.num_nodes)
        return self._slots.split(ids)

    def decide(self, nodes: NDArray[np.integer], actions: Actions, /) -> None:
        """Write the step as actions (U,): a hit's slot, or BYPASS for a miss."""
        _require_ids(nodes, self._slots.num_nodes)
        self._slots.look_up(nodes, actions)

    def restart(self) -> None:
        """Do nothing, because steps have no effect."""


def make_policy(name: PolicyName, *, num_nodes: int, capacity: int, hot: IdArray = NO_ROWS) -> Policy:
    """Return the policy ``name``.

    Parameters
    ----------
    name : a `PolicyName`
    num_nodes : N, the number of nodes
    capacity : C, the number of slots
    hot : a static cache's rows, hottest first; the first C are kept

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
    """Raise PlanError if an id is outside 0..num_nodes-1, because the kernels check no bounds."""
    if nodes.size and (nodes.min() < 0 or nodes.max() >= num_nodes):
        raise PlanError(
            f"node ids must be in 0..{num_nodes - 1}; a batch holds {int(nodes.min())}..{int(nodes.max())}"
        )
