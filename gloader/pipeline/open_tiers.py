"""What a loader holds for its whole life: topology, sampler, feature source, caches and buffers."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from gloader.cache import (
    SlotCache,
    SuperbatchPlanner,
    hottest_by_degree,
    make_planner,
    out_degrees,
    slot_bytes,
)
from gloader.cache.trace import NO_ROWS
from gloader.dataset.topology import open_topology
from gloader.errors import BudgetError, ConfigError
from gloader.memory.available import default_budget_bytes
from gloader.memory.plan import Demand, MemoryPlan, fits_topology, plan_memory
from gloader.memory.spill_budget import open_spill
from gloader.observe.explain import IoFacts, TierFacts, explain_io, explain_tiers
from gloader.observe.miss_estimate import MissSample
from gloader.pipeline.buffers import BufferRing
from gloader.pipeline.open_device_tier import DeviceSettings, Workload, open_device_tier, row_format, with_features
from gloader.pipeline.stage import MissRetrieval
from gloader.pipeline.threads import run_together
from gloader.samplers import make_sampler, workspace_node_bytes
from gloader.ssd_store import FeatureStore, Packer
from gloader.ssd_store.cost.profile import default_gap_bytes
from gloader.ssd_store.cost.rates import rates_of
from gloader.types import BatchId, FeatureSource, IdArray, SampledBatch, Sampler

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.cache import MissCurve
    from gloader.config import Features, IoStrategy, Layout, Policy
    from gloader.core.order import EpochOrder
    from gloader.dataset import Dataset
    from gloader.dataset.topology import Topology
    from gloader.device import DeviceTier
    from gloader.observe.epoch_stats import EpochStats
    from gloader.pipeline.open_device_tier import OtherDevices
    from gloader.ssd_store.cost.strategy import IoRates
    from gloader.ssd_store.read.read_settings import IoMode, Verify
    from gloader.ssd_store.spill.folder import SpillFolder

_PROBE_BATCHES = 3
_LENT_TOPOLOGIES = 5  # of another rank's batches, beside their features
_LARGER_THAN_PROBED = 1.15
_EMPTY_BUFFERS = 4  # of a row each: one for gather, the queue, the thread that sends, and one more
_SAMPLE_SHARE = 0.05  # of the budget, for a moment, to estimate what other cache sizes would miss
_COPY_THREADS = 2  # that copy hits; more do not pay where a model computes beside them


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """What a user may say about where features live and how they move."""

    features: Features
    budget_bytes: int | None
    spill_bytes: int | None
    spill_dir: Path | None
    policy: Policy
    cache_bytes: int | None
    io_strategy: IoStrategy
    max_gap_bytes: int | None
    superbatch: int | None
    superbatch_reset: bool
    sampler: str
    layout: Layout
    sampler_threads: int
    num_epochs: int | None
    io: IoMode
    verify: Verify


@dataclass(frozen=True, slots=True, kw_only=True)
class SsdTier:
    """The parts that bring features from the SSD."""

    store: FeatureStore
    slots: SlotCache
    planner: SuperbatchPlanner
    retrieval: MissRetrieval
    miss_sample: MissSample


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureTier:
    """The parts behind a loader, sized by ``plan``. Owns them until `close`."""

    topology: Topology
    sampler: Sampler
    source: FeatureSource  # all N rows
    ring: BufferRing
    device: DeviceTier
    plan: MemoryPlan
    ssd: SsdTier | None  # None where the features are in memory
    batches_in_flight: int
    facts: TierFacts
    stack: ExitStack

    def require_ssd(self) -> SsdTier:
        """Return ``ssd`` where it is known to be there."""
        if self.ssd is None:
            raise ConfigError("features are in memory: there is no SSD tier")
        return self.ssd

    def explain(self) -> str:
        """Say what is held where and how large it is, a line each."""
        return "\n".join(filter(None, [self.explain_host(), self.device.explain()]))

    def explain_host(self) -> str:
        """Say the part of that which is the same for all ranks that this one loads for: all but the device."""
        text = explain_tiers(self.facts)
        if self.ssd is None:
            return text
        io = IoFacts(
            size=self.plan.superbatch,
            rates=self.ssd.retrieval.rates,
            staging_bytes=self.ssd.retrieval.staging_bytes,
            spill_bytes=self.ssd.retrieval.spill_bytes,
        )
        return f"{text}\n{explain_io(io)}"

    def miss_curve(self, stats: EpochStats) -> MissCurve | None:
        """Return what other sizes of the host cache would have missed in an epoch, where that can be estimated."""
        if self.ssd is None or not stats.rows_gathered:
            return None
        rate = stats.rows_read / stats.rows_gathered
        return self.ssd.miss_sample.curve(capacity=self.plan.cache_rows, miss_rate=rate)

    def restart(self) -> None:
        """Let the planner count on what the slots hold, after plans that were not executed to their end."""
        if self.ssd is not None:
            self.ssd.planner.restart(self.ssd.slots.resident)

    def close(self) -> None:
        """Release everything. Idempotent."""
        self.stack.close()


def open_feature_tier(
    dataset: Dataset,
    *,
    order: EpochOrder,
    fanouts: tuple[int, ...],
    settings: TierSettings,
    device: DeviceSettings | None = None,
    num_ranks: int = 1,
    others: OtherDevices | None = None,
) -> FeatureTier:
    """Measure a few batches, share the memory budget out, and open what it says; for ``num_ranks`` ranks.

    ``others`` are the devices of those ranks, beside that of this one.

    Raises
    ------
    BudgetError
        The budget is too small; raised before features or cache are loaded.
    """
    stack = ExitStack()
    try:
        return _open(dataset, order, fanouts, settings, device or DeviceSettings(), num_ranks, others, stack)
    except BaseException:
        stack.close()
        raise


def _open(
    dataset: Dataset,
    order: EpochOrder,
    fanouts: tuple[int, ...],
    settings: TierSettings,
    device_settings: DeviceSettings,
    num_ranks: int,
    others: OtherDevices | None,
    stack: ExitStack,
) -> FeatureTier:
    budget = default_budget_bytes() if settings.budget_bytes is None else settings.budget_bytes
    is_held = fits_topology(dataset.topology_bytes, budget)
    topology = stack.enter_context(open_topology(dataset, in_memory=is_held))
    sampler = make_sampler(settings.sampler, topology, fanouts, order.seed, layout=settings.layout)
    probe = _probe(sampler, order, threads=settings.sampler_threads)
    spill = None
    if settings.features != "ram":
        spill = open_spill(settings.spill_dir, settings.spill_bytes, feature_bytes=dataset.feature_bytes)
    if spill is not None:
        stack.enter_context(spill)
    # Before the store is opened, which reads through holes as long as the device's rates make that cheaper.
    rates = rates_of(dataset.features_path, None if spill is None else spill.path)
    store = stack.enter_context(
        dataset.open_features(io=settings.io, verify=settings.verify, gap_bytes=settings.max_gap_bytes)
    )
    in_flight = settings.sampler_threads + 2 * num_ranks
    form = row_format(store)
    device = open_device_tier(
        device_settings,
        Workload(
            topology=topology,
            sampler=sampler,
            order=order,
            fanouts=fanouts,
            probe=probe,
            threads=settings.sampler_threads,
        ),
        source=store,
        form=form,
        others=others,
    )
    demand = _demand(
        dataset, order, settings, probe, store, is_held=is_held, in_flight=in_flight, num_ranks=num_ranks
    )
    is_on_device = device.holds_all  # then all below steps aside, and only the store's checksums stay
    plan = plan_memory(
        replace(demand, feature_bytes=store.resident_bytes) if is_on_device else demand,
        budget_bytes=budget,
        spill_bytes=0 if spill is None else spill.budget_bytes,
        features="ram" if is_on_device else settings.features,
        cache_bytes=0 if settings.policy == "none" else settings.cache_bytes,
        superbatch=settings.superbatch,
        must_pack=settings.io_strategy == "packed",
    )
    spare = max(plan.spare_bytes, 0) // 2
    source: FeatureSource = store
    ssd = None
    if plan.features == "ram":
        if not is_on_device:
            source = loaded = store.load()
            store.close()
            device = with_features(device, loaded, form) if num_ranks == 1 else device
            stack.callback(device.close)
        if spill is not None:
            spill.close()
    else:
        ssd = _open_ssd(store, spill, rates, plan, topology, settings, spare, device, stack)
    return FeatureTier(
        topology=topology,
        sampler=sampler,
        source=source,
        ring=_ring(dataset.feature_dim, probe, device, max_bytes=(plan.ring_bytes + spare) // num_ranks),
        device=device,
        plan=plan,
        ssd=ssd,
        batches_in_flight=in_flight,
        facts=TierFacts(
            plan=plan,
            num_nodes=dataset.num_nodes,
            policy=settings.policy,
            is_topology_mapped=not is_held,
        ),
        stack=stack,
    )


def _ring(dim: int, probe: list[SampledBatch], device: DeviceTier, *, max_bytes: int) -> BufferRing:
    """Return the buffers of a rank; where the device brings every row, they only bound the batches under way."""
    allocate = device.device.host_buffer
    if device.brings_all:
        return BufferRing(dim=dim, rows=1, max_bytes=_EMPTY_BUFFERS * 4 * dim, allocate=allocate)
    return BufferRing(dim=dim, rows=_most_rows(probe), max_bytes=max_bytes, allocate=allocate)


def _open_ssd(
    store: FeatureStore,
    spill: SpillFolder | None,
    rates: IoRates,
    plan: MemoryPlan,
    topology: Topology,
    settings: TierSettings,
    spare_bytes: int,
    device: DeviceTier,
    stack: ExitStack,
) -> SsdTier:
    held = NO_ROWS if device.cache is None else device.cache.plan.rows
    hot = _hottest(topology, plan.cache_rows, held) if settings.policy == "static" else NO_ROWS
    slots = stack.enter_context(
        SlotCache(
            plan.cache_rows,
            dim=store.dim,
            dtype=store.dtype,
            is_bfloat16=store.stored_rows.is_bfloat16,
            scale=store.stored_rows.scale,
            threads=min(_COPY_THREADS, settings.sampler_threads),
        )
    )
    slots.fill(hot, store)
    planner = make_planner(
        settings.policy,
        num_nodes=store.num_rows,
        capacity=plan.cache_rows,
        hot=hot,
        device_resident=held,
        reset=settings.superbatch_reset,
        expected_accesses=plan.planned_accesses,
    )
    if settings.io_strategy == "packed" and spill is None:
        raise BudgetError(
            "io_strategy='packed' needs disk for packs, and there is no folder for them: give spill_budget bytes (0 "
            "means none) and a spill_dir that is not in memory, or use io_strategy='auto'"
        )
    packer = None
    if spill is not None and plan.pack_buffer_bytes:
        packer = stack.enter_context(Packer(store, spill, memory_bytes=plan.pack_buffer_bytes))
    retrieval = MissRetrieval(
        store,
        rates=rates,
        packer=packer,
        spill=spill,
        staging_bytes=spare_bytes,
        forced=settings.io_strategy,
    )
    sample = MissSample(store.num_rows, max_bytes=int(_SAMPLE_SHARE * plan.budget_bytes))
    return SsdTier(store=store, slots=slots, planner=planner, retrieval=retrieval, miss_sample=sample)


def _hottest(topology: Topology, capacity: int, held: IdArray) -> IdArray:
    """Return the rows of a static host cache, beside those ``held`` by the device."""
    topology.wait()  # the count trusts every edge
    graph = topology.graph
    degrees = out_degrees(graph.indices, graph.num_nodes)
    degrees[held] = 0
    return hottest_by_degree(degrees, capacity)


def _demand(
    dataset: Dataset,
    order: EpochOrder,
    settings: TierSettings,
    probe: list[SampledBatch],
    store: FeatureStore,
    *,
    is_held: bool,
    in_flight: int,
    num_ranks: int,
) -> Demand:
    batches = None if settings.num_epochs is None else settings.num_epochs * order.num_batches * num_ranks
    return Demand(
        num_nodes=dataset.num_nodes,
        topology_bytes=dataset.topology_bytes if is_held else 0,
        feature_bytes=dataset.feature_bytes,
        row_bytes=4 * dataset.feature_dim,
        slot_bytes=slot_bytes(settings.policy),
        policy=settings.policy,
        batch_rows=min(math.ceil(_LARGER_THAN_PROBED * _most_rows(probe)), dataset.num_nodes),
        batch_edges=math.ceil(_LARGER_THAN_PROBED * _most_edges(probe)),
        batches_in_flight=in_flight + _LENT_TOPOLOGIES * (num_ranks - 1),
        sampler_threads=settings.sampler_threads,
        sampler_node_bytes=workspace_node_bytes(settings.sampler),
        store_bytes=store.resident_bytes,
        stored_row_bytes=store.row_bytes,
        gap_bytes=default_gap_bytes(dataset.root),
        num_batches=batches,
        num_ranks=num_ranks,
    )


def _probe(sampler: Sampler, order: EpochOrder, *, threads: int) -> list[SampledBatch]:
    """Sample the first batches of epoch 0, to know how large a batch is; a cold topology keeps each of them waiting."""
    positions = order.epoch_positions(0)  # which the stages ask for again
    count = min(_PROBE_BATCHES, order.num_batches)
    seeds = [order.seeds[order.batch_seeds(positions, index)] for index in range(count)]
    tasks = [partial(sampler.sample, BatchId(epoch=0, index=index), seeds[index]) for index in range(count)]
    return run_together(tasks, threads=threads, name="gloader-probe")


def _most_rows(probe: list[SampledBatch]) -> int:
    return max((len(batch.nodes) for batch in probe), default=1)


def _most_edges(probe: list[SampledBatch]) -> int:
    return max((sum(block.num_edges for block in batch.blocks) for batch in probe), default=1)
