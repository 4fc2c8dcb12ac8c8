"""How hot each node is, before the first epoch: by sampling, by probability, or by degree."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np

from gloader.cache import (
    access_counts,
    inclusion_probabilities,
    no_device_cache,
    out_degrees,
    plan_device_cache,
    whole_device_cache,
)
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.cache import DeviceCachePlan
    from gloader.config import DeviceHotness
    from gloader.core.order import EpochOrder
    from gloader.dataset.topology import Topology
    from gloader.types import IdArray, Sampler

# An epoch, but no fewer batches than tell hot from cold, and no more than take seconds.
LEAST_PRESAMPLED: Final = 64
MOST_PRESAMPLED: Final = 512


def presampled_counts(sampler: Sampler, order: EpochOrder, *, num_nodes: int, threads: int = 1) -> IdArray:
    """Count how often each node (N,) is in the first epoch's batches (GNNLab, EuroSys'22, section 6.3). Pure."""
    per_epoch = order.num_batches
    num_batches = min(max(per_epoch, LEAST_PRESAMPLED), MOST_PRESAMPLED) if per_epoch else 0
    seeds = [order.epoch_seeds(epoch) for epoch in range(-(-num_batches // max(per_epoch, 1)))]

    def nodes_of(number: int) -> IdArray:
        epoch, index = divmod(number, per_epoch)
        return sampler.sample(BatchId(epoch=epoch, index=index), order.batch_seeds(seeds[epoch], index)).nodes

    def sampled(pool: ThreadPoolExecutor) -> Iterator[IdArray]:
        for start in range(0, num_batches, 2 * threads):  # no more of them in memory at a time
            yield from pool.map(nodes_of, range(start, min(start + 2 * threads, num_batches)))

    with ThreadPoolExecutor(threads, "gloader-presample") as pool:
        return access_counts(sampled(pool), num_nodes)


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
    hotness : "presampled" counts accesses in sampled batches, "vip" computes their probability from the graph, which
        is that of neighbour sampling, "degree" takes the nodes with the most out-edges
    """
    num_nodes = topology.graph.num_nodes
    if num_rows == 0:
        return no_device_cache(num_nodes)
    if num_rows >= num_nodes:
        return whole_device_cache(num_nodes)
    if hotness == "degree":
        return plan_device_cache(_degrees(topology), num_rows)
    if hotness == "vip":
        topology.wait()
        graph = topology.graph
        chances = inclusion_probabilities(
            graph.indptr,
            graph.indices,
            seeds=order.seeds,
            batch_size=order.batch_size,
            fanouts=fanouts,
        )
        return plan_device_cache(chances, num_rows)
    counts = presampled_counts(sampler, order, num_nodes=num_nodes, threads=threads)
    tail = None if np.count_nonzero(counts) >= num_rows else _degrees(topology)
    return plan_device_cache(counts, num_rows, tail=tail, accesses=counts)


def _degrees(topology: Topology) -> IdArray:
    topology.wait()  # the count trusts every edge
    return out_degrees(topology.graph.indices, topology.graph.num_nodes)
