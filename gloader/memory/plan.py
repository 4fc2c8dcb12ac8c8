"""Shares of a memory budget, worked out before anything is allocated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.cache import node_bytes, table_bytes
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError
from gloader.ssd_store import packer_memory_bytes
from gloader.ssd_store.cost.superbatch_size import SMALLEST, SuperbatchSize, size_superbatch

if TYPE_CHECKING:
    from gloader.cache import PlannerName
    from gloader.config import Features

# Reads in flight, checksums being verified, memory that the allocator keeps: needed beside the parts below.
_FIXED_BYTES = 24 << 20
_FIXED_SHARE = 1 / 16  # of the budget, where that is more: measured as peak minus plan

# Of one superbatch, per access: two coded traces waiting or looked ahead at, two plans of 4 bytes, and the rows that
# are missing while they are counted and staged.
TRACE_BYTES_PER_ACCESS = 12.0

# Buffers of features: with fewer than three the stages wait for one another (one is gathered into, one waits, one is
# computed on). Up to five even out slow batches, as long as they take no more than half of what is left: the cache
# saves more reading than they save waiting.
_FEWEST_BUFFERS, _MOST_BUFFERS = 3, 5
_MOST_BUFFER_SHARE = 1 / 2

# Of a sampled batch. A row: its id, id and position in ascending order, the pair of both while it is sorted (8 bytes
# each), and entries of indptr (8). An edge: its local source (4), its position in the graph (8) and its weight (4).
_SAMPLED_ROW_BYTES = 40
_SAMPLED_EDGE_BYTES = 16

# Of a seed: its id, its label, and its place in the orders of three epochs (8 bytes each).
_SEED_BYTES = 40

# Those that are sampled, planned and executed at a time; batches of more are never kept.
_KEPT_SUPERBATCHES = 3

# Of what is left for the features: memory does more in the cache.
_SUPERBATCH_SHARE = 0.2

# Likewise, for the buffers of packing; where they would take more there are no packs.
_PACK_SHARE = 0.2

# Likewise; a batch that is not kept is sampled again.
_KEEP_SHARE = 0.1

# Before anything is known of the graph; it only sizes superbatches for the spill budget.
_ASSUMED_MISS_RATE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a run would like to hold in host memory, measured before it starts."""

    num_nodes: int
    topology_bytes: int  # all of it, or what is held of one whose edges are read page by page
    feature_bytes: int  # all rows, as stored
    row_bytes: int  # one row in a batch buffer
    slot_bytes: int  # what the cache policy keeps beside each cached row
    policy: PlannerName
    batch_rows: int  # unique rows of a large batch
    batch_edges: int  # sampled edges of a large batch
    batches_in_flight: int  # sampled batches that wait to be gathered
    sampler_threads: int
    sampler_node_bytes: int  # what each sampling thread keeps for each node
    store_bytes: int  # checksums and read buffers of the SSD store
    stored_row_bytes: int  # R, one row on the SSD or in the host cache
    gap_bytes: int  # longest hole that is cheaper to read than to skip
    num_batches: int | None  # of the whole run, where that is known
    num_seeds: int = 0  # of the whole epoch
    num_ranks: int = 1  # whose batches are gathered; each has feature buffers of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Who gets how many bytes of the budget."""

    budget_bytes: int
    features: Features  # "ram" or "ssd"
    ring_bytes: int
    cache_rows: int
    superbatch: SuperbatchSize  # S, and why
    planned_accesses: int  # of a superbatch and its look-ahead, about
    keep_bytes: int  # of sampled batches kept from their trace to their execution
    pack_buffer_bytes: int  # of writing and reading packs; 0 where there are none
    parts: tuple[tuple[str, int], ...]  # name and bytes of everything held, for people

    @property
    def total_bytes(self) -> int:
        """Bytes of all parts together."""
        return sum(size for _, size in self.parts)

    @property
    def spare_bytes(self) -> int:
        """Bytes of the budget that nothing was planned for."""
        return self.budget_bytes - self.total_bytes


def topology_share(budget_bytes: int) -> int:
    """Return the bytes that a topology may take; of a larger one, edges are read page by page. Pure."""
    # With more than half of the budget in the topology, too little would be left for the features.
    return budget_bytes // 2


