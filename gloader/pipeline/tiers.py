"""Tiers of a loader: topology, sampler, feature source, caches and buffers, held for its whole life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.errors import ConfigError
from gloader.observe.explain import IoFacts, explain_io, explain_tiers

if TYPE_CHECKING:
    from contextlib import ExitStack

    from gloader.cache import SlotCache, SuperbatchPlanner
    from gloader.core.row_order import AnyOrder
    from gloader.device import Device, DeviceTier
    from gloader.observe.explain import TierFacts
    from gloader.pipeline.buffers import BufferRing
    from gloader.pipeline.measured_load import MeasuredLoad
    from gloader.pipeline.other_machines import ExchangeTier
    from gloader.pipeline.stage import MissRetrieval
    from gloader.pipeline.sweep_tier import SweepTier
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.samplers import HeteroGraph, Topology
    from gloader.ssd_store import FeatureStore
    from gloader.types import AnySampler, FeatureSource


@dataclass(frozen=True, slots=True, kw_only=True)
class SsdTable:
    """The parts that bring the features of a table from the SSD."""

    store: FeatureStore
    slots: SlotCache
    planner: SuperbatchPlanner
    retrieval: MissRetrieval


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureTier:
    """The parts behind a loader, sized by ``plan``. Owns them until `close`.

    Tuples have an entry for each table: the feature rows of a node type, or of a relation's edges, that has them.
    """

    topology: Topology | HeteroGraph
    order: AnyOrder  # the batches of this rank, and their seeds
    sampler: AnySampler
    types: tuple[int, ...]  # the number of each table, see `table_rows`
    sources: tuple[FeatureSource, ...]  # all rows
    ring: BufferRing
    device: Device
    device_tiers: tuple[DeviceTier, ...]
    plan: MemoryPlan
    spill_bytes: int  # of disk, for packs and for what passes over the edges bring
    ssd: tuple[SsdTable, ...] | None  # None where the features are in memory
    sweeps: SweepTier | None  # None where batches are sampled one by one
    exchange: ExchangeTier | None  # with other machines; None: missing rows are read here alone
    sampler_threads: int
    batches_in_flight: int
    facts: TierFacts
    load: MeasuredLoad  # by which the memory was shared out
    stack: ExitStack

    @property
    def table_names(self) -> tuple[str, ...]:
        """The node type, or the relation, of each table."""
        return self.facts.table_names

    def require_ssd(self) -> tuple[SsdTable, ...]:
        """Return ``ssd`` where it is known to be there."""
        if self.ssd is None:
            raise ConfigError("features are in memory: there is no SSD tier")
        return self.ssd

    def explain(self) -> str:
        """Say what is held where and how large it is, a line each."""
        return "\n".join(filter(None, [self.explain_host(), *(tier.explain() for tier in self.device_tiers)]))

    def explain_host(self) -> str:
        """Say the part of that which is the same for all ranks that this one loads for: all but the device."""
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
        """Let the planner count on what the slots hold, after plans that were not executed to their end."""
        for table in self.ssd or ():
            table.planner.restart(table.slots.resident)

    def close(self) -> None:
        """Release everything. Idempotent."""
        self.stack.close()
