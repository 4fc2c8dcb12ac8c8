"""Superbatch counts for a run that is planned again: cache decisions and disk reads, as in the pipeline.

`gloader.lab.analyze.replan` uses this file for what-ifs. `superbatch_jobs` yields a run's superbatches, the groups of
consecutive batches for which the host cache is planned together. A `SuperbatchCounter` plans each superbatch's cache,
chooses the way to read its missing rows, and counts rows, reads and bytes. An `Alteration` describes rows on another
disk, with another dtype, or in another order.

- An extent is one aligned read that covers one or more rows. It may include a gap, which is unneeded bytes between two
  rows, if reading the gap is cheaper than a second request.
- A sweep reads the missing rows of a whole superbatch in the order of the file.
- The strategies for missing rows: "direct", each batch reads its own rows; "staged", a sweep reads them into memory;
  "packed", a sweep writes them into a pack, a file with a region for each batch, which the batch then reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.dtypes import STORED_DTYPES
from gloader.core.signals import NEVER
from gloader.errors import ChannelClosedError
from gloader.pipeline.flow import SuperbatchCollector, SuperbatchWindow
from gloader.pipeline.sample import distinct_rows
from gloader.pipeline.stage import RowsOnDisk, choose_reads, packable_bytes
from gloader.pipeline.superbatch import MissLists
from gloader.plan.predict import spread_of
from gloader.replay.work import BatchCounts, SuperbatchCounts
from gloader.ssd_store.cost.device_profile import MAX_GAP_BYTES, MIN_GAP_BYTES
from gloader.ssd_store.cost.io_rates import Calibration
from gloader.ssd_store.cost.profile import default_row_gap_bytes
from gloader.ssd_store.feature_store import MAX_EXTENT_BYTES
from gloader.ssd_store.format.format import DATA_OFFSET, PAGE_BYTES, stored_dtype
from gloader.ssd_store.read.extents import ALIGNMENT, min_extent_bytes, num_pages, plan_extents
from gloader.ssd_store.spill.regions import region_extents
from gloader.ssd_store.sweep.passes import count_extents
from gloader.ssd_store.sweep.sweeper import EXTENT_BYTES
from gloader.ssd_store.sweep.wanted_rows import collect_union

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.cache import CachePlan, SuperbatchPlanner
    from gloader.pipeline.open.disk import FeatureFile
    from gloader.pipeline.open.load_plan import MeasuredLoad
    from gloader.pipeline.sample import TraceEntry
    from gloader.pipeline.seeds import BatchStream
    from gloader.pipeline.stage import ChosenReads
    from gloader.pipeline.superbatch import InspectJob
    from gloader.plan.demand import Demand, TableDemand
    from gloader.plan.predict import TableWork
    from gloader.replay.recording import RecordedTable
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.types import IdArray


_SUM_BYTES: Final = 8  # bytes of the checksum of one page


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alteration:
    """Changes to a run's rows, and recorded facts about them. The default changes nothing."""

    recorded: tuple[RecordedTable, ...] = ()  # recorded tables; missing values come from this disk's profile
    dtype: str | None = None  # node rows' stored dtype; None means the present dtype
    new_ids: IdArray | None = None  # (N,) the only table's new row numbers; None means unchanged
    rates: IoRates | None = None  # another disk's rates; None means the recorded disk

    def rows_on_disk(self, table: FeatureFile) -> RowsOnDisk:
        """Return the layout of ``table``'s rows in their file, with the changes."""
        rows, row_bytes = RowsOnDisk.of(table.store), self.row_bytes(table)
        rows = replace(
            rows,
            row_bytes=row_bytes,
            max_extent_bytes=max(MAX_EXTENT_BYTES, min_extent_bytes(row_bytes)),
        )
        if self.rates is None:
            known = self._recorded(table)
            gap = None if known is None else known.sweep_gap_bytes
            return rows if gap is None else replace(rows, sweep_gap_bytes=gap)
        # The profile of another disk computes its gap in the same way.
        gap = self.rates.times.sweep_gap_bytes(most=MAX_GAP_BYTES)
        return replace(rows, sweep_gap_bytes=max(gap, MIN_GAP_BYTES))

    def row_bytes(self, table: FeatureFile) -> int:
        """Return R, the stored bytes per row."""
        if self.dtype is None or table.is_of_edges:
            return table.store.row_bytes
        return table.store.dim * stored_dtype(self.dtype).itemsize

    def gap_bytes(self, table: FeatureFile) -> int:
        """Return the longest gap in a batch's reads at a run's start, in bytes. Later the run learns a better one."""
        # In this order: the user's setting, another disk's rates, the changed row size, the recorded value.
        stored, row_bytes = table.store.stored_rows, self.row_bytes(table)
        if stored.settings.gap_bytes is not None:
            return stored.gap_bytes
        if self.rates is not None:
            return self.rows_on_disk(table).batch_gap_bytes(self.rates, Calibration())
        if row_bytes != stored.row_bytes:
            return default_row_gap_bytes(stored.path.parent, row_bytes)
        known = self._recorded(table)
        return stored.gap_bytes if known is None or known.gap_bytes is None else known.gap_bytes

    def demand(self, demand: Demand, load: MeasuredLoad) -> Demand:
        """Return ``demand`` with these rows.

        Parameters
        ----------
        demand : the demand with the present rows
        load : the measured load
        """
        files = load.files.tables
        probes = [self._probed(load, number) for number in load.files.types]
        tables = [
            self._table(of_table, file, is_staged=tier.staged is not None)
            for of_table, file, tier in zip(demand.tables, files, load.tiers, strict=False)
        ]
        works = [
            self._work(work, of_table, file, probe)
            for work, of_table, file, probe in zip(demand.work.tables, tables, files, probes, strict=True)
        ]
        return replace(demand, tables=tuple(tables), work=replace(demand.work, tables=tuple(works)))

    def _probed(self, load: MeasuredLoad, number: int) -> list[IdArray]:
        """Return each probed batch's rows in a table, ascending."""
        rows = [distinct_rows(batch, number) for batch in load.work.probe]
        return rows if self.new_ids is None else [np.sort(self.new_ids[one]) for one in rows]

    def _table(self, demand: TableDemand, file: FeatureFile, *, is_staged: bool) -> TableDemand:
        """Return a table's memory demand with another dtype: its rows, checksums and scales have other sizes."""
        if self.dtype is None or file.is_of_edges:
            return demand
        row_bytes, stored = self.row_bytes(file), file.store.stored_rows
        replaced_bytes = stored.checksums.nbytes + (
            0 if stored.form.scale is None else stored.form.scale.nbytes
        )
        checksum_bytes = (
            -(-file.store.num_rows * row_bytes // PAGE_BYTES) * _SUM_BYTES if len(stored.checksums) else 0
        )
        scale_bytes = file.store.num_rows * STORED_DTYPES[self.dtype].row_bytes(0)
        return replace(
            demand,
            feature_bytes=file.store.num_rows * row_bytes,
            stored_row_bytes=row_bytes,
            store_bytes=demand.store_bytes - replaced_bytes + checksum_bytes + scale_bytes,
            # A device widens rows itself. The CPU receives float32.
            row_bytes=row_bytes if is_staged else demand.row_bytes,
        )

    def _work(
        self, work: TableWork, demand: TableDemand, file: FeatureFile, probe: Sequence[IdArray]
    ) -> TableWork:
        """Return a table's work per step with these rows. ``probe`` has the first batches' rows."""
        row_bytes, num_rows = demand.stored_row_bytes, file.store.num_rows
        pages = sum(num_pages(rows, row_bytes=row_bytes) for rows in probe) / max(len(probe), 1)
        return replace(
            work,
            row_bytes=demand.row_bytes,
            stored_row_bytes=row_bytes,
            file_rows=spread_of(pages, work.rows, num_rows=num_rows, row_bytes=row_bytes),
            gap_bytes=self.gap_bytes(file),
        )

    def _recorded(self, table: FeatureFile) -> RecordedTable | None:
        """Return the recorded facts about ``table``, or None if there are none."""
        return next((one for one in self.recorded if one.name == table.rows.name), None)


# Columns of the counts (S, 6) of a superbatch's batches, in the order of `BatchCounts`.
_ROWS, _HITS, _MISSES, _ADMITTED, _REQUESTS, _BYTES = range(len(BatchCounts._fields))
_NO_PACKS: Final = 0  # bytes for packs


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTable:
    """One table's facts for counting superbatches."""

    rows: RowsOnDisk  # the layout of the rows in their file
    planner: SuperbatchPlanner  # plans the host cache; keeps its content from one superbatch to the next
    staging_bytes: int  # idle memory for missing rows
    spill_share: float  # share of the disk for packs
    is_whole: bool  # True if the disk has the complete file


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingRules:
    """The rules for choosing how missing rows are read."""

    rates: IoRates
    calibration: Calibration
    forced: str  # the requested strategy, or "auto"
    pack_bytes: int  # disk for packs; 0 without packs


def superbatch_jobs(
    entries: Sequence[TraceEntry], stream: BatchStream, *, size: int, num_tables: int, unit: int
) -> Iterator[InspectJob]:
    """Yield the superbatches that a run over exactly these batches collects.

    Parameters
    ----------
    entries : each batch's trace
    stream : the batches' ids (epoch and index), by position
    size : largest S, in batches
    num_tables : number of tables
    unit : every superbatch size is a multiple of it
    """
    # The window has room for all plans: nothing is executed here, so no plan has to wait.
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
    """Plans and counts superbatches in execution order, like a run from an empty cache.

    Parameters
    ----------
    tables : facts about the tables with rows
    rules : choose how rows are read
    """

    def __init__(self, tables: Sequence[CountedTable], rules: ReadingRules) -> None:
        self._tables = tables
        self._rules = rules
        self._packed_bytes = 0  # the previous superbatch's packs; it is executed while this one is staged

    def count(self, job: InspectJob) -> SuperbatchCounts:
        """Return the next superbatch's counts.

        Raises
        ------
        BudgetError
            A strategy requested by name does not fit.
        """
        superbatch = job.superbatch
        counts = np.zeros((superbatch.num_batches, len(BatchCounts._fields)), np.int64)
        sweeps = _Sweeps()
        # The superbatch's strategy is that of the table that reads the most bytes.
        most, strategy = -1, "direct"
        for table, trace, lookahead in zip(self._tables, superbatch.traces, job.lookaheads, strict=True):
            plan = table.planner.plan(trace, lookahead)
            misses = MissLists(plan)
            reads = self._choose(table, misses, sweeps.written_bytes)
            _count_batches(plan, counts)
            _count_reads(table.rows, misses, reads, counts)
            sweeps.add(table.rows, misses, reads)
            if reads.choice.read_bytes > most:
                most, strategy = reads.choice.read_bytes, reads.choice.strategy
        self._packed_bytes = sweeps.written_bytes
        return SuperbatchCounts(
            batches=tuple(BatchCounts(*row) for row in counts.tolist()),
            strategy=strategy,
            accesses=sum(trace.num_accesses for trace in superbatch.traces),
            stage_requests=sweeps.requests,
            stage_bytes=sweeps.num_bytes,
            written_bytes=sweeps.written_bytes,
            unique_rows=sweeps.unique_rows,
        )

    def _choose(self, table: CountedTable, misses: MissLists, packed_bytes: int) -> ChosenReads:
        """Return a table's chosen reads, after earlier tables have packed ``packed_bytes``."""
        rules, spill_bytes = self._rules, _NO_PACKS
        if rules.pack_bytes:
            # The previous superbatch's pack is complete: its execution begins when this superbatch is staged.
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
    """Given traces, in place of a `SamplerPool` for a `SuperbatchCollector`."""

    def __init__(self, entries: Sequence[TraceEntry]) -> None:
        self._entries = entries
        self._taken = 0

    def has_trace(self) -> bool:
        """Return True if there is another trace."""
        return self._taken < len(self._entries)

    def next_trace(self) -> TraceEntry:
        """Return the next trace. Raises ChannelClosedError after the last one."""
        if not self.has_trace():
            raise ChannelClosedError("the stream of batches ended")
        self._taken += 1
        return self._entries[self._taken - 1]


@dataclass(slots=True, kw_only=True)
class _Sweeps:
    """The sums over all tables for staging a superbatch."""

    requests: int = 0  # reads
    num_bytes: int = 0  # bytes read
    written_bytes: int = 0  # bytes written into packs
    unique_rows: int = 0  # distinct missing rows

    def add(self, rows: RowsOnDisk, misses: MissLists, reads: ChosenReads) -> None:
        """Add one table's sweep."""
        self.unique_rows += reads.counts.unique_rows
        if reads.choice.strategy == "direct":
            return
        # `MissCounts` counts reads up to a batch's longest extent. A sweep's reads are shorter.
        by_pages = _sweep_extents(rows, misses)
        self.requests += int(by_pages.sum())
        self.num_bytes += int(by_pages @ np.arange(len(by_pages))) * ALIGNMENT
        if reads.choice.strategy == "packed":
            self.written_bytes += reads.counts.pack_bytes


def _sweep_extents(rows: RowsOnDisk, misses: MissLists) -> IdArray:
    """Return the number of reads by size in pages, for a sweep over the missing rows."""
    wanted = collect_union(misses, num_rows=rows.num_rows, row_bytes=rows.row_bytes, cancellation=NEVER)
    by_pages = np.zeros(EXTENT_BYTES // ALIGNMENT + 1, np.int64)
    count_extents(wanted.pages, wanted.num_pages, rows.sweep_gap_bytes, EXTENT_BYTES, by_pages)
    return by_pages


def _count_batches(plan: CachePlan, of_batches: NDArray[Any]) -> None:
    """Add a plan's counts to each batch's row in ``of_batches`` (S, 6)."""
    of_batches[:, _ROWS] += plan.hits + plan.misses
    of_batches[:, _HITS] += plan.hits
    of_batches[:, _MISSES] += plan.misses
    of_batches[:, _ADMITTED] += plan.admissions


def _count_reads(rows: RowsOnDisk, misses: MissLists, reads: ChosenReads, of_batches: NDArray[Any]) -> None:
    """Add each batch's own reads to its row in ``of_batches`` (S, 6)."""
    if reads.choice.strategy == "staged":
        return  # one sweep has read the rows of all batches into memory
    for batch in range(len(misses)):
        if reads.choice.strategy == "direct":
            extents = plan_extents(
                misses[batch],
                row_bytes=rows.row_bytes,
                data_offset=DATA_OFFSET,
                max_gap_bytes=reads.gap_bytes,
                max_extent_bytes=rows.max_extent_bytes,
            )
        else:  # "packed": a batch reads its region of the pack
            count = len(misses[batch])
            num_bytes = -(-count * rows.row_bytes // ALIGNMENT) * ALIGNMENT
            extents = region_extents(0, num_bytes, count, rows.row_bytes)
        of_batches[batch, _REQUESTS] += len(extents)
        of_batches[batch, _BYTES] += extents.num_bytes
