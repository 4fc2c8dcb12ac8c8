"""A thread's time without a core, as the system reports it, and no value without a report."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from forking import in_child

from gloader.core import thread_times
from gloader.core.thread_times import core_wait_s

if TYPE_CHECKING:
    import pytest


def test_it_never_falls() -> None:
    seen = [core_wait_s() for _ in range(100)]
    assert seen == sorted(seen)
    assert seen[0] >= 0


def test_each_thread_has_its_own_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_times, "_own", thread_times._OwnSchedule())
    found: list[thread_times._Schedule] = []
    threads = [
        threading.Thread(target=lambda: found.append(thread_times._own.schedule), name=f"t-{number}")
        for number in range(2)
    ]
    for thread in threads:
        thread.start()
        thread.join()
    assert len({id(one) for one in [*found, thread_times._own.schedule]}) == 3


def test_an_account_goes_with_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_times, "_own", thread_times._OwnSchedule())
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    thread = threading.Thread(target=core_wait_s, name="waits")
    thread.start()
    thread.join()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_where_nobody_counts_there_was_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_times, "_PATH", "/proc/thread-self/no-such-file")
    monkeypatch.setattr(thread_times, "_own", thread_times._OwnSchedule())
    assert core_wait_s() == 0


def test_what_is_no_account_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_times, "_PATH", "/proc/version")
    monkeypatch.setattr(thread_times, "_own", thread_times._OwnSchedule())
    assert core_wait_s() == 0


def test_a_forked_child_begins_anew() -> None:
    core_wait_s()
    ours = thread_times._own

    def check() -> None:
        assert thread_times._own is not ours
        assert core_wait_s() >= 0

    assert in_child(check) == 0
