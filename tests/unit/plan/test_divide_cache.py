"""The host cache over several tables: the best division there is, however little or much there is of it."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.cache.curve import CacheOutlook, ReuseProfile, cache_outlook
from gloader.plan.memory_plan import CachedTable, divide_cache, share_out

if TYPE_CHECKING:
    from collections.abc import Sequence


def _outlook(hits: Sequence[float]) -> CacheOutlook:
    """Return the outlook of a table of ``len(hits) - 1`` rows with these hits of a batch, by slots."""
    num_rows = len(hits) - 1
    return CacheOutlook(
        profile=ReuseProfile(rows=float(hits[-1]), num_nodes=num_rows, next_uses=np.zeros(4)),
        capacities=np.arange(num_rows + 1, dtype=np.float64),
        hits=np.array(hits, dtype=np.float64),
        distances=np.zeros(num_rows + 1),
    )


def _hull(hits: Sequence[float]) -> list[float]:
    """Return the smallest concave curve above ``hits``, by trying all straight lines."""
    last = len(hits) - 1
    return [
        max(
            hits[a] + (hits[b] - hits[a]) * (i - a) / max(b - a, 1)
            for a in range(i + 1)
            for b in range(i, last + 1)
        )
        for i in range(last + 1)
    ]


_CURVES = st.lists(st.integers(0, 9), max_size=6).map(lambda steps: [0.0, *np.cumsum(steps).astype(float)])
_TABLES = st.lists(
    st.tuples(_CURVES, st.sampled_from([1, 2, 8]), st.sampled_from([0, 1, 3])), min_size=1, max_size=3
)


@given(_TABLES, st.integers(0, 120))
def test_no_division_saves_more_bytes_than_the_leftover_could(
    given_tables: list[tuple[list[float], int, int]], num_bytes: int
) -> None:
    tables = [CachedTable(len(hits) - 1, row, row + slot) for hits, row, slot in given_tables]
    rows = divide_cache(num_bytes, tables, [_outlook(hits) for hits, _, _ in given_tables])
    curves = [[row * y for y in _hull(hits)] for hits, row, _ in given_tables]
    held = sum(count * table.held_bytes for count, table in zip(rows, tables, strict=True))
    assert held <= num_bytes
    assert all(0 <= count <= table.num_rows for count, table in zip(rows, tables, strict=True))
    best = max(
        sum(curve[count] for curve, count in zip(curves, counts, strict=True))
        for counts in product(*(range(table.num_rows + 1) for table in tables))
        if sum(count * table.held_bytes for count, table in zip(counts, tables, strict=True)) <= num_bytes
    )
    saved = sum(curve[count] for curve, count in zip(curves, rows, strict=True))
    # Of the row that would be next, what the bytes that are left over would save if it could be cut.
    slopes = [
        (curve[count + 1] - curve[count]) / table.held_bytes
        for curve, count, table in zip(curves, rows, tables, strict=True)
        if count < table.num_rows
    ]
    assert saved + max(slopes, default=0.0) * (num_bytes - held) >= best - 1e-6
    # What is left over is less than a row: of the table that would be next, and that saves most.
    if slopes:
        assert num_bytes - held < max(table.held_bytes for table in tables)


@given(_TABLES, st.integers(0, 120), st.integers(0, 40))
def test_more_bytes_never_mean_fewer_rows_of_any_table(
    given_tables: list[tuple[list[float], int, int]], num_bytes: int, more: int
) -> None:
    tables = [CachedTable(len(hits) - 1, row, row + slot) for hits, row, slot in given_tables]
    outlooks = [_outlook(hits) for hits, _, _ in given_tables]
    fewer = divide_cache(num_bytes, tables, outlooks)
    many = divide_cache(num_bytes + more, tables, outlooks)
    assert all(a <= b for a, b in zip(fewer, many, strict=True))


@given(_TABLES)
def test_tables_that_all_fit_are_cached_whole(given_tables: list[tuple[list[float], int, int]]) -> None:
    tables = [CachedTable(len(hits) - 1, row, row + slot) for hits, row, slot in given_tables]
    enough = sum(table.num_rows * table.held_bytes for table in tables)
    rows = divide_cache(enough, tables, [_outlook(hits) for hits, _, _ in given_tables])
    assert rows == tuple(table.num_rows for table in tables)


@given(_CURVES, st.integers(0, 200), st.integers(1, 9))
def test_a_table_alone_gets_all_that_there_is(hits: list[float], num_bytes: int, held_bytes: int) -> None:
    alone = [CachedTable(len(hits) - 1, 1, held_bytes)]
    assert divide_cache(num_bytes, alone, [_outlook(hits)]) == (min(num_bytes // held_bytes, len(hits) - 1),)


def test_the_next_byte_saves_the_same_bytes_in_each_table() -> None:
    """Rows of one table are wide and used again late, of the other narrow and used again soon."""
    profiles = [
        ReuseProfile(rows=5_000.0, num_nodes=1_000_000, next_uses=500 * 0.95 ** np.arange(1024)),
        ReuseProfile(rows=9_000.0, num_nodes=400_000, next_uses=1_800 * 0.8 ** np.arange(1024)),
    ]
    outlooks = [cache_outlook(profile, "belady", num_batches=64) for profile in profiles]
    tables = [CachedTable(1_000_000, 1536, 1544), CachedTable(400_000, 512, 520)]
    rows = divide_cache(60 << 20, tables, outlooks)
    saved = [
        (outlook.misses(count - 200) - outlook.misses(count + 200)) * table.row_bytes / table.held_bytes
        for count, table, outlook in zip(rows, tables, outlooks, strict=True)
    ]
    assert min(rows) > 1000
    # A curve is straight between two distances: slopes agree as far as neighbouring ones differ.
    assert saved[0] == pytest.approx(saved[1], rel=0.1)


def test_bytes_that_are_too_few_for_the_best_row_are_left_over() -> None:
    """Spent on narrow rows of the other table they would be taken back for a byte more."""
    wide, narrow = _outlook([0.0, 9.0]), _outlook([0.0, 1.0, 2.0, 3.0])
    tables = [CachedTable(1, 8, 8), CachedTable(3, 1, 2)]
    found = [divide_cache(num_bytes, tables, [wide, narrow]) for num_bytes in (7, 8, 9, 10)]
    assert found == [(0, 0), (1, 0), (1, 0), (1, 1)]


def test_what_is_kept_beside_a_row_and_how_wide_it_is_count() -> None:
    # A hit saves 8 bytes of 8, or 2 of 5: the second table's three hits a row save less by byte.
    tables = [CachedTable(2, 8, 8), CachedTable(2, 2, 5)]
    assert divide_cache(16, tables, [_outlook([0.0, 2.0, 4.0]), _outlook([0.0, 3.0, 6.0])]) == (2, 0)


def test_a_table_that_is_never_read_gets_only_what_saves_nothing_elsewhere() -> None:
    silent, read = _outlook([0.0] * 11), _outlook([0.0, 4.0, 6.0])
    tables = [CachedTable(10, 8, 8), CachedTable(2, 8, 8)]
    assert divide_cache(16, tables, [silent, read]) == (0, 2)
    assert divide_cache(40, tables, [silent, read]) == (3, 2)


def test_tables_that_save_alike_are_filled_in_their_order() -> None:
    alike = [_outlook([0.0, 5.0, 10.0])] * 2
    assert divide_cache(24, [CachedTable(2, 8, 8)] * 2, alike) == (2, 1)


def test_a_table_that_pays_only_as_a_whole_is_cached_whole() -> None:
    late, even = _outlook([0.0, 0.0, 0.0, 9.0]), _outlook([0.0, 2.0, 4.0, 6.0])
    tables = [CachedTable(3, 8, 8)] * 2
    assert divide_cache(24, tables, [late, even]) == (3, 0)


def test_tables_without_rows_and_no_tables_get_nothing() -> None:
    empty = cache_outlook(ReuseProfile(rows=0.0, num_nodes=0, next_uses=np.zeros(8)), "belady", num_batches=4)
    assert divide_cache(100, [CachedTable(0, 8, 8), CachedTable(2, 8, 8)], [empty, _outlook([0, 1, 2])]) == (
        0,
        2,
    )
    assert divide_cache(100, [], []) == ()


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**11), max_size=5))
def test_what_is_shared_out_is_there_and_goes_by_what_is_missed(num_bytes: int, missed: list[int]) -> None:
    parts = share_out(num_bytes, missed)
    assert len(parts) == len(missed)
    assert sum(parts) <= num_bytes
    assert sum(parts) >= (num_bytes - 2 * len(missed) if missed else 0)
    total = sum(missed)
    for part, one in zip(parts, missed, strict=True):
        assert part >= num_bytes // 16 // len(missed) - 1
        if total:
            assert part >= 15 / 16 * num_bytes * one / total - 2


def test_a_table_alone_gets_all_of_what_is_shared_out() -> None:
    assert share_out(1001, [7]) == (1001,)
    assert share_out(1001, [0]) == (1001,)
