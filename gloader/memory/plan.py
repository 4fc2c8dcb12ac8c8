"""Shares of a memory budget, worked out before anything is allocated."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gloader.cache import node_bytes, table_bytes
from gloader.cache.reuse import cache_outlook
from gloader.core.units import format_bytes, format_seconds
from gloader.errors import BudgetError, ConfigError
from gloader.memory.divide_cache import CachedTable, divide_cache
from gloader.memory.predict import StepSeconds, StepShares, predict_step
from gloader.ssd_store import packer_memory_bytes
from gloader.ssd_store.cost.superbatch_size import SuperbatchSize, superbatch_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.cache.reuse import CacheOutlook
    from gloader.config import Features
    from gloader.memory.demand import Demand, TableDemand
    from gloader.memory.sweep_plan import SweepPlan

# Reads in flight, checksums being verified, memory that the allocator keeps: needed beside the parts below.
_FIXED_BYTES = 24 << 20
_FIXED_SHARE = 1 / 16  # of the budget, where that is more: measured as peak minus plan

# Of one superbatch, per access: two coded traces waiting or looked ahead at, two plans of 4 bytes, and the rows that
# are missing while they are counted and staged.
TRACE_BYTES_PER_ACCESS = 12.0

# Buffers of features that are tried: with three one is gathered into, one waits, one is computed on; more even out slow
# batches. With fewer the stages and the loop wait for one another. A loop in another process, a rank's, holds a batch
# while it waits for the next one, and nobody can take it back: `Demand.fewest_buffers`.
_MOST_BUFFERS = 5

# Of a sampled batch. A row: its id, id and position in ascending order, the pair of both while it is sorted (8 bytes
# each), its degree (4), and entries of indptr (8). An edge: its local source (4), its position in the graph (8) and its
# weight (4).
_SAMPLED_ROW_BYTES = 44
_SAMPLED_EDGE_BYTES = 16

# Of a seed: its id, its label, and its place in the orders of three epochs (8 bytes each).
_SEED_BYTES = 40

# Those that are sampled, planned and executed at a time; batches of more are never kept.
_KEPT_SUPERBATCHES = 3

# Shares of those that are tried; a batch that is not kept is sampled again. None is kept where passes over the edges
# left on the disk what a batch is made of.
_KEPT_SHARES = (0.0, 1 / 16, 1 / 4, 1.0)
_KEPT_OF_SWEPT = (0.0,)

# Ways to share the memory out that are told of: the one that is taken, and the next best.
_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to share the memory out, and what it makes of a step."""

    features: Features  # "ram" or "ssd"
    shares: StepShares
    step: StepSeconds
    planned_bytes: int  # of traces, plans and tables
    pack_buffer_bytes: int
    keep_bytes: int

    @property
    def text(self) -> str:
        """Say in a line what it is."""
        shares, step = self.shares, self.step
        buffers = f"{shares.num_buffers} feature buffer{'s' if shares.num_buffers > 1 else ''}"
        if self.features == "ram":
            return f"{format_seconds(step.seconds)} a step: features in memory, {buffers}{self._edges}"
        return (
            f"{format_seconds(step.seconds)} a step: {buffers}, superbatches of {shares.num_batches}, "
            f"{sum(shares.cache_rows):,} rows cached, {step.miss_rate:.0%} missed and read {step.strategy} "
            f"in {format_seconds(step.disk_s)}{self._edges}"
        )

    @property
    def _edges(self) -> str:
        """What the disk does for the edges of a step."""
        return f", edges in {format_seconds(self.step.edges_s)}" if self.step.edges_s else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Who gets how many bytes of the budget."""

    budget_bytes: int
    features: Features  # "ram" or "ssd"
    num_buffers: int  # of features, of each rank; what is spare makes further ones
    ring_bytes: int
    cache_rows: tuple[int, ...]  # of each table
    superbatch: SuperbatchSize  # S, and why
    planned_accesses: tuple[int, ...]  # of each table, of a superbatch and its look-ahead, about
    missed_bytes: tuple[
        int, ...
    ]  # of each table, of the different rows that a superbatch misses; for `share_out`
    keep_bytes: int  # of sampled batches kept from their trace to their execution
    pack_buffer_bytes: int  # of writing and reading packs of all tables; 0 where there are none
    parts: tuple[tuple[str, int], ...]  # name and bytes of everything held, for people
    predicted_step_s: float  # as ways are compared: packs count longer than they take
    candidates: tuple[str, ...]  # the way that was taken and the next best, for people
    would_fit: bool  # whether all features would fit in memory, though they are read from the SSD
    sweeps: SweepPlan | None = None  # of the edges; None: no passes over them are made

    @property
    def total_bytes(self) -> int:
        """Bytes of all parts together."""
        return sum(size for _, size in self.parts)

    @property
    def spare_bytes(self) -> int:
        """Bytes of the budget that nothing was planned for."""
        return self.budget_bytes - self.total_bytes


def topology_share(budget_bytes: int) -> int:
    """Return the bytes that a topology may take where nobody asked for more; a larger one is on the SSD. Pure."""
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
    """Share ``budget_bytes`` out: topology and batches first, the rest in whatever way makes a step shortest. Pure.

    Tried are numbers of feature buffers, sizes of superbatches, packs or none and shares of the sampled batches to be
    kept; the host cache gets what they leave, or ``cache_bytes`` of it. Features that fit into memory are another way.
    The seconds of each are predicted by `predict_step`, from the rates of the disk and from how soon the first batches
    use rows again. `divide_cache` divides the cache over the tables.

    Parameters
    ----------
    demand : what the run would like to hold
    budget_bytes : for all of it
    spill_bytes : disk for packs, which larger superbatches need more of
    features : where they were asked to live
    cache_bytes : of the host cache, of all tables; None: what is left
    superbatch : the largest superbatch wanted; None: whatever is fastest
    must_pack : whether packs were asked for, whatever their buffers take

    Raises
    ------
    BudgetError
        Even one batch alone, or what was asked for by name, does not fit; says needed and allowed.
    ConfigError
        ``cache_bytes`` is negative.
    """
    if cache_bytes is not None and cache_bytes < 0:
        raise ConfigError(f"the host cache cannot have {cache_bytes} bytes; use 0 for none")
    if not demand.tables:
        features = "ram"  # nothing has features: there is nothing to read
    workspace = _workspace_bytes(demand, budget_bytes)
    held = workspace + demand.topology_bytes
    parts = [("batches being sampled", workspace), ("topology", demand.topology_bytes)]
    if demand.sweeps is not None:
        sweeps = demand.sweeps
        held += sweeps.memory_bytes
        parts.append((f"edge sweeps of {sweeps.num_batches} batches", sweeps.memory_bytes))
        spill_bytes = max(spill_bytes - sweeps.spill_bytes, 0)
    _require(held + demand.fewest_buffers * demand.buffer_bytes, budget_bytes, demand)
    left = budget_bytes - held
    _require_features(demand, left - demand.fewest_buffers * demand.buffer_bytes, features, budget_bytes)
    found = list(_in_memory(demand, left)) if features != "ssd" else []
    if features != "ram":
        found += _on_ssd(demand, left, spill_bytes, cache_bytes, superbatch, must_pack=must_pack)
    if not found:
        raise _does_not_fit(demand, left, spill_bytes, cache_bytes, superbatch, must_pack=must_pack)
    return _plan_of(demand, _ranked(found), parts, budget_bytes, asked=superbatch)


def _plan_of(
    demand: Demand,
    ranked: tuple[Candidate, ...],
    parts: list[tuple[str, int]],
    budget_bytes: int,
    *,
    asked: int | None,
) -> MemoryPlan:
    """Return the plan of the first of ``ranked``. Pure."""
    best = ranked[0]
    shares = best.shares
    ring = shares.num_buffers * demand.buffer_bytes
    parts.append(("feature buffers", ring))
    if best.features == "ram":
        size = SuperbatchSize(num_batches=1, reason="features are in memory")
        accesses = (0,) * len(demand.tables)
        parts += [(_named("features", table, demand), table.feature_bytes) for table in demand.tables]
    else:
        size = SuperbatchSize(num_batches=shares.num_batches, reason=_why(shares.num_batches, asked))
        accesses = tuple(_planned_accesses(table, size.num_batches) for table in demand.tables)
        parts.append(("reads in flight and checksums", demand.store_bytes + best.pack_buffer_bytes))
        parts += _planned_parts(demand, size.num_batches)
        parts.append(("sampled batches kept", best.keep_bytes))
        parts += _cache_parts(demand, shares.cache_rows)
    spare = budget_bytes - sum(num_bytes for _, num_bytes in parts)
    return MemoryPlan(
        budget_bytes=budget_bytes,
        features=best.features,
        num_buffers=shares.num_buffers,
        ring_bytes=ring,
        cache_rows=shares.cache_rows,
        superbatch=size,
        planned_accesses=accesses,
        missed_bytes=best.step.missed_bytes if best.features == "ssd" else (0,) * len(demand.tables),
        keep_bytes=best.keep_bytes,
        pack_buffer_bytes=best.pack_buffer_bytes,
        parts=tuple(parts),
        predicted_step_s=best.step.weighed_s,
        candidates=tuple(one.text for one in ranked),
        would_fit=best.features == "ssd"
        and demand.feature_bytes <= spare + _cache_bytes(demand, shares.cache_rows),
        sweeps=demand.sweeps,
    )


def _named(part: str, table: TableDemand, demand: Demand) -> str:
    """Return the name of a part of ``table``, for people: it is told whose it is where there are several. Pure."""
    return part if len(demand.tables) == 1 else f"{part} of {table.name}"


def _planned_parts(demand: Demand, num_batches: int) -> list[tuple[str, int]]:
    """Return the parts of the traces, plans and tables of superbatches of ``num_batches``. Pure."""
    name = f"traces and plans of {num_batches} batches"
    if len(demand.tables) == 1:
        return [(name, _planning_bytes(demand, num_batches))]
    return [
        (f"{name}, {table.name}", _table_planning_bytes(demand, table, num_batches))
        for table in demand.tables
    ]


def _cache_parts(demand: Demand, cache_rows: tuple[int, ...]) -> list[tuple[str, int]]:
    """Return the parts of the host cache. Pure."""
    return [
        (_named("host cache", table, demand), _held_bytes(table, rows))
        for table, rows in zip(demand.tables, cache_rows, strict=True)
    ]


def _why(num_batches: int, asked: int | None) -> str:
    """Return the reason of superbatches of ``num_batches``. Pure."""
    if asked is None:
        return "predicted to be the fastest"
    return "asked for" if num_batches == asked else f"half of what an edge sweep serves, of {asked} asked for"


def _ranked(found: list[Candidate]) -> tuple[Candidate, ...]:
    """Return the fastest candidates, of those that differ in more than what they keep; ties go to the first. Pure."""
    best: dict[tuple[str, int, int, bool], Candidate] = {}
    for candidate in sorted(found, key=lambda one: one.step.weighed_s):
        shares = candidate.shares
        best.setdefault(
            (candidate.features, shares.num_buffers, shares.num_batches, candidate.pack_buffer_bytes > 0),
            candidate,
        )
    return tuple(best.values())[:_TOLD]


def _in_memory(demand: Demand, left: int) -> Iterator[Candidate]:
    """Yield the ways to hold all features: nothing is planned, cached or packed. Pure."""
    for count in range(_MOST_BUFFERS, demand.fewest_buffers - 1, -1):
        if count * demand.buffer_bytes + demand.feature_bytes <= left:
            shares = StepShares(
                num_buffers=count,
                num_batches=1,
                cache_rows=(0,) * len(demand.tables),
                kept_share=0.0,
                staging_bytes=0,
                spill_bytes=0,
            )
            yield Candidate(
                features="ram",
                shares=shares,
                step=predict_step(demand.work, shares, None),
                planned_bytes=0,
                pack_buffer_bytes=0,
                keep_bytes=0,
            )


def _on_ssd(
    demand: Demand,
    left: int,
    spill_bytes: int,
    cache_bytes: int | None,
    superbatch: int | None,
    *,
    must_pack: bool,
) -> Iterator[Candidate]:
    """Yield every way that fits to share out ``left`` with features on the SSD. Pure."""
    kept_shares = _KEPT_SHARES if demand.sweeps is None else _KEPT_OF_SWEPT
    spills = (spill_bytes,) if must_pack or not spill_bytes else (0, spill_bytes)
    for num_batches in _sizes(demand, superbatch):
        outlooks = tuple(
            cache_outlook(table.reuse, demand.policy, num_batches=num_batches, is_reset=demand.is_reset)
            for table in demand.tables
        )
        planned = _planning_bytes(demand, num_batches)
        for count in range(_MOST_BUFFERS, demand.fewest_buffers - 1, -1):
            room = left - count * demand.buffer_bytes - demand.store_bytes - planned
            for spill in spills:
                packing = _packing_bytes(demand, num_batches, room=room) if spill else 0
                for kept_share in kept_shares:
                    kept = int(kept_share * _KEPT_SUPERBATCHES * num_batches * _batch_bytes(demand))
                    shares = StepShares(
                        num_buffers=count,
                        num_batches=num_batches,
                        cache_rows=(),
                        kept_share=kept_share,
                        staging_bytes=0,
                        spill_bytes=spill,
                    )
                    rest = room - packing - kept
                    filled = _with_cache(demand, shares, outlooks, rest, cache_bytes)
                    if filled is not None:
                        yield Candidate(
                            features="ssd",
                            shares=filled,
                            step=predict_step(demand.work, filled, outlooks),
                            planned_bytes=planned,
                            pack_buffer_bytes=packing,
                            keep_bytes=kept,
                        )


def _sizes(demand: Demand, superbatch: int | None) -> tuple[int, ...]:
    """Return the superbatches that are tried: what was asked for, and half of an edge sweep's batches at most. Pure."""
    sizes = superbatch_sizes(demand.num_batches) if superbatch is None else (superbatch,)
    if demand.sweeps is None:
        return sizes
    return tuple(dict.fromkeys(min(size, demand.sweeps.largest_superbatch) for size in sizes))


