import pytest

from gloader.ssd_store.mirror.block_fetch import WaitClock

MONOTONIC = "gloader.ssd_store.mirror.block_fetch.monotonic"


def test_waits_at_the_same_time_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(MONOTONIC, lambda: now)
    clock = WaitClock()
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


def test_a_wait_that_fails_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(MONOTONIC, lambda: now)
    clock = WaitClock()
    with pytest.raises(ZeroDivisionError), clock:
        now = 2.0
        _ = 1 / 0
    now = 5.0
    assert clock.seconds == 2.0
