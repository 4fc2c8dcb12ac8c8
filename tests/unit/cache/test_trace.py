"""The trace: its size, its slices, what it refuses, and codes that are damaged."""

from __future__ import annotations

import contextlib
import tracemalloc

import numpy as np
import pytest

from gloader.cache import PlannerTable, Trace, decode_ids, encode_ids, plan_belady
from gloader.errors import PlanError

RNG_SEED = 0


def sorted_batches(num_nodes: int, rows: int, num_batches: int) -> list[np.ndarray]:
    rng = np.random.default_rng(RNG_SEED)
    return [np.sort(rng.choice(num_nodes, rows, replace=False)) for _ in range(num_batches)]


def test_a_dense_trace_takes_a_byte_an_access_and_a_sparse_one_two() -> None:
    for num_nodes, num_bytes in ((100_000, 1.02), (1_000_000, 2.02), (2**31, 5.02)):
        trace = Trace(sorted_batches(num_nodes, 2000, 5))
        assert trace.num_bytes <= num_bytes * trace.num_accesses


@pytest.mark.parametrize("gap", [1, 254, 255, 256, 257, 65_535, 65_536, 65_537, 2**31, 2**61])
@pytest.mark.parametrize("others", [0, 3, 40])
def test_gaps_of_every_width_come_back(gap: int, others: int) -> None:
    ids = np.concatenate([np.arange(others), others - 1 + gap * np.arange(1, 3, dtype=np.int64)])
    code = encode_ids(ids)
    assert decode_ids(code, len(ids)).tolist() == ids.tolist()
    assert encode_ids(np.array([2**63 - 1])).size <= 13


def test_slices_share_codes_and_do_not_grow_with_the_trace() -> None:
    batches = sorted_batches(500, 40, 6)
    trace = Trace(batches[:4])
    part = trace[1:3]
    trace.append(batches[4].astype(np.int32))
    trace.append_code(encode_ids(batches[5]), 40)
    assert (len(trace), len(part)) == (6, 2)
    assert all(map(np.array_equal, trace, batches))
    assert all(map(np.array_equal, part, batches[1:3]))
    assert np.array_equal(trace[-1], batches[5])
    assert trace.lengths.tolist() == [40] * 6
    scratch = np.empty(50, dtype=np.int64)
    assert np.array_equal(trace.read(2, scratch), batches[2])
    with pytest.raises(IndexError, match="batch 6 is not one of the trace's 6"):
        trace[6]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3, 3], r"unique and ascending; 3 at position 1 follows 3\. Pass numpy\.sort\(nodes\)"),
        ([1, 5, 4], "unique and ascending; 4 at position 2 follows 5"),
        ([-1, 5], "must not be negative; it holds -1 at position 0"),
        ([1.0, 2.0], "dtype float64; pass its ids as one array of integers"),
        ([[1, 2]], r"shape \(1, 2\)"),
    ],
)
def test_what_is_not_sorted_and_unique_is_refused(ids: list, message: str) -> None:
    trace = Trace()
    with pytest.raises(PlanError, match=message):
        trace.append(np.array(ids))
    assert len(trace) == 0


@pytest.mark.reliability("E5")
def test_damaged_codes_are_refused_or_at_least_of_the_right_length() -> None:
    """Nothing of it is written to a disk; here memory is at stake."""
    for gap in (1, 300, 70_000):
        ids = gap * np.arange(20, dtype=np.int64) + np.arange(20) ** 3
        code = encode_ids(ids)
        for count in (19, 21, 10**6):
            with pytest.raises(PlanError, match=r"a trace is damaged: .* are not the code of"):
                decode_ids(code, count)
        for place in range(len(code)):
            with pytest.raises(PlanError, match="damaged"):
                decode_ids(code[:place], 20)
            damaged = code.copy()
            damaged[place] ^= 0xFF
            with contextlib.suppress(PlanError):
                assert len(decode_ids(damaged, 20)) == 20


def test_superbatches_alive_take_less_than_six_bytes_an_access() -> None:
    """One superbatch executes by its actions, one is planned, two are traces; the planner's scratch included."""
    num_nodes, rows, superbatch, capacity = 20_000, 1_000, 32, 500
    batches = sorted_batches(num_nodes, rows, 4 * superbatch)
    first, second, third, fourth = (Trace(batches[i::4]) for i in range(4))
    table = PlannerTable(num_nodes)
    executed = plan_belady(first, capacity=capacity, lookahead=second, table=table).without_trace()
    tracemalloc.start()
    plan = plan_belady(
        second, capacity=capacity, resident=executed.resident_after, lookahead=third, table=table
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    alive = executed.num_bytes + peak + second.num_bytes + third.num_bytes + fourth.num_bytes
    accesses = rows * superbatch
    assert len(plan.actions) == accesses
    assert peak <= 5.5 * accesses
    assert alive + table.num_bytes <= 6 * 4 * accesses
