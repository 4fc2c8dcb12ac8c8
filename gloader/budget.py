"""How a memory budget is shared out before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.errors import BudgetError, ConfigError
from gloader.units import format_bytes

if TYPE_CHECKING:
    from gloader.config import Features

# Reads in flight, checksums being verified, allocator slack: what a loader needs beside the parts below.
_FIXED_BYTES = 24 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a run would like to hold in host memory, measured before it starts."""

    num_nodes: int
    topology_bytes: int  # 0 where it is memory-mapped instead of held
    feature_bytes: int  # all rows, as stored
    row_bytes: int  # one row in a batch buffer or in the host cache
    slot_bytes: int  # what the cache policy keeps beside each cached row
    node_bytes: int  # what the cache policy keeps for each node
    batch_rows: int  # unique rows of a large batch
    batch_edges: int  # sampled edges of a large batch
    batches_in_flight: int  # sampled batches that wait to be gathered
    sampler_threads: int
    store_bytes: int  # checksums and read buffers of the SSD store


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Who gets how many bytes of the budget."""

    budget_bytes: int
    features: Features  # "ram" or "ssd"
    ring_bytes: int
    cache_rows: int
    parts: tuple[tuple[str, int], ...]  # name and bytes of everything held, for people

    @property
    def total_bytes(self) -> int:
        """Bytes of all parts together."""
        return sum(size for _, size in self.parts)

    @property
    def spare_bytes(self) -> int:
        """Bytes of the budget that nothing was planned for."""
        return self.budget_bytes - self.total_bytes


def fits_topology(topology_bytes: int, budget_bytes: int) -> bool:
    """Return whether the topology is held in memory; else it is mapped, and the page cache serves it. Pure."""
    return topology_bytes <= budget_bytes // 2


def plan_memory(
    demand: Demand, *, budget_bytes: int, features: Features = "auto", cache_bytes: int | None = None
) -> MemoryPlan:
    """Share ``budget_bytes`` out: topology and batches first, then the features or a cache of them. Pure.

    Features that fit into what is left are held whole; otherwise it, or ``cache_bytes`` of it, becomes the
    host cache.

    Raises
    ------
    BudgetError
        Even the batches alone, or what was asked for by name, do not fit; says needed and allowed.
    """
    workspace = _workspace_bytes(demand)
    buffer = demand.batch_rows * demand.row_bytes
    held = workspace + demand.topology_bytes
    _require(held + 3 * buffer, budget_bytes, demand)
    ring = 4 * buffer if held + 8 * buffer <= budget_bytes else 3 * buffer
    left = budget_bytes - held - ring
    resolved = _resolve_features(demand, left, features, budget_bytes)
    book = demand.node_bytes * demand.num_nodes
    cache_rows = 0
    if resolved == "ssd":
        cache_rows = _cache_rows(demand, left - demand.store_bytes - book, cache_bytes, budget_bytes)
    cache = cache_rows * (demand.row_bytes + demand.slot_bytes) + (book if cache_rows else 0)
    parts = [
        ("batches being sampled", workspace),
        ("feature buffers", ring),
        ("topology", demand.topology_bytes),
    ]
    if resolved == "ram":
        parts.append(("features", demand.feature_bytes))
    else:
        parts += [
            ("reads in flight and checksums", demand.store_bytes),
            ("host cache", cache),
        ]
    return MemoryPlan(
        budget_bytes=budget_bytes,
        features=resolved,
        ring_bytes=ring,
        cache_rows=cache_rows,
        parts=tuple(parts),
    )


def _workspace_bytes(demand: Demand) -> int:
    per_batch = 16 * demand.batch_rows + 16 * demand.batch_edges
    maps = 4 * demand.num_nodes * demand.sampler_threads
    return _FIXED_BYTES + maps + per_batch * (demand.batches_in_flight + demand.sampler_threads)


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
    room = max(left, 0) // (demand.row_bytes + demand.slot_bytes)
    wanted = (
        demand.num_nodes if cache_bytes is None else min(cache_bytes // demand.row_bytes, demand.num_nodes)
    )
    if cache_bytes is not None and wanted > room:
        raise BudgetError(
            f"a host cache of {format_bytes(cache_bytes)} does not fit: the loader's share of the memory budget, "
            f"{format_bytes(budget_bytes)}, leaves {format_bytes(max(left, 0))}. Use a smaller cache or raise it"
        )
    return min(wanted, room)
