"""Division of a memory budget, computed before anything is allocated. Pure.

A loader calls `plan_memory` when it opens, with the sizes of its first batches. `plan_memory` first subtracts the fixed
parts: sampled batches and edges. The rest is for feature buffers, the host cache and staging. A candidate is one
division of this rest, with its predicted seconds per step; the fastest one is chosen.

- A table is the feature rows of a node type or of a relation. A rank is a training process that the loader serves.
- A feature buffer holds the feature rows of one batch for the loop. A step is one batch's part of the loop.
- A superbatch is S batches that are planned together. Its missing rows are in no cache. They may be read ahead in one
  pass over the file: into memory (staged), or into packs, which are files in batch order on the spill disk. Staging is
  the memory for staged rows.
- A sweep is a pass over the edges on the SSD, which draws edges for many batches.
- A cache outlook predicts how many accesses hit a cache, as a curve over the number of cached rows.

`divide_cache` divides the host cache over the tables so that it saves the most bytes of reading.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from gloader.cache.curve import cache_outlook
from gloader.core.units import format_seconds
from gloader.errors import ConfigError
from gloader.plan.predict import StepSeconds, StepShares, predict_step, staged_by_name_bytes
from gloader.plan.too_small import does_not_fit, require_batch, require_features, require_staging
from gloader.ssd_store.cost.strategy import SuperbatchSize, superbatch_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gloader.cache.curve import CacheOutlook
    from gloader.config import Features
    from gloader.plan.demand import Demand, TableDemand
    from gloader.plan.sweep_plan import SweepPlan


# Share of the memory for missing rows that is divided evenly, because the first batches also miss rows that the cache
# holds later. The share is smaller than the margin `_STAGED_MARGIN` in `predict`, so the predicted rows still fit.
_EVEN_SHARE: Final = 1 / 16


class CachedTable(NamedTuple):
    """One table's number of rows, and the bytes per row that the host cache saves and takes."""

    num_rows: int  # N_t
    row_bytes: int  # bytes read per missing row
    held_bytes: int  # bytes per cached row, with the cache policy's own bytes


class _Increment(NamedTuple):
    """Additional cached rows of one table, each of which saves the same reading."""

    table: int  # index of the table
    num_rows: int  # number of additional rows
    saved: float  # saved bytes of reading per batch and byte of cache


