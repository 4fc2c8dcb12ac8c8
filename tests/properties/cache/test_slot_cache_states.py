"""The slot cache through any sequence of plans, policies, refills and failed reads: right rows or an exception."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cache_traces import arrays, batches, feature_rows
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gloader.cache import PlannerTable, SlotCache, plan_belady
from gloader.errors import PlanError
from gloader.ssd_store import RamFeatures
from gloader.types import CacheStep

NUM_NODES = 10
FEATURES = feature_rows(NUM_NODES)
SOURCE = RamFeatures(FEATURES)
SLOW_MACHINE = settings(max_examples=30, stateful_step_count=20, deadline=None)


class BrokenSource:
    """A source that fails after it has scribbled over the buffer."""

    num_rows, dim, dtype = NUM_NODES, 3, np.dtype(np.float32)

    def read_into(self, rows: Any, out: Any, /, *, at: Any = None) -> Any:
        out[at] = -1
        raise OSError("the disk is gone")


class SlotCacheMachine(RuleBasedStateMachine):
    @initialize(capacity=st.integers(0, 6), threads=st.integers(1, 2))
    def build(self, capacity: int, threads: int) -> None:
        self.cache = SlotCache(capacity, dim=3, threads=threads)
        self.table = PlannerTable(NUM_NODES)
        self.capacity = capacity

    @rule(trace=batches(NUM_NODES, max_batches=4), beyond=batches(NUM_NODES, max_batches=2))
    def run_a_superbatch(self, trace: list[list[int]], beyond: list[list[int]]) -> None:
        ids, held = arrays(trace), self.cache.resident
        plan = plan_belady(
            ids, capacity=self.capacity, resident=held, lookahead=arrays(beyond), table=self.table
        )
        for step, nodes in zip(plan.steps, ids, strict=True):
            out = np.zeros((len(nodes) + 1, 3), dtype=np.float32)
            read = self.cache.execute(step, nodes, out, SOURCE)
            assert read.rows == len(step.miss_pos)
            assert np.array_equal(out[: len(nodes)], FEATURES[nodes])
        kept = plan.resident_after >= 0
        assert (self.cache.resident[kept] == plan.resident_after[kept]).all()

    @rule(rows=st.lists(st.integers(0, NUM_NODES - 1), unique=True))
    def fill(self, rows: list[int]) -> None:
        self.cache.fill(np.array(rows[: self.capacity], dtype=np.int64), SOURCE, chunk_rows=2)

    @rule(nodes=st.lists(st.integers(0, NUM_NODES - 1), unique=True, min_size=1))
    def fail_to_read(self, nodes: list[int]) -> None:
        held, ids = self.cache.resident, np.array(nodes, dtype=np.int64)
        (step,) = plan_belady([ids], capacity=self.capacity, resident=held).steps
        out = np.zeros((len(ids), 3), dtype=np.float32)
        with pytest.raises(OSError, match="gone"):
            self.cache.execute(step, ids, out, BrokenSource())
        assert (self.cache.resident == held).all()

    @rule(node=st.integers(0, NUM_NODES - 1), slot=st.integers(-1, 7))
    def claim_a_hit(self, node: int, slot: int) -> None:
        held, nothing = self.cache.resident, np.empty(0, dtype=np.int64)
        step = CacheStep(
            hit_pos=np.array([0]), hit_slot=np.array([slot]), miss_pos=nothing, miss_row=nothing,
            admit_pos=nothing, admit_slot=nothing,
        )  # fmt: skip
        out = np.zeros((1, 3), dtype=np.float32)
        if 0 <= slot < self.capacity and held[slot] == node:
            self.cache.copy_hits(step, np.array([node]), out)
            assert np.array_equal(out[0], FEATURES[node])
        else:
            with pytest.raises(PlanError):
                self.cache.copy_hits(step, np.array([node]), out)

    @invariant()
    def every_slot_holds_the_row_that_its_tag_says(self) -> None:
        held = self.cache.resident
        used = held >= 0
        assert np.array_equal(self.cache._rows[used], FEATURES[held[used]])

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            self.cache.close()


SlotCacheMachine.TestCase.settings = SLOW_MACHINE


@pytest.mark.reliability("E5")
class TestSlotCache(SlotCacheMachine.TestCase):  # type: ignore[misc]
    """Collected by pytest."""
