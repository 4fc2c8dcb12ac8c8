"""The host waits for ranks that are behind, but not against a Ctrl-C."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

from gloader.core.signals import SignalSafeCondition, uninterrupted
from gloader.distributed.host import LoaderHost


def host_with(*, is_behind: bool) -> LoaderHost:
    """Return as much of a host as waits: a real one needs another process."""
    host = LoaderHost.__new__(LoaderHost)
    host._changed = SignalSafeCondition()
    host._timeout_s = None
    host._is_sharing = True
    host._peers = [SimpleNamespace(is_behind=lambda _num_taken: is_behind)]  # type: ignore[list-item]
    return host


def test_nobody_is_waited_for_who_is_not_behind() -> None:
    began = time.monotonic()
    host_with(is_behind=False).wait_for_slower_ranks(3)
    assert time.monotonic() - began < 5


def test_a_ctrl_c_ends_the_wait_for_those_who_are_behind() -> None:
    host = host_with(is_behind=True)
    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), uninterrupted():  # as the loader closes
        host.wait_for_slower_ranks(3)
    interrupt.join()
    assert 0.05 < time.monotonic() - began < 5


def test_the_wait_ends_when_they_caught_up() -> None:
    host = host_with(is_behind=True)

    def catch_up() -> None:
        with host._changed.lock:
            host._is_sharing = False
            host._changed.notify_all()

    timer = threading.Timer(0.1, catch_up)
    timer.start()
    host.wait_for_slower_ranks(3)
    timer.join()
    assert not host._is_sharing
