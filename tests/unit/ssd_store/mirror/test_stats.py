import pytest

from gloader.ssd_store.mirror.block_fetch import WaitClock


def test_waits_at_the_same_time_count_once() -> None:
    now = 0.0
    clock = WaitClock(lambda: now)
    with clock:
        now = 1.0
        with clock:
            now = 3.0
        now = 4.0
        assert clock.seconds == 4.0
    now = 10.0
    assert clock.seconds == 4.0
    with clock:
        now = 11.0
    assert clock.seconds == 5.0


def test_a_wait_that_fails_ends() -> None:
    now = 0.0
    clock = WaitClock(lambda: now)
    with pytest.raises(ZeroDivisionError), clock:
        now = 2.0
        _ = 1 / 0
    now = 5.0
    assert clock.seconds == 2.0
