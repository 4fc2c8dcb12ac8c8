"""A loader's tiers, which live as long as the loader: topology, sampler, feature sources, caches and buffers.

This is the last step of opening a loader. `open_feature_tier` first calls `plan_load`, which measures a few batches and
divides the memory budget; then it opens the parts of the plan. `open_ssd` opens the parts that read features from the
SSD: for each table a host cache, its planner and its reader.

- A table is the feature rows of a node type or of a relation. Tables are numbered: node types first, then relations.
- A `DeviceTier` is the part of a table's rows that the device holds, or reads from host memory itself.
- A pack is one batch's missing rows, written to the disk ahead of the batch. A missing row is in no cache.
- A superbatch is consecutive batches whose missing rows are planned together. To stage rows is to read them ahead.
- A static cache holds the same rows during the whole run. Other caches change their rows as planned.
- The unplanned memory is the part of the budget that the plan leaves. The loader uses a share of it if it helps.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache import SlotCache, access_counts, hottest_by_degree, make_planner
from gloader.cache.trace import NO_ROWS
from gloader.core.machine import require_descriptors
from gloader.errors import BudgetError, ConfigError
from gloader.observe.explain import IoFacts, TableFacts, TierFacts, explain_io, explain_tiers
from gloader.pipeline.buffers import ALIGNMENT, BufferRing, RowForm
from gloader.pipeline.open.device_tier import load_features
from gloader.pipeline.open.disk import FILES_OF_A_READER, open_sweeps, with_edge_spill
from gloader.pipeline.open.first_batches import in_flight, num_sampler_threads
from gloader.pipeline.open.load_plan import LoadRequest, plan_load, plan_tiers
from gloader.pipeline.open.row_slots import open_embeddings
from gloader.pipeline.stage import MissRetrieval
from gloader.plan.available import default_budget_bytes
from gloader.plan.memory_plan import MemoryPlan, idle_part, share_out
from gloader.samplers import HeteroGraph
from gloader.ssd_store import Packer, pack_buffers
from gloader.ssd_store.spill.regions import MAX_FILES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.cache import SuperbatchPlanner
    from gloader.config import LoaderSettings
    from gloader.core.order import AnyOrder
    from gloader.dataset import Dataset
    from gloader.device import Device, DeviceTier
    from gloader.pipeline.edge_sweeps import SweepTier
    from gloader.pipeline.node_rows import NodeRows
    from gloader.pipeline.open.disk import FeatureFile, TableFiles
    from gloader.pipeline.open.load_plan import MeasuredLoad
    from gloader.pipeline.other_ranks import ExchangeTier, OtherDevices, OtherMachines
    from gloader.pipeline.trained_embedding import TrainedEmbedding
    from gloader.plan.demand import Demand
    from gloader.samplers import Topology
    from gloader.ssd_store import FeatureStore
    from gloader.types import AnySampler, FeatureSource, IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SsdTable:
    """The parts that serve a table's features from the SSD."""

    store: FeatureStore  # the rows on the SSD
    slots: SlotCache  # the host cache
    planner: SuperbatchPlanner  # decides hits, misses and admissions
    retrieval: MissRetrieval  # reads missing rows


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureTier:
    """The parts behind a loader, sized by ``plan``. Owns them until `close`.

    Each tuple has one entry per table. A table belongs to a node type or a relation with features.
    """

    topology: Topology | HeteroGraph  # the edges, in memory or on the SSD
    order: AnyOrder  # the batches of this rank, and their seeds
    sampler: AnySampler  # the device's sampler if the device samples, else the CPU's
    types: tuple[int, ...]  # each table's number
    sources: tuple[FeatureSource, ...]  # all rows of each table
    ring: BufferRing  # reused host buffers for gathered batches
    device: Device  # computes the batches
    device_tiers: tuple[DeviceTier, ...]  # each table's rows on the device
    plan: MemoryPlan  # the division of the memory budget
    spill_bytes: int  # disk for packs and for the output of edge passes
    ssd: tuple[SsdTable, ...] | None  # None for features in memory
    sweeps: SweepTier | None  # None if batches are sampled one by one
    exchange: ExchangeTier | None  # with other machines; None if this machine reads all missing rows
    trained: tuple[TrainedEmbedding, ...]  # the embeddings that the loader trains
    frozen: tuple[NodeRows, ...]  # the embeddings that it only reads
    sampler_threads: int  # number of threads
    batches_in_flight: int  # maximum number of sampled batches that wait for their rows
    facts: TierFacts  # for `explain`
    load: MeasuredLoad  # the measurements behind the plan
    stack: ExitStack  # closes the parts

    @property
    def table_names(self) -> tuple[str, ...]:
        """The node type, or the relation, of each table."""
        return self.facts.table_names

    def require_ssd(self) -> tuple[SsdTable, ...]:
        """Return ``ssd``, which must not be None."""
        if self.ssd is None:
            raise ConfigError("features are in memory: there is no SSD tier")
        return self.ssd

    def explain(self) -> str:
        """Return lines that name each part's place and size."""
        return "\n".join(filter(None, [self.explain_host(), *(tier.explain() for tier in self.device_tiers)]))

    def explain_host(self) -> str:
        """Return the lines that all served ranks share: all lines except the device's."""
        text = explain_tiers(self.facts)
        if self.ssd is None:
            return text
        io = IoFacts(
            size=self.plan.superbatch,
            rates=self.ssd[0].retrieval.rates,
            staging_bytes=sum(table.retrieval.staging_bytes for table in self.ssd),
            spill_bytes=sum(table.retrieval.spill_bytes for table in self.ssd),
        )
        lines = [text, explain_io(io)]
        return "\n".join(lines if self.exchange is None else [*lines, self.exchange.explain()])

    def restart(self) -> None:
        """Reset the planners to the present contents of the caches, after plans that were only partly executed."""
        for table in self.ssd or ():
            table.planner.restart(table.slots.resident)
        for embedding in self.trained:
            embedding.restart()

    def close(self) -> None:
        """Release everything. Idempotent."""
        self.stack.close()


