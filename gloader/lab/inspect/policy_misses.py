"""Every cache policy's misses at every cache size, on an epoch's sampled trace, for `gloader inspect`.

A trace holds the unique nodes of each batch. An access is one node of one batch. A cache has C slots, one row each. An
access is a miss if the row is in no slot.

`sample_trace` samples the trace, and `inspect_trace` evaluates all policies on it. The policies are Belady's, which
sees the future; static sets, which are loaded once and never change; and online policies such as LRU, which see only
the past. A superbatch is S consecutive batches. "belady" sees the whole trace, "belady, S=64" sees the present and the
next superbatch, as in a run, and "belady, S=64 reset" begins each superbatch with an empty cache (Ginex).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from gloader.cache import (
    MissCurve,
    OnlinePolicy,
    Trace,
    access_counts,
    belady_curve,
    hottest_first,
    inclusion_probabilities,
    lru_curve,
    make_planner,
    next_use_counts,
    static_curve,
)
from gloader.cache.curve import add_curves
from gloader.config import OnlineName, Policy
from gloader.core.signals import run_together
from gloader.core.units import format_bytes
from gloader.errors import BudgetError, ConfigError
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.core.order import EpochOrder
    from gloader.samplers import NeighborSampler
    from gloader.types import IdArray, Sampler


_PROBE_BATCHES = 2  # batches from which the trace's size is predicted
_BYTES_PER_COUNT = 8  # bytes per pair of batches in `next_use_counts`


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AccessTrace:
    """The accesses in an epoch's first batches."""

    accesses: tuple[NDArray[np.integer], ...]  # each batch's unique ids, int32 if N fits
    num_nodes: int
    epoch_batches: int  # batches per epoch

    @property
    def num_accesses(self) -> int:
        """Number of rows over all batches, with repeats."""
        return sum(len(nodes) for nodes in self.accesses)


def sample_trace(
    sampler: Sampler,
    order: EpochOrder,
    *,
    epoch: int = 0,
    batches: int | None = None,
    threads: int = 1,
    budget_bytes: int | None = None,
) -> AccessTrace:
    """Sample the first batches in ``epoch``, or all of them, for a loader with this sampler and order.

    Parameters
    ----------
    sampler : the loader's sampler; thread-safe
    order : the order of the loader's seeds, the training nodes
    epoch : 0, 1, ...
    batches : number of batches. None means the whole epoch.
    threads : parallel sampling threads
    budget_bytes : bound for the trace and the counts between its batches. None means no bound.

    Raises
    ------
    ConfigError
        ``batches`` is not positive, or there are no seeds.
    BudgetError
        The trace would not fit; raised after two batches.
    ThreadStartError
        The system allows no more threads.
    """
    num_batches = order.num_batches if batches is None else min(batches, order.num_batches)
    if num_batches < 1:
        raise ConfigError(
            f"{batches} batches of {len(order.seeds)} training nodes: there is nothing to sample"
        )
    ordered = order.epoch_seeds(epoch)
    dtype = np.int32 if order.num_nodes <= np.iinfo(np.int32).max else np.int64

    def nodes_of(index: int) -> NDArray[np.integer]:
        """Return the unique nodes (U,) of the batch with this index."""
        batch = sampler.sample(BatchId(epoch=epoch, index=index), order.batch_seeds(ordered, index))
        return batch.nodes.astype(dtype)

    # The first few batches predict the trace's size, before much memory is used.
    first = [nodes_of(index) for index in range(min(_PROBE_BATCHES, num_batches))]
    _require_room(first, num_batches, budget_bytes)
    tasks = [partial(nodes_of, index) for index in range(len(first), num_batches)]
    rest = run_together(tasks, threads=threads, name="gloader-inspect")
    return AccessTrace(accesses=(*first, *rest), num_nodes=order.num_nodes, epoch_batches=order.num_batches)


def _require_room(probe: Sequence[NDArray[np.integer]], num_batches: int, budget_bytes: int | None) -> None:
    """Raise BudgetError for a trace that would not fit, with the number of batches that would fit."""
    per_batch = max(nodes.nbytes for nodes in probe)
    needed = num_batches * per_batch + _BYTES_PER_COUNT * num_batches**2
    if budget_bytes is not None and needed > budget_bytes:
        # Half of the budget is for rows and half for counts, which grow with the square of the batches.
        fitting = max(int(min(budget_bytes / per_batch / 2, (budget_bytes / _BYTES_PER_COUNT / 2) ** 0.5)), 1)
        raise BudgetError(
            f"the trace of {num_batches:,} batches takes about {format_bytes(needed)}; allowed are "
            f"{format_bytes(budget_bytes)}. Inspect fewer with --batches {fitting}"
        )


