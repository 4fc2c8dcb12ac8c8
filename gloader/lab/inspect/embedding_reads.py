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
from gloader.cache.write_plan import WritePlanner
from gloader.lab.inspect.policy_misses import SHARES
from gloader.plan.embedding_cost import TrafficCounter, predict_rows
from gloader.ssd_store.embedding.embedding_table import append_buffer_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.lab.inspect.policy_misses import AccessTrace
    from gloader.plan.embedding_cost import RowCost, RowTraffic, TableSizes
    from gloader.ssd_store.cost.io_rates import IoRates

_WAITING_SHARE: Final = 4  # a loader has memory for waiting rows: a quarter of the slots'


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingReads:
    """The moved rows and the disk's work at each number of slots."""

    storage: TableSizes
    slot_bytes: int  # memory of a slot: the row, and its part of the planner
    epoch_batches: int  # batches per epoch
    slots: tuple[int, ...]
    traffic: tuple[RowTraffic, ...]  # of the sampled batches
    costs: tuple[RowCost, ...]  # the disk's predicted work for them

    def epoch_factor(self, index: int) -> float:
        """Return the batches of an epoch per sampled batch."""
        return self.epoch_batches / max(self.traffic[index].num_batches, 1)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values, per epoch. Pure."""
        return {
            "row_bytes": self.storage.row_bytes,
            "slots": list(self.slots),
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
) -> EmbeddingReads:
    """Plan the embedding's slots over ``trace`` for each number of slots. Pure.

    Parameters
    ----------
    trace : trace of an epoch's first batches, or of all batches
    storage : the embedding's sizes; its buffer follows from the slots, as in a run
    rates : the disk's rates
    slot_bytes : memory of a slot
    superbatch : S, batches that a run plans together
    shares : numbers of slots, as shares of the N rows; those below the largest batch are replaced by it
    """
    parts = [
        Trace([np.sort(nodes) for nodes in trace.accesses[start : start + superbatch]])
        for start in range(0, len(trace.accesses), superbatch)
    ]
    largest = max((len(nodes) for nodes in trace.accesses), default=1)
    slots = np.unique([max(round(share * trace.num_nodes), largest, 1) for share in shares]).tolist()
    traffic = [_traffic(parts, trace.num_nodes, capacity) for capacity in slots]
    num_rows, width = storage.num_rows, storage.row_bytes // 4
    buffers = [append_buffer_rows(num_rows, width, capacity) for capacity in slots]
    return EmbeddingReads(
        storage=storage,
        slot_bytes=slot_bytes,
        epoch_batches=trace.epoch_batches,
        slots=tuple(slots),
        traffic=tuple(traffic),
        costs=tuple(
            predict_rows(each, replace(storage, buffer_rows=rows), rates)
            for each, rows in zip(traffic, buffers, strict=True)
        ),
    )


def _traffic(parts: Sequence[Trace], num_rows: int, capacity: int) -> RowTraffic:
    """Return the moved rows with ``capacity`` slots. They are empty at first."""
    planner = WritePlanner(num_rows, capacity)
    counter = TrafficCounter(capacity // _WAITING_SHARE)
    for part, ahead in zip(parts, [*parts[1:], ()], strict=True):
        counter.add(planner.plan(part, ahead))
    return counter.traffic()
