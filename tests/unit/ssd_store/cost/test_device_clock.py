"""Shares of a device that several use at once."""

from __future__ import annotations

import pytest

from gloader.ssd_store.cost.device_clock import DeviceClock


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_those_who_use_it_together_get_equal_shares() -> None:
    time = Time()
    clock = DeviceClock(now=time)
    with clock.using() as sweep:
        time.now += 3  # alone
        with clock.using() as read:
            time.now += 4  # together
        time.now += 1  # alone again
    time.now += 10  # nobody
    with clock.using() as later:
        time.now += 2
    assert (sweep.seconds, read.seconds, later.seconds) == pytest.approx((6, 2, 2))


def test_uses_need_not_be_nested() -> None:
    time = Time()
    clock = DeviceClock(now=time)
    first, second = clock.using(), clock.using()
    one = first.__enter__()
    time.now += 1
    two = second.__enter__()
    time.now += 2
    first.__exit__(None, None, None)
    time.now += 3
    second.__exit__(None, None, None)
    assert (one.seconds, two.seconds) == pytest.approx((2, 4))


def test_a_use_that_fails_ends_as_well() -> None:
    time = Time()
    clock = DeviceClock(now=time)
    with pytest.raises(OSError, match="broken"), clock.using() as use:
        time.now += 1
        raise OSError("broken")
    time.now += 5
    assert use.seconds == 1
