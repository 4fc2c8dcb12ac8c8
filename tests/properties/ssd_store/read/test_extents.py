"""The extent planner against what a person would check by hand."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gloader.ssd_store.read.extents import ALIGNMENT, Extents, min_extent_bytes, plan_extents


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[int], dict[str, int]]:
    row_bytes = draw(st.one_of(st.integers(1, 64), st.integers(1, 9000), st.integers(1, 65536)))
    spread = draw(st.sampled_from([3, 30, 3000, 2**40]))
    rows = sorted(draw(st.lists(st.integers(0, spread), max_size=60)))
    limits = {
        "row_bytes": row_bytes,
        "data_offset": draw(st.sampled_from([0, 4096, 128, 5000])),
        "max_gap_bytes": draw(st.sampled_from([0, 1, 4096, 12288, 10**6])),
        "max_extent_bytes": min_extent_bytes(row_bytes) + draw(st.sampled_from([0, 1, 4096, 262144])),
    }
    return rows, limits


def delivered_pieces(
    plan: Extents, rows: list[int], limits: dict[str, int]
) -> dict[int, list[tuple[int, int]]]:
    """The pieces of each wanted row, in the order in which the copy kernel would cut them."""
    pieces: dict[int, list[tuple[int, int]]] = {i: [] for i in range(len(rows))}
    for x in range(len(plan)):
        start, stop = int(plan.offset[x]), int(plan.offset[x] + plan.length[x])
        for i in range(int(plan.row_begin[x]), int(plan.row_end[x])):
            first = limits["data_offset"] + rows[i] * limits["row_bytes"]
            pieces[i].append((max(first, start), min(first + limits["row_bytes"], stop)))
    return pieces


@given(requests())
def test_every_wanted_byte_is_read_exactly_once(request: tuple[list[int], dict[str, int]]) -> None:
    rows, limits = request
    plan = plan_extents(np.array(rows, np.int64), **limits)
    for i, pieces in delivered_pieces(plan, rows, limits).items():
        first = limits["data_offset"] + rows[i] * limits["row_bytes"]
        at = first
        for begin, end in pieces:
            assert begin == at
            assert end > begin
            at = end
        assert at == first + limits["row_bytes"]


@given(requests())
def test_reads_are_aligned_disjoint_bounded_and_few(request: tuple[list[int], dict[str, int]]) -> None:
    rows, limits = request
    plan = plan_extents(np.array(rows, np.int64), **limits)
    assert len(plan) <= len(set(rows))
    assert not (plan.offset % ALIGNMENT).any()
    assert not (plan.length % ALIGNMENT).any()
    assert (plan.length > 0).all()
    assert (plan.length <= limits["max_extent_bytes"]).all()
    assert (plan.offset[1:] >= plan.offset[:-1] + plan.length[:-1]).all()


@given(requests())
def test_reads_no_page_that_is_not_wanted_or_in_a_short_hole(
    request: tuple[list[int], dict[str, int]],
) -> None:
    rows, limits = request
    plan = plan_extents(np.array(rows, np.int64), **limits)
    starts = [limits["data_offset"] + row * limits["row_bytes"] for row in rows]
    wanted = sorted(
        {
            page
            for s in starts
            for page in range(s // ALIGNMENT, (s + limits["row_bytes"] - 1) // ALIGNMENT + 1)
        }
    )
    for offset, length in zip(plan.offset.tolist(), plan.length.tolist(), strict=True):
        first, last = offset // ALIGNMENT, (offset + length) // ALIGNMENT - 1
        inside = [page for page in wanted if first <= page <= last]
        assert inside[0] == first
        assert inside[-1] == last
        holes = [b - a - 1 for a, b in pairwise(inside)]
        assert all(hole * ALIGNMENT <= limits["max_gap_bytes"] for hole in holes)


@given(requests())
def test_neighbours_are_merged_unless_a_limit_forbids_it(request: tuple[list[int], dict[str, int]]) -> None:
    rows, limits = request
    plan = plan_extents(np.array(rows, np.int64), **limits)
    for x in range(len(plan) - 1):
        hole = int(plan.offset[x + 1] - plan.offset[x] - plan.length[x])
        row_end = limits["data_offset"] + (rows[int(plan.row_begin[x + 1])] + 1) * limits["row_bytes"]
        merged = -(-row_end // ALIGNMENT) * ALIGNMENT - int(plan.offset[x])
        assert hole > limits["max_gap_bytes"] or merged > limits["max_extent_bytes"]