# Maximum number of threads that copy cache hits. More threads gain nothing while a model computes.
_COPY_THREADS: Final = 2

# Unit of a table's share of the disk: shares are whole millionths, which do not depend on the free space.
_WHOLE: Final = 10**6


def open_ssd(
    load: MeasuredLoad,
    plan: MemoryPlan,
    settings: LoaderSettings,
    stack: ExitStack,
    *,
    exchange: ExchangeTier | None,
) -> tuple[SsdTable, ...]:
    """Open the host caches of ``plan``, their planners, and the readers that stage and pack missing rows.

    The host caches and the device caches are filled.

    Parameters
    ----------
    load : the rows of each table on disk and device, and the topology, which decides the rows of a static cache
    plan : the memory plan
    settings : the loader's settings
    stack : closes the opened parts
    exchange : row exchange with other machines, whose disks fill the caches too; None if rows are only read here

    Raises
    ------
    BudgetError
        Packs were requested, and there is no folder for them.
    """
    files = load.files
    require_pack_folder(settings, has_folder=files.spill is not None)
    # A part of the unplanned memory stages the missing rows of up to two superbatches.
    staging = share_out(idle_part(plan.spare_bytes), plan.missed_bytes)
    spill = spill_shares(plan)
    buffers = None
    # The plan may have rejected packs as too expensive, although there is a folder for them.
    if files.spill is not None and plan.pack_buffer_bytes:
        # Each table is swept by its own reader; the files of a pack are written together.
        require_descriptors(FILES_OF_A_READER * len(files.tables) + MAX_FILES)
        buffers = pack_buffers(plan.pack_buffer_bytes)
        stack.callback(buffers.close)
    opened = []  # without tables there is still one tier, so the lengths may differ
    for number, (table, tier) in enumerate(zip(files.tables, load.tiers, strict=False)):
        store, capacity = table.store, plan.cache_rows[number]
        held = NO_ROWS if tier.cache is None else tier.cache.plan.rows
        hot = NO_ROWS
        if settings.memory.policy == "static":
            hot = static_rows(load.work.topology, table, capacity, held)
        packer = None
        if files.spill is not None and buffers is not None:
            packer = stack.enter_context(Packer(store, files.spill, buffers=buffers))
        slots = stack.enter_context(
            SlotCache(
                capacity,
                dim=store.dim,
                dtype=store.dtype,
                is_bfloat16=store.stored_rows.form.is_bfloat16,
                scale=store.stored_rows.form.scale,
                threads=min(_COPY_THREADS, settings.stages.sampler_threads),
            )
        )
        with nullcontext(store) if exchange is None else exchange.filling(number, store) as rows:
            tier.fill(rows)
            # Static rows are read now; other rows are admitted when batches miss them.
            slots.fill(hot, rows)
        opened.append(
            SsdTable(
                store=store,
                slots=slots,
                planner=open_planner(plan, settings, table, hot=hot, held=held, number=number),
                retrieval=MissRetrieval(
                    store,
                    rates=files.rates,
                    packer=packer,
                    spill=files.spill,
                    staging_bytes=staging[number],
                    forced=settings.reading.io_strategy,
                    spill_share=spill[number],
                ),
            )
        )
    return tuple(opened)


