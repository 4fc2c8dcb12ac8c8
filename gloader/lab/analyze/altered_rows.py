"""Rows of the tables as a what-if has them: on another disk, stored in another dtype, or in another order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gloader.pipeline.miss_choice import RowsOnDisk
from gloader.pipeline.table_rows import distinct_rows
from gloader.plan.predict import spread_of
from gloader.ssd_store.cost.calibration import Calibration
from gloader.ssd_store.cost.profile import MAX_GAP_BYTES, MIN_GAP_BYTES, default_row_gap_bytes
from gloader.ssd_store.format.format import PAGE_BYTES, stored_dtype
from gloader.ssd_store.read.extents import min_extent_bytes, num_pages
from gloader.ssd_store.read.reader import MAX_EXTENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.pipeline.measured_load import MeasuredLoad
    from gloader.pipeline.table_files import TableFile
    from gloader.plan.demand import Demand, TableDemand
    from gloader.plan.predict import TableWork
    from gloader.replay.recording import RecordedTable
    from gloader.ssd_store.cost.strategy import IoRates
    from gloader.types import IdArray

_SUM_BYTES = 8  # of the checksum of a page
_SCALE_BYTES = 4  # of an int8 row, in memory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Alteration:
    """What is known of the rows of a run, and what differs; nothing, as it is."""

    recorded: tuple[
        RecordedTable, ...
    ] = ()  # of those that the run had; of others the profile by now says it
    dtype: str | None = None  # that rows of nodes are stored as; None: as they are
    new_ids: IdArray | None = None  # (N,) the new number of each row of the only table; None: as they are
    rates: IoRates | None = None  # of another disk; None: the one that was recorded

    def rows_on_disk(self, table: TableFile) -> RowsOnDisk:
        """Return how the rows of ``table`` would lie in their file, and be read."""
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
        # As the profile of such a disk would say.
        gap = self.rates.times.sweep_gap_bytes(most=MAX_GAP_BYTES)
        return replace(rows, sweep_gap_bytes=max(gap, MIN_GAP_BYTES))

    def row_bytes(self, table: TableFile) -> int:
        """Return R."""
        if self.dtype is None or table.is_of_edges:
            return table.store.row_bytes
        return table.store.dim * stored_dtype(self.dtype).itemsize

    def gap_bytes(self, table: TableFile) -> int:
        """Return the longest hole that a batch's reads would go over at first."""
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
        demand : with the rows as they are
        load : what it was measured on
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
        """Return the rows of each probed batch in a table, ascending."""
        rows = [distinct_rows(batch, number) for batch in load.work.probe]
        return rows if self.new_ids is None else [np.sort(self.new_ids[one]) for one in rows]

    def _table(self, demand: TableDemand, file: TableFile, *, is_staged: bool) -> TableDemand:
        if self.dtype is None or file.is_of_edges:
            return demand
        row_bytes, stored = self.row_bytes(file), file.store.stored_rows
        before = stored.checksums.nbytes + (0 if stored.scale is None else stored.scale.nbytes)
        sums = -(-file.store.num_rows * row_bytes // PAGE_BYTES) * _SUM_BYTES if len(stored.checksums) else 0
        scale = file.store.num_rows * _SCALE_BYTES if self.dtype == "int8" else 0
        return replace(
            demand,
            feature_bytes=file.store.num_rows * row_bytes,
            stored_row_bytes=row_bytes,
            store_bytes=demand.store_bytes - before + sums + scale,
            # A device widens rows itself; the CPU gets them as float32.
            row_bytes=row_bytes if is_staged else demand.row_bytes,
        )

    def _work(
        self, work: TableWork, demand: TableDemand, file: TableFile, probe: Sequence[IdArray]
    ) -> TableWork:
        row_bytes, num_rows = demand.stored_row_bytes, file.store.num_rows
        pages = sum(num_pages(rows, row_bytes=row_bytes) for rows in probe) / max(len(probe), 1)
        return replace(
            work,
            row_bytes=demand.row_bytes,
            stored_row_bytes=row_bytes,
            file_rows=spread_of(pages, work.rows, num_rows=num_rows, row_bytes=row_bytes),
            gap_bytes=self.gap_bytes(file),
        )

    def _recorded(self, table: TableFile) -> RecordedTable | None:
        return next((one for one in self.recorded if one.name == table.rows.name), None)
