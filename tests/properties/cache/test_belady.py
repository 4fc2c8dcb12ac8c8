"""The inspector against every possible plan of tiny traces, and against online policies."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from cache_traces import SlotModel, arrays, batches, fewest_misses, greedy_misses
from hypothesis import given
from hypothesis import strategies as st

from gloader.cache import PlannerTable, hottest_first, make_policy, plan_belady
from gloader.cache.baselines import PolicyName

NUM_NODES = 7


def _random_case(rng: np.random.Generator) -> tuple[list[list[int]], int, int, list[int]]:
    """Return at most 7 batches of up to 4 rows, how many are planned, a capacity and carried-over content."""
    num_nodes, capacity = int(rng.integers(3, 9)), int(rng.integers(0, 5))
    trace = [
        rng.choice(num_nodes, rng.integers(0, min(num_nodes, 4) + 1), replace=False).tolist()
        for _ in range(rng.integers(1, 8))
    ]
    held = rng.choice(num_nodes, rng.integers(0, min(capacity, num_nodes) + 1), replace=False).tolist()
    slots = [*held, *[-1] * (capacity - len(held))]
    return trace, int(rng.integers(0, len(trace) + 1)), capacity, rng.permutation(slots).astype(int).tolist()


@pytest.mark.reliability("E6")
@pytest.mark.parametrize("part", range(4))
def test_no_plan_at_all_misses_less(part: int) -> None:
    """300 traces in each part, with residents and look-ahead, in all kinds of tables."""
    rng = np.random.default_rng(part)
    reused = PlannerTable(8)
    for _ in range(300):
        trace, split, capacity, resident = _random_case(rng)
        window, beyond = arrays(trace[:split]), arrays(trace[split:])
        fewest = fewest_misses(trace, capacity, [row for row in resident if row >= 0])
        for table in (None, reused, PlannerTable()):
            content = np.array(resident, dtype=np.int64)
            first = plan_belady(window, capacity=capacity, resident=content, lookahead=beyond, table=table)
            first.validate(content, window)
            second = plan_belady(beyond, capacity=capacity, resident=first.resident_after, table=table)
            second.validate(first.resident_after)
            assert first.num_misses + second.num_misses == fewest, (trace, split, capacity, resident)


@pytest.mark.reliability("E5")
@given(
    trace=batches(NUM_NODES),
    beyond=batches(NUM_NODES, max_batches=3),
    capacity=st.integers(0, 9),
    resident=st.lists(st.integers(0, NUM_NODES - 1), unique=True, max_size=9),
    on_device=st.sets(st.integers(0, NUM_NODES - 1), max_size=3),
    levels=st.none() | st.lists(st.integers(0, 255), min_size=NUM_NODES, max_size=NUM_NODES),
)
def test_every_step_is_possible(
    trace: list[list[int]],
    beyond: list[list[int]],
    capacity: int,
    resident: list[int],
    on_device: set[int],
    levels: list[int] | None,
) -> None:
    content = np.array(resident[:capacity], dtype=np.int64)
    plan = plan_belady(
        arrays(trace),
        capacity=capacity,
        resident=content,
        lookahead=arrays(beyond),
        hotness=None if levels is None else np.array(levels, dtype=np.uint8),
        device_resident=np.array(sorted(on_device), dtype=np.int64),
    )
    model = SlotModel(content)
    for step, nodes in zip(plan.steps, trace, strict=True):
        model.apply(step, nodes, on_device)
    assert model.agrees(plan.resident_after)
    assert not set(plan.resident_after.tolist()) & on_device
    assert model.misses == plan.num_misses
    host_only = [[node for node in batch if node not in on_device] for batch in trace]
    if not beyond and not len(content):
        assert plan.num_misses == greedy_misses(host_only, capacity)
    plan.validate(content)


@pytest.mark.reliability("E6")
@given(trace=batches(NUM_NODES, max_batches=14), capacity=st.integers(0, 8))
def test_no_policy_misses_less(trace: list[list[int]], capacity: int) -> None:
    ids = arrays(trace)
    fewest = plan_belady(ids, capacity=capacity).num_misses
    hot = hottest_first(np.bincount(np.concatenate([*ids, ids[0][:0]]) if ids else [], minlength=NUM_NODES))
    for name in get_args(PolicyName):
        policy = make_policy(name, num_nodes=NUM_NODES, capacity=capacity, hot=hot)
        warm = policy.resident.copy()
        misses = sum(len(policy.step(nodes).miss_pos) for nodes in ids)
        assert misses >= plan_belady(ids, capacity=capacity, resident=warm).num_misses
        if name != "static":
            assert misses >= fewest


@pytest.mark.reliability("E7")
@given(trace=batches(NUM_NODES, max_batches=12), capacity=st.integers(0, 5), superbatch=st.integers(1, 5))
def test_superbatches_of_one_and_short_last_ones_carry_over(
    trace: list[list[int]], capacity: int, superbatch: int
) -> None:
    ids, table = arrays(trace), PlannerTable(NUM_NODES)
    model, resident, misses = SlotModel(), np.empty(0, dtype=np.int64), 0
    for start in range(0, len(ids), superbatch):
        window = ids[start : start + superbatch]
        plan = plan_belady(
            window, capacity=capacity, resident=resident, lookahead=ids[start + superbatch :], table=table
        )
        for step, nodes in zip(plan.steps, window, strict=True):
            model.apply(step, nodes.tolist())
        resident = plan.resident_after
        misses += plan.num_misses
    assert misses == greedy_misses(
        trace, capacity
    )  # the look-ahead sees everything: superbatches cost nothing
