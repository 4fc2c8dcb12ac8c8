"""The plan of a loader, made before anything is held for it; of a budget that is too small, the one that is enough."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from gloader.errors import BudgetError
from gloader.pipeline.probe import Probe
from gloader.plan.memory_plan import plan_memory
from gloader.plan.too_small import naming_enough
from gloader.plan.topology_home import less_room

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.config import LoaderSettings
    from gloader.device import DeviceTier
    from gloader.pipeline.measured_load import MeasuredLoad
    from gloader.pipeline.other_devices import OtherDevices
    from gloader.pipeline.table_files import TableFiles
    from gloader.plan.demand import Demand
    from gloader.plan.memory_plan import MemoryPlan

_LITTLE_BYTES: Final = 16 << 20  # less than any loader needs: what is always counted takes more


class Measure(Protocol):
    """Measures the load of a loader: `measure_load` of all but these."""

    def __call__(
        self,
        stack: ExitStack,
        *,
        budget_bytes: int,
        room_bytes: int,
        probe: Probe | None,
        others: OtherDevices | None,
        tiers: tuple[DeviceTier, ...] | None,
    ) -> MeasuredLoad:
        """Return it; ``stack`` closes what was opened."""
        ...


class LoadPlanner:
    """Plans loaders of the same batches with any budget.

    Parameters
    ----------
    measure : what a loader would bring, called again for every other budget that is tried
    settings : those of the loader
    """

    def __init__(self, measure: Measure, settings: LoaderSettings) -> None:
        self._measure = measure
        self._settings = settings
        self._probe: Probe | None = None  # batches are the same with any budget

    def plan(
        self, stack: ExitStack, *, budget_bytes: int, others: OtherDevices | None = None
    ) -> tuple[MeasuredLoad, MemoryPlan]:
        """Return the load and its plan, with as much room for edges as the rest of it leaves.

        Parameters
        ----------
        stack, budget_bytes, others : as of `plan_load`

        Raises
        ------
        BudgetError, ConfigError
            As of `plan_load`, without a budget that is enough.
        """
        room, tiers = budget_bytes, None
        while True:
            with ExitStack() as own:
                load = self._measure(
                    own,
                    budget_bytes=budget_bytes,
                    room_bytes=room,
                    probe=self._probe,
                    others=others,
                    tiers=tiers,
                )
                self._probe = Probe(batches=load.work.probe, seconds=load.work.probe_s)
                try:
                    plan = plan_tiers(
                        load.demand, self._settings, load.files, load.tiers, budget_bytes=budget_bytes
                    )
                except BudgetError as error:
                    room = less_room(error, load.home, load.demand, room_bytes=room)
                    # The others hold what they were asked to, and cannot be asked again.
                    tiers = None if others is None else load.tiers
                    continue
                stack.enter_context(own.pop_all())
                return load, plan


def plan_load(
    measure: Measure,
    settings: LoaderSettings,
    stack: ExitStack,
    *,
    budget_bytes: int,
    others: OtherDevices | None = None,
) -> tuple[MeasuredLoad, MemoryPlan]:
    """Return what a loader would bring batches of, and how it would share its budget out.

    Parameters
    ----------
    measure, settings : as of `LoadPlanner`
    stack : closes what was opened
    budget_bytes : of memory
    others : the devices of the other ranks, which are asked once, and not for other budgets

    Raises
    ------
    BudgetError
        The budget is too small; names one that was planned with, where more memory helps.
    ConfigError
        As `measure_load`.
    """
    planner = LoadPlanner(measure, settings)

    def attempt_alone(num_bytes: int) -> None:
        with ExitStack() as own:
            planner.plan(own, budget_bytes=num_bytes)

    try:
        return planner.plan(stack, budget_bytes=budget_bytes, others=others)
    except BudgetError as error:
        raise naming_enough(error, attempt_alone, budget_bytes, first=_LITTLE_BYTES) from error


def plan_tiers(
    demand: Demand,
    settings: LoaderSettings,
    files: TableFiles,
    tiers: Sequence[DeviceTier],
    *,
    budget_bytes: int,
) -> MemoryPlan:
    """Share the budget out; of a table that the device holds whole, only the checksums stay on the host.

    Parameters
    ----------
    demand, files, tiers : what was measured, see `MeasuredLoad`
    settings : those of the loader
    budget_bytes : of memory

    Raises
    ------
    BudgetError, ConfigError
        As `plan_memory`.
    """
    memory, feature_bytes = settings.memory, demand.feature_bytes
    holds_all = all(tier.holds_all for tier in tiers)
    demand = replace(
        demand,
        tables=tuple(
            replace(table, feature_bytes=table.store_bytes) if tier.holds_all else table
            for table, tier in zip(demand.tables, tiers, strict=False)
        ),
    )
    return plan_memory(
        demand,
        budget_bytes=budget_bytes,
        spill_bytes=files.spill_bytes,
        features="ram" if holds_all else memory.features,
        cache_bytes=0 if memory.policy == "none" else memory.cache_bytes(feature_bytes),
        superbatch=memory.superbatch,
        # Rows of other machines have to be put somewhere, and those of the first superbatch, which finds nothing
        # cached, hardly fit in the memory that is idle.
        must_pack=settings.reading.io_strategy == "packed" or demand.work.is_exchanged,
        num_buffers=memory.buffers,
    )
