"""Shares of a device that several use at once."""

from __future__ import annotations

import pytest

from gloader.ssd_store.cost.device_rates import DeviceClock


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The clock of the device."""
    clock = Time()
    monkeypatch.setattr("gloader.ssd_store.cost.device_rates.perf_counter", clock)
    return clock


@pytest.fixture(autouse=True)
def waited(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The seconds that a thread has waited for a core."""
    seconds = Time()
    monkeypatch.setattr("gloader.ssd_store.cost.device_rates.core_wait_s", seconds)
    return seconds


def test_those_who_use_it_together_get_equal_shares(time: Time) -> None:
    clock = DeviceClock()
    with clock.using() as sweep:
        time.now += 3  # alone
        with clock.using() as read:
            time.now += 4  # together
        time.now += 1  # alone again
    time.now += 10  # nobody
    with clock.using() as later:
        time.now += 2
    assert (sweep.seconds, read.seconds, later.seconds) == pytest.approx((6, 2, 2))


def test_uses_need_not_be_nested(time: Time) -> None:
    clock = DeviceClock()
    first, second = clock.using(), clock.using()
    one = first.__enter__()
    time.now += 1
    two = second.__enter__()
    time.now += 2
    first.__exit__(None, None, None)
    time.now += 3
    second.__exit__(None, None, None)
    assert (one.seconds, two.seconds) == pytest.approx((2, 4))


def test_a_use_that_fails_ends_as_well(time: Time) -> None:
    clock = DeviceClock()
    with pytest.raises(OSError, match="broken"), clock.using() as use:
        time.now += 1
        raise OSError("broken")
    time.now += 5
    assert use.seconds == 1


def test_most_of_a_wait_for_a_core_is_not_the_device_s(time: Time, waited: Time) -> None:
    clock = DeviceClock()
    with clock.using() as sweep:
        time.now += 10
        waited.now += 4
    assert sweep.seconds == pytest.approx(10 - 0.75 * 4)


def test_of_a_shared_device_it_is_a_share_of_the_wait_as_well(time: Time, waited: Time) -> None:
    clock = DeviceClock()
    with clock.using() as sweep, clock.using() as read:
        time.now += 8
        waited.now += 4  # the fake is everybody's
    assert (sweep.seconds, read.seconds) == pytest.approx((4 - 0.75 * 2, 4 - 0.75 * 2))


@pytest.mark.parametrize("waited_s", [-1.0, 100.0])
def test_a_wait_is_no_longer_than_the_use(waited_s: float, time: Time, waited: Time) -> None:
    clock = DeviceClock()
    with clock.using() as use:
        time.now += 2
        waited.now += waited_s
    assert use.seconds == pytest.approx(2 if waited_s < 0 else 0.5)


@pytest.mark.usefixtures("time")
def test_a_use_of_no_time_takes_none() -> None:
    clock = DeviceClock()
    with clock.using() as use:
        pass
    assert use.seconds == 0
