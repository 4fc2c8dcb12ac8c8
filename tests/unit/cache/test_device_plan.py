"""The rows that a device holds: sizes, rankings and the slot map."""

from typing import Any

import numpy as np
import pytest

from gloader.cache import (
    DeviceCachePlan,
    DeviceShare,
    automatic_bytes,
    no_device_cache,
    parse_hotness,
    plan_device_cache,
    rows_that_fit,
    whole_device_cache,
)
from gloader.cache.static import cache_bytes
from gloader.errors import ConfigError, PlanError


@pytest.mark.parametrize("scales", [{}, {"has_scale": True}, {"has_scale": True, "has_all_scales": True}])
@pytest.mark.parametrize("num_bytes", [0, 399, 400, 499, 500, 5000, 41_000, 100_000])
def test_what_fits_fits_and_one_row_more_does_not(num_bytes: int, scales: dict[str, bool]) -> None:
    known: dict[str, Any] = {"num_nodes": 100, "row_bytes": 400, **scales}
    rows = rows_that_fit(num_bytes, **known)
    assert cache_bytes(rows, **known) <= num_bytes
    if rows < 100:
        assert cache_bytes(rows + 1, **known) > num_bytes


def test_all_rows_need_no_map() -> None:
    assert rows_that_fit(40_000, num_nodes=100, row_bytes=400) == 100
    assert (
        rows_that_fit(39_999, num_nodes=100, row_bytes=400) == 98
    )  # 400 B of map, and a row that is not whole


def test_the_factors_of_all_rows_are_part_of_the_size() -> None:
    known = {"num_nodes": 100, "row_bytes": 40, "has_scale": True}
    assert rows_that_fit(2000, **known) == (2000 - 400) // 44
    assert rows_that_fit(2000, has_all_scales=True, **known) == (2000 - 800) // 44
    assert rows_that_fit(4400, has_all_scales=True, **known) == 100  # the table's own factors are all of them


def test_a_step_that_was_tried_leaves_the_rest_to_the_cache() -> None:
    free, step, batch = 80 * 10**9, 10 * 10**9, 10**9
    size = automatic_bytes(free, step_bytes=step, batch_bytes=batch, batches_ahead=2)
    assert size + step + 2 * batch < free
    assert size > 60 * 10**9
    untried = automatic_bytes(free, step_bytes=None, batch_bytes=batch, batches_ahead=2)
    assert untried == 37 * 10**9
    assert automatic_bytes(10**9, step_bytes=step, batch_bytes=batch, batches_ahead=2) == 0
    assert automatic_bytes(10**9, step_bytes=None, batch_bytes=batch, batches_ahead=2) == 0


def test_the_hottest_rows_are_planned_and_the_tail_fills_up() -> None:
    counts = np.array([0, 5, 0, 2, 0, 9])
    assert plan_device_cache(counts, 2, accesses=counts).rows.tolist() == [1, 5]
    plan = plan_device_cache(counts, 2, accesses=counts)
    assert plan.expected_hit_rate == 14 / 16
    assert plan_device_cache(counts, 5).rows.tolist() == [1, 3, 5]
    tail = np.array([1, 0, 7, 0, 3, 0])
    assert plan_device_cache(counts, 5, tail=tail).rows.tolist() == [1, 2, 3, 4, 5]
    assert plan_device_cache(counts, 4, tail=tail).rows.tolist() == [1, 2, 3, 5]
    assert plan_device_cache(counts, 6).holds_all
    assert not plan.holds_all
    assert whole_device_cache(3).rows.tolist() == [0, 1, 2]
    assert not no_device_cache(0).holds_all


def test_the_map_says_where_each_row_is() -> None:
    plan = DeviceCachePlan(num_nodes=5, rows=np.array([1, 4]))
    assert plan.slot_map().tolist() == [-1, 0, -1, -1, 1]
    assert plan.slot_map().dtype == np.int32
    assert plan.holds().tolist() == [False, True, False, False, True]


def test_impossible_plans_are_refused() -> None:
    with pytest.raises(PlanError, match=r"0\.\.4, got 1\.\.5"):
        DeviceCachePlan(num_nodes=5, rows=np.array([1, 5])).slot_map()
    with pytest.raises(PlanError, match="a node has two slots"):
        DeviceCachePlan(num_nodes=5, rows=np.array([1, 1])).slot_map()


def test_the_share_of_the_host_is_what_the_device_does_not_hold() -> None:
    nodes = np.array([4, 0, 1])
    share = DeviceShare(held=np.array([False, True, False, False, True]))
    left = share.positions_left(nodes)
    assert left is not None
    assert left.tolist() == [1]
    assert share.num_held(nodes) == 2
    assert DeviceShare().positions_left(nodes) is None
    assert DeviceShare().num_held(nodes) == 0
    assert DeviceShare(holds_all=True).num_held(nodes) == 3


def test_rankings_have_names() -> None:
    assert [parse_hotness(name) for name in ("presampled", "vip", "degree")] == [
        "presampled",
        "vip",
        "degree",
    ]
    with pytest.raises(ConfigError, match="device_hotness='hot' is not one of 'presampled', 'vip', 'degree'"):
        parse_hotness("hot")
