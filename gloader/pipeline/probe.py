"""The first batches of a run, made before anything is planned: how large they are, and what it takes to make one."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.row_order import RowOrder
from gloader.core.thread_start import run_together
from gloader.dataset.hetero_passes import looks_at_lists, num_swept, open_any_passes
from gloader.pipeline.device_room import LARGER_THAN_PROBED
from gloader.samplers import HeteroGraph
from gloader.samplers.arguments import resolve_fanouts
from gloader.samplers.hetero_rule import HeteroRule
from gloader.ssd_store.regions.buffers import pass_memory_bytes
from gloader.types import BatchId, seed_nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.config import IoMode
    from gloader.core.row_order import AnyOrder
    from gloader.dataset import Dataset
    from gloader.samplers import Topology
    from gloader.samplers.sweeping import SweptSampler
    from gloader.ssd_store.cost.strategy import IoRates
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.types import AnyBatch, AnySampler, AnySeeds, Fanouts, IdArray

# Enough to see how large a batch is, and few: each waits for a cold disk before the first batch comes.
_BATCHES: Final = 3
# Whose neighbours are counted, to find a batch that is larger than the first: a tenth of a second.
_COUNTED_SEEDS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The first batches of epoch 0."""

    batches: list[AnyBatch]
    seconds: float  # of one core, to make the fastest of them in one thread, where nothing has to be read


def probe_one_by_one(
    sampler: AnySampler, order: AnyOrder, first: list[tuple[BatchId, AnySeeds]], *, threads: int
) -> Probe:
    """Sample the first batches; a cold topology keeps each of them waiting.

    Parameters
    ----------
    sampler : samples them
    order : of the seeds
    first : what `first_seeds` returns
    threads : that sample
    """

    def sample(batch_id: BatchId, seeds: Any) -> tuple[AnyBatch, float]:
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
    """Make the first batches of passes over the edges, one for each hop.

    They touch much of a graph's pages each: read together, past one another, those take a fraction of the time.

    Parameters
    ----------
    dataset : whose edges
    sampler : makes the batches
    order : of the seeds
    first : what `first_seeds` returns
    folder : takes what passes bring
    rates : of the disks
    io : how requests are made

    Raises
    ------
    BudgetError
        The folder has no room for so few batches.
    """
    # On a thread of its own, where no Ctrl-C comes between a file that is opened and the line that keeps it.
    cut = threading.Event()

    def make() -> Probe:
        return _make_in_passes(
            dataset, sampler, order, first, folder, rates=rates, io=io, is_cancelled=cut.is_set
        )

    return run_together([make], threads=1, name="gloader-probe", cancel=cut.set)[0]


def _make_in_passes(
    dataset: Dataset,
    sampler: SweptSampler,
    order: AnyOrder,
    first: list[tuple[BatchId, AnySeeds]],
    folder: SpillFolder,
    *,
    rates: IoRates,
    io: IoMode,
    is_cancelled: Callable[[], bool],
) -> Probe:
    rule = sampler.rule
    frontiers = [rule.begin(batch_id, seeds) for batch_id, seeds in first]
    drawn: list[list[Any]] = [[] for _ in first]
    is_shared = not isinstance(rule, HeteroRule) or not looks_at_lists(rule)
    memory_bytes = pass_memory_bytes(len(first)) * (1 if is_shared else num_swept(dataset))
    with closing(
        open_any_passes(dataset, rule, folder, memory_bytes=memory_bytes, rates=rates, io=io)
    ) as passes:
        for _ in range(rule.num_hops if first else 0):
            hops = passes.sweep(frontiers, label="the first batches", is_cancelled=is_cancelled)
            for owner in range(len(first)):
                drawn[owner].append(hops.read(owner))
                frontiers[owner] = rule.extend(frontiers[owner], drawn[owner][-1])
            hops.close()
    return _probe_of(
        [
            _timed(partial(sampler.replay, batch_id, seeds, values))
            for (batch_id, seeds), values in zip(first, drawn, strict=True)
        ],
        order,
    )


def first_seeds(
    order: AnyOrder, topology: Topology | HeteroGraph, fanouts: Fanouts, *, epochs: int | None
) -> list[tuple[BatchId, AnySeeds]]:
    """Return the seeds of the first batches, and of a later one that draws many more edges for its seeds.

    Hubs, and parts of a graph that come late, make batches that no room beside the first ones would hold.

    Parameters
    ----------
    order : gives the seeds
    topology : has their neighbours
    fanouts : how many of them are drawn
    epochs : of the run; None: that is not known
    """
    count = order.num_batches
    first = (BatchId(epoch=0, index=index) for index in range(min(_BATCHES, count)))
    found = [(batch, order.seeds_of(batch)) for batch in first]
    total = count * (epochs or 1)
    # Rows that become seeds take longer than to make a batch of them.
    if total <= _BATCHES or (isinstance(order, RowOrder) and order.expand is not None):
        return found
    looks = max(_COUNTED_SEEDS // order.batch_size, _BATCHES)
    # All batches of the run, where these are few; else some of the first epoch.
    places = range(total) if total <= looks else range(0, count, -(-count // looks))
    most, later = LARGER_THAN_PROBED * max(_num_drawn(topology, fanouts, seeds) for _, seeds in found), None
    for batch in (BatchId(epoch=place // count, index=place % count) for place in places):
        seeds = order.seeds_of(batch)
        drawn = _num_drawn(topology, fanouts, seeds)
        if drawn > most:
            most, later = drawn, (batch, seeds)
    return found if later is None else [*found, later]


def _num_drawn(topology: Topology | HeteroGraph, fanouts: Fanouts, seeds: AnySeeds) -> int:
    """Return the edges of the first hop, of a sampler that draws up to the fan-outs of each node."""
    nodes = seed_nodes(seeds)
    if not isinstance(topology, HeteroGraph):
        return _num_capped(topology, nodes, resolve_fanouts(fanouts, [("", "", "")])[0][0])
    starts = dict(zip(topology.node_types, topology.type_starts.tolist(), strict=False))
    hops = resolve_fanouts(fanouts, tuple(topology.relations))
    total = 0
    for (relation, edges), fanout in zip(topology.relations.items(), hops, strict=True):
        own = nodes - starts[relation[2]]
        total += _num_capped(edges, own[(own >= 0) & (own < edges.num_nodes)], fanout[0])
    return total


def _num_capped(topology: Topology, nodes: IdArray, fanout: int) -> int:
    degrees = topology.in_degrees(nodes)
    return int((degrees if fanout < 0 else np.minimum(degrees, fanout)).sum())


def _timed(make: Callable[[], AnyBatch]) -> tuple[AnyBatch, float]:
    began = time.thread_time()  # not what it waits for: a core, or a page that the run will find in memory
    batch = make()
    return batch, time.thread_time() - began


def _probe_of(found: list[tuple[AnyBatch, float]], order: AnyOrder) -> Probe:
    batches = [batch for batch, _ in found]
    sampling = min((seconds for _, seconds in found), default=0.0)
    return Probe(batches=batches, seconds=sampling + (_seed_seconds(order) if batches else 0.0))


def _seed_seconds(order: AnyOrder) -> float:
    """Return the seconds that the rows of a batch take to become seeds; the order of nodes is there already."""
    if not isinstance(order, RowOrder):
        return 0.0
    began = time.thread_time()
    order.seeds_of(BatchId(epoch=0, index=0))  # once more: the first call may have compiled what it needs
    return time.thread_time() - began
