"""The choice between own sweeps and one for all machines: its estimates against counted reads, and its rule."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloader.errors import BudgetError, ConfigError
from gloader.ssd_store.cost.exchange_cost import (
    SHARED_GAIN,
    NetworkRates,
    OwnPart,
    choose_exchange,
    expected_union,
    place_received,
    predict_exchange,
)
from gloader.ssd_store.cost.io_rates import Calibration, IoRates
from gloader.ssd_store.cost.strategy import MissCounts, choose_strategy, count_misses, predict_seconds

MB, GB = 10**6, 10**9
DISK = IoRates(
    random_reads_per_s=86_000.0,
    read_bytes_per_s=1.05e9,
    write_bytes_per_s=1.8e9,
    pack_read_bytes_per_s=1.05e9,
    medium_reads_per_s=64_000.0,
)
TEN_GIGABITS = NetworkRates(bytes_per_s=1.25e9, latency_s=1e-4)
# papers100M, 64 batches: 25 M missed accesses of 512 B, 15 M unique rows; a sweep reads the whole file.
PAPERS = MissCounts(
    num_batches=64,
    rows=25_000_000,
    unique_rows=15_000_000,
    row_bytes=512,
    direct_requests=24_000_000,
    direct_bytes=98_000_000_000,
    sweep_requests=57_000,
    sweep_bytes=56_862_000_000,
    pack_bytes=12_800_000_000,
)
PAPERS_ROWS = 111_059_956


def _part(counts: MissCounts = PAPERS, network: NetworkRates = TEN_GIGABITS, **settings: object) -> OwnPart:
    own_s = choose_strategy(counts, DISK, memory_bytes=0, spill_bytes=10**12).predicted_s
    known = {"own_s": own_s, "received_as": "packed", "gap_bytes": 8192}
    return OwnPart.of(counts, DISK, network, **(known | settings))


def _choose(parts: list[OwnPart], **settings: object):
    known = {"num_rows": PAPERS_ROWS, "row_bytes": 512, "round_bytes": 192 * MB}
    return choose_exchange(parts, **(known | {"shares": [1 / len(parts)] * len(parts)} | settings))


def _count(misses: list[np.ndarray], num_rows: int, row_bytes: int) -> MissCounts:
    return count_misses(
        misses,
        num_rows=num_rows,
        row_bytes=row_bytes,
        data_offset=4096,
        gap_bytes=8192,
        sweep_gap_bytes=8192,
        max_extent_bytes=1 << 20,
    )


def test_the_figures_of_the_design_come_out() -> None:
    """54 s of sweep and 19 s of packs alone; 37 s of four machines at 10 Gbit/s, 4.6 s of network hidden."""
    own, four = _part(), _choose([_part()] * 4)
    assert own.own_s == pytest.approx(73, rel=0.05)
    assert four.shared_s == pytest.approx(37 - 4.6, rel=0.05)
    assert four.is_shared
    assert _choose([_part()] * 8).shared_s < four.shared_s


def test_below_a_gigabit_everybody_reads_alone() -> None:
    slow = NetworkRates(bytes_per_s=0.08e9, latency_s=1e-3)
    choice = _choose([_part(network=slow)] * 4)
    assert not choice.is_shared
    assert choice.reason.startswith("own sweeps 1 min")
    assert "network" in choice.reason


@pytest.mark.parametrize("row_bytes", [128, 512, 4096, 6528])
@pytest.mark.parametrize("share", [0.002, 0.02, 0.2])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_expected_union_is_what_a_sweep_for_all_would_read(
    row_bytes: int, share: float, world: int
) -> None:
    num_rows = 400_000 if row_bytes < 4096 else 40_000
    rng = np.random.Generator(np.random.Philox(7))
    sets = [np.flatnonzero(rng.random(num_rows) < share).astype(np.int64) for _ in range(world)]
    parts = [_part(_count([rows], num_rows, row_bytes), own_s=1.0) for rows in sets]
    union = expected_union(parts, num_rows=num_rows, row_bytes=row_bytes)
    counted = _count([np.unique(np.concatenate(sets))], num_rows, row_bytes)
    assert union.rows == pytest.approx(counted.unique_rows, rel=0.03)
    assert union.sweep_bytes == pytest.approx(counted.sweep_bytes, rel=0.03, abs=8192)
    own = _part(counted).read_seconds
    assert own(union.sweep_requests, union.sweep_bytes) == pytest.approx(
        own(counted.sweep_requests, counted.sweep_bytes), rel=0.05
    )


def test_a_machine_alone_sweeps_what_it_would_anyway_and_sends_nothing() -> None:
    (cost,) = predict_exchange(
        [_part()], num_rows=PAPERS_ROWS, row_bytes=512, shares=[1.0], round_bytes=64 * MB
    )
    assert cost.total_s == pytest.approx(predict_seconds(PAPERS, DISK)["packed"], abs=0.01)
    assert cost.network_s == pytest.approx(4 * 1e-4)


def test_the_slowest_machine_counts_for_all() -> None:
    fast = _choose([_part()] * 4)
    slow_disk = replace(_part(), small_per_s=9_000.0, medium_per_s=6_000.0, bytes_per_s=0.1e9)
    slow_network = replace(_part(), network_bytes_per_s=0.05e9)
    for odd in (slow_disk, slow_network):
        assert _choose([_part(), odd, _part(), _part()]).shared_s > 2 * fast.shared_s
    late = replace(_part(), own_s=500.0)
    assert _choose([_part(), late]).own_s == 500.0


def test_a_part_that_owns_more_sweeps_and_sends_more() -> None:
    costs = predict_exchange(
        [_part()] * 2, num_rows=PAPERS_ROWS, row_bytes=512, shares=[0.9, 0.1], round_bytes=64 * MB
    )
    assert costs[0].sweep_s == pytest.approx(9 * costs[1].sweep_s)
    assert costs[0].network_s == pytest.approx(costs[1].network_s)  # what one sends, the other receives
    even = predict_exchange(
        [_part()] * 2, num_rows=PAPERS_ROWS, row_bytes=512, shares=[0.5, 0.5], round_bytes=64 * MB
    )
    assert even[0].network_s < costs[0].network_s


@pytest.mark.parametrize(("gain", "is_shared"), [(0.99, False), (1.01, True)])
def test_a_common_sweep_has_to_be_five_percent_faster(gain: float, is_shared: bool) -> None:
    shared_s = _choose([_part()] * 2).shared_s
    choice = _choose([_part(own_s=gain * SHARED_GAIN * shared_s)] * 2)
    assert choice.is_shared == is_shared
    assert ("gains less than 5%" in choice.reason) == (not is_shared)


def test_disk_and_network_work_at_the_same_time_but_for_the_first_round_and_the_last() -> None:
    one, many = (
        predict_exchange(
            [_part(received_as="staged")] * 2,
            num_rows=PAPERS_ROWS,
            row_bytes=512,
            shares=[0.5, 0.5],
            round_bytes=round_bytes,
        )[0]
        for round_bytes in (10 * GB, 40 * MB)
    )
    assert one.total_s == pytest.approx(one.sweep_s + one.network_s)
    assert many.total_s == pytest.approx(max(many.sweep_s, many.network_s), rel=0.01)


def test_rows_that_stay_in_memory_are_neither_written_nor_read_back() -> None:
    (staged, *_), (packed, *_) = (
        predict_exchange(
            [_part(received_as=how)] * 2,
            num_rows=PAPERS_ROWS,
            row_bytes=512,
            shares=[0.5, 0.5],
            round_bytes=MB,
        )
        for how in ("staged", "packed")
    )
    assert (staged.write_s, staged.read_back_s) == (0, 0)
    # A disk that reads and writes does so in turns.
    assert packed.total_s - staged.total_s == pytest.approx(12.8 / 1.8 + 12.8 / 1.05, rel=0.01)


def test_what_has_no_room_is_never_exchanged_and_refused_where_it_must_be() -> None:
    choice = _choose([_part(), _part(received_as=None)])
    assert (choice.is_shared, choice.shared_s) == (False, math.inf)
    assert "no room" in choice.reason
    ranges = [_part(own_s=math.inf), _part(own_s=math.inf, received_as=None)]
    with pytest.raises(BudgetError, match=r"machine 1 of 2 has no room for the 15,000,000 rows .* raise"):
        _choose(ranges)
    assert _choose([_part(own_s=math.inf)] * 2).reason == "shared: no machine has all rows"


@pytest.mark.parametrize(
    ("memory", "spill", "forced", "place"),
    [
        (8 * GB, 20 * GB, None, "staged"),
        (7 * GB, 20 * GB, "auto", "packed"),
        (7 * GB, 12 * GB, None, None),
        (8 * GB, 20 * GB, "packed", "packed"),
        (7 * GB, 20 * GB, "staged", None),
        (8 * GB, 20 * GB, "direct", None),
    ],
)
def test_rows_from_others_go_to_memory_if_they_fit_else_to_packs(
    memory: int, spill: int, forced: str | None, place: str | None
) -> None:
    assert place_received(PAPERS, memory_bytes=memory, spill_bytes=spill, forced=forced) == place


@given(st.lists(st.floats(0, 1e12), min_size=14, max_size=14))
def test_a_part_comes_back_from_its_numbers(numbers: list[float]) -> None:
    assert OwnPart.from_numbers(np.array(numbers)).to_numbers() == tuple(numbers)


def test_numbers_of_another_version_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a machine sent 12 numbers .* 14 are expected; use one version"):
        OwnPart.from_numbers([0.0] * 12)


@given(
    st.lists(
        st.tuples(st.floats(0, 1), st.floats(1e6, 1e10), st.floats(1e6, 1e11), st.floats(0, 0.1)),
        min_size=1,
        max_size=9,
    ),
    st.integers(1, 10**9),
)
def test_every_machine_comes_to_the_same_choice_and_nothing_is_negative(
    machines: list[tuple[float, float, float, float]], round_bytes: int
) -> None:
    parts = [
        replace(
            _part(),
            unique_rows=share * PAPERS_ROWS,
            sweep_bytes=share * PAPERS.sweep_bytes,
            bytes_per_s=disk,
            network_bytes_per_s=network,
            latency_s=latency,
        )
        for share, disk, network, latency in machines
    ]
    gathered = [OwnPart.from_numbers(part.to_numbers()) for part in parts]
    assert _choose(parts, round_bytes=round_bytes) == _choose(gathered, round_bytes=round_bytes)
    costs = predict_exchange(
        parts,
        num_rows=PAPERS_ROWS,
        row_bytes=512,
        shares=[1 / len(parts)] * len(parts),
        round_bytes=round_bytes,
    )
    assert all(
        0 <= value < math.inf for cost in costs for value in (cost.sweep_s, cost.network_s, cost.total_s)
    )


def test_what_the_run_has_learnt_of_common_sweeps_counts() -> None:
    once, twice = _choose([_part()] * 4), _choose([_part()] * 4, factor=3.0)
    assert twice.shared_s == pytest.approx(3 * once.shared_s)
    assert (once.is_shared, twice.is_shared) == (True, False)


def test_nothing_missing_costs_only_the_collectives() -> None:
    nothing = _count([np.empty(0, np.int64)], PAPERS_ROWS, 512)
    (cost, _) = predict_exchange(
        [_part(nothing, own_s=0.0)] * 2,
        num_rows=PAPERS_ROWS,
        row_bytes=512,
        shares=[0.5, 0.5],
        round_bytes=MB,
    )
    assert cost.total_s == pytest.approx(4e-4)
    assert not _choose([_part(nothing, own_s=0.0)] * 2).is_shared


def test_a_disk_that_is_slower_than_measured_is_not_laid_to_the_exchange_alone() -> None:
    """Both ways take twice as long as predicted; only the exchange was tried so far."""
    parts = [_part(own_s=1.3 * _choose([_part()] * 2).shared_s)] * 2
    known = Calibration()
    for _ in range(8):
        known = known.after_exchange(1.0 * known.exchanged, 2.0, factor=known.exchanged)
    assert known.exchanged == pytest.approx(2.0, rel=0.02)
    own_s = parts[0].own_s * known.factor("packed")
    learnt = _choose([replace(part, own_s=own_s) for part in parts], factor=known.exchanged)
    assert not _choose(
        parts, factor=known.exchanged
    ).is_shared  # as if the disk were as fast as it was measured
    assert own_s == pytest.approx(parts[0].own_s * 2**0.5, rel=0.02)
    assert learnt.own_s > parts[0].own_s


def test_what_was_learnt_of_own_sweeps_counts_for_exchanges_until_they_are_tried() -> None:
    known = Calibration().after("staged", 1.0, 2.0)
    assert known.exchanged == pytest.approx(known.staged**0.5)
    tried = known.after_exchange(1.0, 1.0, factor=1.0)
    assert (tried.has_exchanged, tried.staged) == (True, pytest.approx(known.staged**0.95))
    assert tried.after("staged", 1.0, 3.0).exchanged == pytest.approx(tried.exchanged**0.95)
