"""The cost model on the figures of the study, and what it learns."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gloader.errors import BudgetError, ConfigError
from gloader.ssd_store.cost.io_rates import Calibration, IoRates, learn_factor
from gloader.ssd_store.cost.strategy import (
    HIDDEN_SHARE,
    PACK_GAIN,
    Choice,
    MissCounts,
    choose_strategy,
    count_misses,
    predict_seconds,
)
from gloader.ssd_store.miss_sources import in_ram_bytes
from gloader.ssd_store.spill.regions import pack_bytes

# The disk of the study: 86,000 random reads/s, 1.05 GB/s read, 1.8 GB/s written; it limits either, not their sum.
DISK = IoRates(
    random_reads_per_s=86_000.0,
    read_bytes_per_s=1.05e9,
    write_bytes_per_s=1.8e9,
    pack_read_bytes_per_s=1.05e9,
    medium_reads_per_s=64_000.0,
)
# Rows of 512 B out of 8.4 M, 64 batches, a tenth of them cached: many small misses.
SMALL_ROWS = MissCounts(
    num_batches=64,
    rows=1_970_000,
    unique_rows=1_700_000,
    row_bytes=512,
    direct_requests=1_800_000,
    direct_bytes=8_000_000_000,
    sweep_requests=17_000,
    sweep_bytes=4_200_000_000,
    pack_bytes=1_010_000_000,
)
# Rows of 6,528 B out of 870,000, 64 batches: every byte of a pack is a byte that somebody wants, thrice moved.
LARGE_ROWS = MissCounts(
    num_batches=64,
    rows=1_740_000,
    unique_rows=800_000,
    row_bytes=6528,
    direct_requests=1_600_000,
    direct_bytes=15_000_000_000,
    sweep_requests=30_000,
    sweep_bytes=5_700_000_000,
    pack_bytes=11_400_000_000,
)


def test_the_study_is_told_within_its_own_error() -> None:
    predicted = predict_seconds(SMALL_ROWS, DISK)
    assert predicted["direct"] == pytest.approx(22.1, rel=0.1)
    assert predicted["packed"] == pytest.approx(5.2, rel=0.1)
    assert predicted["staged"] == pytest.approx(4.0, rel=0.05)


def test_many_small_misses_are_packed() -> None:
    choice = choose_strategy(SMALL_ROWS, DISK, memory_bytes=10**8, spill_bytes=10**10)
    assert choice.strategy == "packed"
    assert choice.reason == (
        "packed takes 5.5 s, direct 21.1 s, staged 4.0 s (needs 877 MB of memory, 100 MB allowed)"
    )


def test_large_rows_are_read_directly() -> None:
    choice = choose_strategy(LARGE_ROWS, DISK, memory_bytes=10**8, spill_bytes=10**11)
    assert choice.strategy == "direct"
    assert "packed" in choice.reason


def test_rows_that_are_not_all_on_the_disk_are_swept() -> None:
    """Read directly, each batch would bring nearly all blocks from where they are; the disk itself says otherwise."""
    here = choose_strategy(LARGE_ROWS, DISK, memory_bytes=0, spill_bytes=10**11)
    away = choose_strategy(LARGE_ROWS, DISK, memory_bytes=0, spill_bytes=10**11, is_whole=False)
    assert (here.strategy, away.strategy) == ("direct", "packed")
    assert "direct brings nearly all blocks for each batch" in away.reason
    nowhere = choose_strategy(LARGE_ROWS, DISK, memory_bytes=0, spill_bytes=0, is_whole=False)
    assert nowhere.strategy == "direct"
    assert math.isfinite(nowhere.predicted_s)


def test_idle_memory_is_better_than_a_pack() -> None:
    choice = choose_strategy(SMALL_ROWS, DISK, memory_bytes=10**9, spill_bytes=10**10)
    assert choice.strategy == "staged"


def test_without_room_for_either_rows_are_read_directly() -> None:
    choice = choose_strategy(SMALL_ROWS, DISK, memory_bytes=0, spill_bytes=0)
    assert choice.strategy == "direct"
    assert "packed 5.5 s (needs 1.01 GB of disk, 0 B allowed)" in choice.reason


def test_a_pack_that_gains_little_is_not_written() -> None:
    almost = replace(SMALL_ROWS, direct_requests=510_000, direct_bytes=2_100_000_000)
    choice = choose_strategy(almost, DISK, memory_bytes=0, spill_bytes=10**10)
    assert choice.predicted["packed"] < choice.predicted["direct"]
    assert choice.strategy == "direct"
    assert "packed 5.5 s (gains less than 15%)" in choice.reason


def test_behind_a_long_computation_the_way_that_moves_least_is_taken() -> None:
    """Both cost the loop the same there, whichever is faster; in a short one the faster way is taken."""
    seconds = predict_seconds(LARGE_ROWS, DISK)
    assert seconds["direct"] < PACK_GAIN * seconds["packed"]
    moving = replace(LARGE_ROWS, direct_bytes=4 * (LARGE_ROWS.sweep_bytes + 2 * LARGE_ROWS.pack_bytes))
    slow = replace(
        DISK, random_reads_per_s=1e9, read_bytes_per_s=1e13
    )  # where bytes that are read cost nothing
    packed_s = predict_seconds(moving, slow)["packed"] / moving.num_batches
    enough_s = 2 * packed_s / HIDDEN_SHARE

    def chosen(hidden_s: float, **rooms: int) -> Choice:
        known = Calibration(hidden_s=hidden_s)
        rooms = {"memory_bytes": 0, "spill_bytes": 10**12} | rooms
        return choose_strategy(moving, slow, calibration=known, **rooms)

    assert chosen(0.0).strategy == "direct"
    assert chosen(enough_s / 4).strategy == "direct"
    assert chosen(packed_s / 0.95).strategy == "direct"  # what a prediction is off by would show
    assert chosen(packed_s / 0.85).strategy == "packed"
    hidden = chosen(enough_s)
    assert hidden.strategy == "packed"
    assert "instead of" in hidden.reason
    assert "the loop computes longer than either takes" in hidden.reason
    assert chosen(enough_s, spill_bytes=0).strategy == "direct"  # there is no room for it
    # Every byte of a pack is written and read again: a way that moves a fifth more is not worth a change.
    nearly = replace(moving, direct_bytes=int(1.2 * (moving.sweep_bytes + 2 * moving.pack_bytes)))
    stays = choose_strategy(
        nearly, slow, calibration=Calibration(hidden_s=enough_s), memory_bytes=0, spill_bytes=10**12
    )
    assert stays.strategy == "direct"


def test_nothing_missing_is_read_directly() -> None:
    nothing = replace(
        SMALL_ROWS, **dict.fromkeys(("rows", "unique_rows", "direct_requests", "direct_bytes"), 0)
    )
    assert choose_strategy(nothing, DISK, memory_bytes=10**9, spill_bytes=10**9).reason == "no row is missing"


def test_a_spill_folder_on_another_device_is_written_meanwhile() -> None:
    apart = predict_seconds(SMALL_ROWS, replace(DISK, is_one_device=False))["packed"]
    together = predict_seconds(SMALL_ROWS, DISK)["packed"]
    assert together - apart == pytest.approx(SMALL_ROWS.pack_bytes / DISK.write_bytes_per_s)


def test_room_is_counted_as_packs_and_staged_rows_take_it() -> None:
    misses = [np.arange(0, 5000, step) for step in (1, 2, 7)]
    counts = count_misses(
        misses,
        num_rows=5000,
        row_bytes=700,
        data_offset=4096,
        gap_bytes=0,
        sweep_gap_bytes=0,
        max_extent_bytes=65536,
    )
    assert counts.in_ram_bytes == in_ram_bytes(5000, 700)
    assert counts.pack_bytes == pack_bytes([len(rows) for rows in misses], 700)


def test_reads_take_what_was_measured_at_their_size() -> None:
    assert DISK.read_seconds(0, 0) == 0
    assert DISK.read_seconds(86_000, 86_000 * 4096) == pytest.approx(1)
    assert DISK.read_seconds(64_000, 64_000 * 16384) == pytest.approx(1)
    assert DISK.read_seconds(1_000, 1_000 * 262144) == pytest.approx(262144e3 / 1.05e9)
    assert DISK.read_seconds(1_000, 1_000 * 524288) == pytest.approx(524288e3 / 1.05e9)
    assert DISK.read_seconds(1_000, 1_000 * 10240) == pytest.approx(500 / 86_000 + 500 / 64_000)


def test_without_a_medium_rate_a_request_and_its_bytes_take_their_times_in_turn() -> None:
    disk = replace(DISK, medium_reads_per_s=0.0)
    assert disk.read_seconds(1, 16384) == pytest.approx(1 / 86_000 + 12288 / 1.05e9)


@pytest.mark.parametrize("name", [None, "auto"])
def test_auto_chooses(name: str | None) -> None:
    assert (
        choose_strategy(SMALL_ROWS, DISK, memory_bytes=0, spill_bytes=10**10, forced=name).strategy
        == "packed"
    )


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"io_strategy='fast' is unknown; choose one of auto, direct, staged"
    ):
        choose_strategy(SMALL_ROWS, DISK, memory_bytes=0, spill_bytes=0, forced="fast")


def test_packs_without_a_spill_budget_are_refused_with_the_numbers() -> None:
    text = (
        r"io_strategy='packed' needs 1010000000 bytes \(1.01 GB\) of disk for the 1,970,000 missing rows of 64 "
        r"batches, and 0 \(0 B\) are allowed; raise spill_budget"
    )
    with pytest.raises(BudgetError, match=text):
        choose_strategy(SMALL_ROWS, DISK, memory_bytes=0, spill_bytes=0, forced="packed")


def test_staged_rows_that_do_not_fit_are_refused_with_the_numbers() -> None:
    text = r"io_strategy='staged' needs 877200000 bytes \(877 MB\) of memory .* and 7 \(7 B\) are allowed; raise memory"
    with pytest.raises(BudgetError, match=text):
        choose_strategy(SMALL_ROWS, DISK, memory_bytes=7, spill_bytes=0, forced="staged")


def test_a_strategy_that_was_never_tried_shares_half_of_what_was_learnt_of_the_device() -> None:
    learnt = Calibration().after("direct", 1.0, 2.0)
    assert learnt.direct == pytest.approx(2**0.5)
    assert learnt.packed == learnt.staged == pytest.approx(2**0.25)


def test_predictions_made_ahead_do_not_teach_the_same_error_twice() -> None:
    calibration = Calibration()
    ahead = [
        choose_strategy(SMALL_ROWS, DISK, memory_bytes=0, spill_bytes=10**10, calibration=calibration)
    ] * 3
    for choice in ahead:
        calibration = calibration.after(
            "packed", choice.predicted_s, 2 * choice.predicted_s, factor=choice.factor
        )
    assert calibration.packed == pytest.approx(2 ** (1 - 0.5**3))
    choice = choose_strategy(SMALL_ROWS, DISK, memory_bytes=0, spill_bytes=10**10, calibration=calibration)
    assert choice.factor == calibration.packed


def test_a_bad_moment_is_forgiven_but_not_at_once() -> None:
    calibration = Calibration().after("packed", 1.0, 9.0).after("direct", 1.0, 1.0)
    assert 1.6 < calibration.packed < 1.74
    for _ in range(60):
        calibration = calibration.after("direct", 1.0, 1.0)
    assert calibration.packed < 1.05


def test_a_strategy_that_disappoints_is_given_up() -> None:
    calibration = Calibration()
    chosen = []
    for _ in range(5):
        choice = choose_strategy(
            LARGE_ROWS,
            replace(DISK, random_reads_per_s=40_000),
            memory_bytes=0,
            spill_bytes=10**11,
            calibration=calibration,
        )
        chosen.append(choice.strategy)
        truth = {"packed": 80.0, "direct": 55.0, "staged": 0.0}[choice.strategy]
        calibration = calibration.after(choice.strategy, choice.predicted_s, truth)
    assert chosen[0] == "packed"
    assert chosen[-1] == "direct"


@pytest.mark.parametrize(("predicted", "measured"), [(0, 1), (1, 0), (1, math.inf), (math.nan, 1), (-1, 1)])
def test_seconds_that_mean_nothing_teach_nothing(predicted: float, measured: float) -> None:
    assert Calibration().after("packed", predicted, measured) == Calibration()
    assert learn_factor(1.3, predicted_s=predicted, measured_s=measured) == 1.3


def test_reads_that_do_not_keep_the_device_busy_take_the_time_of_one() -> None:
    """Three batches of two reads on a volume of a network, which takes 5 ms for any read."""
    disk = replace(DISK, latency_s=0.005)
    assert disk.read_seconds(6, 6 * 4096, calls=3) == 0.015
    assert disk.read_seconds(2, 2 * 4096, calls=3) == 0.01  # a batch that reads nothing waits for nothing
    assert disk.read_seconds(86_000, 86_000 * 4096, calls=3) == pytest.approx(1.0)
    few = replace(SMALL_ROWS, direct_requests=128, direct_bytes=128 * 4096)
    assert predict_seconds(few, disk)["direct"] == 64 * 0.005


def test_what_a_sweep_deals_out_is_time_in_which_the_device_waits() -> None:
    slow = predict_seconds(SMALL_ROWS, replace(DISK, dealt_bytes_per_s=1e9))
    plain = predict_seconds(SMALL_ROWS, DISK)
    assert slow["direct"] == plain["direct"]
    assert slow["staged"] - plain["staged"] == pytest.approx(1_700_000 * 512 / 1e9)
    assert slow["packed"] - plain["packed"] == pytest.approx(1.01)


def test_a_device_that_reads_and_writes_badly_at_once_is_packed_on_more_slowly() -> None:
    alone = predict_seconds(SMALL_ROWS, DISK)["packed"] - 1.01 / 1.05
    for gain in (0.5, 1.1):
        mixed = predict_seconds(SMALL_ROWS, replace(DISK, mixed_writes=gain))["packed"] - 1.01 / 1.05
        assert mixed == pytest.approx(alone / gain)
    # However well it does both: the longer one has to be done.
    well = predict_seconds(SMALL_ROWS, replace(DISK, mixed_writes=16.0))["packed"] - 1.01 / 1.05
    apart = replace(DISK, is_one_device=False)
    assert well == predict_seconds(SMALL_ROWS, apart)["packed"] - 1.01 / 1.05
    assert predict_seconds(SMALL_ROWS, replace(apart, mixed_writes=0.5)) == predict_seconds(SMALL_ROWS, apart)


def test_a_choice_knows_what_it_was_made_for() -> None:
    assert choose_strategy(SMALL_ROWS, DISK, memory_bytes=0, spill_bytes=0).counts == SMALL_ROWS
