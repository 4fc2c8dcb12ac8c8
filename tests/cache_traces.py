"""Traces, and plain-Python models of what a cache does with them."""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from gloader.cache import SlotCache
from gloader.ssd_store import RamFeatures

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gloader.types import CacheStep, IdArray

Batches = list[list[int]]


def batches(num_nodes: int, *, max_batches: int = 8, max_rows: int = 6) -> st.SearchStrategy[Batches]:
    """Return batches of distinct ids below ``num_nodes``."""
    batch = st.lists(st.integers(0, num_nodes - 1), unique=True, max_size=max_rows)
    return st.lists(batch, max_size=max_batches)


def arrays(trace: Iterable[Sequence[int]]) -> list[IdArray]:
    return [np.array(batch, dtype=np.int64) for batch in trace]


def fewest_misses(trace: Iterable[Sequence[int]], capacity: int, resident: Iterable[int] = ()) -> int:
    """Try every content of the cache after every batch."""
    trace = tuple(tuple(batch) for batch in trace)

    @cache
    def best(batch: int, held: frozenset[int]) -> int:
        if batch == len(trace):
            return 0
        candidates = held | set(trace[batch])
        kept = itertools.combinations(sorted(candidates), min(capacity, len(candidates)))
        return len(set(trace[batch]) - held) + min(best(batch + 1, frozenset(keep)) for keep in kept)

    return best(0, frozenset(resident))


def greedy_misses(trace: Iterable[Sequence[int]], capacity: int) -> int:
    """Belady's rule as one would write it down: after each batch keep the rows whose next use is nearest."""
    trace = list(trace)
    uses: dict[int, list[int]] = {}
    for index in reversed(range(len(trace))):
        for node in trace[index]:
            uses.setdefault(node, []).append(index)
    held: set[int] = set()
    misses = 0
    for batch in trace:
        misses += len(set(batch) - held)
        for node in batch:
            uses[node].pop()
        useful = [node for node in held | set(batch) if uses[node]]
        held = set(sorted(useful, key=lambda node: uses[node][-1])[:capacity])
    return misses


class SlotModel:
    """A cache as a dict from slots to nodes: refuses everything that a step must not do."""

    def __init__(self, resident: Iterable[int] = ()) -> None:
        self.slots = {slot: int(node) for slot, node in enumerate(resident) if node >= 0}
        self.misses = 0

    def apply(self, step: CacheStep, nodes: Sequence[int], on_device: Iterable[int] = ()) -> None:
        for position, slot in zip(step.hit_pos.tolist(), step.hit_slot.tolist(), strict=True):
            assert self.slots[slot] == nodes[position]
        positions = [position for position, node in enumerate(nodes) if node not in set(on_device)]
        assert sorted([*step.hit_pos.tolist(), *step.miss_pos.tolist()]) == positions
        assert [nodes[position] for position in step.miss_pos.tolist()] == step.miss_row.tolist()
        assert set(step.admit_pos.tolist()) <= set(step.miss_pos.tolist())
        assert len(set(step.admit_slot.tolist())) == len(step.admit_slot)
        for position, slot in zip(step.admit_pos.tolist(), step.admit_slot.tolist(), strict=True):
            self.slots[slot] = int(nodes[position])
        self.misses += len(step.miss_pos)

    def agrees(self, resident: IdArray) -> bool:
        """Whether every row that is said to be resident is; a slot given up may still hold its row."""
        return all(node < 0 or self.slots[slot] == node for slot, node in enumerate(resident.tolist()))


def feature_rows(num_nodes: int, dim: int = 3) -> np.ndarray:
    return (np.arange(num_nodes * dim, dtype=np.float32) + 1).reshape(num_nodes, dim)


def delivered(
    steps: Iterable[CacheStep], trace: Sequence[IdArray], capacity: int, num_nodes: int
) -> list[np.ndarray]:
    """Return what a slot cache delivers when it executes ``steps`` from an empty cache."""
    features = feature_rows(num_nodes)
    source, outs = RamFeatures(features), []
    with SlotCache(capacity, dim=3) as slots:
        for step, nodes in zip(steps, trace, strict=True):
            out = np.zeros((len(nodes), 3), dtype=np.float32)
            slots.execute(step, nodes, out, source)
            outs.append(out)
    return outs
