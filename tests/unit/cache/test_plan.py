"""Plans as values: a wrong one is found by replaying it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cache_traces import arrays

from gloader.cache import CachePlan, plan_belady
from gloader.errors import PlanError

TRACE = arrays([[1, 2, 3], [1, 4], [2, 5], [1, 4], [2]])
NOTHING = np.empty(0, dtype=np.int64)


@pytest.fixture
def plan() -> CachePlan:
    return plan_belady(TRACE, capacity=2)


def _with_action(plan: CachePlan, access: int, action: int) -> CachePlan:
    actions = plan.actions.copy()
    actions[access] = action
    return replace(plan, actions=actions)


@pytest.mark.reliability("E5")
@pytest.mark.parametrize(
    ("access", "action", "message"),
    [
        (0, 0, "batch 0, position 0, node 1: a hit in slot 0, which holds row -1"),
        (3, 1, "batch 1, position 0, node 1: a hit in slot 1, which holds row 2"),
        (3, 7, "slot 7 does not exist, the capacity is 2"),
        (2, -9, "slot 7 does not exist"),
        (1, -2, "which another row enters in the same step"),
        (4, -1 - 2**30, "does not exist"),
        (3, -1, "counts \\(1, 1, 0\\) hits, misses and admissions, its actions are \\(0, 2, 0\\)"),
    ],
)
def test_a_wrong_action_is_found(plan: CachePlan, access: int, action: int, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        _with_action(plan, access, action).validate(NOTHING)


@pytest.mark.reliability("E5")
def test_a_wrong_start_end_or_trace_is_found(plan: CachePlan) -> None:
    plan.validate(NOTHING)
    plan.validate(NOTHING, TRACE)
    with pytest.raises(PlanError, match="in the end slot 1 holds row 2; the plan says 8"):
        replace(plan, resident_after=np.array([-1, 8])).validate(NOTHING)
    with pytest.raises(PlanError, match="5 batches and 10 actions; the trace has 4 batches"):
        plan.validate(NOTHING, TRACE[:4])
    with pytest.raises(PlanError, match="a hit in slot"):
        plan.validate(NOTHING, [nodes + 1 if index else nodes for index, nodes in enumerate(TRACE)])
    carried = plan_belady(TRACE, capacity=2, resident=np.array([1, 2]))
    with pytest.raises(PlanError, match="which holds row -1"):
        carried.validate(NOTHING)


def test_steps_are_a_sequence(plan: CachePlan) -> None:
    assert len(plan.steps) == 5
    assert plan.steps[-1].hit_pos.tolist() == [0]
    assert [len(step.miss_pos) for step in plan.steps[1:3]] == [1, 1]
    with pytest.raises(IndexError, match="out of range"):
        plan.steps[5]