def _with_cache(
    demand: Demand,
    shares: StepShares,
    outlooks: tuple[CacheOutlook, ...],
    room: int,
    cache_bytes: int | None,
) -> StepShares | None:
    """Return ``shares`` with the cache that has ``room``, and its part of what is idle then; None: no room. Pure."""
    if room < 0:
        return None
    if cache_bytes is None:
        rows = divide_cache(room, _cached_tables(demand, with_slots=True), outlooks)
    else:
        # Who asks for a size thinks of rows.
        rows = divide_cache(cache_bytes, _cached_tables(demand, with_slots=False), outlooks)
    left = room - _cache_bytes(demand, rows)
    if left < 0:
        return None
    return replace(shares, cache_rows=rows, staging_bytes=idle_part(left))


def _cached_tables(demand: Demand, *, with_slots: bool) -> tuple[CachedTable, ...]:
    """Return the tables as the host cache sees them. Pure."""
    return tuple(
        CachedTable(
            num_rows=table.num_nodes,
            row_bytes=table.stored_row_bytes,
            held_bytes=table.stored_row_bytes + with_slots * table.slot_bytes,
        )
        for table in demand.tables
    )


def idle_part(idle_bytes: int) -> int:
    """Return a third of idle memory: for staged rows, for those of the next superbatch, and for buffers. Pure."""
    return max(idle_bytes, 0) // 3


