"""A recorded run planned again with changed settings, for a what-if.

A what-if is the prediction of a recorded run with changes; `gloader.lab.analyze.predict` makes it. A `Replanner`
samples the recorded batches again. It plans memory, cache and reads with the code of a run, and counts the rows and
bytes that the changed run would read. `gloader.replay.planned_work` turns these counts into work. No features are read,
and nothing is written.

A superbatch is a number of consecutive batches, for which cache and reads are planned together. A trace has the rows of
each table that the batches access. A table is the feature rows of a node type or of a relation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gloader.cache.trace import NO_ROWS
from gloader.errors import ReplayError
from gloader.lab.analyze.recorded_load import RecordedLoads, load_key
from gloader.lab.analyze.recorded_run import changed_keywords
from gloader.lab.analyze.replan_counts import (
    Alteration,
    CountedTable,
    ReadingRules,
    SuperbatchCounter,
    superbatch_jobs,
)
from gloader.pipeline.open.first_batches import measure_demand
from gloader.pipeline.open.load_plan import plan_tiers
from gloader.pipeline.open.tiers import (
    open_planner,
    open_ring,
    require_pack_folder,
    spill_shares,
    static_rows,
)
from gloader.plan.memory_plan import idle_part, share_out
from gloader.replay.changes import NO_CHANGES
from gloader.replay.recording import RecordedTable
from gloader.ssd_store.cost.io_rates import Calibration

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.cache import Trace
    from gloader.config import LoaderSettings
    from gloader.lab.analyze.recorded_load import RecordedLoad
    from gloader.plan.demand import Demand
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.replay.changes import Changes
    from gloader.replay.recording import RunHeader
    from gloader.replay.work import PipelineShape, SuperbatchCounts
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.types import BatchId, IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run with some changes, limited to the changes that need a plan."""

    settings: LoaderSettings  # the changed run's settings
    keywords: dict[str, Any]  # keywords of `gloader.Loader`, for the changes
    alteration: Alteration  # the changes to the stored rows
    order: str | None  # the rows' order; None means the present order
    rates: IoRates  # the disk's rates
    note: str  # further remarks on the change, for the user


@dataclass(frozen=True, slots=True, kw_only=True)
class Replanned:
    """A changed run's plan, for the batches that were sampled again."""

    plan: MemoryPlan
    shape: PipelineShape  # the planned shape, with its buffers and the place of the features
    tables: tuple[RecordedTable, ...]  # each table's rows, cache and gaps in the plan
    batches: tuple[BatchId, ...]  # batches in stream order, with all ranks interleaved
    superbatches: tuple[SuperbatchCounts, ...]  # counts for these batches; empty if features are in memory
    rows: IdArray  # (batches,) rows gathered on the host
    edges: IdArray  # (batches,) sampled edges
    sample_s: float  # processor seconds to sample a batch on this machine
    kept_share: float  # share of the batches that are kept from their trace to their execution
    settings: dict[str, Any]  # keywords of `gloader.Loader` for the changes
    note: str = ""  # further remarks for the user


