"""The hottest rows, chosen before the first epoch: by sampling, by probability, or by degree."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache import (
    access_counts,
    inclusion_probabilities,
    no_device_cache,
    plan_device_cache,
    whole_device_cache,
)
from gloader.core.thread_start import run_together
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.cache import DeviceCachePlan
    from gloader.config import DeviceHotness
    from gloader.core.order import EpochOrder
    from gloader.samplers import Topology
    from gloader.types import IdArray, Sampler

# Batches to presample: an epoch, but at least as many as tell hot from cold, and at most what takes seconds.
LEAST_PRESAMPLED: Final = 64
MOST_PRESAMPLED: Final = 512


def presampled_counts(sampler: Sampler, order: EpochOrder, *, num_nodes: int, threads: int = 1) -> IdArray:
    """Count how often each node (N,) is in the first epoch's batches (GNNLab, EuroSys'22, section 6.3). Pure.

    Parameters
    ----------
    sampler : of the run
    order : of the run: its first batches are the ones that are counted
    num_nodes : N
    threads : sample at a time

    Raises
    ------
    ThreadStartError
        The system allows no more threads.
    """
    per_epoch = order.num_batches
    num_batches = min(max(per_epoch, LEAST_PRESAMPLED), MOST_PRESAMPLED) if per_epoch else 0
    seeds = [order.epoch_seeds(epoch) for epoch in range(-(-num_batches // max(per_epoch, 1)))]

    def nodes_of(number: int) -> IdArray:
        epoch, index = divmod(number, per_epoch)
        return sampler.sample(BatchId(epoch=epoch, index=index), order.batch_seeds(seeds[epoch], index)).nodes

    def sampled() -> Iterator[IdArray]:
        # In rounds: at once, every batch would be sampled ahead of the count, and held.
        for start in range(0, num_batches, 2 * threads):
            numbers = range(start, min(start + 2 * threads, num_batches))
            yield from run_together(
                [partial(nodes_of, number) for number in numbers], threads=threads, name="gloader-presample"
            )

    return access_counts(sampled(), num_nodes)


def hottest_rows(
    hotness: DeviceHotness,
    num_rows: int,
    *,
    topology: Topology,
    sampler: Sampler,
    order: EpochOrder,
    fanouts: tuple[int, ...],
    threads: int = 1,
) -> DeviceCachePlan:
    """Return the plan of a device cache of ``num_rows`` rows.

    Parameters
    ----------
    hotness : "presampled" counts accesses in sampled batches, "vip" computes their probability under neighbour
        sampling, "degree" takes the nodes with the most out-edges
    num_rows : rows that fit; 0: none, N or more: all
    topology : the graph; "vip" and "degree" read all of its edges
    sampler, order, fanouts : of the run
    threads : sample at a time
    """
    num_nodes = topology.num_nodes
    if num_rows == 0:
        return no_device_cache(num_nodes)
    if num_rows >= num_nodes:
        return whole_device_cache(num_nodes)
    if hotness == "degree":
        return plan_device_cache(_degrees(topology), num_rows)
    if hotness == "vip":
        chances = inclusion_probabilities(
            topology.offsets,
            topology.sources.pieces,
            seeds=order.seeds,
            batch_size=order.batch_size,
            fanouts=fanouts,
        )
        return plan_device_cache(chances, num_rows)
    counts = presampled_counts(sampler, order, num_nodes=num_nodes, threads=threads)
    # Too few nodes were seen to fill the cache: the rest of it goes by degree.
    tail = None if np.count_nonzero(counts) >= num_rows else _degrees(topology)
    return plan_device_cache(counts, num_rows, tail=tail, accesses=counts)


def _degrees(topology: Topology) -> IdArray:
    return access_counts(topology.sources.pieces(), topology.num_nodes)
