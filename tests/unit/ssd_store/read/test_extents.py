"""Single cases of the extent planner, and its refusals."""

from __future__ import annotations

import numpy as np
import pytest

from gloader.errors import ConfigError, ShapeError
from gloader.ssd_store.read.extents import min_extent_bytes, plan_extents


def plan(rows: list[int], **changes: int) -> list[tuple[int, int, int, int]]:
    limits = {"row_bytes": 512, "data_offset": 4096, "max_gap_bytes": 0, "max_extent_bytes": 16384} | changes
    extents = plan_extents(np.array(rows, np.int64), **limits)
    columns = (extents.offset, extents.length, extents.row_begin, extents.row_end)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_no_rows_need_no_reads() -> None:
    assert plan([]) == []


def test_rows_of_one_page_share_a_read() -> None:
    assert plan([0, 3, 7]) == [(4096, 4096, 0, 3)]


def test_adjacent_pages_share_a_read_and_distant_ones_do_not() -> None:
    assert plan([0, 8, 24]) == [(4096, 8192, 0, 2), (4096 * 4, 4096, 2, 3)]


def test_a_short_hole_is_read_through() -> None:
    assert plan([0, 24], max_gap_bytes=8192) == [(4096, 4096 * 4, 0, 2)]
    assert len(plan([0, 24], max_gap_bytes=8191)) == 2


def test_a_long_run_is_split_and_the_straddling_row_belongs_to_both_parts() -> None:
    # Rows of 3000 bytes: row 1 spans pages 0 and 1, row 2 pages 1 and 2.
    assert plan([0, 1, 2], row_bytes=3000, max_extent_bytes=8192) == [(4096, 8192, 0, 3), (12288, 4096, 2, 3)]


def test_repeats_of_a_straddling_row_belong_to_both_parts() -> None:
    assert plan([1, 2, 2, 2], row_bytes=3000, max_extent_bytes=8192) == [
        (4096, 8192, 0, 4),
        (12288, 4096, 1, 4),
    ]


@pytest.mark.parametrize(("row_bytes", "expected"), [(1, 4096), (2, 8192), (4096, 8192), (4098, 12288)])
def test_the_longest_read_of_one_row(row_bytes: int, expected: int) -> None:
    assert min_extent_bytes(row_bytes) == expected


def test_refuses_a_limit_that_no_row_fits() -> None:
    with pytest.raises(
        ConfigError, match="max_extent_bytes=4096 cannot hold one row of 512 bytes: at least 8192"
    ):
        plan([0], max_extent_bytes=4096)


@pytest.mark.parametrize("wrong", [{"row_bytes": 0}, {"data_offset": -1}, {"max_gap_bytes": -1}])
def test_refuses_negative_sizes(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
        plan([0], **wrong)


def test_refuses_rows_of_another_type() -> None:
    with pytest.raises(ShapeError, match="one-dimensional int64 array, got int32"):
        plan_extents(
            np.zeros(1, np.int32),
            row_bytes=1,
            data_offset=0,
            max_gap_bytes=0,
            max_extent_bytes=4096,  # type: ignore[arg-type]
        )
