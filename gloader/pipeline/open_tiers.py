"""Opening the tiers of a loader: measures a few batches, shares the memory budget out, and opens what it says."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gloader.core.fanouts import checked_hops
from gloader.core.row_order import RowOrder
from gloader.dataset.topology import open_hetero_topology, open_topology
from gloader.errors import BudgetError
from gloader.memory.available import default_budget_bytes
from gloader.memory.plan import MemoryPlan, idle_part, plan_memory
from gloader.observe.explain import TableFacts, TierFacts
from gloader.pipeline.buffers import ALIGNMENT, BufferRing, RowForm
from gloader.pipeline.device_rows import DeviceTable, Workload
from gloader.pipeline.measure_demand import in_flight, measure_demand, num_batches_of, num_sampler_threads
from gloader.pipeline.open_device_tier import load_features, open_device_tiers, row_format
from gloader.pipeline.open_edges import (
    SWEPT_SAMPLERS,
    choose_edge_home,
    open_spill_folder,
    open_sweeps,
    plan_edges,
    sweep_demand,
)
from gloader.pipeline.open_ssd import open_ssd
from gloader.pipeline.probe import probe_in_passes, probe_one_by_one
from gloader.pipeline.table_files import open_files, with_edge_spill
from gloader.pipeline.tiers import FeatureTier
from gloader.pipeline.unreachable import tell_unreachable
from gloader.samplers import (
    HeteroGraph,
    make_hetero_sampler,
    make_hetero_temporal_sampler,
    make_sampler,
    make_temporal_sampler,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.config import LoaderSettings
    from gloader.core.row_order import AnyOrder
    from gloader.dataset import Dataset
    from gloader.device import DeviceTier
    from gloader.memory.demand import Demand
    from gloader.memory.topology_home import TopologyChoice
    from gloader.pipeline.device_room import DryRun
    from gloader.pipeline.other_devices import OtherDevices
    from gloader.pipeline.seed_order import SeedPlan
    from gloader.pipeline.table_files import TableFiles
    from gloader.samplers import Topology
    from gloader.ssd_store.cost.strategy import IoRates
    from gloader.types import AnySampler, FeatureSource

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
) -> FeatureTier:
    """Measure a few batches, share the memory budget out, and open what it says.

    Parameters
    ----------
    dataset : what is sampled, and where the features are
    seeds : those of the batches of this rank
    settings : those of the loader
    dry_run : one step of the model, to see what it takes of the device
    num_ranks : ranks that this loader brings batches to
    num_loaders : loaders of this machine; each takes its part of a budget that nobody named
    others : the devices of the other ranks that this loader brings batches to; defaults to none

    Raises
    ------
    BudgetError
        The budget is too small; raised before features or cache are loaded.
    ConfigError
        Sweeps over the edges, or sampling on a device, were asked for and cannot be.
    """
    budget = settings.memory.memory_budget
    if budget is None:
        budget = default_budget_bytes() // num_loaders
    stack = ExitStack()
    try:
        spill = open_spill_folder(dataset, settings, stack, budget_bytes=budget)
        home = choose_edge_home(dataset, settings, spill, budget_bytes=budget)
        # Held first: what it leaves of the budget is shared out below.
        topology = _open_edges(dataset, settings, stack, max_bytes=home.max_bytes, is_typed=seeds.is_typed)
        order, text = seeds.order, ""
        if seeds.links is not None and isinstance(order, RowOrder):
            bound = seeds.links.bind(order, topology, settings, stack, budget_bytes=budget)
            order, text = bound.order, bound.text
            budget -= bound.held_bytes
        files = open_files(dataset, settings, spill, stack)
        if isinstance(topology, HeteroGraph):
            tell_unreachable(topology, seeds, num_hops=len(settings.sampling.fanouts))
        work = _workload(dataset, topology, order, settings, dry_run, files, is_swept=home.home == "sweep")
        num_batches = num_batches_of(settings, order, num_ranks)
        home, sweeps = plan_edges(
            home,
            sweep_demand(dataset, settings, work.probe, num_batches=num_batches),
            is_required=settings.memory.topology == "sweep",
            budget_bytes=budget,
            spill_bytes=files.spill_bytes,
        )
        # One more than there are tables, where there is none: what there is of the device.
        tiers = open_device_tiers(settings.device, work, tables=_device_tables(files), others=others)
        demand = measure_demand(settings, work, files, tiers, sweeps, num_ranks=num_ranks)
        plan = _plan(demand, settings, files, tiers, budget_bytes=budget)
        files = with_edge_spill(files, plan, stack)
        # What nobody planned for stages missing rows, of two superbatches at a time, and makes further buffers for a
        # loop that keeps batches.
        spare = idle_part(plan.spare_bytes)
        edge_sweeps = open_sweeps(
            dataset, settings, plan.sweeps, work, folder=files.edge_spill, rates=files.rates, stack=stack
        )
        sources: tuple[FeatureSource, ...] = files.stores
        ssd = None
        if plan.features == "ssd":
            for tier, store in zip(tiers, files.stores, strict=True):
                tier.fill(store)
            ssd = open_ssd(files, plan, topology, settings, tiers, stack, staging_bytes=spare)
        else:
            sources, tiers = _settle_in_memory(files, tiers, stack, others=others)
        ring_bytes = (plan.ring_bytes + spare) // num_ranks
        return FeatureTier(
            topology=topology,
            order=order,
            sampler=tiers[0].sampler or work.sampler,
            types=files.types,
            sources=sources,
            ring=_ring(demand, plan, files, tiers, max_bytes=ring_bytes),
            device=tiers[0].device,
            device_tiers=tiers[: len(files.tables)],
            plan=plan,
            ssd=ssd,
            sweeps=edge_sweeps,
            sampler_threads=num_sampler_threads(settings, tiers[0]),
            batches_in_flight=in_flight(settings, tiers[0], num_ranks),
            facts=_facts(demand, plan, settings, home, rates=files.rates, links=text),
            stack=stack,
        )
    except BaseException:
        stack.close()
        raise


def _open_edges(
    dataset: Dataset, settings: LoaderSettings, stack: ExitStack, *, max_bytes: int, is_typed: bool
) -> Topology | HeteroGraph:
    io, times = settings.reading.io, settings.sampling.is_temporal
    if is_typed:
        return stack.enter_context(open_hetero_topology(dataset, max_bytes=max_bytes, io=io, times=times))
    return stack.enter_context(open_topology(dataset, max_bytes=max_bytes, io=io, times=times))


def _workload(
    dataset: Dataset,
    topology: Topology | HeteroGraph,
    order: AnyOrder,
    settings: LoaderSettings,
    dry_run: DryRun | None,
    files: TableFiles,
    *,
    is_swept: bool,
) -> Workload:
    threads = settings.stages.sampler_threads
    sampler = sampler_for(topology, order, settings)
    probe = None
    if is_swept and files.spill is not None and isinstance(sampler, SWEPT_SAMPLERS):
        # A disk without room for so few is found out, and told of, where the passes are planned.
        with suppress(BudgetError):
            probe = probe_in_passes(
                dataset, sampler, order, files.spill, rates=files.rates, io=settings.reading.io
            )
    if probe is None:
        probe = probe_one_by_one(sampler, order, threads=threads)
    return Workload(
        topology=topology,
        sampler=sampler,
        order=order,
        fanouts=settings.sampling.fanouts,
        probe=probe.batches,
        probe_s=probe.seconds,
        threads=threads,
        dry_run=dry_run,
    )


def sampler_for(topology: Topology | HeteroGraph, order: AnyOrder, settings: LoaderSettings) -> AnySampler:
    """Return what samples the batches of a loader from ``topology``; ConfigError where it cannot."""
    sampling = settings.sampling
    if not isinstance(topology, HeteroGraph):
        hops = checked_hops(sampling.fanouts)
        if sampling.is_temporal:
            return make_temporal_sampler(
                topology,
                hops,
                order.seed,
                layout=sampling.layout,
                strategy=sampling.time_strategy,
                bound=sampling.time_bound,
                window=sampling.time_window,
                spec=sampling.sampler,
            )
        return make_sampler(sampling.sampler, topology, hops, order.seed, layout=sampling.layout)
    if sampling.is_temporal:
        return make_hetero_temporal_sampler(
            topology,
            sampling.fanouts,
            order.seed,
            layout=sampling.layout,
            strategy=sampling.time_strategy,
            bound=sampling.time_bound,
            window=sampling.time_window,
            spec=sampling.sampler,
        )
    return make_hetero_sampler(
        sampling.sampler, topology, sampling.fanouts, order.seed, layout=sampling.layout
    )


def _facts(
    demand: Demand,
    plan: MemoryPlan,
    settings: LoaderSettings,
    home: TopologyChoice,
    *,
    rates: IoRates,
    links: str,
) -> TierFacts:
    """Return what a loader explains itself by; ``links`` says what is predicted."""
    return TierFacts(
        tables=tuple(
            TableFacts(name=table.name, num_nodes=table.num_nodes, row_bytes=table.stored_row_bytes)
            for table in demand.tables
        ),
        plan=plan,
        policy=settings.memory.policy,
        topology=home,
        rates=rates,
        links=links,
    )


def _device_tables(files: TableFiles) -> list[DeviceTable]:
    return [
        DeviceTable(
            type_number=table.rows.number,
            num_nodes=table.rows.num_rows,
            form=row_format(table.store),
            is_of_edges=table.is_of_edges,
        )
        for table in files.tables
    ]


def _plan(
    demand: Demand,
    settings: LoaderSettings,
    files: TableFiles,
    tiers: Sequence[DeviceTier],
    *,
    budget_bytes: int,
) -> MemoryPlan:
    """Share the budget out; of a table that the device holds whole, only the checksums stay on the host."""
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
        must_pack=settings.reading.io_strategy == "packed",
    )


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


def _ring(
    demand: Demand, plan: MemoryPlan, files: TableFiles, tiers: Sequence[DeviceTier], *, max_bytes: int
) -> BufferRing:
    """Return the buffers of a rank; of tables that the device brings, they only bound the batches under way."""
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
