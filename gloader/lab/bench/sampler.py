"""Sampling benchmark: edges per second of gloader's sampler, and of DGL's in the same run if DGL is installed.

A contender is a sampler in one setting, with a name such as "gloader, 1 thread" or "dgl, int32, fused". `bench_sampler`
runs all contenders on the same batches of seeds.
"""

from __future__ import annotations

import importlib.metadata
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from gloader.errors import ConfigError
from gloader.lab.bench.environment import provenance
from gloader.lab.bench.graphs import GraphSpec
from gloader.samplers import CscGraph, NeighborSampler
from gloader.types import BatchId, IdArray

Run = Callable[[Sequence[IdArray]], int]  # samples the batches, returns the number of edges
Rates = dict[str, list[float]]  # by contender: edges per second in each repeat
_ONE = ", 1 thread"  # end of a contender's name
_GRAPH = GraphSpec(num_nodes=2_000_000, num_edges=60_000_000)


def bench_sampler(
    graph: GraphSpec = _GRAPH,
    *,
    fanouts: Sequence[int] = (10, 10, 10),
    batch_size: int = 1000,
    threads: int = 2,
    batches: int = 16,
    repeats: int = 7,
    with_dgl: bool = True,
) -> dict[str, Any]:
    """Return the edges/s of `NeighborSampler` on a synthetic graph, and its ratio to DGL's best setting.

    Each repeat runs the same batches through all contenders in turn, so that a change in the machine's load affects
    all of them. Results are medians over the repeats. DGL runs without workers, with one and with ``threads`` OpenMP
    threads, with 32- and 64-bit ids, fused and not. Its fastest setting counts. DGL's threads wait for each other, and
    lose more than ours if other programs use a core. On a busy machine trust `ratio_to_dgl_one_thread`, which counts
    processor time.

    Parameters
    ----------
    graph : the sampled graph
    fanouts : neighbours sampled per node, one number per hop, the hop next to the seeds first
    batch_size : seeds per batch
    threads : number of sampling threads, for gloader and DGL
    batches : batches per repeat
    repeats : measured repeats; the results are their medians
    with_dgl : whether to run also DGL's sampler, if dgl is installed

    Returns
    -------
    A JSON-like dict with `edges_per_second`, `ratio_to_dgl` (None if DGL is not installed), every run, the
    workload, the versions and the machine.

    Raises
    ------
    ConfigError
        The workload is impossible.
    """
    if min(threads, batches, repeats, batch_size) < 1:
        raise ConfigError("threads, batches, repeats and batch_size must be at least 1")
    topology = graph.make()
    seeds = _seed_batches(topology, batch_size, batches, graph.seed)
    contenders = {"gloader": _gloader(topology, fanouts, graph.seed, threads)}
    contenders["gloader" + _ONE] = _gloader(topology, fanouts, graph.seed, 1)
    if with_dgl and _has_dgl():
        contenders |= _dgl(topology, fanouts, threads)
    wall, cpu = _interleave(contenders, seeds, repeats)
    return _report(wall, cpu) | {
        "workload": {
            **graph.to_json(),
            "fanouts": list(fanouts),
            "batch_size": batch_size,
            "batches": len(seeds),
            "repeats": repeats,
        },
        "threads": threads,
        **provenance(),
    }


def _seed_batches(topology: CscGraph, batch_size: int, batches: int, seed: int) -> list[IdArray]:
    """Return batches of distinct nodes that have an in-neighbour."""
    connected = np.flatnonzero(np.diff(topology.indptr))
    if len(connected) < batch_size:
        raise ConfigError(f"batch_size {batch_size} exceeds the {len(connected)} nodes that have a neighbour")
    order = np.random.default_rng(seed).permutation(connected)
    # Only full batches are taken, so that every batch is the same amount of work.
    starts = range(0, len(order) - batch_size + 1, batch_size)
    return [order[start : start + batch_size] for start in starts][:batches]


def _gloader(topology: CscGraph, fanouts: Sequence[int], seed: int, threads: int) -> Run:
    """Return a contender: gloader's sampler in ``threads`` threads."""
    sampler = NeighborSampler(topology, fanouts, seed=seed)

    def edges_of(item: tuple[int, IdArray]) -> int:
        batch = sampler.sample(BatchId(epoch=0, index=item[0]), item[1])
        return sum(block.num_edges for block in batch.blocks)

    def run(batches: Sequence[IdArray]) -> int:
        """Sample all batches, and return their number of edges."""
        if threads == 1:
            return sum(map(edges_of, enumerate(batches)))
        with ThreadPoolExecutor(threads) as pool:
            return sum(pool.map(edges_of, enumerate(batches)))

    return run


