"""The workspaces of a sampler: nothing of a batch stays in them, and they go with it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from unit.samplers.graphs import random_graph

from gloader.errors import SeedError
from gloader.samplers import NeighborSampler, hops, workspace
from gloader.testing.sampler_suite import batch_bytes
from gloader.types import BatchId


def test_an_earlier_batch_leaves_no_trace() -> None:
    graph = random_graph(300, 50)
    sampler = NeighborSampler(graph, [8, 8])
    seeds = np.arange(40)
    fresh = batch_bytes(NeighborSampler(graph, [8, 8]).sample(BatchId(epoch=0, index=5), seeds))
    for i in range(5):
        sampler.sample(BatchId(epoch=0, index=i), seeds[i:])
        sampler.sample_merged(BatchId(epoch=0, index=i), seeds[::-1])
        with pytest.raises(SeedError):
            sampler.sample(BatchId(epoch=0, index=i), np.zeros(2, dtype=np.int64))
    assert batch_bytes(sampler.sample(BatchId(epoch=0, index=5), seeds)) == fresh


def test_one_thread_needs_one_workspace_and_the_sampler_releases_it(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Any]] = []

    class Watched(workspace.Workspace):
        __slots__ = ("__weakref__",)

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            alive.append(weakref.ref(self))

    monkeypatch.setattr(hops, "Workspace", Watched)
    sampler = NeighborSampler(random_graph(100, 9), [3])
    for i in range(5):
        sampler.sample(BatchId(epoch=0, index=i), np.arange(10))
    assert len(alive) == 1
    del sampler
    gc.collect()
    assert alive[0]() is None
