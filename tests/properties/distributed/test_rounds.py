"""The plan of an exchange, against lists: every row once, in order, in bounded rounds, alike from both sides."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.distributed.exchange.owner import bucket_starts, plan_arrivals, plan_rounds, plan_sizes
from gloader.errors import BudgetError

PAGE = 4096


@given(
    counts=st.integers(1, 4).flatmap(
        lambda hosts: st.lists(
            st.lists(st.integers(0, 5), min_size=hosts, max_size=hosts), min_size=1, max_size=12
        )
    ),
    max_rows=st.integers(5, 12),
)
def test_rounds_are_bounded_whole_and_as_few_as_can_be(counts: list[list[int]], max_rows: int) -> None:
    table = np.array(counts, np.int64).T
    cuts = plan_rounds(table, max_rows)
    if not table.any():
        assert cuts.tolist() == [0]
        return
    assert cuts[0] == 0
    assert cuts[-1] == table.shape[1]
    assert (np.diff(cuts) > 0).all()
    rounds = [table[:, first:past].sum(axis=1) for first, past in pairwise(cuts)]
    assert all((one <= max_rows).all() for one in rounds)
    for held, cut in zip(rounds[:-1], cuts[1:-1], strict=True):
        assert (held + table[:, cut] > max_rows).any(), "the round could have held one bucket more"


@given(lower=st.integers(0, 50), size=st.integers(0, 50), width=st.integers(1, 20))
def test_buckets_cover_a_range_once(lower: int, size: int, width: int) -> None:
    starts = bucket_starts(lower, lower + size, width)
    found = [row for first, past in pairwise(starts) for row in range(first, past)]
    assert found == list(range(lower, lower + size))
    assert (np.diff(starts) <= width).all()


@given(
    hosts=st.integers(1, 5),
    row_bytes=st.sampled_from([1, 4, 100, 512, 4096, 6000, 6001]),
    id_bytes=st.sampled_from([4, 8]),
    memory=st.integers(2**20, 2**30),
)
def test_a_round_of_the_largest_slices_fits_into_the_memory(
    hosts: int, row_bytes: int, id_bytes: int, memory: int
) -> None:
    try:
        sizes = plan_sizes(memory, num_hosts=hosts, row_bytes=row_bytes, id_bytes=id_bytes)
    except BudgetError:
        return
    rows = np.array([sizes.max_rows])
    message = int(sizes.reply_bytes(rows)[0] + sizes.request_bytes(rows)[0])
    union = hosts * sizes.max_rows
    taken = sizes.ring_bytes + hosts * 4 * message + 2 * union * row_bytes + union * (id_bytes + 1)
    assert taken <= sizes.memory_bytes <= memory
    assert sizes.max_rows * row_bytes <= 64 * 2**20


@given(data=st.data(), row_bytes=st.sampled_from([1, 4, 100, 512, 4096, 6000, 6001]))
def test_every_row_has_a_slot_of_its_own_and_runs_begin_on_pages(data: st.DataObject, row_bytes: int) -> None:
    hosts, rounds = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 4))
    counts = np.array(
        data.draw(st.lists(st.integers(0, 9), min_size=hosts * rounds, max_size=hosts * rounds)), np.int64
    ).reshape(hosts, rounds)
    ends = np.cumsum(counts.reshape(-1)).reshape(hosts, rounds)
    starts = np.append(0, ends.reshape(-1))[: hosts * rounds].reshape(hosts, rounds)
    last = np.array([ends[w, -1] if rounds else 0 for w in range(hosts)]).reshape(hosts, 1)
    bounds = np.concatenate([starts, last], axis=1)
    rows = np.arange(counts.sum()) * 3
    layout = plan_arrivals(rows, bounds, row_bytes)
    assert layout.rows is rows
    assert layout.bounds[-1] == len(rows)
    taken: list[tuple[int, int, int]] = []
    for owner in range(hosts):
        for turn in range(rounds):
            run = owner * rounds + turn
            first, past = layout.bounds[run : run + 2]
            assert (first, past) == (bounds[owner, turn], bounds[owner, turn] + counts[owner, turn])
            slot = int(layout.first_slot[run])
            assert slot * row_bytes % PAGE == 0
            if past > first:
                taken.append((turn, owner, run))
    end = 0
    for _, _, run in sorted(taken):  # round after round, in it owner after owner
        assert layout.first_slot[run] * row_bytes >= end
        last_slot = layout.first_slot[run] + layout.bounds[run + 1] - layout.bounds[run]
        end = -(-int(last_slot) * row_bytes // PAGE) * PAGE
        assert last_slot <= layout.num_slots
    assert -(-layout.num_slots * row_bytes // PAGE) * PAGE == end


def test_memory_for_no_row_is_refused_with_the_bytes_that_are_needed() -> None:
    with pytest.raises(
        BudgetError, match=r"among 4 machines needs \d+ bytes of buffers and 1000 are allowed"
    ):
        plan_sizes(1000, num_hosts=4, row_bytes=512, id_bytes=4)
