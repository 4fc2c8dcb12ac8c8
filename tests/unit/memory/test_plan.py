"""How a memory budget is shared out."""

from typing import Any

import pytest

from gloader.errors import BudgetError, ConfigError
from gloader.memory.plan import Demand, MemoryPlan, plan_memory, topology_share

MB = 1 << 20


def _demand(**changes: Any) -> Demand:
    settings: dict[str, Any] = {
        "num_nodes": 2_048_000,
        "topology_bytes": 10 * MB,
        "feature_bytes": 1000 * MB,
        "row_bytes": 512,
        "slot_bytes": 8,
        "policy": "belady",
        "batch_rows": 10_000,
        "batch_edges": 50_000,
        "batches_in_flight": 4,
        "sampler_threads": 2,
        "sampler_node_bytes": 4,
        "store_bytes": 8 * MB,
        "stored_row_bytes": 512,
        "gap_bytes": 12288,
        "num_batches": None,
    }
    return Demand(**(settings | changes))


def _held(plan: MemoryPlan) -> int:
    return plan.total_bytes


@pytest.mark.parametrize("budget_mb", [100, 200, 500, 2000])
@pytest.mark.parametrize("cache", [None, 0, 5 * MB])
@pytest.mark.parametrize("spill", [0, 100 * MB, 100_000 * MB])
def test_the_parts_never_exceed_the_budget(budget_mb: int, cache: int | None, spill: int) -> None:
    plan = plan_memory(_demand(), budget_bytes=budget_mb * MB, cache_bytes=cache, spill_bytes=spill)
    assert _held(plan) <= budget_mb * MB
    assert plan.ring_bytes >= 3 * 10_000 * 512


@pytest.mark.reliability("J11")
def test_seeds_their_labels_and_orders_count() -> None:
    few, many = (plan_memory(_demand(num_seeds=n), budget_bytes=300 * MB) for n in (0, 2_000_000))
    held = [dict(plan.parts)["batches being sampled"] for plan in (few, many)]
    assert held[1] - held[0] == 80_000_000  # an id, a label and three places of 8 bytes
    assert many.cache_rows < few.cache_rows
    assert _held(many) <= 300 * MB


def test_features_that_fit_are_held_and_the_cache_steps_aside() -> None:
    plan = plan_memory(_demand(), budget_bytes=2000 * MB)
    assert (plan.features, plan.cache_rows) == ("ram", 0)
    assert dict(plan.parts)["features"] == 1000 * MB


def test_features_that_do_not_fit_are_read_and_the_rest_becomes_cache() -> None:
    plan = plan_memory(_demand(), budget_bytes=300 * MB)
    assert plan.features == "ssd"
    assert 300 * MB - _held(plan) < 540
    assert plan_memory(_demand(), budget_bytes=300 * MB, cache_bytes=MB).cache_rows == MB // 512
    assert plan_memory(_demand(), budget_bytes=300 * MB, cache_bytes=0).cache_rows == 0


@pytest.mark.reliability("C11")
def test_a_cache_larger_than_the_features_is_clamped() -> None:
    plan = plan_memory(
        _demand(num_nodes=100_000, feature_bytes=50 * MB),
        budget_bytes=300 * MB,
        features="ssd",
        cache_bytes=900 * MB,
    )
    assert plan.cache_rows == 100_000


@pytest.mark.reliability("C14")
@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({}, {"budget_bytes": 30 * MB}),
        ({}, {"budget_bytes": 300 * MB, "features": "ram"}),
        ({"store_bytes": 400 * MB}, {"budget_bytes": 300 * MB}),
        ({}, {"budget_bytes": 300 * MB, "cache_bytes": 290 * MB}),
    ],
)
def test_a_budget_that_is_too_small_says_needed_and_allowed(
    changes: dict[str, int], settings: dict[str, int]
) -> None:
    with pytest.raises(BudgetError, match=r"MB|GB") as caught:
        plan_memory(_demand(**changes), **settings)  # type: ignore[arg-type]
    assert "budget" in str(caught.value)


def test_a_negative_cache_is_refused() -> None:
    with pytest.raises(ConfigError, match="-1"):
        plan_memory(_demand(), budget_bytes=300 * MB, cache_bytes=-1)


def test_topology_is_held_up_to_half_of_the_budget() -> None:
    assert topology_share(101) == 50


def test_memory_goes_to_the_cache_before_it_goes_to_plans() -> None:
    plan = plan_memory(_demand(), budget_bytes=500 * MB, spill_bytes=10_000 * MB)
    parts = dict(plan.parts)
    planned = next(size for name, size in parts.items() if name.startswith("traces"))
    assert (
        planned - 4 * 2_048_000 <= 0.2 * (planned + parts["host cache"] + parts["sampled batches kept"]) + MB
    )
    assert parts["host cache"] > 0.5 * 500 * MB / 2


@pytest.mark.parametrize(("spill", "largest"), [(0, 64), (100_000 * MB, 512)])
def test_superbatches_grow_with_the_disk_for_packs(spill: int, largest: int) -> None:
    plan = plan_memory(_demand(), budget_bytes=900 * MB, spill_bytes=spill, features="ssd")
    assert plan.superbatch.num_batches == largest
    assert (plan.pack_buffer_bytes > 0) == (spill > 0)


def test_packs_step_aside_where_their_buffers_would_take_too_much() -> None:
    for budget, must_pack, has_packs in ((120, False, False), (120, True, True), (600, False, True)):
        plan = plan_memory(_demand(), budget_bytes=budget * MB, spill_bytes=10_000 * MB, must_pack=must_pack)
        assert (plan.pack_buffer_bytes > 0) == has_packs
    with pytest.raises(BudgetError, match="for packing"):
        plan_memory(_demand(), budget_bytes=100 * MB, spill_bytes=10_000 * MB, must_pack=True)


def test_a_superbatch_that_was_asked_for_and_does_not_fit_is_refused() -> None:
    with pytest.raises(BudgetError, match="budget"):
        plan_memory(_demand(), budget_bytes=100 * MB, superbatch=4096)
