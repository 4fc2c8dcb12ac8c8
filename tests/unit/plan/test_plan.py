"""The division of a memory budget."""

import re
from contextlib import nullcontext, suppress
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from gloader.cache.curve import ReuseProfile
from gloader.core.units import parse_bytes
from gloader.errors import BudgetError, ConfigError
from gloader.plan.demand import Demand, TableDemand, topology_share
from gloader.plan.memory_plan import MemoryPlan, idle_part, plan_memory
from gloader.plan.predict import StepWork, TableWork
from gloader.plan.too_small import advice, rounded_up
from gloader.ssd_store.cost.io_rates import IoRates

MB = 1 << 20
RATES = IoRates(
    random_reads_per_s=80_000.0,
    medium_reads_per_s=38_000.0,
    wide_reads_per_s=13_000.0,
    read_bytes_per_s=1.1e9,
    write_bytes_per_s=1.7e9,
    pack_read_bytes_per_s=1.1e9,
)
ROWS = TableWork(rows=8_700.0, row_bytes=512, stored_row_bytes=512, file_rows=2_048_000.0, gap_bytes=4096)
WORK = StepWork(
    tables=(ROWS,),
    rates=RATES,
    sweep_gap_bytes=8192,
    sample_s=0.01,
    cores=2,
)
# Of 8,700 rows a fifth is in the next batch too, and the rest comes back ever more rarely.
REUSE = ReuseProfile(rows=8_700.0, num_nodes=2_048_000, next_uses=1_740.0 * 0.9 ** np.arange(1024) / 2)


def _table(**changes: Any) -> TableDemand:
    settings: dict[str, Any] = {
        "name": "node",
        "num_nodes": 2_048_000,
        "feature_bytes": 1000 * MB,
        "row_bytes": 512,
        "slot_bytes": 8,
        "batch_rows": 10_000,
        "store_bytes": 8 * MB,
        "stored_row_bytes": 512,
        "reuse": REUSE,
    }
    return TableDemand(**(settings | changes))


_OF_TABLES = {field.name for field in fields(TableDemand)}


def _demand(**changes: Any) -> Demand:
    """Return the demand of one table; ``changes`` of the table and of the whole are told apart by their names."""
    settings: dict[str, Any] = {
        "tables": (_table(**{name: value for name, value in changes.items() if name in _OF_TABLES}),),
        "topology_bytes": 10 * MB,
        "policy": "belady",
        "batch_rows": 10_000,
        "batch_edges": 50_000,
        "batches_in_flight": 4,
        "sampler_threads": 2,
        "sampler_map_bytes": 4 * 2_048_000,
        "work": WORK,
        "num_batches": None,
    }
    whole = {name: value for name, value in changes.items() if name not in _OF_TABLES - {"batch_rows"}}
    return Demand(**(settings | whole))


def _work(**changes: Any) -> StepWork:
    """Return the work of one table with ``changes``."""
    return replace(WORK, tables=(replace(ROWS, **changes),))


def _held(plan: MemoryPlan) -> int:
    return plan.total_bytes


@pytest.mark.parametrize("budget_mb", [100, 200, 500, 2000])
@pytest.mark.parametrize("cache", [None, 0, 5 * MB])
@pytest.mark.parametrize("spill", [0, 100 * MB, 100_000 * MB])
def test_the_parts_never_exceed_the_budget(budget_mb: int, cache: int | None, spill: int) -> None:
    plan = plan_memory(_demand(), budget_bytes=budget_mb * MB, cache_bytes=cache, spill_bytes=spill)
    assert _held(plan) <= budget_mb * MB
    assert plan.ring_bytes == plan.num_buffers * 10_000 * 512


@pytest.mark.reliability("J11")
def test_seeds_their_labels_and_orders_count() -> None:
    few, many = (plan_memory(_demand(num_seeds=n), budget_bytes=300 * MB) for n in (0, 2_000_000))
    held = [dict(plan.parts)["batches being sampled"] for plan in (few, many)]
    assert held[1] - held[0] == 80_000_000  # an id, a label and three places of 8 bytes
    assert many.cache_rows[0] < few.cache_rows[0]
    assert _held(many) <= 300 * MB


@pytest.mark.reliability("J11")
def test_what_calls_of_a_sampler_hold_counts_for_each_thread() -> None:
    few, many = (
        plan_memory(_demand(sampler_call_bytes=size, sampler_threads=3), budget_bytes=300 * MB)
        for size in (0, 5 * MB)
    )
    assert dict(many.parts)["batches being sampled"] - dict(few.parts)["batches being sampled"] == 15 * MB


def test_features_that_fit_are_held_and_the_cache_steps_aside() -> None:
    plan = plan_memory(_demand(), budget_bytes=2000 * MB)
    assert (plan.features, plan.cache_rows) == ("ram", (0,))
    assert dict(plan.parts)["features"] == 1000 * MB


