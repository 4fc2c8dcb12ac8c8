"""A superbatch on its way: sampled, then planned, then staged, then executed batch by batch.

What is known of rows is known table by table: a table is the feature rows of a node type, of which a homogeneous graph
has one. Tuples of it have an entry for each table, in the order of their types.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from gloader.cache import CachePlan, Trace
    from gloader.pipeline.buffers import RowMatrix
    from gloader.pipeline.sample import OrderedBatch
    from gloader.ssd_store.cost.strategy import Choice
    from gloader.ssd_store.misses.direct import MissSource
    from gloader.types import BatchId, CacheStep, IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSuperbatch:
    """S consecutive batches of which the nodes are known."""

    number: int  # counts from the start of the pipeline
    first: BatchId  # its first batch
    traces: tuple[Trace, ...]

    @property
    def num_batches(self) -> int:
        """S; fewer, or none, where the stream ended."""
        return len(self.traces[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectJob:
    """A superbatch to be planned, and what is known of the time after it."""

    superbatch: SampledSuperbatch
    lookaheads: tuple[Trace, ...]  # of the next superbatch; empty: nothing is known


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSuperbatch:
    """A superbatch whose every hit, miss and admission is decided."""

    number: int
    first: BatchId
    plans: tuple[CachePlan, ...]

    @property
    def num_batches(self) -> int:
        """S."""
        return len(self.plans[0].misses)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """What a superbatch misses of a table, which can be fetched batch by batch. Owns ``misses`` until `close`."""

    plan: CachePlan  # without its trace
    misses: MissSource
    choice: Choice  # its seconds are predicted; `misses.cost` says what staging moved


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSuperbatch:
    """A superbatch whose missing rows can be fetched batch by batch. Owns what was staged until `close`."""

    number: int
    first: BatchId
    tables: tuple[StagedTable, ...]

    @property
    def num_batches(self) -> int:
        """S."""
        return len(self.tables[0].plan.misses)

    def close(self) -> None:
        """Release what was staged. Idempotent."""
        with ExitStack() as stack:  # the others are closed, too, if one of them cannot be
            for table in self.tables:
                stack.callback(table.misses.close)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """One batch of a staged superbatch, ready to be executed."""

    superbatch: StagedSuperbatch
    index: int  # of the batch in its superbatch
    batch: OrderedBatch

    @property
    def is_last(self) -> bool:
        """Whether its superbatch ends with it."""
        return self.index + 1 == self.superbatch.num_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledBatch:
    """A batch whose missing rows are in its buffer; the hits are still in their slots."""

    job: BatchJob
    steps: tuple[CacheStep, ...]
    # (U, F) of each table, in a buffer of the ring; (0, F) where the device brings all rows
    x: tuple[RowMatrix, ...]


class MissLists(Sequence["IdArray"]):
    """The ascending rows (M,) that each batch of a plan misses, made when they are asked for."""

    def __init__(self, plan: CachePlan) -> None:
        self._plan = plan

    def __len__(self) -> int:
        """Return S."""
        return len(self._plan.misses)

    @overload
    def __getitem__(self, batch: int) -> IdArray: ...

    @overload
    def __getitem__(self, batch: slice) -> Sequence[IdArray]: ...

    def __getitem__(self, batch: int | slice) -> IdArray | Sequence[IdArray]:
        """Return the rows that ``batch`` misses."""
        # Made anew each time: all batches together would take 8 bytes a miss, where the plan takes 4 an access.
        if isinstance(batch, slice):
            return [self._plan.miss_rows(b) for b in range(*batch.indices(len(self)))]
        if not -len(self) <= batch < len(self):
            raise IndexError(f"batch {batch} is not one of the superbatch's {len(self)}")
        return self._plan.miss_rows(batch % len(self))
