"""Steps in the order of the batch out of actions in sorted order, and what a plan without its trace still does."""

from __future__ import annotations

import numpy as np
import pytest

from gloader.cache import CachePlan, Trace, batch_step, plan_belady
from gloader.errors import PlanError
from gloader.types import IdArray

BATCHES = [np.array(nodes) for nodes in ([9, 2, 5], [7, 2], [5, 1, 9], [2, 5])]
NOTHING: IdArray = np.empty(0, dtype=np.int64)


@pytest.fixture
def plan() -> CachePlan:
    return plan_belady(Trace(map(np.sort, BATCHES)), capacity=2)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_positions_are_those_of_the_batch_and_rows_ascend(plan: CachePlan, dtype: type) -> None:
    seen: dict[int, int] = {}
    for batch, nodes in enumerate(BATCHES):
        order = np.argsort(nodes).astype(dtype)
        step = plan.step(batch, order)
        assert sorted([*step.hit_pos, *step.miss_pos]) == list(range(len(nodes)))
        assert [seen[slot] for slot in step.hit_slot.tolist()] == nodes[step.hit_pos].tolist()
        assert step.miss_row.tolist() == nodes[step.miss_pos].tolist() == sorted(step.miss_row.tolist())
        assert plan.miss_rows(batch).tolist() == step.miss_row.tolist()
        seen |= zip(step.admit_slot.tolist(), nodes[step.admit_pos].tolist(), strict=True)
    assert plan.num_hits == 4


def test_a_plan_without_its_trace_executes_by_actions_and_nodes(plan: CachePlan) -> None:
    bare = plan.without_trace()
    for batch, nodes in enumerate(BATCHES):
        order = np.argsort(nodes)
        step, same = (
            batch_step(bare.batch_actions(batch), nodes[order], order),
            plan.step(batch, order),
        )
        for name in ("hit_pos", "hit_slot", "miss_pos", "miss_row", "admit_pos", "admit_slot"):
            assert np.array_equal(getattr(step, name), getattr(same, name))
    assert (bare.num_batches, bare.has_trace, plan.has_trace) == (4, False, True)
    assert bare.actions is plan.actions
    bare.validate(NOTHING, Trace(map(np.sort, BATCHES)))
    for use in (
        lambda: bare.step(0),
        lambda: bare.miss_rows(0),
        lambda: bare.steps[0],
        lambda: bare.validate(NOTHING),
    ):
        with pytest.raises(PlanError, match=r"without_trace\(\)|the trace has 0 batches"):
            use()


def test_a_plan_keeps_the_trace_as_it_was() -> None:
    trace = Trace(map(np.sort, BATCHES))
    plan = plan_belady(trace, capacity=2)
    trace.append(np.array([8]))
    plan.validate(NOTHING)
    assert plan.miss_rows(0).tolist() == [2, 5, 9]


@pytest.mark.reliability("E5")
def test_an_order_of_another_batch_is_refused(plan: CachePlan) -> None:
    with pytest.raises(PlanError, match="3 actions for a batch of 3 nodes in an order of 2"):
        plan.step(0, np.array([0, 1]))
    with pytest.raises(PlanError, match="3 actions for a batch of 2 nodes: the plan belongs to another"):
        batch_step(plan.batch_actions(0), np.array([1, 2]))
    for place in (3, -1):
        with pytest.raises(PlanError, match=r"names positions outside 0\.\.2"):
            plan.step(0, np.array([0, place, 1]))
