"""A run's first batches, which are sampled before the memory is planned, to measure their sizes and times.

This is a step of opening a loader (`gloader.pipeline.open.load_plan`). The edges are opened before it. `first_seeds`
selects the batches, and `probe_one_by_one` or `probe_in_passes` samples them. From the batches, `measure_demand`
derives a `Demand`: the memory that the run could use, and the work in a step. `plan_memory` then divides the memory
budget.

- A probe is the sampled first batches, with their time.
- A large batch is `LARGER_THAN_PROBED` times the largest batch of the probe, as later batches may be larger.
- A table is the feature rows of a node type or of a relation.
- A swept run reads its edges by passes over the SSD, see `gloader.pipeline.edge_sweeps`.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.cache import slot_bytes
from gloader.cache.curve import measure_reuse
from gloader.core.order import RowOrder
from gloader.core.signals import Cancellation, run_together
from gloader.dataset.edge_passes import PassSettings
from gloader.dataset.hetero_passes import looks_at_lists, num_swept, open_passes
from gloader.pipeline.open.device_rows import LARGER_THAN_PROBED
from gloader.pipeline.open.device_tier import MOST_THREADS
from gloader.pipeline.sample import beside_bytes, count_rows, distinct_rows
from gloader.pipeline.send import BATCHES_AHEAD
from gloader.plan.demand import Demand, TableDemand
from gloader.plan.predict import StepWork, TableWork, spread_of
from gloader.replay.work import SAMPLED_AHEAD
from gloader.samplers import (
    HeteroGraph,
    call_bytes,
    hetero_map_bytes,
    temporal_call_bytes,
    temporal_map_bytes,
)
from gloader.samplers.arguments import resolve_fanouts, split_seeds
from gloader.samplers.hetero import HeteroRule
from gloader.ssd_store.cost.device_profile import MAX_GAP_BYTES
from gloader.ssd_store.read.extents import num_pages
from gloader.ssd_store.sweep.passes import pass_memory_bytes
from gloader.types import BatchId, CollectiveFanouts, seed_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gloader.config import IoMode, LoaderSettings, SamplingSettings
    from gloader.core.order import AnyOrder
    from gloader.dataset import Dataset
    from gloader.device import DeviceTier
    from gloader.pipeline.open.device_rows import Workload
    from gloader.pipeline.open.disk import FeatureFile, TableFiles
    from gloader.plan.sweep_plan import SweepPlan
    from gloader.samplers import Topology
    from gloader.samplers.sweeping import SweptSampler
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.types import AnyBatch, AnySampler, AnySeeds, Fanouts, IdArray


# Number of first batches. They are enough to measure their size; each further batch would wait for a cold disk.
_BATCHES: Final = 3
# Maximum number of seeds whose in-edges are counted, to find a batch that is much larger than the first batches. The
# count takes a tenth of a second.
_COUNTED_SEEDS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Epoch 0's first batches, and perhaps a later batch that is much larger."""

    batches: list[AnyBatch]
    seconds: float  # processor seconds of one core for the fastest batch, without reads


def probe_one_by_one(
    sampler: AnySampler, order: AnyOrder, first: list[tuple[BatchId, AnySeeds]], *, threads: int
) -> Probe:
    """Sample the first batches one by one. Reads of a topology that is not yet in memory delay each batch.

    Parameters
    ----------
    sampler : samples the batches
    order : the seed order
    first : addresses and seeds of the batches, from `first_seeds`
    threads : number of sampling threads
    """

    def sample(batch_id: BatchId, seeds: Any) -> tuple[AnyBatch, float]:
        """Return the batch and its processor seconds."""
        return _timed(lambda: sampler.sample(batch_id, seeds))

    tasks = [partial(sample, batch_id, seeds) for batch_id, seeds in first]
    return _probe_of(run_together(tasks, threads=threads, name="gloader-probe"), order)


