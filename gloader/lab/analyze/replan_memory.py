"""The memory of a run that is planned again: what it would like to hold with changed settings, and what it gets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gloader.lab.analyze.recorded_load import LoadKey
from gloader.pipeline.measure_demand import measure_demand
from gloader.pipeline.open_ssd import require_pack_folder
from gloader.pipeline.open_tiers import open_ring
from gloader.pipeline.planned_load import plan_tiers

if TYPE_CHECKING:
    from gloader.config import LoaderSettings
    from gloader.lab.analyze.altered_rows import Alteration
    from gloader.lab.analyze.recorded_load import RecordedLoad
    from gloader.plan.demand import Demand
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.replay.recording import RunHeader
    from gloader.ssd_store.cost.strategy import IoRates


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run with some changes, as far as they are planned for."""

    settings: LoaderSettings
    keywords: dict[str, Any]  # of `gloader.Loader`, that make the change
    alteration: Alteration
    order: str | None  # in which rows lie; None: as they do
    rates: IoRates
    note: str  # what else makes the change, for people


class MemoryReplan:
    """Shares the budget of a run out again, as the opening of a loader does. Not thread-safe.

    Parameters
    ----------
    header : of the recording
    base : the load of the run as it was
    sample_s : processor seconds of sampling a batch in the run; None: they are measured here
    """

    def __init__(self, header: RunHeader, base: RecordedLoad, *, sample_s: float | None) -> None:
        self._header = header
        self._base = base
        self._sample_s = sample_s
        self._demands: dict[Any, Demand] = {}

    def plan(self, case: Case, load: RecordedLoad) -> MemoryPlan:
        """Return who gets how many bytes.

        Parameters
        ----------
        case : the run with changes
        load : of its settings

        Raises
        ------
        BudgetError, ConfigError
            There cannot be such a run.
        """
        require_pack_folder(case.settings, has_folder=self._header.spill_bytes > 0)
        budget = case.settings.memory.memory_budget
        return plan_tiers(
            self._demand(case, load),
            case.settings,
            load.files(case.rates),
            load.measured.tiers,
            budget_bytes=self._header.budget_bytes if budget is None else budget,
        )

    def num_buffers(self, case: Case, load: RecordedLoad, plan: MemoryPlan) -> int:
        """Return the buffers of features of a rank: those that were planned, and those that idle memory makes."""
        files, tiers = load.measured.files, load.measured.tiers
        ranks = self._header.shape.num_ranks
        return open_ring(
            self._demand(case, load), plan, case.settings, files, tiers, num_ranks=ranks
        ).num_buffers

    def pack_bytes(self, plan: MemoryPlan) -> int:
        """Return the disk that packs may take: what passes over the edges leave of it; 0 where none are made."""
        if not plan.pack_buffer_bytes:
            return 0
        swept = 0 if plan.sweeps is None else plan.sweeps.spill_bytes
        return max(self._header.spill_bytes - swept, 0)

    def _demand(self, case: Case, load: RecordedLoad) -> Demand:
        """Return what the run would like to hold; measured once for settings that it is the same for."""
        settings, alteration = case.settings, case.alteration
        key = (
            LoadKey.of(settings),
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
        """Return the seconds of sampling a batch by which memory is planned: those of the run, where they are known."""
        own, base = load.measured.work.probe_s, self._base.measured.work.probe_s
        if self._sample_s is None:
            return own
        return self._sample_s * own / base if base else self._sample_s