def divide_cache(
    num_bytes: int, tables: Sequence[CachedTable], curves: Sequence[CacheOutlook]
) -> tuple[int, ...]:
    """Return the number of cached rows for each table that saves the most bytes of reading. Pure.

    A table's hit curve gives the hits over the number of cached rows. It is replaced by its smallest concave upper
    bound. Then the next row of a table never saves more than the row before it, so it is best to give the memory to the
    row that saves the most per byte, again and again. Rows that save nothing come last, in table order: they may still
    be used again. More bytes never give a table fewer rows. The unused rest is smaller than the next row.

    Parameters
    ----------
    num_bytes : the cache's bytes, at least 0
    tables : the tables that share the cache
    curves : one hit curve for each table
    """
    counts = [0] * len(tables)
    left = num_bytes
    for increment in _increments(tuple(tables), tuple(curves)):
        held_bytes = tables[increment.table].held_bytes
        taken = min(increment.num_rows, left // held_bytes)
        counts[increment.table] += taken
        left -= taken * held_bytes
        # The rest is not spent on another table's smaller row: one more byte would then take that row away again.
        if taken < increment.num_rows:
            break
    return tuple(counts)


def share_out(num_bytes: int, missed_bytes: Sequence[int]) -> tuple[int, ...]:
    """Divide ``num_bytes`` over the tables, nearly in proportion to their missed bytes. Pure.

    Parameters
    ----------
    num_bytes : memory or disk to divide
    missed_bytes : each table's predicted missed bytes, as in `MemoryPlan.missed_bytes`
    """
    total = sum(missed_bytes)
    even = int(num_bytes * (_EVEN_SHARE if total else 1.0)) // max(len(missed_bytes), 1)
    rest = num_bytes - even * len(missed_bytes)
    return tuple(even + rest * missed // max(total, 1) for missed in missed_bytes)


@lru_cache(maxsize=16)  # plans try many cache sizes for one superbatch size
def _increments(tables: tuple[CachedTable, ...], curves: tuple[CacheOutlook, ...]) -> tuple[_Increment, ...]:
    """Return all tables' increments, largest saving first. Equal savings keep the table order."""
    increments = [
        increment
        for number, (table, curve) in enumerate(zip(tables, curves, strict=True))
        for increment in _table_increments(number, table, curve)
    ]
    return tuple(sorted(increments, key=lambda increment: -increment.saved))


def _table_increments(number: int, table: CachedTable, curve: CacheOutlook) -> list[_Increment]:
    """Return one table's increments, largest saving first."""
    # The curve is straight between two corners. Only complete rows are cached, so each corner is rounded down and up.
    corners = np.concatenate([np.floor(curve.capacities), np.ceil(curve.capacities), [0, table.num_rows]])
    rows = np.unique(np.clip(corners, 0, table.num_rows))
    hits = np.interp(rows, curve.capacities, curve.hits)
    kept = _concave_corners(rows, hits)
    read_per_held = table.row_bytes / table.held_bytes
    return [
        _Increment(
            table=number,
            num_rows=int(rows[right] - rows[left]),
            saved=float(hits[right] - hits[left]) / float(rows[right] - rows[left]) * read_per_held,
        )
        for left, right in pairwise(kept)
    ]


def _concave_corners(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[int]:
    """Return the indices of the points (x, y) on their smallest concave upper bound, with x ascending. Pure."""
    kept: list[int] = []
    for point in range(len(x)):
        while len(kept) > 1:
            first, last = kept[-2:]
            # The last kept point stays if it is above the line from the one before it to this point.
            rise = (y[last] - y[first]) * (x[point] - x[first])
            if rise > (y[point] - y[first]) * (x[last] - x[first]):
                break
            kept.pop()
        kept.append(point)
    return kept


# Largest number of feature buffers to try. With three buffers, one is filled, one waits, and the loop computes on one.
# More buffers hide single slow batches. With fewer, the stages and the loop wait for each other.
# `Demand.fewest_buffers` is the lower bound.
_MOST_BUFFERS = 5

# Superbatches whose sampled batches may be kept at the same time: one is sampled, one is planned and one is executed.
_KEPT_SUPERBATCHES = 3

# Shares of these sampled batches that a candidate may keep. A batch that is not kept is sampled again when its
# features are read. If edges are swept, no batch is kept, because the spill disk holds the batch's edges.
_KEPT_SHARES = (0.0, 1 / 16, 1 / 4, 1.0)
_KEPT_OF_SWEPT = (0.0,)  # `_KEPT_SHARES` if edges are swept

# Idle memory is the budget's part without a planned use. If "staged" was requested, `_with_cache` makes sure that it is
# at least three times the staged rows. It has three equal parts: for staged rows, for the next
# superbatch's staged rows, and for more buffers.
_IDLE_PARTS = 3

# Number of candidates in the report: the chosen candidate and the next best ones.
_REPORTED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One division of the memory with its predicted step."""

    features: Features  # "ram" or "ssd"
    shares: StepShares  # buffers, superbatch size, cached rows, and the memory for the other parts
    step: StepSeconds  # predicted seconds and misses per step
    pack_buffer_bytes: int = 0  # buffers for writing and reading packs; 0 without packs
    keep_bytes: int = 0  # sampled batches that are kept until they are built

    @property
    def text(self) -> str:
        """One line of text for the report."""
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
        """Text about the disk time for a step's edges."""
        return f", edges in {format_seconds(self.step.edges_s)}" if self.step.edges_s else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The division of the memory budget, with the predicted step."""

    budget_bytes: int  # the memory that was divided
    features: Features  # "ram" or "ssd"
    num_buffers: int  # feature buffers per rank; spare memory adds more
    ring_bytes: int  # bytes of these feature buffers over all ranks
    cache_rows: tuple[int, ...]  # cached rows for each table
    superbatch: SuperbatchSize  # S with the reason
    planned_accesses: tuple[int, ...]  # for each table: approximate accesses of S batches and of the next S
    missed_bytes: tuple[int, ...]  # for each table: bytes of a superbatch's distinct missing rows
    keep_bytes: int  # sampled batches that are kept from planning to execution
    pack_buffer_bytes: int  # buffers for writing and reading all tables' packs; 0 without packs
    parts: tuple[tuple[str, int], ...]  # all parts' names and bytes, for the report
    predicted_step_s: float  # step time; packs count more than their seconds, as they wear the disk
    candidates: tuple[str, ...]  # the chosen candidate and the next best ones, for the report
    step: StepSeconds  # prediction for the chosen candidate
    would_fit: bool  # features are read from the SSD, but features='auto' would hold all of them in memory
    sweeps: SweepPlan | None = None  # None if edges are not swept
    kept_share: float = 0.0  # share of the batches sampled ahead that ``keep_bytes`` holds

    @property
    def total_bytes(self) -> int:
        """Bytes over all parts."""
        return sum(size for _, size in self.parts)

    @property
    def spare_bytes(self) -> int:
        """Budget bytes without a planned use."""
        return self.budget_bytes - self.total_bytes


def plan_memory(
    demand: Demand,
    *,
    budget_bytes: int,
    spill_bytes: int = 0,
    features: Features = "auto",
    cache_bytes: int | None = None,
    superbatch: int | None = None,
    must_pack: bool = False,
    num_buffers: int | None = None,
) -> MemoryPlan:
    """Divide ``budget_bytes``: edges and sampled batches first, then the rest so that a step is shortest. Pure.

    The plan tries numbers of feature buffers, superbatch sizes, packs or none, and kept shares of sampled batches. The
    host cache gets the rest, or ``cache_bytes``, and `divide_cache` divides it over the tables. Features in memory are
    another candidate, if they fit. `predict_step` predicts each candidate's seconds from the disk's rates and the first
    batches' reuse statistics.

    Parameters
    ----------
    demand : the run's measured sizes
    budget_bytes : memory for everything
    spill_bytes : disk for packs; larger superbatches need more
    features : requested place of the features: memory, SSD or "auto"
    cache_bytes : requested host cache over all tables. None means all remaining memory.
    superbatch : largest superbatch S. None means the fastest.
    must_pack : whether packs were requested. If so, and ``spill_bytes`` is above 0, each candidate has packs
    num_buffers : requested number of feature buffers. None means the fastest.

    Raises
    ------
    BudgetError
        A single batch, or an explicit request, does not fit. The message gives needed and allowed bytes.
    ConfigError
        ``cache_bytes`` is negative, or ``num_buffers`` is too small.
    """
    if cache_bytes is not None and cache_bytes < 0:
        raise ConfigError(f"the host cache cannot have {cache_bytes} bytes; use 0 for none")
    if not demand.tables:
        features = "ram"  # no table has features, so nothing is read
    workspace = demand.workspace_bytes(budget_bytes)
    parts = [("batches being sampled", workspace), ("edges", demand.topology_bytes), *demand.others]
    parts += [(f"trained rows of {each.name}", each.fixed_bytes) for each in demand.embeddings]
    held = sum(num_bytes for _, num_bytes in parts)  # bytes of the fixed parts
    if demand.sweeps is not None:
        sweeps = demand.sweeps
        held += sweeps.memory_bytes
        parts.append((f"edge sweeps of {sweeps.num_batches} batches", sweeps.memory_bytes))
        spill_bytes = max(spill_bytes - sweeps.spill_bytes, 0)
    counts = _buffer_counts(demand, num_buffers)
    require_batch(parts, budget_bytes, demand)
    left = budget_bytes - held
    require_features(demand, left - counts[-1] * demand.buffer_bytes, features, budget_bytes)
    candidates = list(_in_memory(demand, left, superbatch, counts)) if features != "ssd" else []
    if features != "ram":
        candidates += _on_ssd(demand, left, spill_bytes, cache_bytes, superbatch, counts, must_pack=must_pack)
    if not candidates:
        # The smallest superbatch needs the least memory.
        least = _sizes(demand, superbatch)[0]
        outlooks = _outlooks(demand, least)
        require_staging(
            demand,
            left - (cache_bytes or 0),
            _IDLE_PARTS * staged_by_name_bytes(demand.work, outlooks, least),
            least,
        )
        if features == "ram":
            left -= demand.feature_bytes
        raise does_not_fit(demand, left, spill_bytes, cache_bytes, least, must_pack=must_pack)
    return _plan_of(demand, _ranked(candidates), parts, budget_bytes, requested=superbatch)


def _plan_of(
    demand: Demand,
    ranked: tuple[Candidate, ...],
    parts: list[tuple[str, int]],
    budget_bytes: int,
    *,
    requested: int | None,
) -> MemoryPlan:
    """Return the plan for the first candidate in ``ranked``. Pure."""
    best = ranked[0]
    shares = best.shares
    ring = shares.num_buffers * demand.buffer_bytes
    parts.append(("feature buffers", ring))
    if best.features == "ram":
        size = SuperbatchSize(num_batches=shares.num_batches, reason="features are in memory")
        accesses = (0,) * len(demand.tables)
        parts += [(_named("features", table, demand), table.feature_bytes) for table in demand.tables]
        if demand.embeddings:
            size = replace(size, reason=_why_ahead(size.num_batches, requested))
            parts += _writing_parts(demand, size.num_batches)
            parts.append(("sampled batches kept", best.keep_bytes))
    else:
        size = SuperbatchSize(num_batches=shares.num_batches, reason=_why(shares.num_batches, requested))
        accesses = tuple(table.planned_accesses(size.num_batches) for table in demand.tables)
        parts.append(("reads in flight and checksums", demand.store_bytes + best.pack_buffer_bytes))
        parts += _planned_parts(demand, size.num_batches) + _writing_parts(demand, size.num_batches)
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
        candidates=tuple(dict.fromkeys(each.text for each in ranked)),  # texts omit some differences
        step=best.step,
        # Features are on the SSD, this machine holds all rows, and they would fit instead of the caches.
        would_fit=best.features == "ssd"
        and not demand.work.is_exchanged  # other machines' rows are not held
        and demand.feature_bytes <= spare + demand.caches_bytes(shares.cache_rows),
        sweeps=demand.sweeps,
        kept_share=shares.kept_share,
    )


def _buffer_counts(demand: Demand, requested: int | None) -> Sequence[int]:
    """Return the numbers of feature buffers to try, largest first. Pure."""
    if requested is None:
        return range(_MOST_BUFFERS, demand.fewest_buffers - 1, -1)
    if requested < demand.fewest_buffers:
        raise ConfigError(f"{requested} feature buffers are too few: this run needs {demand.fewest_buffers}")
    return (requested,)


def _named(part: str, table: TableDemand, demand: Demand) -> str:
    """Return the part's name for the report, with the table's name if there are several tables. Pure."""
    return part if len(demand.tables) == 1 else f"{part} of {table.name}"


def _planned_parts(demand: Demand, num_batches: int) -> list[tuple[str, int]]:
    """Return the parts for traces, plans and lookup tables, with superbatches of ``num_batches``. Pure.

    A trace is the list of a superbatch's accesses to rows.
    """
    name = f"traces and plans of {num_batches} batches"
    if len(demand.tables) == 1:
        return [(name, demand.planning_bytes(num_batches))]
    return [
        (f"{name}, {table.name}", table.planning_bytes(demand.policy, num_batches)) for table in demand.tables
    ]


def _writing_parts(demand: Demand, num_batches: int) -> list[tuple[str, int]]:
    """Return the parts for traces, plans and lookup tables of trained rows. Pure."""
    return [
        (f"traces and plans of {num_batches} batches, trained {each.name}", each.planning_bytes(num_batches))
        for each in demand.embeddings
    ]


def _cache_parts(demand: Demand, cache_rows: tuple[int, ...]) -> list[tuple[str, int]]:
    """Return the host cache's parts. Pure."""
    return [
        (_named("host cache", table, demand), table.cache_bytes(rows))
        for table, rows in zip(demand.tables, cache_rows, strict=True)
    ]


def _why(num_batches: int, requested: int | None) -> str:
    """Return the reason for superbatches of ``num_batches``, for the report. Pure."""
    if requested is None:
        return "predicted to be the fastest"
    if num_batches == requested:
        return "asked for"
    return f"half of the batches that an edge sweep serves; {requested} were asked for"


def _why_ahead(num_batches: int, requested: int | None) -> str:
    """Return the reason for superbatches of ``num_batches`` if only trained rows are planned. Pure."""
    if requested is None:
        return "the largest whose traces and plans fit in the idle memory"
    return _why(num_batches, requested)


def _ranked(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    """Return the fastest candidates, fastest first. Pure.

    For each combination of features' place, buffers, S and packs, only the fastest is kept. The first wins a tie.
    """
    best: dict[tuple[str, int, int, bool], Candidate] = {}
    for candidate in sorted(candidates, key=lambda each: each.step.weighed_s):
        shares = candidate.shares
        best.setdefault(
            (candidate.features, shares.num_buffers, shares.num_batches, candidate.pack_buffer_bytes > 0),
            candidate,
        )
    return tuple(best.values())[:_REPORTED]


def _in_memory(
    demand: Demand, left: int, superbatch: int | None, counts: Sequence[int]
) -> Iterator[Candidate]:
    """Yield the candidates with all features in memory that fit into ``left`` bytes: no cache, no packs. Pure."""
    for count in counts:
        room = left - count * demand.buffer_bytes - demand.feature_bytes
        ahead = _written_ahead(demand, room, superbatch)
        if room >= 0 and ahead is not None:
            num_batches, kept_share, kept = ahead
            shares = StepShares(
                num_buffers=count,
                num_batches=num_batches,
                cache_rows=(0,) * len(demand.tables),
                kept_share=kept_share,
            )
            yield Candidate(
                features="ram",
                shares=shares,
                step=predict_step(demand.work, shares, None),
                keep_bytes=kept,
            )


def _written_ahead(demand: Demand, room: int, superbatch: int | None) -> tuple[int, float, int] | None:
    """Return S, and the share and the bytes of kept batches, for trained rows beside features in memory. Pure.

    The size comes first. A large superbatch shows more of the future uses of a row, and its staging reads a large table
    once, in order: half as many bytes a batch with twice the size. Its batches are kept if they then take at most half
    of the room: that only saves a second sampling. None means that not even the smallest size fits.
    """
    if not demand.embeddings:
        return 1, 0.0, 0
    shares = _KEPT_SHARES if demand.sweeps is None else _KEPT_OF_SWEPT
    for size in reversed(_sizes(demand, superbatch)):
        for share in reversed(shares):
            kept = int(share * _KEPT_SUPERBATCHES * size * demand.batch_bytes)
            if demand.writing_bytes(size) + kept <= (room // 2 if share else room):
                return size, share, kept
    return None


def _on_ssd(
    demand: Demand,
    left: int,
    spill_bytes: int,
    cache_bytes: int | None,
    superbatch: int | None,
    counts: Sequence[int],
    *,
    must_pack: bool,
) -> Iterator[Candidate]:
    """Yield every candidate with features on the SSD that fits. Pure.

    Parameters
    ----------
    demand : the run's measured sizes
    left : bytes of the budget without the fixed parts
    spill_bytes : disk for packs
    cache_bytes, superbatch, must_pack : see `plan_memory`
    counts : numbers of feature buffers to try
    """
    kept_shares = _KEPT_SHARES if demand.sweeps is None else _KEPT_OF_SWEPT
    spills = (spill_bytes,) if must_pack or not spill_bytes else (0, spill_bytes)
    for num_batches in _sizes(demand, superbatch):
        outlooks = _outlooks(demand, num_batches)
        planned = demand.planning_bytes(num_batches)
        for count in counts:
            room = left - count * demand.buffer_bytes - demand.store_bytes - planned
            for spill in spills:  # without packs, and with them
                packing = demand.packing_bytes(num_batches, room=room) if spill else 0
                for kept_share in kept_shares:
                    kept = int(kept_share * _KEPT_SUPERBATCHES * num_batches * demand.batch_bytes)
                    shares = StepShares(
                        num_buffers=count,
                        num_batches=num_batches,
                        cache_rows=(),
                        kept_share=kept_share,
                        spill_bytes=spill,
                    )
                    rest = room - packing - kept
                    filled = _with_cache(demand, shares, outlooks, rest, cache_bytes)
                    if filled is not None:
                        yield Candidate(
                            features="ssd",
                            shares=filled,
                            step=predict_step(demand.work, filled, outlooks),
                            pack_buffer_bytes=packing,
                            keep_bytes=kept,
                        )


def _outlooks(demand: Demand, num_batches: int) -> tuple[CacheOutlook, ...]:
    """Return each table's cache outlook with superbatches of ``num_batches``. Pure.

    If ``demand.is_reset``, each superbatch starts from an empty cache.
    """
    return tuple(
        cache_outlook(table.reuse, demand.policy, num_batches=num_batches, is_reset=demand.is_reset)
        for table in demand.tables
    )


def _sizes(demand: Demand, superbatch: int | None) -> tuple[int, ...]:
    """Return the superbatch sizes to try. If edges are swept, a size is at most half of a sweep's batches. Pure.

    A larger superbatch would keep more batches on the spill disk than `SweepPlan` has room for.
    """
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
    """Return ``shares`` with a host cache and staging memory in ``room`` bytes, or None if they do not fit. Pure."""
    staged = staged_by_name_bytes(demand.work, outlooks, shares.num_batches)
    room -= _IDLE_PARTS * staged
    if room < 0:
        return None
    if cache_bytes is None:
        rows = divide_cache(room, _cached_tables(demand, with_slots=True), outlooks)
    else:
        # A requested size counts rows only, without the policy's bytes per row (its slot).
        rows = divide_cache(cache_bytes, _cached_tables(demand, with_slots=False), outlooks)
    left = room - demand.caches_bytes(rows)
    if left < 0:
        return None
    return replace(shares, cache_rows=rows, staging_bytes=staged + idle_part(left))


def _cached_tables(demand: Demand, *, with_slots: bool) -> tuple[CachedTable, ...]:
    """Return the tables' row sizes for the host cache. ``with_slots`` adds the policy's slot per row. Pure."""
    return tuple(
        CachedTable(
            num_rows=table.num_nodes,
            row_bytes=table.stored_row_bytes,
            held_bytes=table.stored_row_bytes + with_slots * table.slot_bytes,
        )
        for table in demand.tables
    )


def idle_part(idle_bytes: int) -> int:
    """Return one of the equal parts of the idle memory, in bytes, at least 0. Pure."""
    return max(idle_bytes, 0) // _IDLE_PARTS
