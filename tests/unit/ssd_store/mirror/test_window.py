"""The number of requests in flight."""

from gloader.ssd_store.mirror.block_fetch import Window


def test_a_window_opens_by_one_for_each_round_and_never_beyond_the_most():
    window = Window(64)
    assert window.width == 16
    for width in range(16, 64):
        assert window.width == width
        for _ in range(width + 1):
            window.widen()
    for _ in range(1000):
        window.widen()
    assert window.width == 64


def test_a_window_is_halved_once_for_requests_that_were_in_flight_together():
    window = Window(64)
    age = window.age
    assert window.halve(age)
    assert not any(window.halve(age) for _ in range(15))
    assert window.width == 8
    assert window.halve(window.age)
    assert window.width == 4


def test_a_window_never_closes():
    window = Window(3, first=16)
    assert window.width == 3
    for _ in range(20):
        window.halve(window.age)
    assert window.width == 1
    for _ in range(20):
        window.widen()
    assert window.width == 3