def probe_in_passes(
    dataset: Dataset,
    sampler: SweptSampler,
    order: AnyOrder,
    first: list[tuple[BatchId, AnySeeds]],
    folder: SpillFolder,
    *,
    rates: IoRates,
    io: IoMode,
) -> Probe:
    """Make the first batches with one pass over the edges for each hop.

    Each batch touches many graph pages, so that one shared pass is several times faster.

    Parameters
    ----------
    dataset : the edges
    sampler : makes the batches
    order : the seed order
    first : addresses and seeds of the batches, from `first_seeds`
    folder : receives the output of passes
    rates : the disks' rates
    io : the request method

    Raises
    ------
    BudgetError
        The folder has no room for these few batches.
    """
    rule = sampler.rule
    cancellation = Cancellation()
    is_shared = not isinstance(rule, HeteroRule) or not looks_at_lists(rule)
    memory_bytes = pass_memory_bytes(len(first)) * (1 if is_shared else num_swept(dataset))
    settings = PassSettings(memory_bytes=memory_bytes, rates=rates, io=io)

    def make() -> Probe:
        """Draw hop after hop, each for all batches in one pass; then build the batches from the drawn edges."""
        # A frontier is the set of nodes that draw in a batch's next hop.
        frontiers = [rule.begin(batch_id, seeds) for batch_id, seeds in first]
        drawn: list[list[Any]] = [[] for _ in first]
        with closing(open_passes(dataset, rule, folder, settings)) as passes:
            for _ in range(rule.num_hops if first else 0):
                hops = passes.sweep(frontiers, label="the first batches", cancellation=cancellation)
                for owner in range(len(first)):
                    drawn[owner].append(hops.read(owner))
                    frontiers[owner] = rule.extend(frontiers[owner], drawn[owner][-1])
                hops.close()
        batches = [
            _timed(partial(sampler.replay, batch_id, seeds, values))
            for (batch_id, seeds), values in zip(first, drawn, strict=True)
        ]
        return _probe_of(batches, order)

    # The work runs on a separate thread. So Ctrl-C cannot come between the opening of a file and its registration.
    return run_together([make], threads=1, name="gloader-probe", cancel=cancellation.set)[0]


