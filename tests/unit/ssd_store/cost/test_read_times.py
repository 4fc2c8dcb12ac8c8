"""The time of reads by size, and the holes worth reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader.ssd_store.cost.io_rates import Calibration, IoRates, ReadTimes

if TYPE_CHECKING:
    from collections.abc import Callable

# As measured on a virtual disk: bound by requests up to 8 KiB, by bytes beyond.
DISK = ReadTimes(small_per_s=80_000, medium_per_s=38_000, wide_per_s=13_000, bytes_per_s=1.1e9)
ROW_BYTES = 10_496  # the pages of a row of 6,528 B


def test_measured_sizes_take_what_was_measured() -> None:
    for size, rate in ((4096, 80_000), (16384, 38_000), (65536, 13_000)):
        assert DISK.seconds(size) == pytest.approx(1 / rate)
    assert DISK.seconds(2**20) == pytest.approx(2**20 / 1.1e9)
    assert DISK.seconds(100) == DISK.seconds(4096)


def test_larger_reads_take_longer_and_less_for_a_byte() -> None:
    for times in (DISK, ReadTimes(small_per_s=80_000, medium_per_s=0, wide_per_s=0, bytes_per_s=1.1e9)):
        sizes = np.arange(4096, 2**19, 4096)
        seconds = np.array([times.seconds(size) for size in sizes])
        assert (np.diff(seconds) >= -1e-12).all()
        assert (np.diff(seconds / sizes) <= 1e-15).all()


@pytest.mark.parametrize("size", [*range(4096, 2**18 + 1, 4096), 50_000, 2**20])
def test_sizes_between_are_right_whether_requests_and_bytes_add_up_or_the_longer_counts(size: int) -> None:
    def known(seconds: Callable[[int], float]) -> ReadTimes:
        small, medium, wide, order = (1 / seconds(one) for one in (4096, 16384, 65536, 2**18))
        return ReadTimes(small_per_s=small, medium_per_s=medium, wide_per_s=wide, bytes_per_s=order * 2**18)

    def longer(size: int) -> float:
        return max(1 / 20_000, size / 400e6)  # they meet at 20 KB

    def both(size: int) -> float:
        return 1 / 20_000 + size / 400e6

    assert known(longer).seconds(size) == pytest.approx(longer(size))
    if size <= 2**18:  # what is read in file order is what bytes are taken to cost, requests and all
        assert known(both).seconds(size) == pytest.approx(both(size))


def test_holes_are_read_where_that_is_faster() -> None:
    assert DISK.gap_bytes(4096, most=65536) == 4096
    bound_by_bytes = ReadTimes(small_per_s=100_000, medium_per_s=25_000, wide_per_s=6_250, bytes_per_s=0.41e9)
    assert bound_by_bytes.gap_bytes(ROW_BYTES, most=65536) == 0
    bound_by_requests = ReadTimes(small_per_s=1000, medium_per_s=1000, wide_per_s=1000, bytes_per_s=1e9)
    assert bound_by_requests.gap_bytes(ROW_BYTES, most=65536) == 65536
    assert DISK.sweep_gap_bytes(most=65536) == 8192


def test_the_run_corrects_the_rates_that_holes_are_judged_by() -> None:
    rates = IoRates(
        random_reads_per_s=80_000,
        medium_reads_per_s=38_000,
        wide_reads_per_s=13_000,
        read_bytes_per_s=3.03e9,  # of a burst
        write_bytes_per_s=1e9,
        pack_read_bytes_per_s=1e9,
    )
    swept = Calibration(staged=2.75, observed=frozenset({"staged"}))  # type: ignore[arg-type]
    corrected = rates.corrected(swept)
    assert corrected.read_bytes_per_s == pytest.approx(1.1e9, rel=0.01)
    assert corrected.times.sweep_gap_bytes(most=65536) < rates.times.sweep_gap_bytes(most=65536)
