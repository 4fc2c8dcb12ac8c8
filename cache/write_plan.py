"""The plan of an embedding's slots: for each batch its evictions, its loads and the slots of its rows.

An embedding is the trainable rows of one node type. Its storage on disk is the table. A slot holds one row in memory.
To load a row is to put it into a slot, and to evict it is to take it out. A step is one optimizer step, for one batch
or, with several ranks, for one batch of each rank. All rows of a batch lie in slots from the batch's load until its
step, so every row that is in no slot is loaded. `WritePlanner` plans one superbatch after another; its loops are in
`write_kernels`.

The victim of a load is the row whose next use is farthest (L. A. Belady, IBM Systems Journal 5(2), 1966, with mandatory
admission). The rows of the last batches come last, because their steps may not be complete. The plan also says where
each evicted row goes and where each loaded row comes from, so that no load finds an old version:

- A row that a known later batch uses goes forward to this batch: it lies in the batch's forward piece, and its next
  load takes it from there.
- Every other row goes to the table. It is loaded from the rows that were staged, that is read from the table for the
  whole superbatch, if the staging cannot have read it before its eviction. Else it is late: its load reads the table.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache import write_kernels as kernels
from gloader.cache.actions import MAX_CAPACITY
from gloader.cache.belady_kernels import NO_ACTIONS, link
from gloader.cache.cache_plan import initial_content
from gloader.cache.next_use import PlannerTable
from gloader.cache.trace import NO_ROWS, BatchReader, Trace
from gloader.cache.write_kernels import FORWARD, LATE, NUM_COLUMNS, NUM_LANES, NUM_MARKS, TABLE
from gloader.errors import BudgetError, ConfigError, PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.types import IdArray

    # A batch's sources, victims and targets: see `WritePlan`.
    _Loads = tuple[NDArray[np.int8], NDArray[np.int32] | IdArray, NDArray[np.int32]]
    # The planner table's keys, values and base, and the horizon: see `write_kernels`.
    _Lookup = tuple[IdArray, NDArray[np.int32], int, int]
    # The slots' records, and each chain's heads, tails and length: see `write_kernels`.
    _Chains = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]

__all__ = [
    "FORWARD",
    "LATE",
    "TABLE",
    "WritePlan",
    "WritePlanner",
    "WriteStep",
    "write_access_bytes",
    "write_slot_bytes",
]

_NO_LEVELS: Final = np.empty(0, dtype=np.uint8)


def write_slot_bytes() -> int:
    """Return the bytes per slot that a `WritePlanner` and its plans take, without the row in the slot. Pure.

    They are the slot's record, and its row's id in the planner's plan and in the two plans before it.
    """
    return 4 * NUM_COLUMNS + 3 * 8


def write_access_bytes(num_rows: int) -> int:
    """Return the bytes per access that a `WritePlan` takes at most, if every access is a load. Pure.

    They are the slot, the source, the evicted row and its target. The planner's table takes `table_bytes` besides.
    """
    return 4 + 1 + _row_type(num_rows).itemsize + 4


def _row_type(num_rows: int) -> np.dtype[np.int32] | np.dtype[np.int64]:
    """Return the type of a packed row id. Pure."""
    return np.dtype(np.int32) if num_rows <= 2**31 else np.dtype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WriteStep:
    """The work of one batch: first it waits, then it evicts, then it loads. Its rows are distinct and ascend."""

    number: int  # of the batch, counted from the planner's start or restart
    slots: NDArray[np.int32]  # (V,) slot of each of the batch's rows
    load_pos: NDArray[np.int32]  # (L,) positions of the loaded rows among the batch's rows, ascending
    load_from: NDArray[np.int8]  # (L,) FORWARD, TABLE or LATE
    evict_slot: NDArray[np.int32]  # (E,)
    evict_row: IdArray  # (E,) the rows in these slots
    evict_to: IdArray  # (E,) number of the batch that gets the row in its forward piece, -1: to the table
    wait_for: int  # the steps 0..wait_for-1 must be complete before the evictions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WritePlan:
    """The steps of a superbatch's S batches. Holds a reference to the trace, no copy; see `write_access_bytes`.

    The staging of the plan, which reads its `table_rows`, may begin when the evictions of the batches before number
    ``staged_after`` are done. These are the batches of the plan before the last one, and all earlier ones.
    """

    capacity: int  # C, the slots
    first: int  # number of the plan's first batch
    staged_after: int  # batches whose evictions must be done before the staging reads the table
    resident_after: IdArray  # (C,) row in each slot after the last batch, -1 if empty
    accesses: Trace  # the batches' rows
    offsets: IdArray  # (S + 1,) start of each batch in `codes`
    codes: NDArray[np.int32]  # (A,) for each access its slot s, or -1 - s if the row is loaded
    # Of each batch, for each of its loads: its source, the row that was in its slot (-1 if none was), and this row's
    # target, a batch counted from `first`, or -1.
    sources: tuple[NDArray[np.int8], ...]
    victims: tuple[NDArray[np.int32] | IdArray, ...]
    targets: tuple[NDArray[np.int32], ...]
    waits: IdArray  # (S,) each batch's `WriteStep.wait_for`

    def __len__(self) -> int:
        """Return S, the number of batches."""
        return len(self.sources)

    @property
    def num_accesses(self) -> int:
        """A, the batches' rows over all batches."""
        return len(self.codes)

    @property
    def num_loads(self) -> int:
        """The loaded rows over all batches and sources."""
        return sum(map(len, self.sources))

    def num_loads_from(self, source: int) -> int:
        """Return the loads from ``source``: FORWARD, TABLE or LATE."""
        return sum(int(np.count_nonzero(sources == source)) for sources in self.sources)

    @property
    def num_evictions(self) -> int:
        """The evicted rows over all batches."""
        return sum(int(np.count_nonzero(victims >= 0)) for victims in self.victims)

    @property
    def num_forward(self) -> int:
        """The evicted rows that go forward. All others go to the table."""
        return sum(int(np.count_nonzero(targets >= 0)) for targets in self.targets)

    @property
    def num_bytes(self) -> int:
        """The plan's bytes without the trace."""
        parts = (*self.sources, *self.victims, *self.targets)
        return sum(a.nbytes for a in (self.resident_after, self.offsets, self.codes, self.waits, *parts))

    def batch(self, index: int) -> WriteStep:
        """Return the step of batch ``index`` of the superbatch."""
        codes = self._codes(index)
        load_pos = np.flatnonzero(codes < 0).astype(np.int32)
        slots = np.where(codes < 0, -1 - codes, codes)
        victims, targets = self.victims[index], self.targets[index]
        evicting = np.flatnonzero(victims >= 0)
        evict_to = targets[evicting].astype(np.int64)
        evict_to[evict_to >= 0] += self.first
        return WriteStep(
            number=self.first + index,
            slots=slots,
            load_pos=load_pos,
            load_from=self.sources[index],
            evict_slot=slots[load_pos[evicting]],
            evict_row=victims[evicting].astype(np.int64),
            evict_to=evict_to,
            wait_for=int(self.waits[index]),
        )

    def table_rows(self, index: int) -> IdArray:
        """Return the rows that batch ``index`` loads from the staged rows (TABLE), ascending.

        At most one batch of a plan loads a row from the staged rows.
        """
        loads = np.flatnonzero(self._codes(index) < 0)
        rows: IdArray = self.accesses[index][loads[self.sources[index] == TABLE]]
        return rows

    def _codes(self, index: int) -> NDArray[np.int32]:
        """Return the codes of batch ``index``, a view."""
        return self.codes[self.offsets[index] : self.offsets[index + 1]]


