"""Coded traces and planners: the same plans as of lists, and the same decisions however the trace is cut."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from cache_traces import SlotModel, arrays, batches, greedy_misses
from hypothesis import given
from hypothesis import strategies as st

from gloader.cache import (
    BeladyPlanner,
    PlannerName,
    PlannerTable,
    Trace,
    encode_ids,
    make_planner,
    make_policy,
    plan_belady,
)
from gloader.cache.baselines import PolicyName
from gloader.types import CacheStep, IdArray

NUM_NODES = 9
HOT: IdArray = np.array([4, 0, 7, 2])
TRACES = batches(NUM_NODES, max_batches=12, max_rows=NUM_NODES)
IDS = st.lists(
    st.integers(0, 2**63 - 1) | st.integers(0, 300) | st.integers(65_000, 70_000), unique=True, max_size=40
)


def sorted_arrays(trace: list[list[int]]) -> list[IdArray]:
    return [np.sort(nodes) for nodes in arrays(trace)]


def as_pairs(step: CacheStep) -> tuple[set, set, set]:
    return (
        set(zip(step.hit_pos.tolist(), step.hit_slot.tolist(), strict=True)),
        set(zip(step.miss_pos.tolist(), step.miss_row.tolist(), strict=True)),
        set(zip(step.admit_pos.tolist(), step.admit_slot.tolist(), strict=True)),
    )


@given(trace=st.lists(IDS, max_size=6), cut=st.integers(0, 6))
def test_a_trace_comes_back(trace: list[list[int]], cut: int) -> None:
    ids = sorted_arrays(trace)
    coded = Trace(ids)
    again = Trace(ids[:cut])
    for nodes in ids[cut:]:
        again.append_code(encode_ids(nodes), len(nodes))
    for copy in (coded, again):
        assert [nodes.tolist() for nodes in copy] == [nodes.tolist() for nodes in ids]
        assert copy.num_accesses == sum(map(len, ids))
        assert copy.num_bytes == coded.num_bytes


@given(trace=TRACES, beyond=TRACES, capacity=st.integers(0, 9), resident=st.permutations(range(NUM_NODES)))
def test_the_plan_of_a_trace_is_that_of_its_list(
    trace: list[list[int]], beyond: list[list[int]], capacity: int, resident: list[int]
) -> None:
    ids, ahead = sorted_arrays(trace), sorted_arrays(beyond)
    content = np.array(resident[:capacity], dtype=np.int64)
    settings = {"capacity": capacity, "resident": content}
    listed = plan_belady(ids, lookahead=ahead, **settings)
    for table in (None, PlannerTable(NUM_NODES), PlannerTable()):
        coded = plan_belady(Trace(ids), lookahead=Trace(ahead), table=table, **settings)
        coded.validate(content)
        for name in ("actions", "offsets", "hits", "misses", "admissions", "resident_after"):
            assert np.array_equal(getattr(coded, name), getattr(listed, name))
        for batch, nodes in enumerate(ids):
            assert np.array_equal(coded.miss_rows(batch), coded.step(batch).miss_row)
            assert np.array_equal(coded.accesses[batch], nodes)


@given(trace=TRACES, capacity=st.integers(0, 6))
def test_a_step_in_order_is_the_step_of_the_unsorted_batch(trace: list[list[int]], capacity: int) -> None:
    """The same actions, written down for the batch as it was sampled, mean the same."""
    ids = arrays(trace)
    plan, model = plan_belady(Trace(sorted_arrays(trace)), capacity=capacity), SlotModel()
    for batch, nodes in enumerate(ids):
        order = np.argsort(nodes)
        step = plan.step(batch, order)
        model.apply(step, nodes.tolist())
        back = np.argsort(order)  # where each position of the batch stands in sorted order
        rearranged = plan_belady([nodes], capacity=capacity)
        rearranged.actions[:] = plan.batch_actions(batch)[back]
        assert as_pairs(step) == as_pairs(rearranged.step(0))


@pytest.mark.parametrize("name", get_args(PolicyName))
@given(
    trace=TRACES,
    capacity=st.integers(0, 9),
    cuts=st.lists(st.integers(1, 4), max_size=12),
    coded=st.booleans(),
)
def test_a_policy_decides_the_same_however_the_trace_is_cut(
    name: PolicyName, trace: list[list[int]], capacity: int, cuts: list[int], coded: bool
) -> None:
    settings = {"num_nodes": NUM_NODES, "capacity": capacity, "hot": HOT}
    ids, policy, planner = sorted_arrays(trace), make_policy(name, **settings), make_planner(name, **settings)
    steps, start = [policy.step(nodes) for nodes in ids], 0
    for size in [*cuts, len(ids)]:
        window, held = ids[start : start + size], planner.resident.copy()
        plan = planner.plan(Trace(window) if coded else window, ids[start + size :])
        plan.validate(held)
        for step, wanted in zip(plan.steps, steps[start : start + size], strict=True):
            assert as_pairs(step) == as_pairs(wanted)
        assert np.array_equal(plan.resident_after, planner.resident)
        start += size
    assert np.array_equal(planner.resident, policy.resident)


@pytest.mark.reliability("E6")
@given(trace=TRACES, capacity=st.integers(0, 7), superbatch=st.integers(1, 5), reset=st.booleans())
def test_beladys_superbatches_carry_over_or_start_from_nothing(
    trace: list[list[int]], capacity: int, superbatch: int, reset: bool
) -> None:
    coded, planner = Trace(sorted_arrays(trace)), BeladyPlanner(NUM_NODES, capacity, reset=reset)
    misses, fewest = 0, 0
    for start in range(0, len(coded), superbatch):
        window = coded[start : start + superbatch]
        held = planner.resident
        plan = planner.plan(window, coded[start + superbatch :])
        plan.validate(held)
        misses += plan.num_misses
        fewest += greedy_misses([nodes.tolist() for nodes in window], capacity)
    assert misses == (fewest if reset else greedy_misses([nodes.tolist() for nodes in coded], capacity))


@pytest.mark.parametrize("name", ["belady", *get_args(PolicyName)])
@given(trace=TRACES, capacity=st.integers(0, 6), done=st.integers(0, 12))
def test_a_restart_forgets_what_was_planned_and_not_done(
    name: PlannerName, trace: list[list[int]], capacity: int, done: int
) -> None:
    coded = Trace(sorted_arrays(trace))
    planner = make_planner(name, num_nodes=NUM_NODES, capacity=capacity, hot=HOT)
    model = SlotModel(planner.resident)
    plan = planner.plan(coded)
    for step, nodes in list(zip(plan.steps, coded, strict=True))[:done]:
        model.apply(step, nodes.tolist())
    slots = np.array([model.slots.get(slot, -1) for slot in range(capacity)], dtype=np.int64)
    planner.restart(slots)
    for step, nodes in zip(planner.plan(coded).steps, coded, strict=True):
        model.apply(step, nodes.tolist())
