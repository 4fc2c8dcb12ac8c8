"""What a loader holds for its whole life: topology, sampler, feature source, host cache and buffers."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.budget import Demand, MemoryPlan, fits_topology, plan_memory
from gloader.gather import Gather
from gloader.host_cache import HostCache, node_bytes, slot_bytes
from gloader.memory import available_memory_bytes
from gloader.ring import BufferRing
from gloader.samplers import CscGraph, NeighborSampler
from gloader.types import BatchId, FeatureSource, SampledBatch
from gloader.units import format_bytes

if TYPE_CHECKING:
    from gloader.config import Features, Policy
    from gloader.dataset import Dataset
    from gloader.order import EpochOrder
    from gloader.ssd_store import FeatureStore
    from gloader.ssd_store.engine import IoMode
    from gloader.ssd_store.reader import Verify

logger = logging.getLogger("gloader")

_PROBE_BATCHES = 3
_LARGER_THAN_PROBED = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureTier:
    """The parts behind a loader, sized by ``plan``. Owns the store until `close`."""

    graph: CscGraph
    sampler: NeighborSampler
    gather: Gather
    ring: BufferRing
    store: FeatureStore | None
    plan: MemoryPlan
    batches_in_flight: int
    num_nodes: int
    is_topology_mapped: bool
    policy: Policy

    def explain(self) -> str:
        """Say what is held where and how large it is, a line each."""
        plan = self.plan
        lines = [
            f"memory budget {format_bytes(plan.budget_bytes)}, planned {format_bytes(plan.total_bytes)}:"
        ]
        lines += [f"  {name}: {format_bytes(size)}" for name, size in plan.parts]
        if self.is_topology_mapped:
            lines.append("  topology: memory-mapped, because it would take more than half of the budget")
        if plan.features == "ram":
            lines.append("features: in memory, they fit the budget; the SSD and the host cache step aside")
        else:
            share = 100 * plan.cache_rows / max(self.num_nodes, 1)
            lines.append(
                f"features: on the SSD; {plan.cache_rows:,} rows ({share:.1f}%) in memory, policy {self.policy}"
            )
        return "\n".join(lines)

    def close(self) -> None:
        """Release the store. Idempotent."""
        if self.store is not None:
            self.store.close()


def open_feature_tier(
    dataset: Dataset,
    *,
    fanouts: tuple[int, ...],
    order: EpochOrder,
    features: Features,
    budget_bytes: int | None,
    policy: Policy,
    cache_bytes: int | None,
    sampler_threads: int,
    io: IoMode,
    verify: Verify,
) -> FeatureTier:
    """Measure a few batches, share the memory budget out, and open what it says.

    Raises
    ------
    BudgetError
        The budget is too small; raised before topology, features or cache are loaded.
    """
    budget = available_memory_bytes() // 2 if budget_bytes is None else budget_bytes
    in_flight = sampler_threads + 2
    is_held = fits_topology(dataset.topology_bytes, budget)
    graph = dataset.load_graph(in_memory=is_held)
    sampler = NeighborSampler(graph, fanouts, seed=order.seed)
    probe = _probe(sampler, order)
    store = dataset.open_features(io=io, verify=verify)
    try:
        plan = plan_memory(
            Demand(
                num_nodes=dataset.num_nodes,
                topology_bytes=dataset.topology_bytes if is_held else 0,
                feature_bytes=dataset.feature_bytes,
                row_bytes=4 * dataset.feature_dim,
                slot_bytes=slot_bytes(policy),
                node_bytes=node_bytes(policy),
                batch_rows=min(math.ceil(_LARGER_THAN_PROBED * _most_rows(probe)), dataset.num_nodes),
                batch_edges=math.ceil(_LARGER_THAN_PROBED * _most_edges(probe)),
                batches_in_flight=in_flight,
                sampler_threads=sampler_threads,
                store_bytes=store.resident_bytes,
            ),
            budget_bytes=budget,
            features=features,
            cache_bytes=0 if policy == "none" else cache_bytes,
        )
        source, cache = _open_source(store, graph, plan, policy)
    except BaseException:
        store.close()
        raise
    is_in_memory = plan.features == "ram"
    if is_in_memory:
        store.close()
    ring = BufferRing(
        dim=dataset.feature_dim, rows=_most_rows(probe), max_bytes=plan.ring_bytes + plan.spare_bytes
    )
    return FeatureTier(
        graph=graph,
        sampler=sampler,
        gather=Gather(source, cache, ring, is_in_memory=is_in_memory),
        ring=ring,
        store=None if is_in_memory else store,
        plan=plan,
        batches_in_flight=in_flight,
        num_nodes=dataset.num_nodes,
        is_topology_mapped=not is_held,
        policy=policy,
    )


def _probe(sampler: NeighborSampler, order: EpochOrder) -> list[SampledBatch]:
    """Sample the first batches of epoch 0, to know how large a batch is."""
    ordered = order.epoch_seeds(0)
    count = min(_PROBE_BATCHES, order.num_batches)
    return [sampler.sample(BatchId(epoch=0, index=i), order.batch_seeds(ordered, i)) for i in range(count)]


def _most_rows(probe: list[SampledBatch]) -> int:
    return max((len(batch.nodes) for batch in probe), default=1)


def _most_edges(probe: list[SampledBatch]) -> int:
    return max((sum(block.num_edges for block in batch.blocks) for batch in probe), default=1)


def _open_source(
    store: FeatureStore, graph: CscGraph, plan: MemoryPlan, policy: Policy
) -> tuple[FeatureSource, HostCache | None]:
    if plan.features == "ram":
        return store.load(), None
    if plan.cache_rows == 0:
        return store, None
    return store, HostCache(policy, plan.cache_rows, graph=graph, source=store)
