"""The rows that the training of an embedding moves at any cache size, on an epoch's sampled trace.

An embedding is the trained rows of the nodes. Its cache has slots; each holds one row. All rows of a batch are in slots
until its step, so every row without a slot is loaded, and another one is evicted. `inspect_embedding` plans the trace
as a run does, for several numbers of slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.cache import Trace
from gloader.cache.next_use import table_bytes
from gloader.cache.write_plan import WritePlanner, write_access_bytes, write_slot_bytes
from gloader.core.units import format_bytes
from gloader.errors import BudgetError
from gloader.lab.inspect.policy_misses import SHARES
from gloader.plan.embedding_cost import TrafficCounter, predict_rows
from gloader.ssd_store.embedding.embedding_table import append_buffer_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.lab.inspect.policy_misses import AccessTrace
    from gloader.plan.embedding_cost import RowCost, RowTraffic, TableSizes
    from gloader.ssd_store.cost.io_rates import IoRates

_WAITING_SHARE: Final = 4  # a loader has memory for waiting rows: a quarter of the slots'
# A plan, the plan before it, and the ids of the rows that wait or were evicted, as bytes per access.
_PLANS: Final = 2
_ID_BYTES: Final = 2 * 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingReads:
    """The moved rows and the disk's work at each number of slots."""

    storage: TableSizes
    slot_bytes: int  # memory of a slot: the row, and its part of the planner
    epoch_batches: int  # batches per epoch
    slots: tuple[int, ...]
    traffic: tuple[RowTraffic, ...]  # of the sampled batches
    costs: tuple[RowCost, ...]  # the disk's predicted work for them
    is_assumed: bool  # True if the disk's rates were assumed, not measured
    left_out: tuple[int, ...]  # numbers of slots whose plans do not fit in memory
    needed_bytes: int  # memory for the plans of the largest number of slots

    def epoch_factor(self, index: int) -> float:
        """Return the batches of an epoch per sampled batch."""
        return self.epoch_batches / max(self.traffic[index].num_batches, 1)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values, per epoch. Pure."""
        return {
            "row_bytes": self.storage.row_bytes,
            "slots": list(self.slots),
            "left_out_slots": list(self.left_out),
            "rates_are_assumed": self.is_assumed,
            "memory_bytes": [slots * self.slot_bytes for slots in self.slots],
            "load_ratio": [
                (each.forward + each.staged + each.late) / max(each.accesses, 1) for each in self.traffic
            ],
            **{
                name: [
                    round(getattr(cost, field) * self.epoch_factor(index))
                    for index, cost in enumerate(self.costs)
                ]
                for name, field in (
                    ("read_bytes_per_epoch", "read_bytes"),
                    ("written_bytes_per_epoch", "written_bytes"),
                )
            },
            "disk_s_per_epoch": [
                cost.seconds * self.epoch_factor(index) for index, cost in enumerate(self.costs)
            ],
        }


def inspect_embedding(
    trace: AccessTrace,
    storage: TableSizes,
    rates: IoRates,
    *,
    slot_bytes: int,
    superbatch: int = 64,
    shares: Sequence[float] = SHARES,
    budget_bytes: int | None = None,
) -> EmbeddingReads:
    """Plan the embedding's slots over ``trace`` for each number of slots that fits in memory. Pure.

    Parameters
    ----------
    trace : trace of an epoch's first batches, or of all batches
    storage : the embedding's sizes; its buffer follows from the slots, as in a run
    rates : the disk's rates
    slot_bytes : memory of a slot
    superbatch : S, batches that a run plans together
    shares : numbers of slots, as shares of the N rows; those below the largest batch are replaced by it
    budget_bytes : bound for the plans. The rows of the batches, sorted, take up to as much as the trace besides. None
        means no bound.

    Raises
    ------
    BudgetError
        The plans of the smallest number of slots do not fit.
    """
    largest = max((len(nodes) for nodes in trace.accesses), default=1)
    slots = np.unique([max(round(share * trace.num_nodes), largest, 1) for share in shares]).tolist()
    accesses = min(superbatch, len(trace.accesses)) * largest
    fixed = table_bytes(trace.num_nodes, 2 * accesses)
    fixed += accesses * (_PLANS * write_access_bytes(trace.num_nodes) + _ID_BYTES)
    room = slots[-1] if budget_bytes is None else (budget_bytes - fixed) // write_slot_bytes()
    fitting = [capacity for capacity in slots if capacity <= room]
    if not fitting:
        needed = fixed + slots[0] * write_slot_bytes()
        raise BudgetError(
            f"the plans of an embedding with {slots[0]:,} rows in its cache take about {format_bytes(needed)}; allowed "
            f"are {format_bytes(budget_bytes or 0)}, half of the memory budget. Give --memory-budget {2 * needed}, or "
            f"plan fewer batches together with --superbatch"
        )
    parts = [
        Trace([np.sort(nodes) for nodes in trace.accesses[start : start + superbatch]])
        for start in range(0, len(trace.accesses), superbatch)
    ]
    num_rows, width = storage.num_rows, storage.row_bytes // 4
    buffers = [append_buffer_rows(num_rows, width, capacity) for capacity in fitting]
    traffic = [_traffic(parts, trace.num_nodes, capacity, 2 * accesses) for capacity in fitting]
    return EmbeddingReads(
        storage=storage,
        slot_bytes=slot_bytes,
        epoch_batches=trace.epoch_batches,
        slots=tuple(fitting),
        traffic=tuple(traffic),
        costs=tuple(
            predict_rows(each, replace(storage, buffer_rows=rows), rates)
            for each, rows in zip(traffic, buffers, strict=True)
        ),
        is_assumed=rates.is_assumed,
        left_out=tuple(slots[len(fitting) :]),
        needed_bytes=fixed + slots[-1] * write_slot_bytes(),
    )


def _traffic(parts: Sequence[Trace], num_rows: int, capacity: int, expected_accesses: int) -> RowTraffic:
    """Return the moved rows with ``capacity`` slots. They are empty at first."""
    planner = WritePlanner(num_rows, capacity, expected_accesses=expected_accesses)
    counter = TrafficCounter(capacity // _WAITING_SHARE)
    for part, ahead in zip(parts, [*parts[1:], ()], strict=True):
        counter.add(planner.plan(part, ahead))
    return counter.traffic()