def _does_not_fit(
    demand: Demand,
    left: int,
    spill_bytes: int,
    cache_bytes: int | None,
    superbatch: int | None,
    *,
    must_pack: bool,
) -> BudgetError:
    """Return the error for what was asked for by name, or for the smallest superbatch there is. Pure."""
    num_batches = _sizes(demand, superbatch)[0]
    room = max(left - demand.fewest_buffers * demand.buffer_bytes - demand.store_bytes, 0)
    planned = _planning_bytes(demand, num_batches)
    packing = _packing_bytes(demand, num_batches, room=room) if must_pack and spill_bytes else 0
    if planned + packing <= room and cache_bytes is not None:
        return BudgetError(
            f"a host cache of {format_bytes(cache_bytes)} does not fit: the memory budget and what else it has to hold "
            f"leave {format_bytes(room - planned - packing)}. Use a smaller cache or raise the budget"
        )
    return BudgetError(
        f"superbatches of {num_batches} batches need {format_bytes(planned)} for traces and plans and "
        f"{format_bytes(packing)} for packing; the memory budget and what else was asked of it leave "
        f"{format_bytes(room)}. Use smaller superbatches, a smaller batch size, fan-out or cache, or raise it"
    )


def _packing_bytes(demand: Demand, num_batches: int, *, room: int) -> int:
    """Return the bytes of the buffers that pack superbatches of ``num_batches``, of all tables. Pure."""
    # Those of one table: the packs of a superbatch are made one after another.
    return packer_memory_bytes(num_batches, room=max(room, 0)) if demand.tables else 0