def _has_dgl() -> bool:
    """Return whether DGL is installed, without importing it."""
    try:
        importlib.metadata.version("dgl")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _dgl(topology: CscGraph, fanouts: Sequence[int], threads: int) -> dict[str, Run]:
    """Return DGL's sampler in each setting, called as its data loader calls it, in this thread."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import dgl
        import torch

    contenders: dict[str, Run] = {}
    for ids in (torch.int64, torch.int32):
        indptr, indices = torch.tensor(topology.indptr, dtype=ids), torch.tensor(topology.indices, dtype=ids)
        graph = dgl.graph(("csc", (indptr, indices, torch.empty(0, dtype=ids))), num_nodes=topology.num_nodes)
        for fused in (True, False):
            sampler = dgl.dataloading.NeighborSampler(list(reversed(fanouts)), fused=fused)
            name = f"dgl, {str(ids).removeprefix('torch.')}, {'fused' if fused else 'not fused'}"
            contenders[name] = _dgl_run(sampler, graph, ids, threads)
            contenders[name + _ONE] = _dgl_run(sampler, graph, ids, 1)
    return contenders


def _dgl_run(sampler: Any, graph: Any, ids: Any, threads: int) -> Run:
    """Return a contender: one of DGL's samplers with ``threads`` OpenMP threads."""
    import torch

    def run(batches: Sequence[IdArray]) -> int:
        """Sample all batches, and return their number of edges."""
        # The number is set in every run, because contenders with other numbers of threads run in between.
        torch.set_num_threads(threads)  # sets the OpenMP threads, which DGL uses too
        edges = 0
        for batch in batches:
            blocks = sampler.sample_blocks(graph, torch.from_numpy(batch).to(ids))[2]
            edges += sum(block.num_edges() for block in blocks)
        return edges

    return run


def _interleave(contenders: dict[str, Run], batches: Sequence[IdArray], repeats: int) -> tuple[Rates, Rates]:
    """Return edges per second of wall time and of processor time. The first round is a warm-up and does not count."""
    wall: Rates = {name: [] for name in contenders}
    cpu: Rates = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, run in contenders.items():
            start, cpu_start = time.perf_counter(), time.process_time()
            edges = run(batches)
            cpu_s, wall_s = time.process_time() - cpu_start, time.perf_counter() - start
            if repeat:
                wall[name].append(edges / max(wall_s, 1e-9))
                cpu[name].append(edges / max(cpu_s, 1e-9))
    return wall, cpu


def _report(wall: Rates, cpu: Rates) -> dict[str, Any]:
    """Return the figures: medians of edges per second of wall time, and with one thread of processor time."""
    cpu = {name: rates for name, rates in cpu.items() if name.endswith(_ONE)}
    ours, theirs, setting = _medians(wall, "gloader")
    ours_one, theirs_one, setting_one = _medians(cpu, "gloader" + _ONE)
    return {
        "benchmark": "sampler",
        "edges_per_second": ours,
        "dgl_edges_per_second": theirs,
        "dgl_setting": setting,
        "ratio_to_dgl": ours / theirs if theirs else None,
        "edges_per_cpu_second_one_thread": ours_one,
        "dgl_edges_per_cpu_second_one_thread": theirs_one,
        "dgl_setting_one_thread": setting_one,
        "ratio_to_dgl_one_thread": ours_one / theirs_one if theirs_one else None,
        "runs_edges_per_second": wall,
        "runs_edges_per_cpu_second": cpu,
    }


def _medians(rates: Rates, ours: str) -> tuple[float, float | None, str | None]:
    """Return the median for ``ours``, the best median among DGL's settings, and that setting. Pure."""
    medians = {name: statistics.median(runs) for name, runs in rates.items()}
    theirs = {name: median for name, median in medians.items() if name.startswith("dgl")}
    setting = max(theirs, key=lambda name: theirs[name], default=None)
    return medians[ours], theirs[setting] if setting else None, setting
