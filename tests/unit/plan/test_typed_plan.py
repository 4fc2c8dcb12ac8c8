"""The division of a memory budget between several node types with features."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gloader.cache import make_planner, slot_bytes
from gloader.cache.curve import ReuseProfile, cache_outlook
from gloader.errors import BudgetError
from gloader.plan.demand import Demand, TableDemand
from gloader.plan.memory_plan import plan_memory
from gloader.plan.predict import StepShares, TableWork, predict_step
from gloader.ssd_store import packer_memory_bytes

from .test_plan import MB, WORK, _demand, _part, _table

if TYPE_CHECKING:
    from gloader.plan.memory_plan import MemoryPlan


def _named(name: str, *, num_nodes: int, row_bytes: int, rows: int, again: float = 0.3) -> TableDemand:
    """Return a table of which a batch has ``rows``, whose next use is ``again`` times as likely in the next one."""
    return _table(
        name=name,
        num_nodes=num_nodes,
        feature_bytes=num_nodes * row_bytes,
        row_bytes=row_bytes,
        stored_row_bytes=row_bytes,
        batch_rows=int(1.15 * rows),
        store_bytes=MB,
        reuse=ReuseProfile(
            rows=float(rows),
            num_nodes=num_nodes,
            next_uses=again * rows * (1 - 0.9) * 0.9 ** np.arange(1024),
        ),
    )


def _typed(*tables: TableDemand, **changes: Any) -> Demand:
    """Return the demand of ``tables``, each as spread over its file as over its nodes."""
    work = tuple(
        TableWork(
            rows=table.reuse.rows,
            row_bytes=table.row_bytes,
            stored_row_bytes=table.stored_row_bytes,
            file_rows=float(table.num_nodes),
            gap_bytes=4096,
        )
        for table in tables
    )
    return replace(_demand(work=replace(WORK, tables=work), **changes), tables=tables)


PAPER = _named("paper", num_nodes=2_000_000, row_bytes=512, rows=8_000, again=0.9)
AUTHOR = _named("author", num_nodes=1_000_000, row_bytes=1536, rows=3_000)
PLACE = _named("place", num_nodes=2_000, row_bytes=256, rows=500, again=0.9)


def test_every_table_has_parts_of_its_own_and_they_sum_up_to_the_total() -> None:
    plan = plan_memory(_typed(PAPER, AUTHOR, PLACE), budget_bytes=500 * MB)
    assert plan.features == "ssd"
    names = [name for name, _ in plan.parts]
    size = plan.superbatch.num_batches
    assert names == [
        "batches being sampled",
        "edges",
        "feature buffers",
        "reads in flight and checksums",
        *(f"traces and plans of {size} batches, {name}" for name in ("paper", "author", "place")),
        "sampled batches kept",
        *(f"host cache of {name}" for name in ("paper", "author", "place")),
    ]
    assert plan.total_bytes == sum(num_bytes for _, num_bytes in plan.parts) <= 500 * MB
    assert plan.ring_bytes == plan.num_buffers * sum(
        t.batch_rows * t.row_bytes for t in (PAPER, AUTHOR, PLACE)
    )
    assert plan.planned_accesses == tuple(2 * size * t.batch_rows for t in (PAPER, AUTHOR, PLACE))
    assert [_part(plan, f"host cache of {t.name}") for t in (PAPER, AUTHOR, PLACE)] == [
        rows * (t.row_bytes + 8) for rows, t in zip(plan.cache_rows, (PAPER, AUTHOR, PLACE), strict=True)
    ]


def test_a_small_table_that_is_used_again_is_cached_whole_and_the_others_share_what_is_left() -> None:
    plan = plan_memory(_typed(PAPER, AUTHOR, PLACE), budget_bytes=500 * MB)
    assert plan.cache_rows[2] == 2_000
    assert 500 * MB - plan.total_bytes < 1544
    assert plan.missed_bytes[2] == 0
    assert plan.missed_bytes[0] > 0


def test_features_of_all_tables_are_held_where_they_fit() -> None:
    plan = plan_memory(_typed(PAPER, AUTHOR, PLACE), budget_bytes=4000 * MB)
    assert plan.features == "ram"
    assert (plan.cache_rows, plan.planned_accesses, plan.missed_bytes) == ((0, 0, 0),) * 3
    assert [_part(plan, f"features of {t.name}") for t in (PAPER, AUTHOR, PLACE)] == [
        t.feature_bytes for t in (PAPER, AUTHOR, PLACE)
    ]


@pytest.mark.parametrize("features", ["auto", "ram", "ssd"])
def test_without_features_nothing_is_read_or_held_for_them(features: str) -> None:
    plan = plan_memory(_typed(), budget_bytes=200 * MB, features=features, spill_bytes=10**9)  # type: ignore[arg-type]
    assert (plan.features, plan.cache_rows, plan.ring_bytes, plan.pack_buffer_bytes) == ("ram", (), 0, 0)
    assert [name for name, num_bytes in plan.parts if num_bytes] == ["batches being sampled", "edges"]


def test_a_cache_that_was_asked_for_is_divided_and_its_slots_come_on_top() -> None:
    plan = plan_memory(_typed(PAPER, AUTHOR, PLACE), budget_bytes=500 * MB, cache_bytes=20 * MB)
    held = sum(rows * t.row_bytes for rows, t in zip(plan.cache_rows, (PAPER, AUTHOR, PLACE), strict=True))
    assert 20 * MB - 1536 < held <= 20 * MB
    none = plan_memory(_typed(PAPER, AUTHOR), budget_bytes=500 * MB, cache_bytes=0)
    assert none.cache_rows == (0, 0)


def test_a_table_without_nodes_costs_nothing_and_changes_nothing() -> None:
    empty = replace(_named("idle", num_nodes=0, row_bytes=64, rows=0), store_bytes=0)
    with_it = plan_memory(_typed(PAPER, empty, AUTHOR), budget_bytes=500 * MB)
    without = plan_memory(_typed(PAPER, AUTHOR), budget_bytes=500 * MB)
    assert with_it.cache_rows[1] == 0
    assert _part(with_it, "host cache of idle") == 0
    planned = with_it.superbatch.num_batches
    assert planned == without.superbatch.num_batches
    assert with_it.predicted_step_s == pytest.approx(without.predicted_step_s, rel=0.01)


def test_two_halves_of_a_table_are_planned_as_the_whole() -> None:
    """Tables that are alike get the same, and what they miss together takes the disk as long."""
    whole = _named("whole", num_nodes=2_000_000, row_bytes=512, rows=8_000)
    halves = [_named(name, num_nodes=1_000_000, row_bytes=512, rows=4_000) for name in ("a", "b")]
    one = plan_memory(_typed(whole), budget_bytes=300 * MB)
    two = plan_memory(_typed(*halves), budget_bytes=300 * MB)
    assert sum(two.cache_rows) == pytest.approx(one.cache_rows[0], rel=0.02)
    assert two.predicted_step_s == pytest.approx(one.predicted_step_s, rel=0.05)
    outlooks = [cache_outlook(t.reuse, "belady", num_batches=16) for t in (whole, *halves)]
    shares = {"num_buffers": 3, "num_batches": 16, "kept_share": 0.0, "staging_bytes": 0, "spill_bytes": 0}
    apart = predict_step(
        _typed(*halves).work, StepShares(cache_rows=(20_000, 20_000), **shares), outlooks[1:]
    )
    together = predict_step(_typed(whole).work, StepShares(cache_rows=(40_000,), **shares), outlooks[:1])
    assert apart.disk_s == pytest.approx(together.disk_s, rel=0.02)
    assert apart.miss_rate == pytest.approx(together.miss_rate, rel=1e-6)


def test_missing_rows_are_staged_where_those_of_all_tables_fit() -> None:
    demand = _typed(PAPER, AUTHOR)
    work = replace(demand.work, strategy="staged")
    outlooks = [cache_outlook(t.reuse, "belady", num_batches=4) for t in demand.tables]
    shares = StepShares(
        num_buffers=3, num_batches=4, cache_rows=(0, 0), kept_share=0.0, staging_bytes=2**50, spill_bytes=0
    )
    needed = sum(predict_step(work, shares, outlooks).missed_bytes)
    for staging, strategy in ((needed, "staged"), (needed - 1, "direct")):
        assert predict_step(work, replace(shares, staging_bytes=staging), outlooks).strategy == strategy


def test_a_batch_that_does_not_fit_tells_of_the_rows_of_each_type() -> None:
    with pytest.raises(
        BudgetError, match=r"9,200 rows of 512 B of paper and 3,449 rows of 1,536 B of author"
    ):
        plan_memory(_typed(PAPER, AUTHOR), budget_bytes=40 * MB)
    with pytest.raises(BudgetError, match=r"loading needs .* for batches being sampled"):
        plan_memory(_typed(topology_bytes=50 * MB), budget_bytes=60 * MB)


_SOME = st.lists(
    st.builds(
        lambda rows, row_bytes, again, spread: _named(
            "t", num_nodes=rows * spread, row_bytes=row_bytes, rows=rows, again=again
        ),
        st.integers(0, 10_000),
        st.sampled_from([8, 256, 1536, 6528]),
        st.floats(0, 1),
        st.integers(1, 60),
    ),
    min_size=2,
    max_size=4,
)


@settings(max_examples=12, deadline=None)
@given(_SOME, st.integers(60, 2000), st.integers(0, 2000), st.sampled_from([0, 500, 50_000]))
def test_a_plan_fits_and_more_memory_never_predicts_more_seconds(
    tables: list[TableDemand], budget: int, more: int, spill: int
) -> None:
    demand = _typed(*tables)
    found = [_plan_or_none(demand, size, spill) for size in (budget, budget + more)]
    for plan in found:
        if plan is not None:
            assert plan.total_bytes == sum(num_bytes for _, num_bytes in plan.parts) <= plan.budget_bytes
            assert len(plan.cache_rows) == len(plan.missed_bytes) == len(tables)
    if found[0] is not None:
        assert found[1] is not None
        assert found[1].predicted_step_s <= found[0].predicted_step_s * (1 + 1e-9)


def _plan_or_none(demand: Demand, budget_mb: int, spill_mb: int) -> MemoryPlan | None:
    try:
        return plan_memory(demand, budget_bytes=budget_mb * MB, spill_bytes=spill_mb * MB)
    except BudgetError:
        return None


@pytest.mark.parametrize("policy", ["belady", "lru"])
def test_planners_of_all_tables_take_no_more_than_the_plan_names(policy: str) -> None:
    """No array of a type's nodes, beyond those: counted while superbatches are planned, table after table."""
    tables = [
        replace(table, slot_bytes=slot_bytes(policy))  # type: ignore[arg-type]
        for table in (
            _named("paper", num_nodes=300_000, row_bytes=64, rows=900, again=0.9),
            _named("author", num_nodes=3_000_000, row_bytes=64, rows=300),
        )
    ]
    plan = plan_memory(
        _typed(*tables, policy=policy), budget_bytes=120 * MB, superbatch=8, features="ssd", cache_bytes=MB
    )
    numbers = np.random.default_rng(1)
    for table, rows, accesses in zip(tables, plan.cache_rows, plan.planned_accesses, strict=True):
        batches = [
            np.sort(numbers.choice(table.num_nodes, table.batch_rows, replace=False)) for _ in range(16)
        ]
        peaks = []
        for _ in range(2):  # the first time kernels are loaded
            tracemalloc.start()
            planner = make_planner(
                policy,  # type: ignore[arg-type]
                num_nodes=table.num_nodes,
                capacity=rows,
                expected_accesses=accesses,
            )
            planner.plan(batches[:8], batches[8:])
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        named = _part(plan, f"traces and plans of 8 batches, {table.name}")
        # What is kept beside each row is named with the cache.
        assert rows > 100
        assert peaks[1] <= named + rows * table.slot_bytes + 16 * 1024


def test_tables_take_turns_with_the_buffers_that_pack_their_rows() -> None:
    plan = plan_memory(
        _typed(PAPER, AUTHOR), budget_bytes=500 * MB, superbatch=16, spill_bytes=2**40, must_pack=True
    )
    assert plan.features == "ssd"
    assert packer_memory_bytes(16, room=0) <= plan.pack_buffer_bytes < 2 * packer_memory_bytes(16, room=0)
