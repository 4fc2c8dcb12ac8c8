"""The room of a device, divided over several tables."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.cache import rows_that_fit
from gloader.cache.static import DeviceShelf, divide_device_bytes

SHELVES = st.builds(
    DeviceShelf,
    scores=st.lists(st.integers(0, 20), max_size=7).map(lambda counts: np.array(counts, dtype=np.int64)),
    row_bytes=st.sampled_from([100, 256, 1000]),
    saved_bytes=st.just(0),
    has_scale=st.booleans(),
)


def _as_stored(shelf: DeviceShelf) -> DeviceShelf:
    return DeviceShelf(
        scores=shelf.scores,
        row_bytes=shelf.row_bytes,
        saved_bytes=shelf.row_bytes,
        has_scale=shelf.has_scale,
        has_all_scales=shelf.has_scale,
    )


def _rows(num_bytes: int, shelf: DeviceShelf) -> int:
    return rows_that_fit(
        num_bytes,
        num_nodes=len(shelf.scores),
        row_bytes=shelf.row_bytes,
        has_scale=shelf.has_scale,
        has_all_scales=shelf.has_all_scales,
    )


def _saved(rows: tuple[int, ...], shelves: list[DeviceShelf]) -> int:
    hottest = [np.sort(shelf.scores)[::-1] for shelf in shelves]
    return sum(
        int(scores[:count].sum()) * shelf.saved_bytes
        for scores, count, shelf in zip(hottest, rows, shelves, strict=True)
    )


@given(shelves=st.lists(SHELVES.map(_as_stored), min_size=2, max_size=3), num_bytes=st.integers(0, 12_000))
def test_what_is_saved_is_near_the_most_that_any_division_saves(
    shelves: list[DeviceShelf], num_bytes: int
) -> None:
    found = divide_device_bytes(num_bytes, shelves)
    assert sum(found) <= num_bytes
    rows = tuple(itertools.starmap(_rows, zip(found, shelves, strict=True)))
    choices = itertools.product(*(range(len(shelf.scores) + 1) for shelf in shelves))
    most = max(
        _saved(choice, shelves)
        for choice in choices
        if sum(shelf.num_bytes(count) for shelf, count in zip(shelves, choice, strict=True)) <= num_bytes
    )
    # Rows are not cut in two: at worst one of each table, that of the most savings, stays out.
    slack = sum(int(shelf.scores.max(initial=0)) * shelf.saved_bytes for shelf in shelves)
    assert most - slack <= _saved(rows, shelves) <= most


@given(shelf=SHELVES, num_bytes=st.integers(0, 12_000))
def test_one_table_gets_all_of_it(shelf: DeviceShelf, num_bytes: int) -> None:
    assert divide_device_bytes(num_bytes, [shelf]) == (num_bytes,)


def _shelf(scores: list[float], row_bytes: int = 100, num_nodes: int = 1000) -> DeviceShelf:
    counts = np.zeros(num_nodes)
    counts[: len(scores)] = scores
    return DeviceShelf(scores=counts, row_bytes=row_bytes, saved_bytes=row_bytes)


def test_the_next_byte_goes_to_the_table_whose_rows_are_wanted_more_often() -> None:
    wanted, rare = _shelf([9.0] * 500), _shelf([3.0] * 500)
    first, second = divide_device_bytes(40_000, [wanted, rare])
    assert (_rows(first, wanted), second) == (360, 0)
    # The map of the second table costs 4,000 bytes, which no rows of it are worth before the first has all of its own.
    first, second = divide_device_bytes(84_000, [wanted, rare])
    assert _rows(first, wanted) in {500, 501}
    assert _rows(second, rare) in {259, 260}


def test_a_narrow_table_is_held_whole_before_it_pays_for_a_map() -> None:
    small, large = _shelf([5.0] * 50, num_nodes=50), _shelf([6.0] * 900)
    assert divide_device_bytes(6_000, [small, large]) == (5_000, 0)
    first, second = divide_device_bytes(60_000, [small, large])
    assert (first, _rows(second, large)) == (0, (60_000 - 4_000) // 100)


def test_rows_that_nobody_wanted_come_last() -> None:
    seen, unseen = _shelf([1.0] * 1000), _shelf([])
    first, second = divide_device_bytes(150_000, [seen, unseen])
    assert (first, second) == (100_000, 0)
    seldom = _shelf([1.0])
    first, second = divide_device_bytes(150_000, [seen, seldom])
    assert (first, _rows(second, seldom)) == (100_000, 460)


def test_every_table_is_held_whole_where_there_is_room() -> None:
    shelves = [_shelf([1.0]), _shelf([], 40, 10), _shelf([], 40, 0)]
    assert divide_device_bytes(100_400, shelves) == (100_000, 400, 0)


def test_no_room_is_no_rows() -> None:
    assert divide_device_bytes(0, [_shelf([1.0]), _shelf([2.0])]) == (0, 0)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_the_unit_of_the_scores_does_not_matter(scale: float) -> None:
    rng = np.random.default_rng(0)
    shelves = [
        DeviceShelf(scores=scale * rng.random(5000) ** power, row_bytes=row_bytes, saved_bytes=row_bytes)
        for power, row_bytes in ((2, 256), (9, 100))
    ]
    first, second = divide_device_bytes(700_000, shelves)
    assert 680_000 < first + second <= 700_000
    held = [
        np.sort(shelf.scores)[::-1][_rows(mine, shelf)]
        for mine, shelf in zip((first, second), shelves, strict=True)
    ]
    assert held[0] == pytest.approx(held[1], rel=0.1)  # the score at which each stops


def test_rows_that_cost_less_than_their_map_are_held_whole() -> None:
    # 500 rows that nobody wants, of 4 bytes, in place of a map of 4,000.
    narrow, wide = _shelf([50.0] * 500, row_bytes=4), _shelf([4.0] * 900)
    assert divide_device_bytes(50_000, [narrow, wide])[0] == 4_000


def test_the_factors_that_come_with_all_rows_are_paid_for() -> None:
    counts = np.r_[np.full(100, 90), np.zeros(900, dtype=np.int64)]
    scaled = DeviceShelf(scores=counts, row_bytes=100, saved_bytes=100, has_scale=True, has_all_scales=True)
    other = _shelf([8.0] * 900)
    first, second = divide_device_bytes(60_000, [scaled, other])
    assert (first, _rows(first, scaled)) == (100 * 104 + 1000 * 8, 100)
    assert _rows(second, other) == (60_000 - first - 4_000) // 100