def _cache_bytes(demand: Demand, cache_rows: tuple[int, ...]) -> int:
    return sum(_held_bytes(table, rows) for table, rows in zip(demand.tables, cache_rows, strict=True))


def _held_bytes(table: TableDemand, rows: int) -> int:
    return rows * (table.stored_row_bytes + table.slot_bytes)


def _planning_bytes(demand: Demand, num_batches: int) -> int:
    """Return the bytes of the traces, plans and tables of superbatches of ``num_batches``. Pure."""
    return sum(_table_planning_bytes(demand, table, num_batches) for table in demand.tables)


def _table_planning_bytes(demand: Demand, table: TableDemand, num_batches: int) -> int:
    """Return what `_planning_bytes` counts for ``table``. Pure."""
    accesses = _planned_accesses(table, num_batches)
    if demand.policy == "belady":
        tables = table_bytes(table.num_nodes, accesses)
    else:
        tables = node_bytes(demand.policy) * table.num_nodes
    # A superbatch and its look-ahead are counted in ``accesses``, and the bytes are those of one superbatch.
    return math.ceil(accesses / 2 * TRACE_BYTES_PER_ACCESS) + tables


def _planned_accesses(table: TableDemand, num_batches: int) -> int:
    """Return the accesses of a superbatch and its look-ahead. Pure."""
    return 2 * num_batches * table.batch_rows


