"""Planners: made by name, restarted, reset, and what they keep in memory."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
from cache_traces import arrays

from gloader.cache import (
    BeladyPlanner,
    OnlineName,
    PlannerName,
    PlannerTable,
    Trace,
    make_planner,
    node_bytes,
    slot_bytes,
    table_bytes,
)
from gloader.cache.baselines import ONLINE_KERNELS, PolicyName
from gloader.config import Policy
from gloader.errors import ConfigError, PlanError

NAMES: list[PlannerName] = ["belady", *get_args(PolicyName)]
FIRST, SECOND = arrays([[1, 2, 3], [1, 4], [2, 5]]), arrays([[1, 4], [2], [0, 3, 5]])


def test_empty_slots_stay_empty_after_a_restart() -> None:
    planner = BeladyPlanner(10, 6)
    for resident, counted in (
        ([-1, -1, -1], [-1] * 6),
        ([], [-1] * 6),
        ([-1, 5, -1, 5, 0, -1], [-1, 5, -1, -1, 0, -1]),
        ([0, 0, 0, 1, 1, 0], [0, -1, -1, 1, -1, -1]),
    ):
        planner.restart(np.array(resident, dtype=np.int64))
        assert planner.resident.tolist() == counted


def test_a_row_in_two_slots_counts_once_after_a_restart() -> None:
    planner = BeladyPlanner(9, 4)
    planner.restart(np.array([7, 3, 7, -1]))
    assert planner.resident.tolist() == [7, 3, -1, -1]
    assert planner.plan([np.array([3, 7])]).num_hits == 2
    with pytest.raises(PlanError, match="resident names 5 slots; the capacity is 4"):
        planner.restart(np.arange(5))


def test_reset_starts_every_superbatch_from_nothing() -> None:
    carried, reset = (BeladyPlanner(6, 2, reset=flag) for flag in (False, True))
    for planner in (carried, reset):
        planner.plan(FIRST, SECOND)
    assert sorted(carried.resident.tolist()) == [1, 4] or carried.resident.max() >= 0
    assert reset.resident.tolist() == [-1, -1]
    again = reset.plan(SECOND)
    again.validate(np.empty(0, dtype=np.int64))
    assert again.num_hits == 0
    assert carried.plan(SECOND).num_hits > 0


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_the_device_are_left_alone(name: PlannerName) -> None:
    planner = make_planner(
        name, num_nodes=6, capacity=3, hot=np.array([4, 5]), device_resident=np.array([2, 1])
    )
    plan = planner.plan(Trace(FIRST))
    rows = np.concatenate([plan.miss_rows(batch) for batch in range(3)])
    assert not {1, 2} & set(rows.tolist())
    assert plan.num_hits + plan.num_misses == 3


def test_the_names_of_policies_are_those_of_the_settings_and_of_the_table() -> None:
    assert set(get_args(PlannerName)) == set(get_args(Policy))
    assert list(ONLINE_KERNELS) == list(get_args(OnlineName))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="'no such' is not one of belady, lru, fifo"):
        make_planner("no such", num_nodes=3, capacity=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="capacity is -1"):
        make_planner("lru", num_nodes=3, capacity=-1)


def test_a_hashed_table_is_taken_where_it_is_smaller() -> None:
    few = make_planner("belady", num_nodes=10**9, capacity=2, expected_accesses=10_000)
    assert few.plan(Trace(arrays([[1, 10**9 - 1], [1]]))).num_hits == 1
    assert table_bytes(10**9, 10_000) < 10**6
    assert table_bytes(1000, 10_000) == 4000 == PlannerTable.for_trace(1000, 10_000).num_bytes
    table = PlannerTable()
    table.reserve(10_000)
    assert table.num_bytes <= table_bytes(10**9, 10_000)


def test_memory_is_what_the_formulas_say() -> None:
    assert [slot_bytes(name) for name in ("none", "static", "belady", "lru")] == [0, 16, 28, 49]
    assert [node_bytes(name) for name in ("belady", "lru", "s3fifo")] == [4, 4, 12]