def require_pack_folder(settings: LoaderSettings, *, has_folder: bool) -> None:
    """Raise BudgetError if packs were requested, and there is no folder for them."""
    if settings.reading.io_strategy == "packed" and not has_folder:
        raise BudgetError(
            "io_strategy='packed' needs disk for packs, and there is no folder for them: set spill_budget to more than "
            "0 bytes and spill_dir to a folder on a disk, or use io_strategy='auto'"
        )


def spill_shares(plan: MemoryPlan) -> tuple[float, ...]:
    """Return each table's share of the disk for packs. Pure."""
    return tuple(share / _WHOLE for share in share_out(_WHOLE, plan.missed_bytes))


def open_planner(
    plan: MemoryPlan,
    settings: LoaderSettings,
    table: FeatureFile,
    *,
    hot: IdArray,
    held: IdArray,
    number: int,
) -> SuperbatchPlanner:
    """Return the planner of a table's hits, misses and admissions.

    Parameters
    ----------
    plan : the memory plan
    settings : the loader's settings
    table : the table
    hot : the rows of a static cache; empty for other caches
    held : the rows that the device holds
    number : the table's index in ``plan``
    """
    return make_planner(
        settings.memory.policy,
        num_nodes=table.rows.num_rows,
        capacity=plan.cache_rows[number],
        hot=hot,
        device_resident=held,
        reset=settings.memory.superbatch_reset,
        expected_accesses=plan.planned_accesses[number],
    )


def static_rows(
    topology: Topology | HeteroGraph, table: FeatureFile, capacity: int, held: IdArray
) -> IdArray:
    """Return the rows (capacity,) of a static host cache: the rows whose nodes have the most out-edges.

    The rows ``held`` by the device are left out.
    """
    if table.is_of_edges:
        # Only batches show which edges are used: before the first batch, no edge is hotter than another.
        return np.setdiff1d(np.arange(capacity + len(held)), held)[:capacity]
    degrees = np.zeros(table.rows.num_rows, dtype=np.int64)
    for (source, _, _), edges in HeteroGraph.of(topology).relations.items():
        if source == table.rows.name:
            degrees += access_counts(edges.sources.pieces(), len(degrees))
    degrees[held] = 0
    return hottest_by_degree(degrees, capacity)


# Number of one-row buffers if the device serves all rows. They are for the gather, the queue, the sender thread, and
# one batch more.
_EMPTY_BUFFERS: Final = 4


def open_feature_tier(request: LoadRequest, *, others: OtherDevices | None = None) -> FeatureTier:
    """Measure a few batches, plan the memory, and open the parts of the plan.

    Without a memory budget, each loader on this host takes an equal part of the default budget.

    Parameters
    ----------
    request : the batches, the ranks and the machines
    others : the devices of the other ranks that this loader serves; defaults to none

    Raises
    ------
    BudgetError
        The budget is too small; raised before features or cache are loaded.
    ConfigError
        Sweeps over the edges, or sampling on a device, were requested and are impossible.
    """
    if request.dataset.ranges is not None:
        request = replace(request, settings=_from_ssd(request.dataset, request.settings))
    dataset, settings = request.dataset, request.settings
    machines, num_ranks = request.machines, request.num_ranks
    budget = settings.memory.memory_budget
    if budget is None:
        budget = default_budget_bytes() // request.num_loaders
    stack = ExitStack()
    try:
        load, plan = plan_load(request, stack, budget_bytes=budget, others=others)
        files, tiers, demand, work = load.files, load.tiers, load.demand, load.work
        exchange = None
        if machines is not None:
            plan, exchange = _join(
                machines, plan, demand, settings, files, tiers, budget_bytes=budget, num_ranks=num_ranks
            )
        spill_bytes = files.spill_bytes  # before the edge passes take a part
        files = with_edge_spill(files, plan, stack)
        load = replace(load, files=files)
        edge_sweeps = open_sweeps(
            dataset, settings, plan.sweeps, work, folder=files.edge_spill, rates=files.rates, stack=stack
        )
        sources: tuple[FeatureSource, ...] = files.stores
        ssd = None
        if plan.features == "ssd":
            ssd = open_ssd(load, plan, settings, stack, exchange=exchange)
        else:
            sources, tiers = _settle_in_memory(files, tiers, stack, others=others)
        return FeatureTier(
            topology=work.topology,
            order=work.order,
            sampler=load.sampler,
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
            trained=open_embeddings(
                request.embeddings,
                demand.embeddings,
                dataset,
                stack,
                num_batches=plan.superbatch.num_batches,
                spills=files.row_spills,
            ),
            frozen=request.embeddings.frozen,
            sampler_threads=num_sampler_threads(settings, tiers[0]),
            batches_in_flight=in_flight(settings, tiers[0], num_ranks),
            facts=_facts(load, plan, settings),
            # Without the measured batches, which are large.
            load=replace(load, work=replace(work, probe=[])),
            stack=stack,
        )
    except BaseException:
        stack.close()
        raise