class WritePlanner:
    """Plans the slots of consecutive superbatches, in O(1) time per access and per slot. Not thread-safe.

    Parameters
    ----------
    num_rows : N, the rows of the embedding
    capacity : C, the slots
    depth : the victims of step s are rows whose last use is step s - ``depth`` or an earlier one, if there are enough
        of them. So a step's loads can begin before the ``depth`` - 1 steps before it are complete.
    batches_per_step : R, batches of a step. Step 0 has the batches 0..R-1. A row of a step is no victim in this step
    expected_accesses : rows in a superbatch and its look-ahead, see `PlannerTable.for_trace`. None means a table with
        an entry for every row.

    Raises
    ------
    ConfigError
        The capacity or the depth is out of range.
    """

    def __init__(
        self,
        num_rows: int,
        capacity: int,
        *,
        depth: int = 4,
        batches_per_step: int = 1,
        expected_accesses: int | None = None,
    ) -> None:
        if not 1 <= capacity <= MAX_CAPACITY:
            raise ConfigError(f"capacity is {capacity}; it must be in 1..{MAX_CAPACITY} slots")
        if depth < 1:
            raise ConfigError(f"depth is {depth}; it must be at least 1 step")
        if batches_per_step < 1:
            raise ConfigError(f"batches_per_step is {batches_per_step}; it must be at least 1")
        self._num_rows = num_rows
        self._capacity = capacity
        self._depth = depth
        self._per_step = batches_per_step
        if expected_accesses is None:
            self._table = PlannerTable(num_rows)
        else:
            self._table = PlannerTable.for_trace(num_rows, expected_accesses)
        self.restart(NO_ROWS)

    @property
    def resident(self) -> IdArray:
        """(C,) row in each slot when the next plan begins, -1 if empty."""
        return self._content

    def restart(self, resident: IdArray) -> None:
        """Start anew with batch 0, after plans that were not executed completely. All other rows must be in the table.

        Parameters
        ----------
        resident : (<= C,) the row that is really in each slot, -1 if empty; further slots are empty

        Raises
        ------
        PlanError
            A row is out of range or in two slots, or there are more rows than slots.
        """
        content = initial_content(resident, self._capacity)
        rows = np.sort(content[content >= 0])
        if len(rows) and rows[-1] >= self._num_rows:
            raise PlanError(f"resident holds row {int(rows[-1])}; rows are in 0..{self._num_rows}-1")
        twice = rows[1:][rows[1:] == rows[:-1]]
        if len(twice):
            raise PlanError(f"resident holds row {int(twice[0])} in two slots; a row is in one slot")
        self._content = content
        self._records = np.full((self._capacity, NUM_COLUMNS), -1, dtype=np.int32)
        # The last plan: the number of its first batch and of the batch after its last one, its horizon, and the heads
        # of its chain of rows without a known next use.
        self._last_first, self._next, self._horizon = 0, 0, 0
        self._oldest = np.empty(0, dtype=np.int32)
        # The codes of the last batches, whose slots are pinned.
        self._pinned: deque[NDArray[np.int32]] = deque()
        # Rows that the plans left in forward pieces, and the numbers of the batches that load them.
        self._forward: tuple[IdArray, IdArray] = (NO_ROWS, NO_ROWS)
        self._late: IdArray = NO_ROWS  # rows that the last plan evicted to the table

    def plan(
        self, accesses: Sequence[NDArray[np.integer]], lookahead: Sequence[NDArray[np.integer]] = ()
    ) -> WritePlan:
        """Plan ``accesses``. The planner assumes that the plan is executed. After an error call `restart`.

        Parameters
        ----------
        accesses : a `Trace`, or each batch's distinct rows, ascending
        lookahead : the batches that the next plan begins with, in the same form. Rows go forward to them.

        Raises
        ------
        BudgetError
            A step has more rows than there are slots; the message has the largest step's rows.
        PlanError
            A row is out of range, or repeats within a batch, or a batch is not in ascending order. The batches are not
            those that the last plan was given as its look-ahead. The last plan ended within a step.
        """
        if self._next % self._per_step:
            raise PlanError(
                f"the last plan ended with batch {self._next - 1}, within a step of {self._per_step} batches; plan "
                "whole steps"
            )
        trace = accesses[:] if isinstance(accesses, Trace) else Trace(accesses)
        later = lookahead if isinstance(lookahead, Trace) else Trace(lookahead)
        window, beyond = (_reader(given, self._num_rows) for given in (trace, later))
        if max(window.lengths.max(initial=0), beyond.lengths.max(initial=0)) > self._capacity:
            raise self._too_small(window, beyond)
        with np.errstate(over="ignore"):  # hashes wrap around: numpy warns if numba's compiler is disabled
            return self._plan(trace, window, beyond)

    def _plan(self, trace: Trace, window: BatchReader, beyond: BatchReader) -> WritePlan:
        """Run the passes: link the uses backwards, mark the rows that are in no slot, and assign slots forwards."""
        table, first, horizon = self._table, self._next, len(window) + len(beyond)
        offsets = np.concatenate([[0], np.cumsum(window.lengths)])
        codes = np.empty(int(offsets[-1]), dtype=np.int32)
        parts = [codes[start:stop] for start, stop in pairwise(offsets)]
        table.begin(horizon + NUM_MARKS)
        for batch in reversed(range(horizon)):
            inside = batch < len(window)
            rows = window.read(batch) if inside else beyond.read(batch - len(window))
            table.reserve(len(rows))
            codes_of = parts[batch] if inside else NO_ACTIONS
            added, _ = link(rows, table.keys, table.values, table.base, batch, horizon, _NO_LEVELS, codes_of)
            table.num_keys += added
        lookup = (table.keys, table.values, table.base, horizon)
        rows, targets = self._forward
        bad = kernels.mark_forward(rows, targets - first, *lookup)
        if bad >= 0:
            raise PlanError(
                f"row {int(rows[bad])} was evicted for batch {int(targets[bad])}, but this batch is not the next one "
                "that uses it. Plan the batches that the last plan had as its look-ahead, or call restart"
            )
        # One chain for each batch, for no known use and for the empty slots.
        heads, tails = np.full((2, horizon + 2, NUM_LANES), -1, dtype=np.int32)
        chains = (self._records, heads, tails, np.zeros(horizon + 2, dtype=np.int32))
        content = self._content.copy()
        released = first - len(self._pinned)
        kernels.chain_slots(content, *lookup, *chains, released, self._oldest, self._horizon)
        kernels.mark_late(self._late, *lookup)
        loads, waits = self._assign(window, parts, lookup, content, chains)
        table.end(horizon + NUM_MARKS)
        plan = WritePlan(
            capacity=self._capacity,
            first=first,
            staged_after=self._last_first,
            resident_after=content,
            accesses=trace,
            offsets=offsets,
            codes=codes,
            sources=tuple(of[0] for of in loads),
            victims=tuple(of[1] for of in loads),
            targets=tuple(of[2] for of in loads),
            waits=waits,
        )
        self._content = content
        self._last_first, self._next, self._horizon = first, first + len(window), horizon
        self._oldest = heads[horizon].copy()
        self._keep_evictions(plan)
        return plan

    def _assign(
        self,
        window: BatchReader,
        parts: list[NDArray[np.int32]],
        lookup: _Lookup,
        content: IdArray,
        chains: _Chains,
    ) -> tuple[list[_Loads], IdArray]:
        """Turn ``parts`` from next uses into codes in place.

        Returns each batch's sources, victims and targets, and `WritePlan.waits`.
        """
        horizon, per_step = lookup[-1], self._per_step
        far = horizon - 1
        largest = int(window.lengths.max(initial=0))
        entries, positions, targets = np.empty((3, largest), dtype=np.int32)
        sources = np.empty(largest, dtype=np.int8)
        victims = np.empty(largest, dtype=_row_type(self._num_rows))
        loads: list[_Loads] = []
        waits = np.zeros(len(parts), dtype=np.int64)
        for batch, codes in enumerate(parts):
            rows, number = window.read(batch), self._next + batch
            step = number // per_step
            while self._pinned and self._first_pinned(number) <= step - self._depth:
                far = self._release(number, horizon, chains, far)
            given = (rows, codes, *lookup, content, *chains)
            num_loads = kernels.find(rows, codes, *lookup, self._records, number, entries, positions, sources)
            last = min(batch + per_step - 1 - batch % per_step, horizon - 1)
            done, wait_for = 0, 0
            while True:
                done, wait_for, far = kernels.load(
                    *given, far, last, number, positions[:num_loads], done, wait_for, victims, targets
                )
                if done == num_loads:
                    break
                if not self._pinned or self._first_pinned(number) == step:
                    raise self._too_small(window)
                far = self._release(number, horizon, chains, far)
            waits[batch] = -(-wait_for // per_step)
            self._pinned.append(codes)
            loads.append((sources[:num_loads].copy(), victims[:num_loads].copy(), targets[:num_loads].copy()))
        return loads, waits

    def _release(self, number: int, horizon: int, chains: _Chains, far: int) -> int:
        """Release the slots of the first pinned batch before batch ``number``. Return the new ``far``."""
        first = number - len(self._pinned)
        return int(kernels.release(self._pinned.popleft(), first, horizon, *chains, far))

    def _first_pinned(self, number: int) -> int:
        """Return the step of the first pinned batch before batch ``number``."""
        return (number - len(self._pinned)) // self._per_step

    def _too_small(self, *readers: BatchReader) -> BudgetError:
        """Return the error for slots that cannot hold the rows of a step."""
        per_step = self._per_step
        batches = [reader.read(batch).copy() for reader in readers for batch in range(len(reader))]
        steps = [batches[first : first + per_step] for first in range(0, len(batches), per_step)]
        counts = [len(np.unique(np.concatenate(step))) for step in steps]
        largest, number = max(counts), self._next // per_step + counts.index(max(counts))
        unit, which = "batch", f"batch {number} has"
        if per_step > 1:
            unit, which = "step", f"the {per_step} batches of step {number}, one of each rank, have"
        return BudgetError(
            f"{which} {largest} distinct rows of the embedding, and its cache has {self._capacity} slots. All rows of "
            f"a {unit} must be in slots: give the cache at least {largest} slots, or take smaller batches"
        )

    def _keep_evictions(self, plan: WritePlan) -> None:
        """Keep the rows that the last plan left in forward pieces, and those that it evicted to the table."""
        waiting = self._forward[1] >= self._next
        rows: list[NDArray[np.integer]] = [self._forward[0][waiting]]
        targets = [self._forward[1][waiting]]
        late: list[NDArray[np.integer]] = [NO_ROWS]
        for victims, forward in zip(plan.victims, plan.targets, strict=True):
            beyond = forward >= len(plan)
            rows.append(victims[beyond])
            targets.append(forward[beyond].astype(np.int64) + plan.first)
            late.append(victims[(victims >= 0) & (forward < 0)])
        self._forward = (np.concatenate(rows), np.concatenate(targets))
        self._late = np.concatenate(late)


def _reader(trace: Trace, num_rows: int) -> BatchReader:
    """Return a reader of ``trace``. Raise PlanError if a row is not below ``num_rows``."""
    reader = BatchReader(trace, "accesses")
    for batch in range(len(reader)):
        if reader.lengths[batch] and (last := int(reader.read(batch)[-1])) >= num_rows:
            raise PlanError(f"batch {batch} holds row {last}; rows are in 0..{num_rows}-1")
    return reader
