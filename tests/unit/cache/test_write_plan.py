"""Plans of an embedding's slots: refusals, the steps' fields, the depth, and memory."""

from __future__ import annotations

import numpy as np
import pytest
from write_plans import check, random_case, trace

from gloader.cache.next_use import table_bytes
from gloader.cache.write_plan import (
    FORWARD,
    LATE,
    TABLE,
    WritePlanner,
    write_access_bytes,
    write_slot_bytes,
)
from gloader.errors import BudgetError, ConfigError, PlanError

BATCHES = [[0, 1, 2], [0, 3, 4], [1, 2, 5]]


def test_a_step_evicts_and_loads() -> None:
    plan = WritePlanner(9, 4, depth=1).plan(trace(BATCHES))
    assert len(plan) == 3
    step = plan.batch(1)
    assert (step.number, step.slots.tolist(), step.load_pos.tolist()) == (1, [0, 3, 1], [1, 2])
    assert step.load_from.tolist() == [TABLE, TABLE]
    assert (step.evict_slot.tolist(), step.evict_row.tolist(), step.evict_to.tolist()) == ([1], [1], [2])
    assert step.wait_for == 1
    assert (plan.batch(2).load_from.tolist(), plan.table_rows(2).tolist()) == ([FORWARD, TABLE], [5])
    assert plan.batch(2).evict_to.tolist() == [-1, -1]
    counts = (plan.num_accesses, plan.num_loads, plan.num_evictions, plan.num_forward)
    assert counts == (9, 7, 3, 1)
    assert [plan.num_loads_from(source) for source in (FORWARD, TABLE, LATE)] == [1, 6, 0]


def test_a_row_that_the_last_plan_evicted_to_the_table_is_late() -> None:
    planner = WritePlanner(9, 2)
    plans = [planner.plan(trace(batches)) for batches in ([[0, 1]], [[2, 3], [0]], [[1], [2]])]
    assert [plan.num_loads_from(LATE) for plan in plans] == [0, 0, 1]
    assert [plan.first for plan in plans] == [0, 1, 3]
    assert [plan.staged_after for plan in plans] == [0, 0, 1]


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_enough_slots_let_the_loads_run_ahead_of_the_steps(depth: int) -> None:
    rng = np.random.default_rng(depth)
    batches = [sorted(rng.choice(99, 8, replace=False).tolist()) for _ in range(40)]
    plan = WritePlanner(99, 8 * (depth + 1), depth=depth).plan(trace(batches))
    assert plan.num_evictions
    # Batch b loads at most 8 rows, and the last batches before it pin 8 slots each.
    assert all(plan.waits <= np.maximum(np.arange(40) - depth + 1, 0))
    short = WritePlanner(99, 8, depth=depth).plan(trace(batches))
    assert short.waits.max() == 39


def test_a_batch_larger_than_the_cache_is_refused_with_its_rows() -> None:
    planner = WritePlanner(9, 2)
    message = r"batch 1 has 3 distinct rows of the embedding, and its cache has 2 slots.* at least 3 slots"
    with pytest.raises(BudgetError, match=message):
        planner.plan(trace([[0, 1], [0, 1, 2]]))
    with pytest.raises(BudgetError, match=message):
        planner.plan(trace([[0, 1]]), trace([[0, 1, 2], [3]]))


def test_wrong_rows_are_refused() -> None:
    with pytest.raises(PlanError, match=r"batch 1 holds row 9; rows are in 0..9-1"):
        WritePlanner(9, 4).plan(trace([[1], [0, 9]]))
    with pytest.raises(PlanError, match=r"batch 0 holds row 9; rows are in 0..9-1"):
        WritePlanner(9, 4, expected_accesses=1).plan((), [np.array([9])])
    with pytest.raises(PlanError, match="unique and ascending; 1 at position 1 follows 2"):
        WritePlanner(9, 4).plan([np.array([2, 1])])


def test_other_batches_than_those_of_the_lookahead_are_refused() -> None:
    for expected in (None, 1):
        planner = WritePlanner(9, 2, depth=1, expected_accesses=expected)
        assert planner.plan(trace([[0, 1], [2, 3]]), trace([[4], [0]])).num_forward == 1
        content = planner.resident.tolist()
        with pytest.raises(
            PlanError, match="row 0 was evicted for batch 3, but this batch is not the next one"
        ):
            planner.plan(trace([[0], [4]]))
        planner.restart(np.array(content))
        assert planner.plan(trace([[0], [4]])).batch(0).number == 0


def test_a_shorter_plan_than_the_lookahead_keeps_the_forward_rows() -> None:
    planner = WritePlanner(9, 2, depth=1)
    planner.plan(trace([[0, 1], [2, 3]]), trace([[4], [5], [0]]))
    planner.plan(trace([[4]]))
    assert planner.plan(trace([[5], [0]])).num_loads_from(FORWARD) == 1


def test_wrong_settings_and_contents_are_refused() -> None:
    with pytest.raises(ConfigError, match="capacity is 0; it must be in 1"):
        WritePlanner(9, 0)
    with pytest.raises(ConfigError, match="depth is 0; it must be at least 1 step"):
        WritePlanner(9, 4, depth=0)
    planner = WritePlanner(9, 4)
    with pytest.raises(PlanError, match="resident holds row 3 in two slots"):
        planner.restart(np.array([3, -1, 3]))
    with pytest.raises(PlanError, match=r"resident holds row 9; rows are in 0..9-1"):
        planner.restart(np.array([9]))


def test_plans_take_at_most_the_bytes_that_the_memory_plan_counts() -> None:
    assert write_slot_bytes() == 12 + 24
    assert [write_access_bytes(rows) for rows in (2**31, 2**31 + 1)] == [13, 17]
    for num_rows in (1000, 2**31 + 1):
        planner = WritePlanner(num_rows, 10, expected_accesses=80)
        batches = [list(range(10 * batch, 10 * batch + 10)) for batch in range(8)]
        plan = planner.plan(trace(batches))
        assert plan.num_loads == 80
        fixed = plan.offsets.nbytes + plan.waits.nbytes + plan.resident_after.nbytes
        assert plan.num_bytes - fixed == 80 * write_access_bytes(num_rows)
        assert planner._table.num_bytes <= table_bytes(num_rows, 80)


def test_ids_beyond_four_bytes_are_planned() -> None:
    high = 2**40
    planner = WritePlanner(high, 2, depth=1, expected_accesses=4)
    plan = planner.plan([np.array([high - 1]), np.array([high - 3, high - 2]), np.array([high - 1])])
    assert plan.batch(1).evict_row.tolist() == [high - 1]
    assert plan.batch(2).load_from.tolist() == [FORWARD]


def test_all_tables_give_the_same_plan() -> None:
    for seed in range(20):
        case = random_case(np.random.default_rng(seed))
        assert check(case) == check(case, expected_accesses=1)
