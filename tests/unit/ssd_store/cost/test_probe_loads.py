"""Loads on a rehearsed device: bursts that end are not taken for what it keeps up, and stalls are not waited for."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gloader.core.aligned_memory import mapped_bytes
from gloader.ssd_store.cost.device_probe import (
    ProbedFile,
    ReadLoad,
    WriteLoad,
    bare_extents,
    shares_together,
    steady_rate,
)
from gloader.testing.faults import FaultyOS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PHASE_S = 0.1
CLOCK = "gloader.ssd_store.cost.device_probe.perf_counter"


class Bucket:
    """A device of a cloud: it does ``burst`` at once, then ``rate`` in a second; the clock is its own."""

    def __init__(self, rate: float, *, burst: float = 0.0, burst_rate: float = 1e6, step: int = 10) -> None:
        self.now = 50.0
        self._rate, self._left, self._burst_rate, self._step = rate, burst, burst_rate, step

    def step(self) -> int:
        self.now += self._step / (self._burst_rate if self._left > 0 else self._rate)
        self._left -= self._step
        return self._step

    def clock(self) -> float:
        return self.now


def steady(device: Bucket, step: Callable[[], int] | None = None) -> float:
    """Return the rate that is measured on the clock of ``device``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CLOCK, device.clock)
        return steady_rate(device.step if step is None else step, seconds=PHASE_S)


def test_a_steady_device_is_measured_in_two_phases() -> None:
    device = Bucket(1000.0)
    assert steady(device) == pytest.approx(1000, rel=0.02)
    assert device.now - 50 == pytest.approx(2 * PHASE_S, rel=0.2)


@pytest.mark.parametrize("burst", [50, 150])
def test_a_burst_that_ends_while_it_is_measured_is_not_the_rate(burst: float) -> None:
    device = Bucket(200.0, burst=burst, burst_rate=1000.0)
    assert steady(device) == pytest.approx(200, rel=0.15)


def test_a_longer_burst_cannot_be_told_and_is_left_to_the_runs() -> None:
    device = Bucket(200.0, burst=1e6, burst_rate=1000.0)
    assert steady(device) == pytest.approx(1000, rel=0.02)


def test_a_device_that_never_settles_is_not_measured_for_ever() -> None:
    device, rates = Bucket(1000.0), iter([1e3, 1e2] * 100)

    def step() -> int:
        device._rate = next(rates)
        device._step = int(device._rate * PHASE_S)
        return device.step()

    found = steady(device, step)
    assert found == pytest.approx(1e3) or found == pytest.approx(1e2)
    assert device.now - 50 < 10 * PHASE_S


def test_a_device_that_stalls_is_not_waited_for() -> None:
    device, rates = Bucket(3.0, step=32), iter([3.0, 9.0] * 10)  # ten seconds a step, or three

    def step() -> int:
        device._rate = next(rates)
        return device.step()

    assert steady(device, step) == pytest.approx(3)
    assert device.now - 50 < 12


def test_what_a_device_does_of_two_loads_at_once() -> None:
    """Both loads go on in a clock of their own thread: one device that shares itself out, or one that does not."""

    def mixed(slowdown: float) -> float:
        clocks, both = threading.local(), threading.Barrier(2, timeout=10)

        def step() -> int:
            beside = threading.current_thread() is not threading.main_thread()
            now = getattr(clocks, "now", 0.0)
            if beside and now == 0:
                both.wait()  # nobody begins before the other does
            clocks.now = now + (slowdown if beside else 1.0)
            return 1

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CLOCK, lambda: getattr(clocks, "now", 0.0))
            return shares_together(step, step, seconds=100)

    assert mixed(2.0) == pytest.approx(1.0, rel=0.05)  # it takes turns
    assert mixed(1.0) == pytest.approx(2.0, rel=0.05)  # neither notices the other
    assert mixed(4.0) == pytest.approx(0.5, rel=0.05)  # they hinder one another
    assert (mixed(0.1), mixed(100.0)) == (2.0, 0.25)  # neither of which a device can do


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(np.random.default_rng(0).bytes(2**20))
    return path


def test_reads_go_round_the_file(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        extents = bare_extents(np.arange(10) * 4096, 4096)
        with ReadLoad(fd, extents, mapped_bytes(64 * 4096), depth=4, most=4) as load:
            assert [load.step() for _ in range(6)] == [4, 4, 2, 4, 4, 2]
    finally:
        os.close(fd)


def test_steps_become_as_long_as_a_phase_needs(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        extents = bare_extents(np.zeros(10_000, np.int64), 4096)
        with ReadLoad(fd, extents, mapped_bytes(64 * 4096), depth=64, most=128) as load:
            assert load.settled(1e9).step() == 128
        with ReadLoad(fd, extents, mapped_bytes(64 * 4096), depth=64, most=128) as load:
            assert load.settled(1e-9).step() == 32
    finally:
        os.close(fd)


def test_reads_that_all_fail_are_an_error(file: Path) -> None:
    fd = os.open(file, os.O_RDONLY)
    try:
        beyond = bare_extents(2**30 + np.arange(8) * 4096, 4096)
        with (
            ReadLoad(fd, beyond, mapped_bytes(64 * 4096), depth=4, most=4) as load,
            pytest.raises(OSError, match="not one of the reads that measure the device succeeded"),
        ):
            load.step()
    finally:
        os.close(fd)


def test_writes_fill_a_file_and_begin_it_again(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    try:
        chunk = np.arange(8192, dtype=np.uint8)
        assert WriteLoad(fd, chunk).fill(seconds=100, max_bytes=40_000)[0] == 40_960
        assert os.fstat(fd).st_size == 40_960
        writes = WriteLoad(fd, chunk, size=40_960)
        for _ in range(9):
            assert writes.step() == 8192
        assert os.fstat(fd).st_size == 40_960
    finally:
        os.close(fd)


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "out", os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(OSError, match="No space left") as caught:
            WriteLoad(fd, np.zeros(8192, np.uint8), os_io=FaultyOS(short=100)).step()
        assert caught.value.errno == errno.ENOSPC
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("rates", "depth"),
    [
        ({64: 900.0}, 64),  # a queue of 64 holds more than it does in the longest wait for a core
        ({64: 30_000.0, 256: 31_000.0}, 64),
        ({64: 30_000.0, 256: 60_000.0, 1024: 61_000.0}, 256),
        ({64: 100_000.0, 256: 300_000.0, 1024: 800_000.0}, 1024),
    ],
)
def test_a_queue_is_as_deep_as_the_device_needs(
    rates: dict[int, float], depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProbedFile, "random_reads", lambda _, *, depth, seconds: rates[depth])
    file = ProbedFile(fd=-1, num_bytes=2**20, memory=None)
    assert file.best_depth(seconds=0.1) == (rates[depth], depth)