def plan_memory(
    demand: Demand,
    *,
    budget_bytes: int,
    spill_bytes: int = 0,
    features: Features = "auto",
    cache_bytes: int | None = None,
    superbatch: int | None = None,
    must_pack: bool = False,
) -> MemoryPlan:
    """Share ``budget_bytes`` out: topology and batches first, then the features or a cache of them. Pure.

    Features that fit into what is left are held whole; otherwise a part of it goes to the plans of
    superbatches, and the rest, or ``cache_bytes`` of it, becomes the host cache.

    Parameters
    ----------
    demand : what the run would like to hold
    budget_bytes : for all of it
    spill_bytes : disk for packs, which larger superbatches need more of
    features : where they were asked to live
    cache_bytes : of the host cache; None: what is left
    superbatch : the largest superbatch wanted; None: as large as memory and disk allow
    must_pack : whether packs were asked for, whatever their buffers take

    Raises
    ------
    BudgetError
        Even the batches alone, or what was asked for by name, do not fit; says needed and allowed.
    ConfigError
        ``cache_bytes`` is negative.
    """
    workspace = _workspace_bytes(demand, budget_bytes)
    buffer = demand.batch_rows * demand.row_bytes * demand.num_ranks
    held = workspace + demand.topology_bytes
    _require(held + _FEWEST_BUFFERS * buffer, budget_bytes, demand)
    left = budget_bytes - held
    parts = [("batches being sampled", workspace), ("topology", demand.topology_bytes)]
    if _resolve_features(demand, left - _FEWEST_BUFFERS * buffer, features, budget_bytes) == "ram":
        ring = min(_MOST_BUFFERS * buffer, left - demand.feature_bytes)
        parts += [("feature buffers", ring), ("features", demand.feature_bytes)]
        return _plan_in_memory(budget_bytes, ring, parts)
    ring = _num_buffers(buffer, left) * buffer
    room = max(left - ring - demand.store_bytes, 0)
    asked = 0 if cache_bytes is None else _cache_bytes(demand, cache_bytes // demand.stored_row_bytes)
    size, planned, packing = _plan_superbatches(
        demand,
        max(room - asked, 0),
        spill_bytes,
        superbatch,
        # Beside a cache limited by hand, memory is idle.
        packing_share=_PACK_SHARE if cache_bytes is None else 1.0,
        must_pack=must_pack,
    )
    # The cache takes what the others leave: it is the only part that is worth less when it is smaller, and not broken.
    room -= planned + packing
    kept = _kept_bytes(demand, size, room, spare=max(room - asked, 0))
    cache_rows = _cache_rows(demand, room - kept, cache_bytes, budget_bytes)
    parts += [
        ("feature buffers", ring),
        ("reads in flight and checksums", demand.store_bytes + packing),
        (f"traces and plans of {size.num_batches} batches", planned),
        ("sampled batches kept", kept),
        ("host cache", _cache_bytes(demand, cache_rows)),
    ]
    return MemoryPlan(
        budget_bytes=budget_bytes,
        features="ssd",
        ring_bytes=ring,
        cache_rows=cache_rows,
        superbatch=size,
        planned_accesses=_planned_accesses(demand, size),
        keep_bytes=kept,
        pack_buffer_bytes=packing,
        parts=tuple(parts),
    )


def _plan_in_memory(budget_bytes: int, ring_bytes: int, parts: list[tuple[str, int]]) -> MemoryPlan:
    """Return the plan of a loader that holds all features: nothing is planned, cached or packed. Pure."""
    return MemoryPlan(
        budget_bytes=budget_bytes,
        features="ram",
        ring_bytes=ring_bytes,
        cache_rows=0,
        superbatch=SuperbatchSize(num_batches=1, reason="features are in memory"),
        planned_accesses=0,
        keep_bytes=0,
        pack_buffer_bytes=0,
        parts=tuple(parts),
    )


def _num_buffers(buffer_bytes: int, left_bytes: int) -> int:
    """Return how many buffers of features the ring has, where ``left_bytes`` are for it and the cache. Pure."""
    for count in range(_MOST_BUFFERS, _FEWEST_BUFFERS, -1):
        if count * buffer_bytes <= _MOST_BUFFER_SHARE * left_bytes:
            return count
    return _FEWEST_BUFFERS


def _kept_bytes(demand: Demand, size: SuperbatchSize, room: int, *, spare: int) -> int:
    """Return the bytes for sampled batches that are kept, of the ``room`` of the cache; at most ``spare``. Pure."""
    most = _KEPT_SUPERBATCHES * size.num_batches * _batch_bytes(demand)
    return min(int(_KEEP_SHARE * room), spare, most)


def _cache_bytes(demand: Demand, rows: int) -> int:
    return min(rows, demand.num_nodes) * (demand.stored_row_bytes + demand.slot_bytes)


def _plan_superbatches(
    demand: Demand,
    room: int,
    spill_bytes: int,
    superbatch: int | None,
    *,
    packing_share: float,
    must_pack: bool,
) -> tuple[SuperbatchSize, int, int]:
    """Return S, the bytes of traces, plans and tables, and those of the buffers of packing. Pure.

    Raises
    ------
    BudgetError
        They do not fit into ``room``.
    """
    size, planned = _superbatch(demand, room, spill_bytes, superbatch)
    packing = packer_memory_bytes(size.num_batches, room=room) if spill_bytes else 0
    # Packs are given up before the run is refused.
    if (planned + packing > room or packing > packing_share * room) and not must_pack:
        packing = 0
        size, planned = _superbatch(demand, room, 0, superbatch)
    if planned + packing > room:
        raise BudgetError(
            f"superbatches of {size.num_batches} batches need {format_bytes(planned)} for traces and plans and "
            f"{format_bytes(packing)} for packing; the memory budget and what else was asked of it leave "
            f"{format_bytes(room)}. Use smaller superbatches, a smaller batch size, fan-out or cache, or raise it"
        )
    return size, planned, packing


def _superbatch(
    demand: Demand, room: int, spill_bytes: int, superbatch: int | None
) -> tuple[SuperbatchSize, int]:
    """Return S and the bytes of its traces, plans and tables. Pure."""
    if superbatch is not None:
        size = SuperbatchSize(num_batches=superbatch, reason="asked for")
        return size, _planning_bytes(demand, size)
    share = int(_SUPERBATCH_SHARE * room)
    size = size_superbatch(
        rows_per_batch=demand.batch_rows,
        misses_per_batch_estimate=_ASSUMED_MISS_RATE * demand.batch_rows,
        row_bytes=demand.stored_row_bytes,
        trace_bytes_per_access=TRACE_BYTES_PER_ACCESS,
        memory_share_bytes=share,
        spill_bytes=spill_bytes,
        gap_bytes=demand.gap_bytes,
        num_batches_total=demand.num_batches,
    )
    # The share counts traces and plans; tables, which grow with the nodes, may take more than is there.
    while _planning_bytes(demand, size) > room and size.num_batches > SMALLEST:
        size = SuperbatchSize(
            num_batches=size.num_batches // 2, reason=f"plans in {format_bytes(room)} of memory"
        )
    return size, _planning_bytes(demand, size)


def _planning_bytes(demand: Demand, size: SuperbatchSize) -> int:
    accesses = _planned_accesses(demand, size)
    if demand.policy == "belady":
        tables = table_bytes(demand.num_nodes, accesses)
    else:
        tables = node_bytes(demand.policy) * demand.num_nodes
    # A superbatch and its look-ahead are counted in ``accesses``, and the bytes are those of one superbatch.
    return math.ceil(accesses / 2 * TRACE_BYTES_PER_ACCESS) + tables


def _planned_accesses(demand: Demand, size: SuperbatchSize) -> int:
    """Return the accesses of a superbatch and its look-ahead. Pure."""
    return 2 * size.num_batches * demand.batch_rows


def _workspace_bytes(demand: Demand, budget_bytes: int) -> int:
    maps = demand.sampler_node_bytes * demand.num_nodes * demand.sampler_threads
    fixed = max(_FIXED_BYTES, int(_FIXED_SHARE * budget_bytes))
    seeds = _SEED_BYTES * demand.num_seeds
    return fixed + maps + seeds + _batch_bytes(demand) * (demand.batches_in_flight + demand.sampler_threads)


def _batch_bytes(demand: Demand) -> int:
    """Return the bytes of a large sampled batch, without features. Pure."""
    return _SAMPLED_ROW_BYTES * demand.batch_rows + _SAMPLED_EDGE_BYTES * demand.batch_edges


def _require(needed: int, allowed: int, demand: Demand) -> None:
    if needed > allowed:
        raise BudgetError(
            f"batches of about {demand.batch_rows:,} rows of {demand.row_bytes:,} B, three of them "
            f"in flight, and {format_bytes(demand.topology_bytes)} of topology need {format_bytes(needed)}; the "
            f"loader's share of the memory budget is {format_bytes(allowed)}. Use a smaller batch size or fan-out, "
            "or raise the budget"
        )


def _resolve_features(demand: Demand, left: int, features: Features, budget_bytes: int) -> Features:
    fits = demand.feature_bytes <= left
    if features == "ram" and not fits:
        raise BudgetError(
            f"features in memory need {format_bytes(demand.feature_bytes)}; the memory budget of "
            f"{format_bytes(budget_bytes)} leaves {format_bytes(max(left, 0))}. Use features='ssd' or 'auto', or raise "
            "the budget"
        )
    if features == "auto":
        features = "ram" if fits else "ssd"
    if features == "ssd" and demand.store_bytes > left:
        raise BudgetError(
            f"reading features from the SSD needs {format_bytes(demand.store_bytes)} for checksums and "
            f"reads in flight; the memory budget of {format_bytes(budget_bytes)} leaves "
            f"{format_bytes(max(left, 0))}. Raise the budget"
        )
    return features


def _cache_rows(demand: Demand, left: int, cache_bytes: int | None, budget_bytes: int) -> int:
    if cache_bytes is not None and cache_bytes < 0:
        raise ConfigError(f"the host cache cannot have {cache_bytes} bytes; use 0 for none")
    room = max(left, 0) // (demand.stored_row_bytes + demand.slot_bytes)
    wanted = (
        demand.num_nodes
        if cache_bytes is None
        else min(cache_bytes // demand.stored_row_bytes, demand.num_nodes)
    )
    if cache_bytes is not None and wanted > room:
        raise BudgetError(
            f"a host cache of {format_bytes(cache_bytes)} does not fit: the loader's share of the memory budget, "
            f"{format_bytes(budget_bytes)}, leaves {format_bytes(max(left, 0))}. Use a smaller cache or raise it"
        )
    return min(wanted, room)