def _workspace_bytes(demand: Demand, budget_bytes: int) -> int:
    maps = demand.sampler_map_bytes * demand.sampler_threads
    fixed = max(_FIXED_BYTES, int(_FIXED_SHARE * budget_bytes))
    seeds = _SEED_BYTES * demand.num_seeds
    calls = demand.sampler_call_bytes * demand.sampler_threads
    batches = _batch_bytes(demand) * (demand.batches_in_flight + demand.sampler_threads)
    return fixed + maps + seeds + calls + batches


def _batch_bytes(demand: Demand) -> int:
    """Return the bytes of a large sampled batch, without features. Pure."""
    return _SAMPLED_ROW_BYTES * demand.batch_rows + _SAMPLED_EDGE_BYTES * demand.batch_edges


def _require(needed: int, allowed: int, demand: Demand) -> None:
    if needed > allowed:
        raise BudgetError(
            f"a batch of about {_rows_text(demand)}, "
            f"{demand.fewest_buffers * demand.num_ranks} of them in memory at a time, "
            f"and {format_bytes(demand.topology_bytes)} of topology{_and_sweeps(demand)} need {format_bytes(needed)}; "
            f"the loader's share of the memory budget is {format_bytes(allowed)}. Use a smaller batch size or fan-out, "
            f"{_or_other_edges(demand, allowed)}or raise the budget"
        )


def _rows_text(demand: Demand) -> str:
    """Return the rows of a batch, for people. Pure."""
    if not demand.tables:
        return f"{demand.batch_rows:,} nodes"
    several = len(demand.tables) > 1
    return " and ".join(
        f"{table.batch_rows:,} rows of {table.row_bytes:,} B{f' of {table.name}' if several else ''}"
        for table in demand.tables
    )


def _or_other_edges(demand: Demand, allowed: int) -> str:
    return "topology='auto', " if demand.topology_bytes > topology_share(allowed) else ""


def _and_sweeps(demand: Demand) -> str:
    if demand.sweeps is None:
        return ""
    return f" and {format_bytes(demand.sweeps.memory_bytes)} for sweeps of its edges"


def _require_features(demand: Demand, left: int, features: Features, budget_bytes: int) -> None:
    fits = demand.feature_bytes <= left
    if features == "ram" and not fits:
        raise BudgetError(
            f"features in memory need {format_bytes(demand.feature_bytes)}; the memory budget of "
            f"{format_bytes(budget_bytes)} leaves {format_bytes(max(left, 0))}. Use features='ssd' or 'auto', or raise "
            "the budget"
        )
    if demand.store_bytes > left and (features == "ssd" or not fits):
        raise BudgetError(
            f"reading features from the SSD needs {format_bytes(demand.store_bytes)} for checksums and "
            f"reads in flight; the memory budget of {format_bytes(budget_bytes)} leaves "
            f"{format_bytes(max(left, 0))}. Raise the budget"
        )
