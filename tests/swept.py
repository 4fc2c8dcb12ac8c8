"""A stand-in for passes over edges on an SSD: they are in memory, and every promise of the seams is checked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gloader.core.signals import Cancellation
from gloader.dataset.edge_passes import PassReport
from gloader.errors import ChannelClosedError
from gloader.pipeline.edge_sweeps import SweepTier
from gloader.samplers import NeighborSampler
from gloader.samplers.sweeping import Frontier
from gloader.ssd_store.sweep.sweeper import SweepCost
from gloader.types import BatchId, IdArray, ReadStats, SampledBatch

_COST = SweepCost(read=ReadStats(rows=7, requests=1, bytes_read=4096), writes=1, bytes_written=100)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownFrontier(Frontier):
    """A frontier that tells whose it is: ranks have batches of the same address."""

    seeds: IdArray


class KnownHops:
    """A `HopRule` and a `SweptSampler` that know every batch: the sampler in memory tells them. Thread-safe."""

    def __init__(self, sampler: NeighborSampler) -> None:
        self.sampler = sampler
        self.num_hops = len(sampler.fanouts)

    @property
    def rule(self) -> KnownHops:
        return self

    def begin(self, batch_id: BatchId, seeds: IdArray) -> Frontier:
        nodes = np.sort(seeds)
        return KnownFrontier(batch_id=batch_id, hop=0, nodes=nodes, seen=nodes, seeds=seeds)

    def extend(self, frontier: Frontier, drawn: NDArray[Any]) -> Frontier:
        assert isinstance(frontier, KnownFrontier)
        np.testing.assert_array_equal(drawn, self.drawn(frontier))
        nodes = np.union1d(frontier.seen, drawn)
        return replace(frontier, hop=frontier.hop + 1, nodes=nodes, seen=nodes)

    def replay(self, batch_id: BatchId, seeds: IdArray, drawn: Sequence[NDArray[Any]]) -> SampledBatch:
        batch = self.sampler.sample(batch_id, seeds)
        for hop, values in enumerate(drawn):
            np.testing.assert_array_equal(values, self._sources(batch, hop))
        assert len(drawn) == self.num_hops
        return batch

    def drawn(self, frontier: Frontier) -> NDArray[Any]:
        """Return what the pass brings for ``frontier``."""
        assert isinstance(frontier, KnownFrontier)
        return self._sources(self.sampler.sample(frontier.batch_id, frontier.seeds), frontier.hop)

    def _sources(self, batch: SampledBatch, hop: int) -> NDArray[Any]:
        return self.sampler.graph.indices[np.unique(batch.blocks[-1 - hop].edge_ids)]


class MemoryHops:
    """`SweptHops` in memory."""

    report = PassReport(way="full", predicted_s=0.0, pages_wanted=1, cost=_COST)

    def __init__(self, drawn: list[NDArray[Any]]) -> None:
        self._drawn = dict(enumerate(drawn))
        self._lock = threading.Lock()

    @property
    def num_left(self) -> int:
        return len(self._drawn)

    def read(self, owner: int) -> NDArray[Any]:
        return self._drawn[owner]

    def release(self, owner: int) -> None:
        with self._lock:
            self._drawn.pop(owner, None)

    def close(self) -> None:
        self._drawn.clear()


class MemoryPasses:
    """`EdgePasses` over edges in memory; ``at_pass`` is called at the begin of each, with its number."""

    resident_bytes = 0

    def __init__(self, hops: KnownHops, at_pass: Callable[[int, Cancellation], None]) -> None:
        self._hops = hops
        self._at_pass = at_pass
        self.made: list[MemoryHops] = []
        self.asked: list[list[tuple[BatchId, int]]] = []

    def sweep(self, frontiers: Sequence[Frontier], *, label: str, cancellation: Cancellation) -> MemoryHops:
        assert label
        self.asked.append([(frontier.batch_id, frontier.hop) for frontier in frontiers])
        self._at_pass(len(self.asked) - 1, cancellation)
        if cancellation.is_set():
            raise ChannelClosedError("cancelled")
        self.made.append(MemoryHops([self._hops.drawn(frontier) for frontier in frontiers]))
        return self.made[-1]

    def close(self) -> None:
        pass


def sweep_tier(
    sampler: NeighborSampler,
    num_batches: int,
    at_pass: Callable[[int, Cancellation], None] = lambda number, cancellation: None,
    probed: Sequence[SampledBatch] = (),
) -> SweepTier:
    """Return a tier whose passes are over the graph of ``sampler``, which is in memory."""
    hops = KnownHops(sampler)
    return SweepTier(
        passes=MemoryPasses(hops, at_pass),
        sampler=hops,
        num_batches=num_batches,
        probed=list(probed),
        type_starts=np.array([0, sampler.graph.num_nodes]),
    )
