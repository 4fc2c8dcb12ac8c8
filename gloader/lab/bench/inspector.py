"""Planning benchmark: accesses planned per second, each policy's misses, and the speed of copying hits.

The inspector is the pass that plans the host cache for one superbatch, a number of consecutive batches (Ginex, VLDB
2022). Its input is the trace: the node ids of each batch. An access is one row of one batch. Hits are the rows that a
batch finds in the cache. `bench_inspector` is the benchmark.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from gloader.cache import (
    PlannerTable,
    SlotCache,
    Trace,
    access_counts,
    encode_ids,
    hotness_levels,
    plan_belady,
)
from gloader.core.order import EpochOrder
from gloader.errors import ConfigError
from gloader.lab.bench.environment import provenance
from gloader.lab.bench.features import in_turns
from gloader.lab.bench.graphs import GraphSpec
from gloader.lab.inspect import AccessTrace, inspect_trace, sample_trace
from gloader.samplers import NeighborSampler
from gloader.types import CacheStep, IdArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


_COPY_ROWS = 100_000  # copied rows per call
_COPY_DIM = 128  # F of the copied rows, in float32
_PREFAULT = 1.0  # written to every page before the clock runs
_SPREAD = 25  # factor on the number of nodes in `_spread`: 4 million nodes become 100 million
_SUPERBATCHES = 3  # one to fill the cache, one to plan, one to look ahead
_GRAPH = GraphSpec(num_nodes=4_000_000, num_edges=100_000_000)


def bench_inspector(
    graph: GraphSpec = _GRAPH,
    *,
    fanouts: Sequence[int] = (10, 10, 10),
    batch_size: int = 1000,
    superbatch: int = 64,
    cache_share: float = 0.1,
    repeats: int = 7,
    threads: int = 2,
    policies: bool = True,
) -> dict[str, Any]:
    """Measure the planning of one superbatch, on one thread.

    The superbatch follows another one, which has filled the cache, and looks ahead to the next one. Four traces are
    planned. The first is the sampled trace. The second has the same ids spread over 25 times as many nodes, which
    enlarges only the planner's table. The other two are the same, but sorted and coded as in a loader; decoding is
    included. `accesses_per_second` counts only the planned superbatch's accesses, although the look-ahead is read too.
    It is the median over the repeats. `best_accesses_per_second` is the repeat that other programs disturbed least.

    Parameters
    ----------
    graph : the sampled graph
    fanouts : neighbours sampled per node, one number per hop, the hop next to the seeds first
    batch_size : seeds per batch
    superbatch : batches planned together
    cache_share : the cache's slots, as a share of the nodes
    repeats : number of repeats; the median counts
    threads : number of sampling threads, and number of copying threads
    policies : whether to evaluate also every policy, with a cache of ``cache_share`` of the rows

    Returns
    -------
    A JSON-like dict with the speeds, bytes per access, the policies' misses, the workload, the versions and the
    machine.

    Raises
    ------
    ConfigError
        The workload is impossible.
    """
    if superbatch < 1 or repeats < 1 or not 0 < cache_share <= 1:
        raise ConfigError("needs superbatch >= 1, repeats >= 1 and 0 < cache_share <= 1")
    topology = graph.make()
    seeds = np.flatnonzero(np.diff(topology.indptr))
    sampler = NeighborSampler(topology, fanouts, seed=graph.seed)
    order = EpochOrder(seeds=seeds, num_nodes=graph.num_nodes, batch_size=batch_size, seed=graph.seed)
    trace = sample_trace(sampler, order, batches=_SUPERBATCHES * superbatch, threads=threads)
    if len(trace.accesses) < 2 * superbatch + 1:
        raise ConfigError(
            f"{len(seeds)} seeds give {len(trace.accesses)} batches; lower superbatch or batch_size"
        )
    capacity = round(cache_share * graph.num_nodes)
    # The same accesses among more nodes differ only in the table, which no longer fits in the processor's caches.
    spread = _spread(trace)
    report = {
        "benchmark": "inspector",
        **_planning(trace.accesses, trace.num_nodes, capacity, superbatch, repeats),
        "coded": _coded_planning(trace, capacity, superbatch, repeats),
        "spread_over_more_nodes": {
            **_planning(spread.accesses, spread.num_nodes, capacity, superbatch, repeats),
            "coded": _coded_planning(spread, capacity, superbatch, repeats),
        },
    }
    report["copy"] = _copying(repeats, threads)
    if policies:
        # A static cache must not be chosen by the accesses that judge it, so another epoch is sampled.
        presampled = sample_trace(sampler, order, batches=len(trace.accesses), epoch=1, threads=threads)
        report["policies"] = _policies(trace, presampled, sampler, order, superbatch, cache_share)
    report["workload"] = {
        **graph.to_json(),
        "fanouts": list(fanouts),
        "batch_size": batch_size,
        "superbatch": superbatch,
        "batches": len(trace.accesses),
        "capacity": capacity,
        "repeats": repeats,
    }
    return report | provenance()


def _spread(trace: AccessTrace) -> AccessTrace:
    """Return the same trace on a graph with 25 times the nodes, its ids scattered over all nodes. Pure."""
    accesses = tuple(
        (_SPREAD * nodes.astype(np.int64) + nodes % _SPREAD).astype(nodes.dtype) for nodes in trace.accesses
    )
    return AccessTrace(
        accesses=accesses, num_nodes=_SPREAD * trace.num_nodes, epoch_batches=trace.epoch_batches
    )


def _coded_planning(trace: AccessTrace, capacity: int, superbatch: int, repeats: int) -> dict[str, Any]:
    """Return the figures for planning the same batches from their sorted, coded ids."""
    batches = [np.sort(nodes) for nodes in trace.accesses]
    coded = Trace(batches)
    encoding = _seconds(lambda: [encode_ids(ids) for ids in batches], repeats)
    decoding = _seconds(lambda: [coded[batch] for batch in range(len(coded))], repeats)
    return {
        **_planning(coded, trace.num_nodes, capacity, superbatch, repeats),
        "trace_bytes_per_access": coded.num_bytes / coded.num_accesses,
        "ids_encoded_per_second": coded.num_accesses / min(encoding),
        "ids_decoded_per_second": coded.num_accesses / min(decoding),
    }


def _planning(
    batches: Sequence[NDArray[np.integer]], num_nodes: int, capacity: int, superbatch: int, repeats: int
) -> dict[str, Any]:
    """Return the figures for planning the second of three superbatches in ``batches``.

    The first plan, which is not measured, fills the cache. The measured plan starts from its rows and looks ahead to
    the third superbatch.
    """
    table = PlannerTable.for_trace(num_nodes, 2 * sum(map(len, batches)))
    levels = hotness_levels(access_counts(batches[:superbatch], num_nodes))
    window = batches[superbatch : 2 * superbatch]
    first_plan = plan_belady(batches[:superbatch], capacity=capacity, lookahead=window, table=table)
    lookahead = batches[2 * superbatch : 3 * superbatch]

    def plan() -> None:
        """Plan the second superbatch, as a run does."""
        plan_belady(
            window,
            capacity=capacity,
            resident=first_plan.resident_after,
            lookahead=lookahead,
            hotness=levels,
            table=table,
        )

    planned = plan_belady(window, capacity=capacity, resident=first_plan.resident_after, lookahead=lookahead)
    runs = _seconds(plan, repeats)
    accesses = sum(map(len, window))
    return {
        "accesses_per_second": accesses / statistics.median(runs),
        "best_accesses_per_second": accesses / min(runs),
        "seconds_per_superbatch": statistics.median(runs),
        "accesses_per_superbatch": accesses,
        "num_nodes": num_nodes,
        "plan_bytes_per_access": planned.num_bytes / accesses,
        "table_bytes": table.num_bytes,
        "table_kind": "direct" if table.num_nodes is not None else "hashed",
        "runs_seconds": runs,
    }


def _copying(repeats: int, threads: int) -> dict[str, Any]:
    """Return bytes/s for copying hits: by one thread, by ``threads``, and by numpy.take on the same rows."""
    rng = np.random.default_rng(0)
    nothing = np.empty(0, dtype=np.int64)
    slots: IdArray = rng.permutation(4 * _COPY_ROWS)[:_COPY_ROWS]
    step = CacheStep(
        hit_pos=np.arange(_COPY_ROWS),
        hit_slot=slots,
        miss_pos=nothing,
        miss_row=nothing,
        admit_pos=nothing,
        admit_slot=nothing,
    )
    # The rows are filled, because an untouched page is mapped at its first read, which would be measured.
    rows = np.full((4 * _COPY_ROWS, _COPY_DIM), _PREFAULT, dtype=np.float32)
    outs = [np.full((_COPY_ROWS, _COPY_DIM), _PREFAULT, dtype=np.float32) for _ in range(3)]
    with (
        SlotCache(len(rows), dim=_COPY_DIM) as one,
        SlotCache(len(rows), dim=_COPY_DIM, threads=threads) as many,
    ):
        for cache in (one, many):
            for start in range(0, len(rows), _COPY_ROWS):
                part = np.arange(start, start + _COPY_ROWS)
                admitted = CacheStep(
                    hit_pos=nothing,
                    hit_slot=nothing,
                    miss_pos=nothing,
                    miss_row=nothing,
                    admit_pos=np.arange(_COPY_ROWS),
                    admit_slot=part,
                )
                cache.admit(admitted, part, outs[0])
        contenders: dict[str, Callable[[], object]] = {
            "numpy_take": lambda: np.take(rows, slots, axis=0, out=outs[2], mode="clip"),
            "one_thread": lambda: one.copy_hits(step, slots, outs[0]),
            "all_threads": lambda: many.copy_hits(step, slots, outs[1]),
        }
        seconds = in_turns(contenders, repeats, num_calls=1)
    moved = _COPY_ROWS * _COPY_DIM * 4
    speeds = {f"{name}_bytes_per_second": moved / min(runs) for name, runs in seconds.items()}
    ratio = speeds["one_thread_bytes_per_second"] / speeds["numpy_take_bytes_per_second"]
    return {**speeds, "ratio_to_numpy_take": ratio, "threads": threads, "row_bytes": _COPY_DIM * 4}


def _policies(
    trace: AccessTrace,
    presampled: AccessTrace,
    sampler: NeighborSampler,
    order: EpochOrder,
    superbatch: int,
    share: float,
) -> dict[str, Any]:
    """Return each policy's misses per access with a cache of ``share`` of the rows, and their ratios."""
    started = time.perf_counter()
    inspected = inspect_trace(
        trace,
        presampled,
        sampler,
        order,
        row_bytes=_COPY_DIM * 4,
        superbatch=superbatch,
        shares=(share,),
    )
    ratios = {name: inspected.ratios(name)[0] for name in inspected.misses}
    least = min(ratio for name, ratio in ratios.items() if name.startswith("static"))
    return {
        "misses_per_access": ratios,
        "ratio_to_best_static": ratios["belady"] / least,
        "ratio_to_lru": ratios["belady"] / ratios["lru"],
        "superbatch_to_whole_trace": ratios[f"belady, S={superbatch}"] / ratios["belady"],
        "distinct_rows": inspected.num_distinct,
        "seconds": time.perf_counter() - started,
    }


def _seconds(run: Callable[[], object], repeats: int) -> list[float]:
    """Return the seconds of each of ``repeats`` calls of ``run``."""
    runs = []
    for _ in range(repeats):
        started = time.perf_counter()
        run()
        runs.append(time.perf_counter() - started)
    return runs
