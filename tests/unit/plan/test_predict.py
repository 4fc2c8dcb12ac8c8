"""Predicted seconds: never more for more memory, the least of all ways that fit, reads as they are really planned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gloader.cache.curve import ReuseProfile, cache_outlook
from gloader.errors import BudgetError
from gloader.plan.memory_plan import MemoryPlan, plan_memory
from gloader.plan.predict import StepShares, expected_reads, predict_step, spread_of
from gloader.ssd_store.cost.strategy import superbatch_sizes
from gloader.ssd_store.miss_sources import in_ram_bytes
from gloader.ssd_store.read.extents import num_pages, plan_extents

from .test_plan import MB, RATES, REUSE, ROWS, WORK, _demand, _work

_MOST = StepShares(
    num_buffers=5,
    num_batches=512,
    cache_rows=(10**9,),
    kept_share=1.0,
    staging_bytes=2**50,
    spill_bytes=2**50,
)
_DEMANDS = st.builds(
    lambda rows, row_bytes, share, fall, bound: replace(
        _demand(
            batch_rows=int(1.15 * rows),
            row_bytes=row_bytes,
            stored_row_bytes=row_bytes,
            num_nodes=50 * rows,
            feature_bytes=50 * rows * row_bytes,
            reuse=ReuseProfile(
                rows=rows, num_nodes=50 * rows, next_uses=share * rows * (1 - fall) * fall ** np.arange(1024)
            ),
        ),
        work=replace(
            _work(rows=float(rows), row_bytes=row_bytes, stored_row_bytes=row_bytes, file_rows=50.0 * rows),
            rates=replace(RATES, read_bytes_per_s=bound),
        ),
    ),
    st.integers(100, 20_000),
    st.sampled_from([8, 512, 4096, 6528, 40_000]),
    st.floats(0, 1),
    st.floats(0.1, 0.99),
    st.sampled_from([0.2e9, 1.1e9, 7e9]),
)


def _plan(demand, budget_mb: int, spill_mb: int) -> MemoryPlan | None:  # type: ignore[no-untyped-def]
    try:
        return plan_memory(demand, budget_bytes=budget_mb * MB, spill_bytes=spill_mb * MB)
    except BudgetError:
        return None


@settings(max_examples=12, deadline=None)
@given(_DEMANDS, st.integers(40, 3000), st.integers(0, 3000), st.sampled_from([0, 500, 50_000]))
def test_a_plan_fits_and_more_memory_never_predicts_more_seconds(demand, budget, more, spill) -> None:  # type: ignore[no-untyped-def]
    small, large = _plan(demand, budget, spill), _plan(demand, budget + more, spill)
    if small is None:
        return
    assert large is not None
    for plan in (small, large):
        assert plan.total_bytes <= plan.budget_bytes
    assert large.predicted_step_s <= small.predicted_step_s * (1 + 1e-9)


def test_the_plan_is_the_best_of_all_ways_that_fit() -> None:
    # All ways are tried again here with the shares that the plan leaves over, one at a time: none may be faster.
    demand = _demand()
    plan = plan_memory(demand, budget_bytes=150 * MB, spill_bytes=10_000 * MB, features="ssd")
    held = dict(plan.parts)
    left = 150 * MB - held["batches being sampled"] - held["edges"] - demand.store_bytes
    best = np.inf
    for size in superbatch_sizes():
        outlook = cache_outlook(demand.tables[0].reuse, "belady", num_batches=size)
        for buffers in range(1, 6):
            for kept in (0.0, 1 / 16, 1 / 4, 1.0):
                for spill in (0, 10_000 * MB):
                    for rows in (0, 1000, 10_000, 50_000, 100_000, 150_000):
                        shares = StepShares(
                            num_buffers=buffers,
                            num_batches=size,
                            cache_rows=(rows,),
                            kept_share=kept,
                            staging_bytes=0,
                            spill_bytes=spill,
                        )
                        # More is held beside these; a way that does not fit even without it is none.
                        least = buffers * demand.buffer_bytes + rows * 520 + 12 * size * demand.batch_rows
                        least += int(kept * 3 * size * 1_200_000) + (16 * MB if spill else 0) + 16 * 2_048_000
                        if least <= left:
                            best = min(best, predict_step(demand.work, shares, (outlook,)).weighed_s)
    assert plan.predicted_step_s <= best


@pytest.mark.parametrize("row_bytes", [512, 6528])
@pytest.mark.parametrize("gap_bytes", [0, 8192])
@pytest.mark.parametrize("rows", [50, 2000, 9000])
def test_expected_reads_are_those_that_are_planned(row_bytes: int, gap_bytes: int, rows: int) -> None:
    wanted = np.sort(np.random.default_rng(1).choice(20_000, rows, replace=False))
    planned = plan_extents(
        wanted, row_bytes=row_bytes, data_offset=4096, max_gap_bytes=gap_bytes, max_extent_bytes=128 * 1024
    )
    requests, num_bytes = expected_reads(rows, file_rows=20_000, row_bytes=row_bytes, gap_bytes=gap_bytes)
    assert num_bytes == pytest.approx(planned.num_bytes, rel=0.12)
    assert requests == pytest.approx(len(planned), rel=0.5)


def test_rows_that_lie_together_are_found_by_their_pages() -> None:
    rows = np.arange(3000, 4000)
    pages = num_pages(rows, row_bytes=512)
    assert pages == 125
    assert spread_of(pages, 1000, num_rows=100_000, row_bytes=512) < 1100
    apart = np.arange(0, 100_000, 100)
    assert spread_of(num_pages(apart, row_bytes=512), 1000, num_rows=100_000, row_bytes=512) == pytest.approx(
        1e5
    )


def test_nothing_is_faster_than_features_in_memory() -> None:
    outlook = cache_outlook(REUSE, "belady", num_batches=512)
    on_ssd = predict_step(WORK, _MOST, (outlook,))
    in_memory = predict_step(WORK, _MOST, None)
    assert in_memory.seconds <= on_ssd.seconds
    assert (in_memory.strategy, in_memory.disk_s) == (None, 0.0)


def test_packs_need_disk_for_two_superbatches() -> None:
    work = replace(WORK, strategy="packed")
    shares = replace(_MOST, num_batches=4, cache_rows=(0,), staging_bytes=0)
    outlook = cache_outlook(REUSE, "belady", num_batches=4)
    two = 2 * 4 * round(outlook.misses(0)) * ROWS.stored_row_bytes
    for spill, strategy in ((two, "packed"), (two - 1, "direct")):
        assert predict_step(work, replace(shares, spill_bytes=spill), (outlook,)).strategy == strategy


def test_a_third_buffer_ends_the_turns_of_those_that_share_one() -> None:
    outlook = cache_outlook(REUSE, "belady", num_batches=4)
    shares = replace(_MOST, cache_rows=(0,), staging_bytes=0, spill_bytes=0)  # all is read
    one, two, three, four = (
        # Without what more buffers do to slow batches.
        predict_step(WORK, replace(shares, num_buffers=count), (outlook,)).seconds / (1 + 0.1 / count)
        for count in (1, 2, 3, 4)
    )
    assert one > two > three == pytest.approx(four)


def test_a_core_checks_rows_once_where_they_are_read_and_twice_where_they_are_packed() -> None:
    """On a disk that takes no time, what the processor does is all there is."""
    no_time = dict.fromkeys(("random_reads_per_s", "medium_reads_per_s", "wide_reads_per_s"), 1e18)
    no_time |= dict.fromkeys(("read_bytes_per_s", "write_bytes_per_s", "pack_read_bytes_per_s"), 1e18)
    shares = replace(_MOST, num_batches=4, cache_rows=(0,), staging_bytes=0)
    outlook = cache_outlook(REUSE, "belady", num_batches=4)
    direct, packed = (
        predict_step(
            replace(WORK, cores=1, strategy=strategy, rates=replace(RATES, **no_time)), shares, (outlook,)
        )
        for strategy in ("direct", "packed")
    )
    checked = outlook.misses(0) * ROWS.stored_row_bytes / 2e9
    assert packed.seconds - direct.seconds == pytest.approx(checked, rel=0.3)


def test_rows_are_staged_where_a_tenth_more_than_predicted_would_fit() -> None:
    work = replace(WORK, strategy="staged")
    outlook = cache_outlook(REUSE, "belady", num_batches=4)
    rows = outlook.distinct_misses(0, 4)
    for factor, strategy in ((1.05, "direct"), (1.15, "staged")):
        shares = replace(
            _MOST,
            num_batches=4,
            cache_rows=(0,),
            spill_bytes=0,
            staging_bytes=in_ram_bytes(round(factor * rows), ROWS.stored_row_bytes),
        )
        assert predict_step(work, shares, (outlook,)).strategy == strategy