class Replanner:
    """Samples a recorded run's batches again, bit for bit, and plans them with changed settings.

    Plans are made by a run's code: `plan_memory`, the planners, `choose_strategy`. Owns the dataset, its edges and the
    feature files until `close`. Not thread-safe.

    Parameters
    ----------
    header : the recording's header
    loads : the run's load, and loads with changed settings
    sample_s : the run's processor seconds to sample a batch. None means that they are measured here.
    """

    def __init__(self, header: RunHeader, loads: RecordedLoads, *, sample_s: float | None = None) -> None:
        self._header = header
        self._loads = loads
        self._sample_s = sample_s
        self._demands: dict[Any, Demand] = {}  # by the settings that determine the demand, see `_demand`
        self._new_ids: dict[str, IdArray | None] = {}  # by the order's name: the rows' new numbers

    @classmethod
    def open(cls, header: RunHeader, *, run: Path | None = None, sample_s: float | None = None) -> Self:
        """Open a recorded run's dataset, and check that the batches are the same.

        Parameters
        ----------
        header : the recording's header
        run : the run folder, or None
        sample_s : the run's processor seconds to sample a batch. The memory plan depends on them: only this value
            reproduces the run's plan.

        Raises
        ------
        ReplayError
            The dataset is missing or has changed, or the recording lacks facts that determine the batches. The run
            trains embeddings.
        """
        if header.embeddings:
            raise ReplayError(
                f"the run trains embeddings ({', '.join(one.name for one in header.embeddings)}), and the loads of "
                "their rows are not planned again"
            )
        return cls(header, RecordedLoads.open(header, run=run), sample_s=sample_s)

    def plan(self, changes: Changes = NO_CHANGES, *, rates: IoRates | None = None) -> MemoryPlan:
        """Return the run's memory plan with ``changes``, within the same budget unless it is changed.

        Parameters
        ----------
        changes : changes to the run. Those that need no plan are ignored, except the sampling threads.
        rates : the disk's rates; None means the recorded rates

        Raises
        ------
        ConfigError, BudgetError
            No run can have these changes.
        ReplayError
            The run cannot be planned here.
        """
        case = self._case(changes, rates)
        return self._plan(case, self._loads.get(case.settings))

    def epoch_batches(self, changes: Changes = NO_CHANGES) -> int:
        """Return the batches per epoch and rank with ``changes``. Raises the errors of `plan`."""
        return self._loads.seeds(self._case(changes, None).settings).order.num_batches

    def traces(self, *, num_batches: int) -> tuple[Trace, ...]:
        """Return each table's trace for the unchanged run's first batches. Raises the errors of `plan`."""
        stream = self._loads.base.stream
        return stream.traces(stream.sample(num_batches))

    def counts(
        self,
        changes: Changes = NO_CHANGES,
        *,
        num_batches: int,
        rates: IoRates | None = None,
        calibration: Calibration | None = None,
    ) -> Replanned:
        """Return the counts for the first batches with ``changes``, as in a run that ends after them.

        Parameters
        ----------
        changes, rates : see `plan`
        num_batches : number of batches from the first recorded one on, across epochs, over all ranks
        calibration : corrections to the cost model's seconds. None means no correction.

        Raises
        ------
        ConfigError, BudgetError, ReplayError
            See `plan`.
        """
        case = self._case(changes, rates)
        load = self._loads.get(case.settings)
        plan = self._plan(case, load)
        count = load.stream.sample(num_batches)
        superbatches: tuple[SuperbatchCounts, ...] = ()
        if plan.features == "ssd":
            superbatches = self._superbatches(case, load, plan, count, calibration or Calibration())
            rows = np.array([batch.rows for one in superbatches for batch in one.batches], np.int64)
        else:
            rows = load.rows_in_memory(count)
        return Replanned(
            plan=plan,
            shape=replace(
                self._header.shape,
                features=plan.features,
                num_buffers=open_ring(
                    self._demand(case, load),
                    plan,
                    case.settings,
                    load.measured.files,
                    load.measured.tiers,
                    num_ranks=self._header.shape.num_ranks,
                ).num_buffers,
            ),
            tables=self._tables(case, load, plan),
            batches=tuple(load.stream.stream.id_of(position) for position in range(count)),
            superbatches=superbatches,
            rows=rows,
            edges=load.stream.edges(count),
            sample_s=load.stream.sample_s,
            kept_share=plan.kept_share,
            settings=case.keywords,
            note=case.note,
        )

    def close(self) -> None:
        """Close the opened files. Idempotent."""
        self._loads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _case(self, changes: Changes, rates: IoRates | None) -> Case:
        """Return the run with those of the ``changes`` that need a plan."""
        header, base = self._header, self._loads.settings
        keywords = changed_keywords(base, header, changes)
        settings = base.changed(**keywords)
        settings.check()
        recorded = header.rates
        rates = rates or recorded
        dtype, order = (changes.values.get(name) for name in ("dtype", "order"))
        prepared = " ".join(
            f"--{name} {value}" for name, value in (("dtype", dtype), ("order", order)) if value is not None
        )
        return Case(
            settings=settings,
            keywords=keywords,
            alteration=Alteration(
                recorded=header.tables,
                dtype=None if dtype is None else str(dtype),
                new_ids=None if order is None else self._numbers(str(order)),
                rates=None if rates == recorded else rates,
            ),
            order=None if order is None else str(order),
            rates=rates,
            note=f"the dataset prepared again: gloader prepare {prepared}" if prepared else "",
        )

    def _numbers(self, order: str) -> IdArray | None:
        """Return the rows' numbers in another order. They are computed once."""
        if order not in self._new_ids:
            self._new_ids[order] = self._loads.reordered_rows(order)
        return self._new_ids[order]

    def _plan(self, case: Case, load: RecordedLoad) -> MemoryPlan:
        """Return the memory's division, as an opening loader makes it."""
        require_pack_folder(case.settings, has_folder=self._header.spill_bytes > 0)
        budget = case.settings.memory.memory_budget
        return plan_tiers(
            self._demand(case, load),
            case.settings,
            load.files(case.rates),
            load.measured.tiers,
            budget_bytes=self._header.budget_bytes if budget is None else budget,
        )

    def _pack_bytes(self, plan: MemoryPlan) -> int:
        """Return the disk bytes for packs: the spill disk less the part for edge passes. 0 without packs."""
        if not plan.pack_buffer_bytes:
            return 0
        swept = 0 if plan.sweeps is None else plan.sweeps.spill_bytes
        return max(self._header.spill_bytes - swept, 0)

    def _demand(self, case: Case, load: RecordedLoad) -> Demand:
        """Return the run's memory demand. It is measured once for settings with equal demands."""
        settings, alteration = case.settings, case.alteration
        key = (
            load_key(settings),
            settings.memory.policy,
            settings.reading.io_strategy,
            settings.stages.threads,
            case.rates,
            alteration.dtype,
            case.order,
        )
        if key not in self._demands:
            measured = load.measured
            demand = measure_demand(
                settings,
                replace(measured.work, probe_s=self._probe_s(load)),
                load.files(case.rates),
                measured.tiers,
                measured.demand.sweeps,
                num_ranks=self._header.shape.num_ranks,
                is_exchanged=False,
            )
            work = replace(demand.work, cores=self._header.cores)
            demand = replace(demand, work=work, others=measured.demand.others)
            self._demands[key] = alteration.demand(demand, measured)
        return self._demands[key]

    def _probe_s(self, load: RecordedLoad) -> float:
        """Return the seconds to sample a batch that the plan uses.

        If the run's seconds were given, they are multiplied by a ratio of two measurements on this machine: the seconds
        with these settings, divided by the seconds with the run's settings.
        """
        probe_s, base_probe_s = load.measured.work.probe_s, self._loads.base.measured.work.probe_s
        if self._sample_s is None:
            return probe_s
        return self._sample_s * probe_s / base_probe_s if base_probe_s else self._sample_s

    def _superbatches(
        self, case: Case, load: RecordedLoad, plan: MemoryPlan, num_batches: int, calibration: Calibration
    ) -> tuple[SuperbatchCounts, ...]:
        """Return the counts of the superbatches of the first batches."""
        rules = ReadingRules(
            rates=case.rates,
            calibration=calibration,
            forced=case.settings.reading.io_strategy,
            pack_bytes=self._pack_bytes(plan),
        )
        tables = self._planned_tables(case, load, plan)
        counter = SuperbatchCounter(tables, rules)
        jobs = superbatch_jobs(
            load.stream.entries(num_batches, case.alteration.new_ids),
            load.stream.stream,
            size=plan.superbatch.num_batches,
            num_tables=len(tables),
            unit=self._header.superbatch_unit,
        )
        return tuple(counter.count(job) for job in jobs)

    def _planned_tables(self, case: Case, load: RecordedLoad, plan: MemoryPlan) -> list[CountedTable]:
        """Return each table's facts for counting: its planner, its memory for staging, and its share of the packs."""
        settings, new_ids = case.settings, case.alteration.new_ids
        staging = share_out(idle_part(plan.spare_bytes), plan.missed_bytes)
        shares = spill_shares(plan)
        tables = []
        for number, (table, held) in enumerate(zip(load.measured.files.tables, load.held, strict=True)):
            hot = NO_ROWS
            if settings.memory.policy == "static":
                hot = static_rows(self._loads.topology, table, plan.cache_rows[number], held)
            planner = open_planner(
                plan,
                settings,
                table,
                hot=_renumbered(hot, new_ids),
                held=_renumbered(held, new_ids),
                number=number,
            )
            tables.append(
                CountedTable(
                    rows=case.alteration.rows_on_disk(table),
                    planner=planner,
                    staging_bytes=staging[number],
                    spill_share=shares[number],
                    is_whole=table.store.stored_rows.os_io.is_whole,
                )
            )
        return tables

    def _tables(self, case: Case, load: RecordedLoad, plan: MemoryPlan) -> tuple[RecordedTable, ...]:
        """Return each table's rows, cache and gaps in the plan."""
        alteration, is_read = case.alteration, plan.features == "ssd"
        return tuple(
            RecordedTable(
                name=table.rows.name,
                num_rows=table.rows.num_rows,
                row_bytes=alteration.row_bytes(table),
                cache_rows=cache_rows,
                device_rows=len(held),
                gap_bytes=alteration.gap_bytes(table) if is_read else None,
                sweep_gap_bytes=alteration.rows_on_disk(table).sweep_gap_bytes if is_read else None,
            )
            for table, cache_rows, held in zip(
                load.measured.files.tables, plan.cache_rows, load.held, strict=True
            )
        )


def _renumbered(rows: IdArray, new_ids: IdArray | None) -> IdArray:
    return rows if new_ids is None or not len(rows) else np.sort(new_ids[rows])
