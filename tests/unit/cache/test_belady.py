"""The inspector: the worked example of the docs, its refusals and its limits."""

from __future__ import annotations

import numpy as np
import pytest
from cache_traces import SlotModel, arrays, delivered, feature_rows, greedy_misses

from gloader.cache import OnlinePolicy, PlannerTable, hotness_levels, plan_belady
from gloader.cache.actions import MAX_CAPACITY
from gloader.errors import PlanError
from gloader.types import IdArray

EXAMPLE = [[1, 2, 3], [1, 4], [2, 5], [1, 4], [2]]  # ten accesses


def ids(*nodes: int) -> IdArray:
    return np.array(nodes, dtype=np.int64)


@pytest.mark.reliability("E6")
def test_the_worked_example() -> None:
    plan = plan_belady(arrays(EXAMPLE), capacity=2)
    policy = OnlinePolicy("lru", num_nodes=6, capacity=2)
    assert plan.hits.tolist() == [0, 1, 1, 1, 1]
    assert plan.num_misses == 6 == greedy_misses(EXAMPLE, 2)
    assert plan.admissions.sum() == 2
    assert sum(len(policy.step(nodes).miss_pos) for nodes in arrays(EXAMPLE)) == 10
    kept = [(step.admit_pos.tolist(), step.hit_pos.tolist()) for step in plan.steps]
    assert kept == [([0, 1], []), ([], [0]), ([], [0]), ([], [0]), ([], [0])]


def test_a_row_that_would_leave_before_its_next_use_never_enters() -> None:
    plan = plan_belady([ids(1, 2), ids(1), ids(1), ids(2)], capacity=1)
    assert plan.actions.tolist() == [-2, -1, 0, 0, -2]


def test_content_is_carried_over_and_the_lookahead_is_seen() -> None:
    plan = plan_belady([ids(3)], capacity=2, resident=ids(1, -1), lookahead=[ids(1, 3)])
    assert sorted(plan.resident_after.tolist()) == [1, 3]
    after = plan_belady([ids(1, 3)], capacity=2, resident=plan.resident_after)
    assert after.num_hits == 2


def test_without_a_known_next_use_the_hottest_stay() -> None:
    levels = hotness_levels(np.array([0, 9, 1, 5, 7]))
    plan = plan_belady([ids(1, 2), ids(3, 4)], capacity=2, hotness=levels)
    assert sorted(plan.resident_after.tolist()) == [1, 4]
    known = plan_belady([ids(1, 2), ids(3, 4)], capacity=2, hotness=levels, lookahead=[ids(2)])
    assert sorted(known.resident_after.tolist()) == [1, 2]


def test_hotness_levels_keep_the_order_of_counts() -> None:
    levels = hotness_levels(np.array([0, 1, 2, 50, 10**6]))
    assert levels.dtype == np.uint8
    assert levels.tolist() == sorted(levels.tolist())
    assert levels[0] == 0
    assert levels[1] > 0
    assert levels[-1] == 255
    assert hotness_levels(np.zeros(3)).tolist() == [0, 0, 0]


def test_rows_of_the_device_are_none_of_the_host_cache() -> None:
    plan = plan_belady([ids(1, 2), ids(2, 1)], capacity=1, device_resident=ids(1), resident=ids(1))
    steps = list(plan.steps)
    assert (steps[0].miss_row.tolist(), steps[1].hit_pos.tolist()) == ([2], [0])
    assert plan.num_misses == plan.num_hits == 1


@pytest.mark.reliability("C11")
@pytest.mark.parametrize("capacity", [0, 1, 5, 6, 1000])
def test_any_capacity_delivers_the_same_rows(capacity: int) -> None:
    trace = arrays([[1, 2, 3], [0, 4, 1], [5], [], [3, 1, 5, 0], [2]])
    plan = plan_belady(trace, capacity=capacity)
    plan.validate(ids())
    for rows, nodes in zip(delivered(plan.steps, trace, capacity, 6), trace, strict=True):
        assert np.array_equal(rows, feature_rows(6)[nodes])
    distinct = len(np.unique(np.concatenate(trace)))
    if capacity >= distinct:
        assert plan.num_misses == distinct
    if capacity == 0:
        assert plan.num_hits == plan.admissions.sum() == 0


@pytest.mark.reliability("C12")
def test_a_batch_larger_than_the_cache_reads_before_it_evicts() -> None:
    trace = [np.arange(50), np.arange(25, 75), np.arange(50)]
    plan = plan_belady(trace, capacity=10)
    model = SlotModel()
    for step, nodes in zip(plan.steps, trace, strict=True):
        model.apply(step, nodes.tolist())
    assert plan.hits.tolist() == [0, 10, 10]
    assert plan.num_misses == greedy_misses([nodes.tolist() for nodes in trace], 10)


