"""Opening the tiers of a loader: measures a few batches, shares the memory budget out, and opens what it says."""

from __future__ import annotations

import math
import os
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gloader.cache import SlotCache, access_counts, hottest_by_degree, make_planner, slot_bytes
from gloader.cache.reuse import measure_reuse
from gloader.cache.trace import NO_ROWS
from gloader.dataset.topology import open_topology
from gloader.errors import BudgetError
from gloader.memory.available import default_budget_bytes
from gloader.memory.demand import Demand, TableDemand
from gloader.memory.plan import MemoryPlan, idle_part, plan_memory
from gloader.memory.predict import StepWork, TableWork, spread_of
from gloader.observe.explain import TierFacts
from gloader.observe.miss_estimate import MissSample
from gloader.pipeline.buffers import BufferRing, RowForm
from gloader.pipeline.device_room import LARGER_THAN_PROBED
from gloader.pipeline.open_device_sampler import MOST_THREADS
from gloader.pipeline.open_device_tier import (
    Workload,
    load_features,
    open_device_tier,
    row_format,
)
from gloader.pipeline.open_edges import (
    SWEPT_SAMPLERS,
    choose_edge_home,
    open_spill_folder,
    open_sweeps,
    plan_edges,
    sweep_demand,
)
from gloader.pipeline.pace import BATCHES_AHEAD
from gloader.pipeline.probe import probe_in_passes, probe_one_by_one
from gloader.pipeline.stage import MissRetrieval
from gloader.pipeline.tiers import FeatureTier, SsdTable
from gloader.samplers import call_bytes, make_sampler, node_map_bytes
from gloader.ssd_store import Packer
from gloader.ssd_store.cost.profile import MAX_GAP_BYTES
from gloader.ssd_store.cost.rates import rates_of
from gloader.ssd_store.read.extents import num_pages

if TYPE_CHECKING:
    from gloader.config import LoaderSettings, ReadingSettings
    from gloader.core.order import EpochOrder
    from gloader.dataset import Dataset
    from gloader.device import DeviceTier
    from gloader.memory.sweep_plan import SweepPlan
    from gloader.pipeline.device_room import DryRun
    from gloader.pipeline.other_devices import OtherDevices
    from gloader.samplers import Topology
    from gloader.ssd_store import FeatureStore
    from gloader.ssd_store.cost.strategy import IoRates
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.types import FeatureSource, IdArray, SampledBatch

# Of what passes over the edges brought for a batch, while a thread makes it: that, and where it is looked up.
_REPLAY_FACTOR = 3

# Of each other rank's batches, kept here until it gives them back; their features lie in rings.
_LENT_TOPOLOGIES = 5

# Whose edge ids stay on the host while an asynchronous device has the rest: sent, waiting, and computed on.
_ON_DEVICE = BATCHES_AHEAD + 1

# Sampled batches that wait for each rank's gather, beside those that are being sampled.
_BATCHES_AHEAD = 2

# Of a row each: one for gather, the queue, the thread that sends, and one more.
_EMPTY_BUFFERS = 4

# Of the budget, for a moment, to estimate what other cache sizes would miss.
_SAMPLE_SHARE = 0.05

# They copy hits; more do not pay where a model computes beside them.
_COPY_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """What lies on the disk: the features, and room for packs."""

    store: FeatureStore
    spill: SpillFolder | None
    rates: IoRates
    edge_spill: SpillFolder | None = None  # for what passes over the edges bring; None: there are no such

    @property
    def spill_bytes(self) -> int:
        return 0 if self.spill is None else self.spill.budget_bytes


