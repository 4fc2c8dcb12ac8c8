"""The plan of a loader, made before anything is held for it; of a budget that is too small, the one that is enough."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from gloader.errors import BudgetError
from gloader.memory.plan import plan_memory
from gloader.memory.too_small import advice, least_enough
from gloader.pipeline.probe import Probe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.config import LoaderSettings
    from gloader.device import DeviceTier
    from gloader.memory.demand import Demand
    from gloader.memory.plan import MemoryPlan
    from gloader.pipeline.measured_load import MeasuredLoad
    from gloader.pipeline.other_devices import OtherDevices
    from gloader.pipeline.table_files import TableFiles

_LITTLE_BYTES: Final = 16 << 20  # less than any loader needs: what is always counted takes more


class Measure(Protocol):
    """Measures the load of a loader: `measure_load` of all but these."""

    def __call__(
        self, stack: ExitStack, *, budget_bytes: int, probe: Probe | None, others: OtherDevices | None
    ) -> MeasuredLoad:
        """Return it; ``stack`` closes what was opened."""
        ...


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
    measure : what it would bring, called again for every other budget that is tried
    settings : those of the loader
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
    probe: Probe | None = None

    def attempt(
        num_bytes: int, stack: ExitStack, others: OtherDevices | None
    ) -> tuple[MeasuredLoad, MemoryPlan]:
        nonlocal probe
        load = measure(stack, budget_bytes=num_bytes, probe=probe, others=others)
        # Batches are the same with any budget.
        probe = Probe(batches=load.work.probe, seconds=load.work.probe_s)
        return load, plan_tiers(load.demand, settings, load.files, load.tiers, budget_bytes=num_bytes)

    def attempt_alone(num_bytes: int) -> None:
        with ExitStack() as own:
            attempt(num_bytes, own, None)

    try:
        return attempt(budget_bytes, stack, others)
    except BudgetError as error:
        if not error.short_bytes:
            raise
        enough = least_enough(attempt_alone, first=_LITTLE_BYTES)
        if enough <= budget_bytes:
            raise
        raise BudgetError(error.cause, short_bytes=enough - budget_bytes, advice=advice(enough)) from error


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
