"""Parts of rows: how they are named, cut, found, and missed."""

from __future__ import annotations

import numpy as np
import pytest

from gloader.core.ids import (
    HeldRows,
    RangePart,
    RowRanges,
    copy_bounds,
    host_bounds,
    hosts_by_part,
    require_all_rows,
)
from gloader.errors import ConfigError


def ranges(part, of=4, **sizes):
    tables = {name: tuple(copy_bounds(size, of).tolist()) for name, size in (sizes or {"node": 10}).items()}
    return RowRanges(part=part, of=of, tables=tables)


@pytest.mark.parametrize(
    ("asked", "part", "of"), [("0/4", 0, 4), (" 3/4 ", 3, 4), ((1, 2), 1, 2), ("0/1", 0, 1)]
)
def test_a_part_is_written_as_a_number_of_many(asked, part, of):
    found = RangePart.parse(asked)
    assert (found.part, found.of) == (part, of)
    assert RangePart.parse(str(found)) == found


@pytest.mark.parametrize(
    "asked", ["4/4", "0/0", "-1/4", "1", "1/2/3", "a/b", "", "0/5000", "1.0/2", (1,), (1, 2, 3)]
)
def test_what_names_no_part_is_refused(asked):
    with pytest.raises(ConfigError, match=r"names no part of the rows; .* 0/4 is the first of four"):
        RangePart.parse(asked)


@pytest.mark.parametrize("num_rows", [0, 1, 3, 4, 5, 1000, 2**48])
@pytest.mark.parametrize("parts", [1, 2, 3, 7, 64])
def test_parts_are_equal_to_one_row_and_leave_none_out(num_rows, parts):
    bounds = copy_bounds(num_rows, parts)
    sizes = np.diff(bounds)
    assert bounds.dtype == np.int64
    assert (bounds[0], bounds[-1], len(bounds)) == (0, num_rows, parts + 1)
    assert sizes.min() >= 0
    assert sizes.max() - sizes.min() <= 1


def test_every_row_is_in_the_part_that_holds_it_and_pages_are_shared_at_the_ends():
    random = np.random.default_rng(0)
    for _ in range(200):
        num_rows, of, row_bytes = random.integers(1, 60), random.integers(1, 9), int(random.integers(1, 9000))
        bounds = tuple(np.sort([0, *random.integers(0, num_rows + 1, of - 1), num_rows]).tolist())
        held = [HeldRows(part=part, of=int(of), bounds=bounds) for part in range(of)]
        for row in range(num_rows):
            (owner,) = [each.part for each in held if each.first <= row < each.past]
            assert {each.part_of(row) for each in held} == {owner}
            first, past = held[owner].span(row_bytes, 4096)
            assert first <= row * row_bytes // 4096
            assert (row * row_bytes + row_bytes - 1) // 4096 < past
        pages = sum(past - first for first, past in (each.span(row_bytes, 4096) for each in held))
        assert pages <= -(-num_rows * row_bytes // 4096) + of - 1  # no more than one shared page at each cut


def test_all_parts_of_one_division_have_all_rows_between_them():
    require_all_rows([None])
    require_all_rows([None, None])
    require_all_rows([ranges(2), ranges(0), ranges(1), ranges(3)])
    require_all_rows([ranges(2), ranges(0), ranges(1), ranges(3), ranges(0)])
    require_all_rows([ranges(3, node=1)])  # one row, which is in the last of four parts


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [ranges(0)],
            r"rows 2 to 5 of 'node' are on no machine of this run: there is part 0 of 4, and not parts 1, 2 and 3; ",
        ),
        ([ranges(0), ranges(2), ranges(3)], r"there are parts 0, 2 and 3 of 4, and not part 1;"),
        ([ranges(1, edges=7, node=0)], r"rows 0 to 1 of 'edges'"),
        (
            [ranges(0, of=2), ranges(1, of=3)],
            r"machine 1 has part 1 of 3 and machine 0 part 0 of 2, which divide the rows differently",
        ),
        ([ranges(0, of=2), ranges(1, of=2, node=11)], "which divide the rows differently"),
        (
            [None, ranges(0, of=2), ranges(1, of=2)],
            r"machine 0 has a copy of all rows and machine 1 part 0 of 2",
        ),
        ([ranges(0, of=12)], r"not parts 1, 2, 3, 4, 5, 6, 7, 8 and 3 more"),
    ],
)
def test_rows_that_are_nobodys_are_refused_in_a_sentence(parts, message):
    with pytest.raises(ConfigError, match=message):
        require_all_rows(parts)


def test_machines_are_called_by_their_names_where_they_have_some():
    with pytest.raises(
        ConfigError, match="machine node-b has a copy of all rows and machine node-a part 0 of 2"
    ):
        require_all_rows([ranges(0, of=2), None], ["node-a", "node-b"])


def test_machines_stand_in_the_order_of_their_parts_and_answer_for_every_row_once():
    parts = [ranges(3), ranges(1), ranges(0), ranges(1), ranges(2)]
    order = hosts_by_part(parts)
    assert order == (2, 1, 3, 4, 0)
    assert host_bounds([parts[machine] for machine in order], "node").tolist() == [0, 2, 5, 5, 7, 10]
    assert parts[0].bounds("node").tolist() == [0, 2, 5, 7, 10]
    assert parts[0].held("node") == (7, 10)