def open_feature_tier(
    dataset: Dataset,
    order: EpochOrder,
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
    order : the batches of this rank
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
        topology = stack.enter_context(
            open_topology(dataset, max_bytes=home.max_bytes, io=settings.reading.io)
        )
        files = _open_files(dataset, settings, spill, stack)
        work = _workload(dataset, topology, order, settings, dry_run, files, is_swept=home.home == "sweep")
        num_batches = _num_batches(settings, order, num_ranks)
        home, sweeps = plan_edges(
            home,
            sweep_demand(dataset, settings, work.probe, num_batches=num_batches),
            is_required=settings.memory.topology == "sweep",
            budget_bytes=budget,
            spill_bytes=files.spill_bytes,
        )
        device = open_device_tier(
            settings.device, work, num_nodes=dataset.num_nodes, form=row_format(files.store), others=others
        )
        demand = _demand(dataset, settings, work, files, device, sweeps, num_ranks=num_ranks)
        plan = _plan(demand, settings, files, device, budget_bytes=budget)
        files = _with_edge_spill(files, plan, stack)
        # What nobody planned for stages missing rows, of two superbatches at a time, and makes further buffers for a
        # loop that keeps batches.
        spare = idle_part(plan.spare_bytes)
        edge_sweeps = open_sweeps(
            dataset, settings, plan.sweeps, work, folder=files.edge_spill, rates=files.rates, stack=stack
        )
        source: FeatureSource = files.store
        ssd = None
        if plan.features == "ssd":
            device.fill(files.store)
            ssd = (_open_ssd(files, plan, topology, settings, device, stack, staging_bytes=spare),)
        else:
            source, device = _settle_in_memory(files, device, stack, others=others)
        return FeatureTier(
            topology=topology,
            sampler=device.sampler or work.sampler,
            types=(0,),
            sources=(source,),
            ring=_ring(dataset.feature_dim, demand, device, max_bytes=(plan.ring_bytes + spare) // num_ranks),
            device=device.device,
            device_tiers=(device,),
            plan=plan,
            ssd=ssd,
            sweeps=edge_sweeps,
            sampler_threads=_sampler_threads(settings, device),
            batches_in_flight=_in_flight(settings, device, num_ranks),
            facts=TierFacts(
                table_names=("node",),
                plan=plan,
                num_nodes=dataset.num_nodes,
                policy=settings.memory.policy,
                topology=home,
                rates=files.rates,
            ),
            stack=stack,
        )
    except BaseException:
        stack.close()
        raise


def open_store(dataset: Dataset, reading: ReadingSettings) -> FeatureStore:
    """Open the features of ``dataset`` for reading as ``reading`` says."""
    return dataset.open_features(io=reading.io, verify=reading.verify, gap_bytes=reading.max_gap)


def _workload(
    dataset: Dataset,
    topology: Topology,
    order: EpochOrder,
    settings: LoaderSettings,
    dry_run: DryRun | None,
    files: _Files,
    *,
    is_swept: bool,
) -> Workload:
    sampling, threads = settings.sampling, settings.stages.sampler_threads
    sampler = make_sampler(sampling.sampler, topology, sampling.hops, order.seed, layout=sampling.layout)
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
        fanouts=sampling.hops,
        probe=probe.batches,
        probe_s=probe.seconds,
        threads=threads,
        dry_run=dry_run,
    )


def _open_files(
    dataset: Dataset, settings: LoaderSettings, spill: SpillFolder | None, stack: ExitStack
) -> _Files:
    # Before the store is opened, which reads through holes as long as the device's rates make that cheaper.
    rates = rates_of(dataset.features_path, None if spill is None else spill.path)
    store = stack.enter_context(open_store(dataset, settings.reading))
    return _Files(store=store, spill=spill, rates=rates)


def _with_edge_spill(files: _Files, plan: MemoryPlan, stack: ExitStack) -> _Files:
    """Return ``files`` with a folder for passes over the edges, whose part of the disk packs cannot take."""
    if files.spill is None or plan.sweeps is None:
        return files
    return replace(files, edge_spill=stack.enter_context(files.spill.split_off(plan.sweeps.spill_bytes)))


def _sampler_threads(settings: LoaderSettings, device: DeviceTier) -> int:
    threads = settings.stages.sampler_threads
    return threads if device.sampler is None else min(threads, MOST_THREADS)


def _in_flight(settings: LoaderSettings, device: DeviceTier, num_ranks: int) -> int:
    """Return the sampled batches that wait to be gathered."""
    return _sampler_threads(settings, device) + _BATCHES_AHEAD * num_ranks


def _demand(
    dataset: Dataset,
    settings: LoaderSettings,
    work: Workload,
    files: _Files,
    device: DeviceTier,
    sweeps: SweepPlan | None,
    *,
    num_ranks: int,
) -> Demand:
    """Return what a loader of ``settings`` would like to hold, about the batches that ``work`` probed."""
    waiting = _in_flight(settings, device, num_ranks) + (_ON_DEVICE if device.device.is_asynchronous else 0)
    policy, store = settings.memory.policy, files.store
    call = _most_call_bytes(settings.sampling.sampler, work)
    rows = min(math.ceil(LARGER_THAN_PROBED * _most_rows(work.probe)), dataset.num_nodes)
    edges = math.ceil(LARGER_THAN_PROBED * _most_edges(work.probe))
    # In file order, as plans and stores count.
    batches = [np.sort(batch.nodes) for batch in work.probe]
    table = TableDemand(
        name="node",
        num_nodes=dataset.num_nodes,
        feature_bytes=dataset.feature_bytes,
        row_bytes=_buffer_row_bytes(store, device),
        slot_bytes=slot_bytes(policy),
        batch_rows=rows,
        store_bytes=store.resident_bytes,
        stored_row_bytes=store.row_bytes,
        reuse=measure_reuse(batches, dataset.num_nodes),
    )
    return Demand(
        tables=(table,),
        topology_bytes=work.topology.held_bytes,
        policy=policy,
        batch_rows=rows,
        batch_edges=edges,
        batches_in_flight=waiting + _LENT_TOPOLOGIES * (num_ranks - 1),
        sampler_threads=_sampler_threads(settings, device),
        # A device that samples has its map of nodes with it.
        sampler_map_bytes=0
        if device.sampler is not None
        else node_map_bytes(settings.sampling.sampler, num_nodes=dataset.num_nodes, found=rows + edges),
        sampler_call_bytes=math.ceil(LARGER_THAN_PROBED * call)
        if sweeps is None
        else _REPLAY_FACTOR * sweeps.drawn_bytes,
        work=_step_work(settings, work, files, device, batches, sweeps),
        num_batches=_num_batches(settings, work.order, num_ranks),
        num_seeds=len(work.order.seeds),
        num_ranks=num_ranks,
        is_reset=settings.memory.superbatch_reset,
        sweeps=sweeps,
    )


def _num_batches(settings: LoaderSettings, order: EpochOrder, num_ranks: int) -> int | None:
    """Return the batches of the whole run, of all ranks that are loaded for; None: they are not known."""
    epochs = settings.stages.epochs
    return None if epochs is None else epochs * order.num_batches * num_ranks


def _buffer_row_bytes(store: FeatureStore, device: DeviceTier) -> int:
    """Return the bytes of a row in a buffer of the ring: a device widens it, the CPU gets it as float32."""
    return store.dim * device.staged_dtype.itemsize


def _step_work(
    settings: LoaderSettings,
    work: Workload,
    files: _Files,
    device: DeviceTier,
    batches: list[IdArray],
    sweeps: SweepPlan | None,
) -> StepWork:
    """Return what a step has to do, as the batches that ``work`` probed and the disk say."""
    store, times = files.store, files.rates.times
    rows = sum(map(len, batches)) / max(len(batches), 1)
    pages = sum(num_pages(batch, row_bytes=store.row_bytes) for batch in batches) / max(len(batches), 1)
    table = TableWork(
        rows=rows,
        row_bytes=_buffer_row_bytes(store, device),
        stored_row_bytes=store.row_bytes,
        file_rows=spread_of(pages, rows, num_rows=store.num_rows, row_bytes=store.row_bytes),
        gap_bytes=store.stored_rows.gap_bytes,
    )
    return StepWork(
        tables=(table,),
        rates=files.rates,
        sweep_gap_bytes=times.sweep_gap_bytes(most=MAX_GAP_BYTES),
        sample_s=work.probe_s,
        cores=len(os.sched_getaffinity(0)),
        strategy=settings.reading.io_strategy,
        edges_s=0.0 if sweeps is None else sweeps.pass_seconds(files.rates),
        edge_bytes=0.0 if sweeps is None else sweeps.read_bytes,
    )


def _plan(
    demand: Demand, settings: LoaderSettings, files: _Files, device: DeviceTier, *, budget_bytes: int
) -> MemoryPlan:
    """Share the budget out; where the device holds all rows, only the store's checksums stay on the host."""
    memory = settings.memory
    if device.holds_all:
        demand = replace(
            demand,
            tables=tuple(replace(table, feature_bytes=table.store_bytes) for table in demand.tables),
        )
    return plan_memory(
        demand,
        budget_bytes=budget_bytes,
        spill_bytes=files.spill_bytes,
        features="ram" if device.holds_all else memory.features,
        cache_bytes=0 if memory.policy == "none" else memory.cache_bytes(demand.feature_bytes),
        superbatch=memory.superbatch,
        must_pack=settings.reading.io_strategy == "packed",
    )


def _settle_in_memory(
    files: _Files, device: DeviceTier, stack: ExitStack, *, others: OtherDevices | None
) -> tuple[FeatureSource, DeviceTier]:
    """Return all rows in memory, and the device, which reads them there if all can; the disk is left alone."""
    source: FeatureSource = files.store
    if device.holds_all:
        device.fill(source)
    else:
        loaded = load_features(files.store, device, others=others)
        source, device = loaded.source, loaded.tier
        stack.callback(device.close)
    # Nothing will be packed: the folder is not left on the disk for the whole run.
    if files.spill is not None:
        files.spill.close()
    return source, device


def _ring(dim: int, demand: Demand, device: DeviceTier, *, max_bytes: int) -> BufferRing:
    """Return the buffers of a rank; where the device brings every row, they only bound the batches under way."""
    rows = demand.batch_rows
    if device.brings_all:
        rows, max_bytes = 1, _EMPTY_BUFFERS * demand.tables[0].row_bytes
    # With room for batches somewhat larger than those that were probed: to make a buffer anew takes longer than
    # to gather a batch into it.
    return BufferRing(
        forms=[RowForm(dim=dim, dtype=device.staged_dtype)],
        rows=[rows],
        max_bytes=max_bytes,
        allocate=device.device.host_buffer,
    )


def _open_ssd(
    files: _Files,
    plan: MemoryPlan,
    topology: Topology,
    settings: LoaderSettings,
    device: DeviceTier,
    stack: ExitStack,
    *,
    staging_bytes: int,
) -> SsdTable:
    """Open the host cache of ``plan``, its planner, and what stages and packs missing rows."""
    store, memory, strategy = files.store, settings.memory, settings.reading.io_strategy
    held = NO_ROWS if device.cache is None else device.cache.plan.rows
    hot = _hottest(topology, plan.cache_rows[0], held) if memory.policy == "static" else NO_ROWS
    slots = stack.enter_context(
        SlotCache(
            plan.cache_rows[0],
            dim=store.dim,
            dtype=store.dtype,
            is_bfloat16=store.stored_rows.is_bfloat16,
            scale=store.stored_rows.scale,
            threads=min(_COPY_THREADS, settings.stages.sampler_threads),
        )
    )
    # Static rows are read now; the others come with the batches that miss them.
    slots.fill(hot, store)
    planner = make_planner(
        memory.policy,
        num_nodes=store.num_rows,
        capacity=plan.cache_rows[0],
        hot=hot,
        device_resident=held,
        reset=memory.superbatch_reset,
        expected_accesses=plan.planned_accesses[0],
    )
    if strategy == "packed" and files.spill is None:
        raise BudgetError(
            "io_strategy='packed' needs disk for packs, and there is no folder for them: give spill_budget bytes (0 "
            "means none) and a spill_dir that is not in memory, or use io_strategy='auto'"
        )
    # The plan may have found packs too dear, though there is a folder for them.
    packer = None
    if files.spill is not None and plan.pack_buffer_bytes:
        packer = stack.enter_context(Packer(store, files.spill, memory_bytes=plan.pack_buffer_bytes))
    retrieval = MissRetrieval(
        store,
        rates=files.rates,
        packer=packer,
        spill=files.spill,
        staging_bytes=staging_bytes,
        forced=strategy,
    )
    sample = MissSample(store.num_rows, max_bytes=int(_SAMPLE_SHARE * plan.budget_bytes))
    return SsdTable(store=store, slots=slots, planner=planner, retrieval=retrieval, miss_sample=sample)


def _hottest(topology: Topology, capacity: int, held: IdArray) -> IdArray:
    """Return the rows of a static host cache, beside those ``held`` by the device."""
    degrees = access_counts(topology.sources.pieces(), topology.num_nodes)
    degrees[held] = 0
    return hottest_by_degree(degrees, capacity)


def _most_rows(probe: list[SampledBatch]) -> int:
    return max((len(batch.nodes) for batch in probe), default=1)


def _most_edges(probe: list[SampledBatch]) -> int:
    return max((sum(block.num_edges for block in batch.blocks) for batch in probe), default=1)


def _most_call_bytes(sampler: str, work: Workload) -> int:
    return max((call_bytes(sampler, work.topology, batch) for batch in work.probe), default=0)