# Cache sizes, as shares of the N rows.
SHARES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)
# LRU's curve comes from one pass over the trace, `lru_curve`. FIFO and CLOCK are left out: each would need a pass for
# every size, and LRU is shown in their place. Every other online policy is simulated once for each size.
_NOT_SIMULATED = ("lru", "fifo", "clock")
_SIMULATED: tuple[OnlineName, ...] = tuple(
    name for name in get_args(OnlineName) if name not in _NOT_SIMULATED
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Inspection:
    """Each policy's reads at each size of the host cache, over the trace from an empty cache.

    Static sets are in memory from the start. `belady` sees the complete trace, so no other policy that starts empty
    reads less.
    """

    num_nodes: int
    row_bytes: int
    num_accesses: int  # rows over all batches of the trace, with repeats
    num_distinct: int  # rows that occur at least once
    num_batches: int  # batches of the trace
    epoch_batches: int  # batches per epoch
    slots: tuple[int, ...]  # the cache sizes, in rows
    misses: dict[str, tuple[int, ...]]  # misses by policy, one number for each entry in ``slots``
    knee_slots: int  # the knee in the curve of `belady`

    @property
    def knee_bytes(self) -> int:
        """Memory at the knee."""
        return self.knee_slots * self.row_bytes

    def memory_bytes(self) -> list[int]:
        """Return each size's memory. Pure."""
        return [slots * self.row_bytes for slots in self.slots]

    def ratios(self, policy: str) -> list[float]:
        """Return misses per access at each size. Pure."""
        return [misses / max(self.num_accesses, 1) for misses in self.misses[policy]]

    def epoch_bytes(self, policy: str) -> list[int]:
        """Return the bytes of the rows that an epoch reads at each size, extrapolated from the batches. Pure."""
        factor = self.row_bytes * self.epoch_batches / max(self.num_batches, 1)
        return [round(misses * factor) for misses in self.misses[policy]]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values. Pure."""
        return {
            "num_nodes": self.num_nodes,
            "row_bytes": self.row_bytes,
            "accesses": self.num_accesses,
            "distinct_rows": self.num_distinct,
            "batches": self.num_batches,
            "epoch_batches": self.epoch_batches,
            "slots": list(self.slots),
            "memory_bytes": self.memory_bytes(),
            "knee": {"slots": self.knee_slots, "memory_bytes": self.knee_bytes},
            "policies": {
                name: {
                    "misses": list(misses),
                    "miss_ratio": self.ratios(name),
                    "ssd_bytes_per_epoch": self.epoch_bytes(name),
                    "preload_bytes": self.memory_bytes()
                    if name.startswith("static")
                    else [0] * len(self.slots),
                }
                for name, misses in self.misses.items()
            },
        }


def inspect_trace(
    trace: AccessTrace,
    presampled: AccessTrace,
    sampler: NeighborSampler,
    order: EpochOrder,
    *,
    row_bytes: int,
    superbatch: int = 64,
    shares: Sequence[float] = SHARES,
) -> Inspection:
    """Evaluate Belady, static sets and online policies on ``trace``. Pure.

    Parameters
    ----------
    trace : trace of an epoch's first batches, or of all batches
    presampled : another epoch's trace, in which hot sets are counted
    sampler, order : the traces' sampler and order. The analytic hot set follows from the graph, the fan-outs, the
        seeds and the batch size.
    row_bytes : R, bytes per row
    superbatch : S, batches that a run plans together
    shares : cache sizes, as shares of the N rows

    Raises
    ------
    ConfigError
        ``superbatch`` is not positive.
    """
    if superbatch < 1:
        raise ConfigError(f"superbatch is {superbatch}; it must be at least 1")
    slots = np.unique([round(share * trace.num_nodes) for share in shares]).astype(np.int64)
    counts = next_use_counts(trace.accesses, trace.num_nodes)
    whole = belady_curve(counts, trace.num_accesses)
    presampled_uses = access_counts(presampled.accesses, trace.num_nodes)
    uses = access_counts(trace.accesses, trace.num_nodes)
    curves = {"belady": whole, f"belady, S={superbatch} reset": _reset_curve(trace, counts, superbatch)}
    graph = sampler.graph
    scores: dict[str, NDArray[Any]] = {
        "static, degree": access_counts(graph.sources.pieces(), graph.num_nodes),
        "static, presample": presampled_uses,
        "static, vip": inclusion_probabilities(
            graph.offsets,
            graph.sources.pieces,
            seeds=order.seeds,
            batch_size=order.batch_size,
            fanouts=sampler.fanouts,
        ),
        "static, best": uses,  # counted in the trace itself
    }
    for name, score in scores.items():
        curves[name] = static_curve(hottest_first(score), uses)
    curves["lru"] = lru_curve(trace.accesses, trace.num_nodes)
    misses = {name: tuple(curve.misses_at(slots).tolist()) for name, curve in curves.items()}
    misses[f"belady, S={superbatch}"] = superbatch_misses(trace, slots, superbatch)
    for name in _SIMULATED:
        misses[name] = tuple(_simulated_misses(trace, name, int(c)) for c in slots)
    misses["none"] = (trace.num_accesses,) * len(slots)
    return Inspection(
        num_nodes=trace.num_nodes,
        row_bytes=row_bytes,
        num_accesses=trace.num_accesses,
        num_distinct=int(np.count_nonzero(uses)),
        num_batches=len(trace.accesses),
        epoch_batches=trace.epoch_batches,
        slots=tuple(slots.tolist()),
        misses={name: misses[name] for name in _ordered(misses)},
        knee_slots=knee(whole),
    )


def superbatch_misses(trace: AccessTrace, slots: Sequence[int] | IdArray, superbatch: int) -> tuple[int, ...]:
    """Return the misses that a run's planner has, for each number of slots. Pure.

    The planner plans one superbatch after another and sees the next one. The rows of a batch are sorted, as in a run:
    their order decides between rows whose next use is outside of the look-ahead.

    Parameters
    ----------
    trace : trace of an epoch's first batches, or of all batches
    slots : (K,) cache sizes
    superbatch : S, batches per superbatch
    """
    parts = [
        Trace([np.sort(nodes) for nodes in trace.accesses[start : start + superbatch]])
        for start in range(0, len(trace.accesses), superbatch)
    ]
    return tuple(_planned_misses(parts, trace.num_nodes, int(capacity)) for capacity in slots)


def knee(curve: MissCurve) -> int:
    """Return the capacity at which a convex curve lies farthest below its chord. Pure.

    V. Satopaa et al., "Finding a Kneedle in a haystack", 2011. Only a corner can be the farthest point.
    """
    # The chord is the line between the curve's ends. Both axes are scaled to 0..1, so that their units do not matter.
    capacities, misses = curve.capacities.astype(np.float64), curve.misses.astype(np.float64)
    width, height = capacities[-1] - capacities[0], misses[0] - misses[-1]
    if width <= 0 or height <= 0:
        return 0
    depth = (misses[0] - misses) / height - (capacities - capacities[0]) / width
    return int(curve.capacities[np.argmax(depth)])


def _reset_curve(trace: AccessTrace, counts: IdArray, superbatch: int) -> MissCurve:
    """Return Belady's curve with an empty cache and no look-ahead for every superbatch (Ginex)."""
    curves = []
    for start in range(0, len(trace.accesses), superbatch):
        end = min(start + superbatch, len(trace.accesses))
        # The counts within a superbatch are a diagonal block in the trace's counts.
        within = np.ascontiguousarray(counts[start:end, start:end])
        curves.append(belady_curve(within, sum(len(nodes) for nodes in trace.accesses[start:end])))
    return add_curves(curves)


def _planned_misses(parts: Sequence[Trace], num_nodes: int, capacity: int) -> int:
    """Return the misses of Belady's planner over the superbatches ``parts``, with ``capacity`` slots."""
    planner = make_planner("belady", num_nodes=num_nodes, capacity=capacity)
    # The last superbatch has no look-ahead, as in a run.
    lookaheads = [*parts[1:], ()]
    return sum(planner.plan(part, ahead).num_misses for part, ahead in zip(parts, lookaheads, strict=True))


def _simulated_misses(trace: AccessTrace, name: OnlineName, capacity: int) -> int:
    """Return the misses of an online policy with ``capacity`` slots, simulated batch by batch."""
    policy = OnlinePolicy(name, num_nodes=trace.num_nodes, capacity=capacity)
    return sum(len(policy.step(nodes).miss_pos) for nodes in trace.accesses)


def _ordered(misses: dict[str, tuple[int, ...]]) -> list[str]:
    """Return the policies in the order of `Policy`: Belady first, then static sets, then online policies. Pure."""
    ranks = get_args(Policy)
    return sorted(misses, key=lambda name: (ranks.index(name.split(",")[0]), "reset" in name))