@pytest.mark.reliability("E7")
def test_more_batches_than_16_bits_can_number() -> None:
    rng = np.random.default_rng(0)
    trace = [rng.choice(12, 3, replace=False) for _ in range(33_000)]
    plan = plan_belady(trace, capacity=4)
    plan.validate(ids())
    assert plan.num_misses == greedy_misses([nodes.tolist() for nodes in trace], 4)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_of_both_widths_give_the_same_plan(dtype: type) -> None:
    trace = [nodes.astype(dtype) for nodes in arrays(EXAMPLE)]
    assert np.array_equal(
        plan_belady(trace, capacity=2).actions, plan_belady(arrays(EXAMPLE), capacity=2).actions
    )


def test_ids_beyond_int32_are_hashed() -> None:
    far = [nodes + 2**40 for nodes in arrays(EXAMPLE)]
    plan = plan_belady(far, capacity=2, resident=ids(2**41, 2**40 + 4))
    plan.validate(ids(2**41, 2**40 + 4))
    near = plan_belady(arrays(EXAMPLE), capacity=2, resident=ids(9, 4))
    assert np.array_equal(plan.actions, near.actions)


def test_a_hash_table_grows_with_the_nodes_it_sees() -> None:
    rng = np.random.default_rng(0)
    trace = [rng.choice(2**40, 3000, replace=False, shuffle=False) for _ in range(3)]
    trace = [np.unique(np.concatenate([nodes, trace[0][:500]])) for nodes in trace]
    table = PlannerTable()
    for _ in range(2):
        plan = plan_belady(trace, capacity=600, table=table)
        plan.validate(ids())
        assert plan.num_hits == 1000
    assert table.num_bytes >= 12 * 2 * table.num_keys


def test_a_table_serves_many_plans_and_forgets_each() -> None:
    table = PlannerTable(9)
    table.base = -(2**31) + 60  # the room for batch numbers ends within a few plans
    for _ in range(20):
        plan = plan_belady(arrays(EXAMPLE), capacity=2, table=table)
        assert np.array_equal(plan.actions, plan_belady(arrays(EXAMPLE), capacity=2).actions)
    with pytest.raises(PlanError):
        plan_belady([ids(1), ids(8, 9)], capacity=2, table=table)
    plan = plan_belady(arrays(EXAMPLE), capacity=2, table=table)
    assert np.array_equal(plan.actions, plan_belady(arrays(EXAMPLE), capacity=2).actions)


def test_the_plan_takes_four_bytes_an_access() -> None:
    trace = [np.arange(start, start + 5000) for start in range(0, 50_000, 2500)]
    plan = plan_belady(trace, capacity=2000)
    assert plan.num_bytes - 8 * 2000 <= 4.1 * sum(map(len, trace))
    assert PlannerTable(1000).num_bytes == 4000


def test_nothing_to_plan() -> None:
    plan = plan_belady([], capacity=3, resident=ids(7))
    assert (len(plan.steps), plan.num_misses, plan.resident_after.tolist()) == (0, 0, [7, -1, -1])


@pytest.mark.parametrize(
    ("accesses", "settings", "message"),
    [
        ([ids(1), ids(2, 2)], {}, r"accesses\[1\] holds node 2 twice, again at position 1"),
        ([ids(1)], {"lookahead": [ids(3, 3)]}, r"lookahead\[0\] holds node 3 twice"),
        ([ids(-1)], {}, r"accesses\[0\] holds node -1 at position 0"),
        ([ids(9)], {"table": PlannerTable(9)}, r"ids are in 0\.\.9-1"),
        ([ids(-1)], {"table": PlannerTable()}, "at position 0; ids are 0 or more"),
        (
            [ids(1)],
            {"table": PlannerTable(), "device_resident": ids(-4)},
            r"row ids must be 0 or more; got -4\.\.-4",
        ),
        ([np.array([1.0])], {}, "dtype float64"),
        ([ids(1).reshape(1, 1)], {}, r"shape \(1, 1\)"),
        ([ids(1)], {"capacity": -1}, "capacity is -1"),
        ([ids(1)], {"capacity": MAX_CAPACITY + 1}, "capacity is"),
        ([ids(1)], {"resident": ids(1, 2, 3)}, "names 3 slots; the capacity is 2"),
        ([ids(1)], {"resident": ids(-2)}, "resident holds -2"),
        ([ids(1)], {"resident": ids(1, 1)}, "resident in two slots"),
        ([ids(1)], {"resident": ids(12), "table": PlannerTable(9)}, r"not in 0\.\.9-1"),
        ([ids(1)], {"device_resident": ids(-4)}, "row ids must be in"),
        ([ids(1)], {"hotness": np.zeros(3)}, "hotness_levels"),
    ],
)
def test_what_cannot_be_planned_is_refused(accesses: list[IdArray], settings: dict, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan_belady(accesses, **({"capacity": 2} | settings))
