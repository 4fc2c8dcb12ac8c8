"""The conformance suite for superbatch planners and their cache policies. A test class inherits it.

A superbatch is a number of consecutive batches that are planned together. The host cache has slots, each for one
feature row. A planner decides for each batch which rows the cache takes and gives up. It plans from the node ids of the
superbatch's batches (here ``window``) and of the next superbatch's batches (``beyond``), and from the rows that the
slots hold (``resident``).
"""

# ruff: noqa: S101 - tests that are shipped, for policies elsewhere to inherit

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader.cache import SlotCache, Trace
from gloader.ssd_store import RamFeatures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.cache import CachePlan, SuperbatchPlanner
    from gloader.types import IdArray

NUM_NODES = 20
_DIM = 3
_CAPACITIES = (0, 1, 7, NUM_NODES, 2 * NUM_NODES)  # none, fewer than a batch, all rows, more than all rows


def make_traces(num_superbatches: int, *, seed: int = 0) -> list[list[IdArray]]:
    """Return superbatches of 5 batches: sorted row ids, skewed so that some rows repeat. One batch is empty. Pure."""
    random = np.random.default_rng(seed)
    return [
        [np.unique((NUM_NODES * random.random((size,)) ** 3).astype(np.int64)) for size in (9, 14, 0, 20, 9)]
        for _ in range(num_superbatches)
    ]


class SuperbatchPlannerSuite:
    """Checks for every `SuperbatchPlanner`. A test class inherits them and provides `make_planner`."""

    def make_planner(self, *, num_nodes: int, capacity: int) -> SuperbatchPlanner:
        """Return a planner for ``num_nodes`` rows and ``capacity`` slots.

        The planner's `resident` has the rows that it assumes in the slots from the start, for example a static cache's
        rows. The slots are filled with these rows before the first plan is executed.
        """
        raise NotImplementedError

    @pytest.mark.parametrize("capacity", _CAPACITIES)
    def test_every_plan_keeps_its_promises(self, capacity: int) -> None:
        """`CachePlan.validate` holds: hits are resident, slots exist and are written once, counts are right."""
        planner, traces = self.make_planner(num_nodes=NUM_NODES, capacity=capacity), make_traces(5)
        left_behind = planner.resident.copy()
        for window, beyond in zip(traces, [*traces[1:], []], strict=True):
            held = planner.resident.copy()
            assert len(held) <= capacity
            assert ((held == left_behind) | (held < 0)).all(), "the planner counts on rows that no slot holds"
            plan = planner.plan(Trace(window), Trace(beyond))
            # In the next round, the planner may assume fewer rows than the slots hold (Belady with reset assumes none),
            # but never other rows.
            left_behind = plan.resident_after.copy()
            assert plan.capacity <= capacity
            plan.validate(held, window)
            assert plan.misses.tolist() == [len(plan.miss_rows(batch)) for batch in range(len(window))]

    @pytest.mark.parametrize("capacity", _CAPACITIES)
    def test_every_batch_gets_its_rows(self, capacity: int) -> None:
        """In sequence, with real slots, the plans put the right row at every position."""
        planner, features = self.make_planner(num_nodes=NUM_NODES, capacity=capacity), _features()
        traces = make_traces(4, seed=1)
        with SlotCache(capacity, dim=_DIM) as slots:
            _fill(slots, planner)
            for window, beyond in zip(traces, [*traces[1:], []], strict=True):
                _execute(slots, planner.plan(Trace(window), Trace(beyond)), window, features)

    def test_a_plan_stays_as_it_is_when_the_next_one_is_made(self) -> None:
        """A superbatch's plan is executed while the next is planned."""
        planner, traces = self.make_planner(num_nodes=NUM_NODES, capacity=7), make_traces(3, seed=2)
        held = planner.resident.copy()
        first = planner.plan(Trace(traces[0]), Trace(traces[1]))
        actions, resident_after = first.actions.copy(), first.resident_after.copy()
        planner.plan(Trace(traces[1]), Trace(traces[2]))
        assert np.array_equal(first.actions, actions)
        assert np.array_equal(first.resident_after, resident_after)
        first.validate(held, traces[0])

    @pytest.mark.parametrize("capacity", [1, 7, NUM_NODES])
    @pytest.mark.parametrize("executed", [0, 1, 3])
    def test_rows_are_right_after_plans_that_were_given_up(self, capacity: int, executed: int) -> None:
        """An epoch may end anywhere. After `restart` with the slots' present rows, later plans are right again."""
        planner, features = self.make_planner(num_nodes=NUM_NODES, capacity=capacity), _features()
        traces = make_traces(6, seed=3)
        with SlotCache(capacity, dim=_DIM) as slots:
            _fill(slots, planner)
            for window, beyond in ((traces[0], traces[1]), (traces[2], traces[3])):
                _execute(slots, planner.plan(Trace(window), Trace(beyond)), window[:executed], features)
                # The next superbatch is planned and never executed, so that the planner is more than a superbatch
                # ahead of the slots, as after an interrupted epoch.
                planner.plan(Trace(beyond))
                planner.restart(slots.resident)
            for window in traces[4:]:
                held = planner.resident.copy()
                plan = planner.plan(Trace(window))
                plan.validate(held, window)
                _execute(slots, plan, window, features)

    def test_equal_histories_give_equal_plans(self) -> None:
        """A plan depends only on the node ids, not on chance, time or their form (a `Trace` or plain arrays)."""
        traces, plans = make_traces(3, seed=4), []
        for coded in (True, True, False):
            planner = self.make_planner(num_nodes=NUM_NODES, capacity=7)
            plans.append(
                [
                    planner.plan(Trace(window) if coded else window, beyond).actions.tolist()
                    for window, beyond in zip(traces, [*traces[1:], []], strict=True)
                ]
            )
        assert plans[0] == plans[1] == plans[2]

    def test_nothing_to_plan(self) -> None:
        """Superbatches may have no batches, or batches without rows."""
        planner, none = self.make_planner(num_nodes=NUM_NODES, capacity=7), np.zeros(0, np.int64)
        for window in ([], [none, none]):
            held = planner.resident.copy()
            plan = planner.plan(Trace(window))
            plan.validate(held, window)
            assert plan.num_batches == len(window)
            assert plan.num_hits == plan.num_misses == 0


def _features() -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return features (NUM_NODES, _DIM) in which every value is different."""
    return np.arange(1, NUM_NODES * _DIM + 1, dtype=np.float32).reshape(NUM_NODES, _DIM)


def _fill(slots: SlotCache, planner: SuperbatchPlanner) -> None:
    """Put the rows into the slots that the planner assumes there."""
    resident = planner.resident
    slots.fill(resident[resident >= 0], RamFeatures(_features()))


def _execute(
    slots: SlotCache,
    plan: CachePlan,
    window: Sequence[IdArray],
    features: np.ndarray[tuple[int, int], np.dtype[np.float32]],
) -> None:
    """Execute the plan for the batches in ``window``, and check every batch's rows."""
    for batch, nodes in enumerate(window):
        out = np.full((len(nodes), _DIM), -1, np.float32)
        slots.execute(plan.step(batch), nodes, out, RamFeatures(features))
        assert np.array_equal(out, features[nodes])
