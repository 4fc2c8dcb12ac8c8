"""Opening the tiers of a loader: measures a few batches, shares the memory budget out, and opens what it says."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from gloader.errors import ConfigError
from gloader.observe.explain import TableFacts, TierFacts
from gloader.pipeline.buffers import ALIGNMENT, BufferRing, RowForm
from gloader.pipeline.measure_demand import in_flight, num_sampler_threads
from gloader.pipeline.measured_load import measure_load
from gloader.pipeline.open_device_tier import load_features
from gloader.pipeline.open_edges import open_sweeps
from gloader.pipeline.open_ssd import open_ssd
from gloader.pipeline.planned_load import plan_load, plan_tiers
from gloader.pipeline.table_files import with_edge_spill
from gloader.pipeline.tiers import FeatureTier
from gloader.plan.available import default_budget_bytes
from gloader.plan.memory_plan import MemoryPlan, idle_part

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from gloader.config import LoaderSettings
    from gloader.dataset import Dataset
    from gloader.device import DeviceTier
    from gloader.pipeline.device_room import DryRun
    from gloader.pipeline.measured_load import MeasuredLoad
    from gloader.pipeline.other_devices import OtherDevices
    from gloader.pipeline.other_machines import ExchangeTier, OtherMachines
    from gloader.pipeline.seed_order import SeedPlan
    from gloader.pipeline.table_files import TableFiles
    from gloader.plan.demand import Demand
    from gloader.types import FeatureSource

# Of a row each: one for gather, the queue, the thread that sends, and one more.
_EMPTY_BUFFERS: Final = 4


def open_feature_tier(
    dataset: Dataset,
    seeds: SeedPlan,
    settings: LoaderSettings,
    *,
    dry_run: DryRun | None = None,
    num_ranks: int = 1,
    num_loaders: int = 1,
    others: OtherDevices | None = None,
    machines: OtherMachines | None = None,
) -> FeatureTier:
    """Measure a few batches, share the memory budget out, and open what it says.

    Parameters
    ----------
    dataset : what is sampled, and where the features are
    seeds : those of the batches of this rank
    settings : those of the loader
    dry_run : one step of the model, to see what it takes of the device
    num_ranks : ranks that this loader brings batches to
    num_loaders : loaders on this host; each takes its part of a budget that nobody named
    others : the devices of the other ranks that this loader brings batches to; defaults to none
    machines : open loaders as well, now, and may exchange rows with this one; defaults to none

    Raises
    ------
    BudgetError
        The budget is too small; raised before features or cache are loaded.
    ConfigError
        Sweeps over the edges, or sampling on a device, were asked for and cannot be.
    """
    if dataset.ranges is not None:
        settings = _from_ssd(dataset, settings)
    budget = settings.memory.memory_budget
    if budget is None:
        budget = default_budget_bytes() // num_loaders
    stack = ExitStack()
    try:
        measure = partial(
            measure_load,
            dataset,
            seeds,
            settings,
            dry_run=dry_run,
            num_ranks=num_ranks,
            num_loaders=num_loaders,
            machines=machines,
        )
        load, plan = plan_load(measure, settings, stack, budget_bytes=budget, others=others)
        files, tiers, demand, work = load.files, load.tiers, load.demand, load.work
        exchange = None
        if machines is not None:
            plan, exchange = _join(
                machines, plan, demand, settings, files, tiers, budget_bytes=budget, num_ranks=num_ranks
            )
        spill_bytes = files.spill_bytes  # before a part is split off
        files = with_edge_spill(files, plan, stack)
        edge_sweeps = open_sweeps(
            dataset, settings, plan.sweeps, work, folder=files.edge_spill, rates=files.rates, stack=stack
        )
        sources: tuple[FeatureSource, ...] = files.stores
        ssd = None
        if plan.features == "ssd":
            filling = _filling(files, exchange)
            for number, tier in enumerate(tiers[: len(files.tables)]):
                with filling(number) as rows:
                    tier.fill(rows)
            # What nobody planned for stages missing rows, of two superbatches at a time.
            staging_bytes = idle_part(plan.spare_bytes)
            ssd = open_ssd(
                files,
                plan,
                work.topology,
                settings,
                tiers,
                stack,
                staging_bytes=staging_bytes,
                filling=filling,
            )
        else:
            sources, tiers = _settle_in_memory(files, tiers, stack, others=others)
        return FeatureTier(
            topology=work.topology,
            order=work.order,
            sampler=tiers[0].sampler or work.sampler,
            types=files.types,
            sources=sources,
            ring=open_ring(demand, plan, settings, files, tiers, num_ranks=num_ranks),
            device=tiers[0].device,
            device_tiers=tiers[: len(files.tables)],
            plan=plan,
            spill_bytes=spill_bytes,
            ssd=ssd,
            sweeps=edge_sweeps,
            exchange=exchange,
            sampler_threads=num_sampler_threads(settings, tiers[0]),
            batches_in_flight=in_flight(settings, tiers[0], num_ranks),
            facts=_facts(load, plan, settings),
            # Not the batches that it was measured by, which are large.
            load=replace(load, files=files, work=replace(work, probe=[])),
            stack=stack,
        )
    except BaseException:
        stack.close()
        raise


def _facts(load: MeasuredLoad, plan: MemoryPlan, settings: LoaderSettings) -> TierFacts:
    """Return what a loader explains itself by."""
    return TierFacts(
        tables=tuple(
            TableFacts(name=table.name, num_nodes=table.num_nodes, row_bytes=table.stored_row_bytes)
            for table in load.demand.tables
        ),
        plan=plan,
        policy=settings.memory.policy,
        topology=load.home,
        rates=load.files.rates,
        links=load.links,
    )


def _from_ssd(dataset: Dataset, settings: LoaderSettings) -> LoaderSettings:
    """Return the settings of a loader of a range of the rows: they come from the SSDs of all machines."""
    if settings.memory.features == "ram":
        raise ConfigError(
            f"features='ram' would hold all rows, and {dataset.location} has a range of them; use features='ssd', or "
            "prepare a copy with all rows: gloader prepare without --ranges"
        )
    return replace(settings, memory=replace(settings.memory, features="ssd"))


def _join(
    machines: OtherMachines,
    plan: MemoryPlan,
    demand: Demand,
    settings: LoaderSettings,
    files: TableFiles,
    tiers: Sequence[DeviceTier],
    *,
    budget_bytes: int,
    num_ranks: int,
) -> tuple[MemoryPlan, ExchangeTier | None]:
    """Return the plan with superbatches that all machines have room for, and what exchanges rows; collective."""
    size = machines.agree_on_superbatch(plan, num_ranks=num_ranks)
    if not size:
        return plan, None
    if size != plan.superbatch.num_batches:
        memory = replace(settings.memory, superbatch=size)
        plan = plan_tiers(demand, replace(settings, memory=memory), files, tiers, budget_bytes=budget_bytes)
    return plan, machines.exchange(files.stores)


def _filling(
    files: TableFiles, exchange: ExchangeTier | None
) -> Callable[[int], AbstractContextManager[FeatureSource]]:
    """Return what brings the rows with which caches of a table are filled: this disk, or those of all machines."""
    if exchange is None:
        return lambda table: nullcontext(files.stores[table])
    return lambda table: exchange.filling(table, files.stores[table])


def _settle_in_memory(
    files: TableFiles, tiers: tuple[DeviceTier, ...], stack: ExitStack, *, others: OtherDevices | None
) -> tuple[tuple[FeatureSource, ...], tuple[DeviceTier, ...]]:
    """Return all rows in memory, and the device, which reads them there if all can; the disk is left alone."""
    sources: list[FeatureSource] = []
    settled: list[DeviceTier] = []
    for number, (store, tier) in enumerate(zip(files.stores, tiers, strict=False)):
        if tier.holds_all:
            tier.fill(store)
            sources.append(store)
            settled.append(tier)
            continue
        loaded = load_features(store, tier, others=others, table=number)
        stack.callback(loaded.tier.close)
        sources.append(loaded.source)
        settled.append(loaded.tier)
    # Nothing will be packed: the folder is not left on the disk for the whole run.
    if files.spill is not None:
        files.spill.close()
    return tuple(sources), (*settled, *tiers[len(settled) :])


def open_ring(
    demand: Demand,
    plan: MemoryPlan,
    settings: LoaderSettings,
    files: TableFiles,
    tiers: Sequence[DeviceTier],
    *,
    num_ranks: int,
) -> BufferRing:
    """Return the buffers of a rank; of tables that the device brings, they only bound the batches under way.

    Nothing is allocated before a batch is gathered.

    Parameters
    ----------
    demand, files, tiers : what was measured, see `MeasuredLoad`
    plan : of the memory
    settings : those of the loader; where they name no number of buffers, memory that nobody planned for makes more
    num_ranks : ranks that this loader brings batches to
    """
    # For a loop that keeps batches.
    spare = 0 if settings.memory.buffers else idle_part(plan.spare_bytes)
    max_bytes = (plan.ring_bytes + spare) // num_ranks
    tables = list(zip(demand.tables, files.stores, tiers, strict=False))
    if tables and all(tier.brings_all for *_, tier in tables):
        max_bytes = _EMPTY_BUFFERS * sum(table.row_bytes for table, *_ in tables)
    # Between the matrices of two tables, at most; nothing to a plan, but a buffer too few without it.
    padding = ALIGNMENT * (len(tables) - 1) * (plan.num_buffers + _EMPTY_BUFFERS)
    # With room for batches somewhat larger than those that were probed: to make a buffer anew takes longer than
    # to gather a batch into it.
    return BufferRing(
        forms=[RowForm(dim=store.dim, dtype=tier.staged_dtype) for _, store, tier in tables],
        rows=[1 if tier.brings_all else table.buffer_rows for table, _, tier in tables],
        max_bytes=max_bytes + max(padding, 0),
        allocate=tiers[0].device.host_buffer,
    )