def _facts(load: MeasuredLoad, plan: MemoryPlan, settings: LoaderSettings) -> TierFacts:
    """Return the facts for a loader's explanation."""
    return TierFacts(
        tables=tuple(
            TableFacts(name=table.name, num_nodes=table.num_nodes, row_bytes=table.stored_row_bytes)
            for table in load.demand.tables
        ),
        plan=plan,
        policy=settings.memory.policy,
        topology=load.home,
        rates=load.files.rates,
        links=load.task,
        embeddings=tuple(each.text for each in load.demand.embeddings),
    )


def _from_ssd(dataset: Dataset, settings: LoaderSettings) -> LoaderSettings:
    """Return settings with features on the SSD. A machine that stores only a range of the rows needs them."""
    if settings.memory.features == "ram":
        raise ConfigError(
            f"features='ram' would hold all rows, but {dataset.location} stores only a range of them; use "
            "features='ssd', or prepare a copy with all rows: gloader prepare without --ranges"
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
    """Return a plan with superbatches that fit on all machines, and the row exchange; None if rows are not exchanged.

    Collective: all machines call it together, and wait for each other.
    """
    size = machines.agree_on_superbatch(plan, num_ranks=num_ranks)
    if not size:
        return plan, None
    if size != plan.superbatch.num_batches:
        memory = replace(settings.memory, superbatch=size)
        plan = plan_tiers(demand, replace(settings, memory=memory), files, tiers, budget_bytes=budget_bytes)
    return plan, machines.exchange(files.stores)


def _settle_in_memory(
    files: TableFiles, tiers: tuple[DeviceTier, ...], stack: ExitStack, *, others: OtherDevices | None
) -> tuple[tuple[FeatureSource, ...], tuple[DeviceTier, ...]]:
    """Load all rows into memory, and stop using the disk. All devices read the rows in place, or none does."""
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
    # Without packs, the spill folder is not needed during the run.
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
    """Return a rank's buffers. If the device serves all tables, the buffers only limit the batches in flight.

    No memory is allocated before the first gather.

    Parameters
    ----------
    demand, files, tiers : the fields of a `MeasuredLoad`
    plan : the memory plan
    settings : the loader's settings; unless they fix the number of buffers, unplanned memory is used for further ones
    num_ranks : ranks that this loader serves
    """
    # Unplanned memory for further buffers, if the loop keeps batches.
    spare = 0 if settings.memory.buffers else idle_part(plan.spare_bytes)
    max_bytes = (plan.ring_bytes + spare) // num_ranks
    tables = list(zip(demand.tables, files.stores, tiers, strict=False))
    if tables and all(tier.brings_all for *_, tier in tables):
        max_bytes = _EMPTY_BUFFERS * sum(table.row_bytes for table, *_ in tables)
    # Room for the gaps that align the tables' matrices in each buffer. The plan leaves these few bytes out.
    padding = ALIGNMENT * (len(tables) - 1) * (plan.num_buffers + _EMPTY_BUFFERS)
    # Buffers have room for batches somewhat larger than measured, because a new buffer takes longer than a gather.
    return BufferRing(
        forms=[RowForm(dim=store.dim, dtype=tier.staged_dtype) for _, store, tier in tables],
        rows=[1 if tier.brings_all else table.buffer_rows for table, _, tier in tables],
        max_bytes=max_bytes + max(padding, 0),
        allocate=tiers[0].device.host_buffer,
    )
