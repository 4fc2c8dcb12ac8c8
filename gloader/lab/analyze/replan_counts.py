"""Superbatches of a run that is planned again, counted: what inspect and stage would decide, and what the disk sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.errors import ChannelClosedError
from gloader.pipeline.miss_choice import choose_reads, packable_bytes
from gloader.pipeline.superbatch import MissLists
from gloader.pipeline.superbatch_flow import SuperbatchCollector, SuperbatchWindow
from gloader.replay.counts import BatchCounts, SuperbatchCounts
from gloader.ssd_store.format.format import DATA_OFFSET
from gloader.ssd_store.read.extents import ALIGNMENT, plan_extents
from gloader.ssd_store.regions.store import region_extents
from gloader.ssd_store.sweep.sweep import EXTENT_BYTES
from gloader.ssd_store.sweep.wanted_rows import collect_union
from gloader.ssd_store.sweep.ways import count_extents

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.cache import CachePlan, SuperbatchPlanner
    from gloader.pipeline.miss_choice import ChosenReads, RowsOnDisk
    from gloader.pipeline.positions import BatchStream
    from gloader.pipeline.sample import TraceEntry
    from gloader.pipeline.superbatch import InspectJob
    from gloader.ssd_store.cost.strategy import Calibration, IoRates
    from gloader.types import IdArray

_ROWS, _HITS, _MISSES, _ADMITTED, _REQUESTS, _BYTES = range(len(BatchCounts._fields))
_NO_PACKS: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTable:
    """What decides about the rows of a table, superbatch after superbatch."""

    rows: RowsOnDisk
    planner: SuperbatchPlanner
    staging_bytes: int  # idle memory for missing rows
    spill_share: float  # of the disk for packs
    is_whole: bool  # whether the file is on the disk


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingRules:
    """By what it is chosen how missing rows are read."""

    rates: IoRates
    calibration: Calibration
    forced: str  # the strategy that was asked for, or "auto"
    pack_bytes: int  # disk for packs; 0: there are none


def superbatch_jobs(
    entries: Sequence[TraceEntry], stream: BatchStream, *, size: int, num_tables: int, unit: int
) -> Iterator[InspectJob]:
    """Yield superbatches as a run collects them that ends with these batches.

    Parameters
    ----------
    entries : the trace of each batch
    stream : names them
    size : S at most
    num_tables : that each batch has rows of
    unit : batches that sizes are multiples of
    """
    # With room for all plans: nothing is executed here, for which a plan would have to wait.
    window = SuperbatchWindow(len(entries) + 1)
    collector = SuperbatchCollector(
        _GivenTraces(entries), stream, window, size=size, num_tables=num_tables, unit=unit
    )
    while True:
        try:
            yield collector.get()
        except ChannelClosedError:
            return


class SuperbatchCounter:
    """Plans and counts superbatches in the order of their execution, as a run would that begins with an empty cache.

    Parameters
    ----------
    tables : of the rows
    rules : by which it is chosen how they are read
    """

    def __init__(self, tables: Sequence[PlannedTable], rules: ReadingRules) -> None:
        self._tables = tables
        self._rules = rules
        self._packed_bytes = 0  # of the superbatch before, which is executed while this one is staged

    def count(self, job: InspectJob) -> SuperbatchCounts:
        """Return the counts of the next superbatch.

        Raises
        ------
        BudgetError
            A strategy that was asked for by name does not fit.
        """
        superbatch = job.superbatch
        of_batches = np.zeros((superbatch.num_batches, len(BatchCounts._fields)), np.int64)
        sweeps = _Sweeps()
        most, strategy = -1, "direct"
        for table, trace, lookahead in zip(self._tables, superbatch.traces, job.lookaheads, strict=True):
            plan = table.planner.plan(trace, lookahead)
            misses = MissLists(plan)
            reads = self._choose(table, misses, sweeps.written_bytes)
            _count_batches(plan, of_batches)
            _count_reads(table.rows, misses, reads, of_batches)
            sweeps.add(table.rows, misses, reads)
            if reads.choice.read_bytes > most:
                most, strategy = reads.choice.read_bytes, reads.choice.strategy
        self._packed_bytes = sweeps.written_bytes
        return SuperbatchCounts(
            batches=tuple(BatchCounts(*row) for row in of_batches.tolist()),
            strategy=strategy,
            accesses=sum(trace.num_accesses for trace in superbatch.traces),
            stage_requests=sweeps.requests,
            stage_bytes=sweeps.num_bytes,
            written_bytes=sweeps.written_bytes,
            unique_rows=sweeps.unique_rows,
        )

    def _choose(self, table: PlannedTable, misses: MissLists, packed_bytes: int) -> ChosenReads:
        """Return how a table is read, where those before it have packed so many bytes."""
        rules, spill_bytes = self._rules, _NO_PACKS
        if rules.pack_bytes:
            # The pack of the superbatch before is whole: it begins to be executed as this one is staged.
            room = max(rules.pack_bytes - self._packed_bytes - packed_bytes, 0)
            spill_bytes = packable_bytes(
                forced=rules.forced,
                share=table.spill_share,
                room_bytes=room,
                budget_bytes=rules.pack_bytes,
            )
        return choose_reads(
            misses,
            table.rows,
            rules.rates,
            calibration=rules.calibration,
            staging_bytes=table.staging_bytes,
            spill_bytes=spill_bytes,
            forced=rules.forced,
            is_whole=table.is_whole,
        )


class _GivenTraces:
    """Traces that are all there: what a `SamplerPool` is to a `SuperbatchCollector`."""

    def __init__(self, entries: Sequence[TraceEntry]) -> None:
        self._entries = entries
        self._taken = 0

    def has_trace(self) -> bool:
        """Return whether there is another trace."""
        return self._taken < len(self._entries)

    def next_trace(self) -> TraceEntry:
        """Return the next trace; ChannelClosedError where there is none."""
        if not self.has_trace():
            raise ChannelClosedError("the stream of batches ended")
        self._taken += 1
        return self._entries[self._taken - 1]


@dataclass(slots=True, kw_only=True)
class _Sweeps:
    """What staging a superbatch moves, of all tables together."""

    requests: int = 0
    num_bytes: int = 0
    written_bytes: int = 0
    unique_rows: int = 0

    def add(self, rows: RowsOnDisk, misses: MissLists, reads: ChosenReads) -> None:
        """Add the sweep over a table."""
        self.unique_rows += reads.counts.unique_rows
        if reads.choice.strategy == "direct":
            return
        # `MissCounts` has the reads of a batch's longest extents: those of a sweep are shorter.
        by_pages = _sweep_extents(rows, misses)
        self.requests += int(by_pages.sum())
        self.num_bytes += int(by_pages @ np.arange(len(by_pages))) * ALIGNMENT
        if reads.choice.strategy == "packed":
            self.written_bytes += reads.counts.pack_bytes


def _sweep_extents(rows: RowsOnDisk, misses: MissLists) -> IdArray:
    """Return how many reads of each number of pages a sweep over the missing rows makes."""
    wanted = collect_union(
        misses, num_rows=rows.num_rows, row_bytes=rows.row_bytes, is_cancelled=lambda: False
    )
    by_pages = np.zeros(EXTENT_BYTES // ALIGNMENT + 1, np.int64)
    count_extents(wanted.pages, wanted.num_pages, rows.sweep_gap_bytes, EXTENT_BYTES, by_pages)
    return by_pages


def _count_batches(plan: CachePlan, of_batches: NDArray[Any]) -> None:
    """Add what a plan does for each batch."""
    of_batches[:, _ROWS] += plan.hits + plan.misses
    of_batches[:, _HITS] += plan.hits
    of_batches[:, _MISSES] += plan.misses
    of_batches[:, _ADMITTED] += plan.admissions


def _count_reads(rows: RowsOnDisk, misses: MissLists, reads: ChosenReads, of_batches: NDArray[Any]) -> None:
    """Add what each batch reads itself."""
    if reads.choice.strategy == "staged":
        return
    for batch in range(len(misses)):
        if reads.choice.strategy == "direct":
            extents = plan_extents(
                misses[batch],
                row_bytes=rows.row_bytes,
                data_offset=DATA_OFFSET,
                max_gap_bytes=reads.gap_bytes,
                max_extent_bytes=rows.max_extent_bytes,
            )
        else:
            count = len(misses[batch])
            num_bytes = -(-count * rows.row_bytes // ALIGNMENT) * ALIGNMENT
            extents = region_extents(0, num_bytes, count, rows.row_bytes)
        of_batches[batch, _REQUESTS] += len(extents)
        of_batches[batch, _BYTES] += extents.num_bytes
