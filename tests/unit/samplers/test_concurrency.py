"""A batch is the same for any number of threads and any order of calls."""

from __future__ import annotations

import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from unit.samplers.graphs import random_graph

from gloader.errors import SeedError
from gloader.samplers import NeighborSampler, workspace
from gloader.types import BatchId, SampledBatch

NUM_BATCHES = 24


def content(batch: SampledBatch) -> list[bytes]:
    arrays = [batch.nodes]
    for block in batch.blocks:
        arrays += [block.indptr, block.indices, block.edge_ids]
    return [array.tobytes() for array in arrays]


def sample_all(sampler: NeighborSampler, threads: int, order: Any) -> list[list[bytes]]:
    seeds = np.random.default_rng(7).permutation(1000)

    def one(i: int) -> list[bytes]:
        return content(sampler.sample(BatchId(epoch=1, index=i), seeds[i * 30 : (i + 1) * 30]))

    with ThreadPoolExecutor(threads) as pool:
        results = dict(zip(order, pool.map(one, order), strict=True))
    return [results[i] for i in range(NUM_BATCHES)]


@pytest.mark.parametrize(
    "options", [{}, {"replace": True}, {"weighted": True}, {"weighted": True, "replace": True}]
)
def test_threads_and_order_do_not_matter(options: dict[str, bool]) -> None:
    graph = random_graph(1000, 80, weighted=True)
    expected = sample_all(NeighborSampler(graph, [10, 5], **options), 1, range(NUM_BATCHES))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for threads in (2, 8):
            sampler = NeighborSampler(graph, [10, 5], **options)
            shuffled = np.random.default_rng(threads).permutation(NUM_BATCHES).tolist()
            assert sample_all(sampler, threads, shuffled) == expected
            assert sample_all(sampler, threads, range(NUM_BATCHES)) == expected
    finally:
        sys.setswitchinterval(interval)


def test_an_earlier_batch_leaves_no_trace() -> None:
    graph = random_graph(300, 50)
    sampler = NeighborSampler(graph, [8, 8])
    seeds = np.arange(40)
    fresh = content(NeighborSampler(graph, [8, 8]).sample(BatchId(epoch=0, index=5), seeds))
    for i in range(5):
        sampler.sample(BatchId(epoch=0, index=i), seeds[i:])
        sampler.sample_merged(BatchId(epoch=0, index=i), seeds[::-1])
        with pytest.raises(SeedError):
            sampler.sample(BatchId(epoch=0, index=i), np.zeros(2, dtype=np.int64))
    assert content(sampler.sample(BatchId(epoch=0, index=5), seeds)) == fresh


def test_the_batches_of_a_call_are_not_its_scratch() -> None:
    sampler = NeighborSampler(random_graph(300, 50), [8, 8])
    first = sampler.sample(BatchId(epoch=0, index=0), np.arange(40))
    before = content(first)
    sampler.sample(BatchId(epoch=0, index=1), np.arange(40, 80))
    assert content(first) == before


def test_one_thread_needs_one_workspace_and_the_sampler_releases_it(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Any]] = []

    class Watched(workspace.Workspace):
        __slots__ = ("__weakref__",)

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            alive.append(weakref.ref(self))

    monkeypatch.setattr(workspace, "Workspace", Watched)
    sampler = NeighborSampler(random_graph(100, 9), [3])
    for i in range(5):
        sampler.sample(BatchId(epoch=0, index=i), np.arange(10))
    assert len(alive) == 1
    del sampler
    gc.collect()
    assert alive[0]() is None
