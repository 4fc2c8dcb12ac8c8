"""Waiting for what another thread does, with signals that come at any moment."""

import os
import random
import signal
import sys
import threading
import time
from types import FrameType

import pytest

from gloader.core.signals import SignalSafeCondition


def test_what_is_ready_needs_no_wait() -> None:
    assert SignalSafeCondition().when(lambda: True, lambda: 7) == 7


def test_a_change_wakes_every_waiter() -> None:
    condition = SignalSafeCondition()
    is_ready = False
    results: list[int] = []
    waiters = [
        threading.Thread(
            target=lambda: results.append(condition.when(lambda: is_ready, lambda: len(results)))
        )
        for _ in range(3)
    ]
    for waiter in waiters:
        waiter.start()
    time.sleep(0.05)
    with condition.lock:
        condition.notify_all()  # nothing has changed: they go on waiting
    time.sleep(0.05)
    assert results == []
    with condition.lock:
        is_ready = True
        condition.notify_all()
    for waiter in waiters:
        waiter.join()
    assert len(results) == 3


def test_a_wait_has_an_end() -> None:
    began = time.monotonic()
    assert SignalSafeCondition().when(lambda: False, lambda: "late", 0.05) == "late"
    assert 0.04 < time.monotonic() - began < 5


def test_an_error_gives_the_lock_back() -> None:
    condition = SignalSafeCondition()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        condition.when(lambda: True, fail)
    taken = []
    thread = threading.Thread(target=lambda: taken.append(condition.lock.acquire(timeout=5)))
    thread.start()
    thread.join()
    assert taken == [True]


@pytest.mark.reliability("D4")
def test_ctrl_c_at_any_moment_leaves_the_lock_free_and_raises_nothing_else() -> None:
    """A `threading.Condition` fails this: "release unlocked lock", or a lock that is held for ever."""
    condition = SignalSafeCondition()
    count, is_over, may_raise = 0, False, False

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal may_raise
        if may_raise:
            may_raise = False
            raise KeyboardInterrupt

    def produce() -> None:
        nonlocal count
        while not is_over:
            with condition.lock:
                count += 1
                condition.notify_all()

    def interrupt() -> None:
        draw = random.Random(0)  # noqa: S311 - moments, not secrets
        while not is_over:
            time.sleep(draw.random() * 0.001)
            os.kill(os.getpid(), signal.SIGINT)

    previous = signal.signal(signal.SIGINT, handle)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that a wait for the interpreter comes between any two lines
    threads = [threading.Thread(target=produce), threading.Thread(target=interrupt)]
    try:
        for thread in threads:
            thread.start()
        interrupts = 0
        end = time.monotonic() + 2
        while time.monotonic() < end:
            seen = count
            try:
                may_raise = True
                condition.when(lambda seen=seen: count > seen + 3, lambda: None)  # type: ignore[misc]
                may_raise = False
            except KeyboardInterrupt:
                interrupts += 1
    finally:
        is_over = True
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
        signal.signal(signal.SIGINT, previous)
    assert interrupts > 20
