"""Counted misses against the extents that would be planned for them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.errors import ConfigError, PlanError, ShapeError
from gloader.ssd_store.cost.strategy import MissCounts, count_misses
from gloader.ssd_store.read.extents import ALIGNMENT, min_extent_bytes, plan_extents

LIMITS = {
    "num_rows": 100,
    "row_bytes": 400,
    "data_offset": 4096,
    "gap_bytes": 4096,
    "sweep_gap_bytes": 8192,
    "max_extent_bytes": 65536,
}


@st.composite
def superbatches(draw: st.DrawFn) -> tuple[list[np.ndarray], dict[str, int]]:
    num_rows = draw(st.sampled_from([1, 63, 64, 65, 130, 5000]))
    row_bytes = draw(st.one_of(st.integers(1, 64), st.integers(1, 9000)))
    batch = st.sets(st.integers(0, num_rows - 1), max_size=40)
    misses = [np.array(sorted(ids), np.int64) for ids in draw(st.lists(batch, max_size=5))]
    gaps = st.sampled_from([0, 1, 4096, 12288, 10**6])
    limits = {
        "num_rows": num_rows,
        "row_bytes": row_bytes,
        "data_offset": draw(st.sampled_from([0, 4096, 128, 5000])),
        "gap_bytes": draw(gaps),
        "sweep_gap_bytes": draw(gaps),
        "max_extent_bytes": min_extent_bytes(row_bytes) + draw(st.sampled_from([0, 1, 4096, 262144])),
    }
    return misses, limits


def planned_counts(misses: list[np.ndarray], limits: dict[str, int]) -> MissCounts:
    """What the planner of extents says, added up."""
    layout = {name: limits[name] for name in ("row_bytes", "data_offset", "max_extent_bytes")}
    batches = [plan_extents(rows, max_gap_bytes=limits["gap_bytes"], **layout) for rows in misses]
    union = np.unique(np.concatenate([np.empty(0, np.int64), *misses]))
    sweep = plan_extents(union, max_gap_bytes=limits["sweep_gap_bytes"], **layout)
    pages = [-(-len(rows) * limits["row_bytes"] // ALIGNMENT) for rows in misses]
    return MissCounts(
        num_batches=len(misses),
        rows=sum(map(len, misses)),
        unique_rows=len(union),
        row_bytes=limits["row_bytes"],
        direct_requests=sum(map(len, batches)),
        direct_bytes=sum(plan.num_bytes for plan in batches),
        sweep_requests=len(sweep),
        sweep_bytes=sweep.num_bytes,
        pack_bytes=ALIGNMENT * sum(pages),
    )


@given(superbatches())
def test_the_counts_are_those_of_planned_extents(superbatch: tuple[list[np.ndarray], dict[str, int]]) -> None:
    misses, limits = superbatch
    assert count_misses(misses, **limits) == planned_counts(misses, limits)


def test_every_bit_of_every_word_is_found() -> None:
    every = np.arange(1000)
    for rows in (every, every[::2], every[63::64], every[64::64]):
        found = count_misses([rows], **{**LIMITS, "num_rows": 1000})
        assert found == planned_counts([rows], LIMITS)


def test_rows_far_out_do_not_wrap() -> None:
    rows = np.array([0, 2**20, 2**31 + 1])
    limits = {**LIMITS, "num_rows": 2**31 + 2, "row_bytes": 4096}
    assert count_misses([rows], **limits) == planned_counts([rows], limits)


def test_a_batch_may_be_a_view_that_cannot_be_written() -> None:
    rows = np.arange(0, 100, 2)[::2]
    rows.setflags(write=False)
    assert count_misses([rows], **LIMITS) == planned_counts([rows], LIMITS)


@pytest.mark.parametrize(
    ("rows", "position"), [([3, 3], 1), ([3, 2], 1), ([1, 5, 100], 2), ([-1], 0), ([2**62], 0)]
)
def test_rows_out_of_order_or_range_are_refused(rows: list[int], position: int) -> None:
    with pytest.raises(PlanError, match=f"missing row {rows[position]} at position {position} of batch 1"):
        count_misses([np.arange(3), np.array(rows)], **LIMITS)


@pytest.mark.parametrize("rows", [np.arange(3, dtype=np.int32), np.zeros((2, 2), np.int64)])
def test_other_arrays_are_refused(rows: np.ndarray) -> None:
    with pytest.raises(ShapeError, match="missing rows of batch 0 must be a one-dimensional int64 array"):
        count_misses([rows], **LIMITS)


@pytest.mark.parametrize(
    "name", ["num_rows", "row_bytes", "data_offset", "gap_bytes", "sweep_gap_bytes", "max_extent_bytes"]
)
def test_impossible_sizes_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        count_misses([], **{**LIMITS, name: -1})