def test_features_that_do_not_fit_are_read_and_the_rest_becomes_cache() -> None:
    plan = plan_memory(_demand(), budget_bytes=300 * MB)
    assert plan.features == "ssd"
    assert 300 * MB - _held(plan) < 540
    assert plan_memory(_demand(), budget_bytes=300 * MB, cache_bytes=MB).cache_rows == (MB // 512,)
    assert plan_memory(_demand(), budget_bytes=300 * MB, cache_bytes=0).cache_rows == (0,)


@pytest.mark.reliability("C11")
def test_a_cache_larger_than_the_features_is_clamped() -> None:
    plan = plan_memory(
        _demand(num_nodes=100_000, feature_bytes=50 * MB),
        budget_bytes=300 * MB,
        features="ssd",
        cache_bytes=900 * MB,
    )
    assert plan.cache_rows == (100_000,)


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


def test_a_cache_that_does_not_fit_is_told_of_one_that_does() -> None:
    demand = _demand(slot_bytes=64)  # an eighth of a row
    with pytest.raises(BudgetError) as caught:
        plan_memory(demand, budget_bytes=300 * MB, cache_bytes=290 * MB, features="ssd")
    said = re.search(r"leave ([\d.]+ MB)", str(caught.value))
    assert said is not None
    for share, fits in ((0.98, True), (1.02, False)):
        cache_bytes = int(share * parse_bytes(said[1]))
        with nullcontext() if fits else pytest.raises(BudgetError):
            plan_memory(demand, budget_bytes=300 * MB, cache_bytes=cache_bytes, features="ssd")


def test_a_topology_that_was_asked_into_most_of_the_budget_is_told_of() -> None:
    texts = []
    for topology_bytes in (10 * MB, 250 * MB):
        with pytest.raises(BudgetError) as caught:
            plan_memory(_demand(topology_bytes=topology_bytes, batch_rows=500_000), budget_bytes=280 * MB)
        texts.append(str(caught.value))
    assert ["topology='auto'" in text for text in texts] == [False, True]


def test_a_negative_cache_is_refused() -> None:
    with pytest.raises(ConfigError, match="-1"):
        plan_memory(_demand(), budget_bytes=300 * MB, cache_bytes=-1)


def test_topology_is_held_up_to_half_of_the_budget() -> None:
    assert topology_share(101) == 50


def test_packs_are_planned_where_they_are_faster_and_the_disk_has_room_for_two() -> None:
    for spill, has_packs in ((0, False), (100 * MB, False), (10_000 * MB, True)):
        plan = plan_memory(_demand(), budget_bytes=100 * MB, spill_bytes=spill, features="ssd")
        assert (plan.pack_buffer_bytes > 0) == has_packs
    plan = plan_memory(_demand(), budget_bytes=200 * MB, spill_bytes=10_000 * MB, must_pack=True)
    assert plan.pack_buffer_bytes > 0
    with pytest.raises(BudgetError, match="for packing"):
        plan_memory(_demand(), budget_bytes=70 * MB, spill_bytes=10_000 * MB, must_pack=True)


def test_staged_reads_that_were_asked_for_have_room_before_the_cache_has() -> None:
    demand = replace(_demand(), work=replace(WORK, strategy="staged"))
    ssd: dict[str, Any] = {"features": "ssd", "superbatch": 2}
    plan = plan_memory(demand, budget_bytes=200 * MB, **ssd)
    assert plan.step.strategy == "staged"
    # All rows of two batches, of which the first superbatch finds none in the cache; a third of what is idle.
    rows = 2 * 8_700 - 870
    assert idle_part(plan.spare_bytes) > 1.1 * rows * 512
    assert plan_memory(_demand(), budget_bytes=200 * MB, **ssd).cache_rows[0] > plan.cache_rows[0] > 0
    for budget in range(60 * MB, 200 * MB, 7 * MB):
        with suppress(BudgetError):
            plan = plan_memory(demand, budget_bytes=budget, **ssd)
            assert idle_part(plan.spare_bytes) > 1.1 * rows * 512


def test_staged_reads_that_were_asked_for_and_do_not_fit_are_refused_with_what_would_do() -> None:
    demand = replace(_demand(), work=replace(WORK, strategy="staged"))
    with pytest.raises(BudgetError, match=r"io_strategy='staged' needs 28.* \(superbatch=2\)") as caught:
        plan_memory(demand, budget_bytes=75 * MB, features="ssd", superbatch=2)
    more = re.search(r"raise memory_budget by ([\d.]+ MB)", str(caught.value))
    assert more is not None
    asked = 75 * MB + parse_bytes(more[1].replace(" ", "")) + MB // 10  # three digits are said
    assert plan_memory(demand, budget_bytes=asked, features="ssd", superbatch=2).step.strategy == "staged"


def test_rows_of_other_machines_are_never_predicted_to_be_read_by_each_batch_alone() -> None:
    """However few are missed: a plan that read them so would leave no room for those of the first superbatch."""
    alone: dict[str, Any] = {"features": "ssd", "budget_bytes": 1200 * MB, "spill_bytes": 10_000 * MB}
    copies = plan_memory(_demand(), **alone)
    assert any("read direct" in way for way in copies.candidates)
    assert copies.would_fit
    demand = replace(_demand(), work=replace(WORK, is_exchanged=True))
    plan = plan_memory(demand, **alone, must_pack=True)
    assert plan.pack_buffer_bytes > 0
    assert not any("read direct" in way for way in plan.candidates)
    assert not plan.would_fit
    # What fits nowhere is said by the machines, when they know the rows.
    assert plan_memory(demand, features="ssd", budget_bytes=100 * MB).superbatch.num_batches >= 1


def test_less_memory_means_fewer_buffers_and_one_suffices() -> None:
    wide = _demand(row_bytes=6528, stored_row_bytes=6528, feature_bytes=13_000 * MB)
    wide = replace(wide, work=_work(row_bytes=6528, stored_row_bytes=6528, gap_bytes=0))
    counts = [
        plan_memory(wide, budget_bytes=budget * MB, features="ssd").num_buffers for budget in (140, 2000)
    ]
    assert counts == [1, 5]
    with pytest.raises(BudgetError, match="for the features of a batch"):
        plan_memory(wide, budget_bytes=100 * MB, features="ssd")
    with pytest.raises(
        BudgetError, match="for the features of 4 batches"
    ):  # of two ranks, each of which holds one
        plan_memory(replace(wide, num_ranks=2), budget_bytes=140 * MB, features="ssd")


def test_the_plan_tells_the_best_three_ways_and_when_the_ssd_is_not_needed() -> None:
    plan = plan_memory(_demand(), budget_bytes=2000 * MB, features="ssd")
    assert plan.would_fit
    assert len(plan.candidates) == 3
    assert "a step: 5 feature buffers, superbatches of" in plan.candidates[0]
    assert not plan_memory(_demand(), budget_bytes=300 * MB).would_fit


def test_a_superbatch_that_was_asked_for_and_does_not_fit_is_refused() -> None:
    with pytest.raises(BudgetError, match="budget"):
        plan_memory(_demand(), budget_bytes=100 * MB, superbatch=4096)


def _part(plan: MemoryPlan, name: str) -> int:
    return dict(plan.parts)[name]


def test_the_table_of_the_plan_has_room_for_a_superbatch_and_its_look_ahead() -> None:
    on_ssd, in_memory = (
        plan_memory(_demand(), budget_bytes=2000 * MB, features=where) for where in ("ssd", "ram")
    )
    assert on_ssd.planned_accesses == (2 * on_ssd.superbatch.num_batches * 10_000,)
    assert in_memory.planned_accesses == (0,)


def test_every_rank_has_buffers_of_its_own() -> None:
    alone, two = (
        plan_memory(_demand(num_ranks=ranks), budget_bytes=2000 * MB, features="ssd") for ranks in (1, 2)
    )
    assert _part(alone, "feature buffers") == alone.num_buffers * 10_000 * 512
    assert _part(two, "feature buffers") == two.num_buffers * 10_000 * 512 * 2


def test_every_sampler_thread_has_a_map_of_the_nodes_and_a_batch() -> None:
    one, three = (
        _part(plan_memory(_demand(sampler_threads=threads), budget_bytes=2000 * MB), "batches being sampled")
        for threads in (1, 3)
    )
    rows_and_edges = 44 * 10_000 + 16 * 50_000
    assert three - one == 2 * (4 * 2_048_000 + rows_and_edges)


def test_the_bit_of_each_row_by_which_misses_are_counted_is_in_the_plan() -> None:
    """Of a billion edges it is 125 MB, whatever the batches are."""
    few, many = _table(num_nodes=10**6, batch_rows=100), _table(num_nodes=10**9, batch_rows=100)
    planned = [table.planning_bytes(_demand().policy, 4) for table in (few, many)]
    assert planned[1] - planned[0] >= 124 * 10**6


@pytest.mark.reliability("S11")
@pytest.mark.parametrize(
    "num_bytes", [1, 999, 1000, 1001, 99_999, 1_234_567, 349_000_001, 350_000_000, 9_999_999_999]
)
def test_a_budget_that_is_advised_is_enough_and_is_short_to_type(num_bytes: int) -> None:
    asked = advice(rounded_up(num_bytes)).split('"')[1]
    assert num_bytes <= parse_bytes(asked) <= max(1.01 * num_bytes, num_bytes + 1)
    assert len(asked.strip("KMGTB").replace(".", "")) <= 3
