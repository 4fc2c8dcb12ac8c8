"""Checks that the device's sampler gives the CPU's batches, and measures its speed."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from gpu_findings import GpuFinding, compared, not_checked, reported
from gpu_place import batch_digest, device_of, loader_on, skewed_graph, small_graph

from gloader.device import has_triton, upload_topology
from gloader.samplers import CscGraph, MergedBlockSampler, NeighborSampler
from gloader.types import BatchId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_sizes import Clock, Sizes

    from gloader.device.device_sampler import DeviceSampler
    from gloader.types import IdArray, SampledBatch, Sampler

# Fan-outs around every switch between the kernels of the CPU; -1 takes all.
CASES = ((15, 10, 5), (1, 0, 17), (64, 3), (100,), (-1, 2))
COMPARED_BATCHES = 4
TIMED_FANOUTS = (15, 10, 5)
TIMED_BATCHES = 100
INTERPRETED_NODES, INTERPRETED_SEEDS = 2_000, 16  # the interpreter takes its time


def check_sampling(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Sample on the device and on the CPU: the same bits, for every layout and way to draw; then the edges a second."""
    if not has_triton():
        why = "Triton is missing: pip install -e '.[gpu]' -c constraints.txt"
        yield not_checked("sampling on the device", why)
        return
    num_nodes = sizes.graph_nodes if sizes.is_gpu else INTERPRETED_NODES
    graph = skewed_graph(num_nodes, 15 * num_nodes)
    wide = CscGraph(indptr=graph.indptr, indices=graph.indices.astype(np.int64))
    for layout, is_replaced in clock.each(itertools.product(("layered", "merged"), (False, True))):
        # Ids of either size, in turn.
        of = wide if is_replaced == (layout == "merged") else graph
        wrong = list(_differing(of, sizes, clock, layout=layout, is_replaced=is_replaced))
        how = "the device" if sizes.is_gpu else "the interpreter"
        name = f"{layout} batches{', with replacement' if is_replaced else ''}: {how}"
        yield compared(name, not wrong, "; ".join(wrong))
    yield from _same_loaders(sizes, clock)
    if not sizes.is_gpu:
        yield not_checked("edges sampled a second")
        return
    for rates in clock.each((_rates,), lambda _: "edges sampled a second"):
        yield from rates(graph, sizes)


def _differing(
    graph: CscGraph, sizes: Sizes, clock: Clock, *, layout: str, is_replaced: bool
) -> Iterator[str]:
    """Yield the fan-outs and batches that the device samples otherwise."""
    from gloader.device.device_sampler import blocks_on_host

    if sizes.is_gpu:
        seeds = _seed_batches(graph, COMPARED_BATCHES, sizes.batch_size)
    else:
        seeds = _seed_batches(graph, 1, INTERPRETED_SEEDS)
    for fanouts in clock.each(CASES, lambda fanouts: f"fan-outs {fanouts}"):
        samplers = _samplers(graph, sizes, fanouts, layout=layout, is_replaced=is_replaced)
        for index in range(len(seeds)):
            found, expected = (
                sampler.sample(BatchId(epoch=0, index=index), seeds[index]) for sampler in samplers
            )
            if not _is_same(blocks_on_host(found), expected):
                yield f"fan-outs {fanouts}, batch {index}"


def _same_loaders(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Load batches that the device sampled, and compare all that they hold."""
    dataset, num_batches = small_graph(sizes), 40 if sizes.is_gpu else 2
    batch_size = sizes.batch_size if sizes.is_gpu else INTERPRETED_SEEDS
    settings: dict[str, Any] = {"batch_size": batch_size, "epochs": 1}
    with loader_on(sizes, dataset, device="cpu", features="ram", device_cache=0, **settings) as loader:
        expected = [batch_digest(batch) for batch in itertools.islice(loader, num_batches)]
    for features in clock.each(("ram", "ssd"), lambda features: f"loaders with features in {features}"):
        with loader_on(sizes, dataset, features=features, sampling_device="cuda", **settings) as loader:
            found = [batch_digest(batch) for batch in itertools.islice(loader, num_batches)]
        yield compared(f"a loader's batches, sampled there, features in {features}", found == expected)


def _rates(graph: CscGraph, sizes: Sizes) -> Iterator[GpuFinding]:
    """Time the device, and one core of the CPU, in turn."""
    on_device, on_cpu = _samplers(graph, sizes, TIMED_FANOUTS)
    ids = [BatchId(epoch=0, index=index) for index in range(TIMED_BATCHES)]
    seeds = _seed_batches(graph, TIMED_BATCHES, sizes.batch_size)
    batches = map(on_cpu.sample, ids, seeds)
    num_edges = sum(block.num_edges for batch in batches for block in batch.blocks)

    def seconds(sampler: Sampler) -> float:
        started = time.perf_counter()
        for batch_id, of in zip(ids, seeds, strict=True):
            sampler.sample(batch_id, of)
        return time.perf_counter() - started

    on_device.sample(ids[0], seeds[0])  # kernels are compiled
    pairs = [(seconds(on_device), seconds(on_cpu)) for _ in range(3)]
    device_s, cpu_s = (sorted(times)[1] for times in zip(*pairs, strict=True))
    note = f"fan-outs {TIMED_FANOUTS}, batches of {sizes.batch_size:,}, each waited for"
    for name, taken in (("the device", device_s), ("one core of the CPU", cpu_s)):
        yield reported(f"edges sampled by {name}", num_edges / taken / 1e6, "M/s", note=note)
    yield reported("a batch sampled by the device", 1e3 * device_s / TIMED_BATCHES, "ms", note=note)


def _samplers(
    graph: CscGraph,
    sizes: Sizes,
    fanouts: tuple[int, ...],
    *,
    layout: str = "layered",
    is_replaced: bool = False,
) -> tuple[DeviceSampler, Sampler]:
    from gloader.device.device_sampler import DeviceSampler  # Triton looks for a GPU when it is imported

    layered = NeighborSampler(graph, fanouts, seed=7, replace=is_replaced)
    sampler = MergedBlockSampler(layered) if layout == "merged" else layered
    device = device_of(sizes)
    topology = upload_topology(graph, sizes.place)
    return DeviceSampler(sampler, graph=topology, device=device), sampler


def _seed_batches(graph: CscGraph, count: int, batch_size: int) -> list[IdArray]:
    order = np.random.default_rng(7).permutation(graph.num_nodes)
    starts = range(0, count * batch_size, batch_size)
    return [order[np.arange(start, start + batch_size) % len(order)] for start in starts]


def _is_same(found: SampledBatch, expected: SampledBatch) -> bool:
    return np.array_equal(found.nodes, expected.nodes) and all(
        np.array_equal(getattr(mine, name), getattr(other, name))
        for mine, other in zip(found.blocks, expected.blocks, strict=True)
        for name in ("indptr", "indices", "edge_ids")
    )