def first_seeds(
    order: AnyOrder, topology: Topology | HeteroGraph, fanouts: Fanouts, *, epochs: int | None
) -> list[tuple[BatchId, AnySeeds]]:
    """Return the first batches' seeds, and a later batch's seeds if they draw many more edges.

    A later batch may be too large for memory that is planned for the first batches, because of nodes with very many
    edges or a dense part of the graph. So the first hop's edges are counted for a sample of the run's batches.

    Parameters
    ----------
    order : each batch's seeds
    topology : gives the nodes' in-degrees
    fanouts : neighbours drawn per node
    epochs : the run's number of epochs; None if unknown
    """
    count = order.num_batches
    first_ids = (BatchId(epoch=0, index=index) for index in range(min(_BATCHES, count)))
    first = [(batch, order.seeds_of(batch)) for batch in first_ids]
    total = count * (epochs or 1)
    # Seeds that are derived from rows take longer than the batch itself, so that only the first batches are made.
    if total <= _BATCHES or (isinstance(order, RowOrder) and order.expand is not None):
        return first
    max_counted = max(_COUNTED_SEEDS // order.batch_size, _BATCHES)
    # A short run counts all batches; a longer run counts some batches of the first epoch.
    positions = range(total) if total <= max_counted else range(0, count, -(-count // max_counted))
    largest = LARGER_THAN_PROBED * max(_num_drawn(topology, fanouts, seeds) for _, seeds in first)
    later = None
    for batch in (BatchId(epoch=position // count, index=position % count) for position in positions):
        seeds = order.seeds_of(batch)
        drawn = _num_drawn(topology, fanouts, seeds)
        if drawn > largest:
            largest, later = drawn, (batch, seeds)
    return first if later is None else [*first, later]


def _num_drawn(topology: Topology | HeteroGraph, fanouts: Fanouts, seeds: AnySeeds) -> int:
    """Return the first hop's number of edges, if each node draws its full fan-out."""
    graph = HeteroGraph.of(topology)
    by_type = dict(zip(graph.node_types, split_seeds(seed_nodes(seeds), graph.type_starts), strict=True))
    hops = resolve_fanouts(fanouts, tuple(graph.relations))
    total = 0
    for ((_, _, destination), edges), fanout_of_hops in zip(graph.relations.items(), hops, strict=True):
        fanout = next(iter(fanout_of_hops), 0)  # without hops nothing is drawn
        degrees = edges.in_degrees(by_type[destination])
        total += int((degrees if fanout < 0 else np.minimum(degrees, fanout)).sum())
    return total


def _timed(make: Callable[[], AnyBatch]) -> tuple[AnyBatch, float]:
    """Return the made batch, and the processor seconds of this thread."""
    # This clock stops while the thread waits for a core or for a page from the disk.
    began = time.thread_time()
    batch = make()
    return batch, time.thread_time() - began


def _probe_of(timed_batches: list[tuple[AnyBatch, float]], order: AnyOrder) -> Probe:
    """Return the probe of these batches, each with its processor seconds."""
    batches = [batch for batch, _ in timed_batches]
    sampling = min((seconds for _, seconds in timed_batches), default=0.0)
    return Probe(batches=batches, seconds=sampling + (_seed_seconds(order) if batches else 0.0))


def _seed_seconds(order: AnyOrder) -> float:
    """Return the seconds to derive a batch's seeds from its rows; 0 if the seeds are nodes."""
    if not isinstance(order, RowOrder):
        return 0.0
    began = time.thread_time()
    order.seeds_of(BatchId(epoch=0, index=0))  # the second call: the first may have compiled
    return time.thread_time() - began


# Peak memory of a thread that makes a batch from a pass's output, as a multiple of the output's size. It covers the
# output and its lookup table.
_REPLAY_FACTOR: Final = 3

# Number of batches whose nodes and blocks (one hop's edges each) are lent to each other rank until the rank returns
# them. The features of these batches are counted as buffers instead.
_LENT_TOPOLOGIES: Final = 5

# Number of batches whose edge ids are on the host while the rest is on an asynchronous device: being sent, waiting, and
# being computed.
_ON_DEVICE: Final = BATCHES_AHEAD + 1


def measure_demand(
    settings: LoaderSettings,
    work: Workload,
    files: TableFiles,
    tiers: Sequence[DeviceTier],
    sweeps: SweepPlan | None,
    *,
    num_ranks: int,
    is_exchanged: bool,
) -> Demand:
    """Return a loader's memory demand with ``settings``, from the sampled batches in ``work``.

    Parameters
    ----------
    settings : the loader's settings
    work : sampled batches, and their sampler
    files : each table's feature rows
    tiers : each table's rows on the device; at least one tier
    sweeps : passes over the edges, or None
    num_ranks : ranks that the loader serves
    is_exchanged : whether all missing rows come from other machines
    """
    first, sampling = tiers[0], settings.sampling
    waiting = in_flight(settings, first, num_ranks) + (_ON_DEVICE if first.device.is_asynchronous else 0)
    max_rows = [max((count_rows(batch, number) for batch in work.probe), default=1) for number in files.types]
    edges = math.ceil(LARGER_THAN_PROBED * max(map(_num_edges, work.probe), default=1))
    demands, step = [], []
    for table, tier, most_rows in zip(files.tables, tiers, max_rows, strict=False):
        # Plans and stores count distinct rows in file order.
        rows = [distinct_rows(batch, table.rows.number) for batch in work.probe]
        demands.append(_table_demand(table, tier, rows, settings, most_rows=most_rows))
        step.append(_table_work(table, tier, rows))
    return Demand(
        tables=tuple(demands),
        topology_bytes=work.topology.held_bytes,
        policy=settings.memory.policy,
        batch_rows=_batch_rows(work) + _edge_rows(files, max_rows),
        batch_edges=edges,
        batches_in_flight=waiting + _LENT_TOPOLOGIES * (num_ranks - 1),
        sampler_threads=num_sampler_threads(settings, first),
        # A sampling device holds its own node map.
        sampler_map_bytes=0 if first.sampler is not None else _map_bytes(sampling, work, edges),
        beside_bytes=math.ceil(LARGER_THAN_PROBED * max(map(beside_bytes, work.probe), default=0)),
        sampler_call_bytes=max(_hop_bytes(sampling, work, sweeps), _seed_bytes(work)),
        work=StepWork(
            tables=tuple(step),
            rates=files.rates,
            sweep_gap_bytes=files.rates.times.sweep_gap_bytes(most=MAX_GAP_BYTES),
            sample_s=work.probe_s,
            cores=len(os.sched_getaffinity(0)),
            strategy=settings.reading.io_strategy,
            edges_s=0.0 if sweeps is None else sweeps.pass_seconds(files.rates),
            edge_bytes=0.0 if sweeps is None else sweeps.read_bytes,
            is_exchanged=is_exchanged,
        ),
        num_batches=num_batches_of(settings, work.order, num_ranks),
        num_seeds=work.order.num_held,
        num_ranks=num_ranks,
        is_reset=settings.memory.superbatch_reset,
        sweeps=sweeps,
    )


def num_sampler_threads(settings: LoaderSettings, tier: DeviceTier) -> int:
    """Return the number of sampling threads; a sampling device needs few. Pure."""
    threads = settings.stages.sampler_threads
    return threads if tier.sampler is None else min(threads, MOST_THREADS)


def in_flight(settings: LoaderSettings, tier: DeviceTier, num_ranks: int) -> int:
    """Return the number of sampled batches that wait for their rows. Pure."""
    return num_sampler_threads(settings, tier) + SAMPLED_AHEAD * num_ranks


def num_batches_of(settings: LoaderSettings, order: AnyOrder, num_ranks: int) -> int | None:
    """Return the number of batches in the run, for all served ranks; None if unknown. Pure."""
    epochs = settings.stages.epochs
    return None if epochs is None else epochs * order.num_batches * num_ranks


def _table_demand(
    table: FeatureFile, tier: DeviceTier, batches: list[IdArray], settings: LoaderSettings, *, most_rows: int
) -> TableDemand:
    """Return a table's memory demand; ``batches`` are the probe's distinct rows, ``most_rows`` counts repeats too."""
    store, num_nodes = table.store, table.rows.num_rows
    most = max(map(len, batches), default=1)
    return TableDemand(
        name=table.rows.name,
        num_nodes=num_nodes,
        feature_bytes=table.rows.feature_bytes,
        row_bytes=_buffer_row_bytes(table, tier),
        slot_bytes=slot_bytes(settings.memory.policy),
        batch_rows=min(math.ceil(LARGER_THAN_PROBED * most), num_nodes),
        store_bytes=store.resident_bytes,
        stored_row_bytes=store.row_bytes,
        reuse=measure_reuse(batches, num_nodes),
        repeated_rows=math.ceil(LARGER_THAN_PROBED * max(most_rows - most, 0)),
    )


def _table_work(table: FeatureFile, tier: DeviceTier, batches: list[IdArray]) -> TableWork:
    """Return a step's mean work on a table; ``batches`` are the probe's distinct rows."""
    store = table.store
    rows = sum(map(len, batches)) / max(len(batches), 1)
    pages = sum(num_pages(batch, row_bytes=store.row_bytes) for batch in batches) / max(len(batches), 1)
    return TableWork(
        rows=rows,
        row_bytes=_buffer_row_bytes(table, tier),
        stored_row_bytes=store.row_bytes,
        file_rows=spread_of(pages, rows, num_rows=store.num_rows, row_bytes=store.row_bytes),
        gap_bytes=store.stored_rows.gap_bytes,
    )


def _buffer_row_bytes(table: FeatureFile, tier: DeviceTier) -> int:
    """Return a row's bytes in the ring's buffers: in the stored dtype for a device, float32 for the CPU."""
    return table.store.dim * tier.staged_dtype.itemsize


def _batch_rows(work: Workload) -> int:
    """Return the number of nodes in a large batch, over all types."""
    most = max((sum(map(len, batch.node_arrays)) for batch in work.probe), default=1)
    num_rows = math.ceil(LARGER_THAN_PROBED * most)
    return num_rows if any(batch.may_repeat for batch in work.probe) else min(num_rows, _num_nodes(work))


def _edge_rows(files: TableFiles, max_rows: Sequence[int]) -> int:
    """Return the number of edge feature rows in a large batch; ``max_rows`` is each table's maximum in the probe."""
    of_edges = (count for table, count in zip(files.tables, max_rows, strict=True) if table.is_of_edges)
    return math.ceil(LARGER_THAN_PROBED * sum(of_edges))


def _num_nodes(work: Workload) -> int:
    """Return the graph's number of nodes, over all types."""
    return sum(HeteroGraph.of(work.topology).num_nodes.values())


def _num_edges(batch: AnyBatch) -> int:
    """Return the batch's number of edges, over all hops and relations."""
    return sum(block.num_edges for block in batch.all_blocks)


def _map_bytes(sampling: SamplingSettings, work: Workload, edges: int) -> int:
    """Return a sampling thread's peak bytes for its node map."""
    graph = HeteroGraph.of(work.topology)
    sizes = [dict(zip(graph.node_types, map(len, batch.node_arrays), strict=True)) for batch in work.probe]
    # The map may have to hold every edge's source, and each may be of any type.
    capacities = {
        name: math.ceil(LARGER_THAN_PROBED * max((size[name] for size in sizes), default=1)) + edges
        for name in graph.node_types
    }
    if sampling.is_temporal:
        return sum(map(temporal_map_bytes, capacities.values()))
    return hetero_map_bytes(sampling.sampler, graph, capacities)


def _seed_bytes(work: Workload) -> int:
    """Return a sampling thread's memory while it derives a batch's seeds."""
    return work.order.expand_bytes if isinstance(work.order, RowOrder) else 0


def _hop_bytes(sampling: SamplingSettings, work: Workload, sweeps: SweepPlan | None) -> int:
    """Return a sampling thread's memory for a large batch's hops, without the batch itself."""
    if sweeps is not None:
        return _REPLAY_FACTOR * sweeps.drawn_bytes
    spec = sampling.sampler
    if sampling.is_temporal:
        num_bytes = [temporal_call_bytes(work.topology, batch, spec) for batch in work.probe]
    else:
        is_collective = isinstance(work.fanouts, CollectiveFanouts)
        num_bytes = [
            call_bytes(spec, work.topology, batch, is_collective=is_collective) for batch in work.probe
        ]
    return math.ceil(LARGER_THAN_PROBED * max(num_bytes, default=0))
