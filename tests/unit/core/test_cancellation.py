"""A cancellation: what sets it, what a look at it calls, and what it raises."""

import threading

import pytest

from gloader.core.signals import NEVER, Cancellation
from gloader.errors import ChannelClosedError


def test_it_is_set_for_every_thread_and_stays_so() -> None:
    cancellation = Cancellation()
    assert not cancellation.is_set()
    cancellation.raise_if_set("a sweep")
    thread = threading.Thread(target=cancellation.set)
    thread.start()
    thread.join()
    cancellation.set()
    assert cancellation.is_set()
    with pytest.raises(ChannelClosedError, match=r"^a sweep was cancelled$"):
        cancellation.raise_if_set("a sweep")
    assert not NEVER.is_set()


def test_a_test_of_its_own_cancels_too() -> None:
    looks = iter([False, True])
    cancellation = Cancellation(lambda: next(looks))
    assert [cancellation.is_set(), cancellation.is_set()] == [False, True]


def test_work_reports_progress_at_each_look_and_ends_with_the_whole() -> None:
    whole, calls = Cancellation(), []
    parts = [whole.reporting(lambda name=name: calls.append(name)) for name in "ab"]
    parts[0].raise_if_set("a piece")
    assert [part.is_set() for part in parts] == [False, False]
    parts[0].set()  # ends one piece of work only
    assert [whole.is_set(), parts[1].is_set()] == [False, False]
    whole.set()
    assert parts[1].is_set()
    assert calls == ["a", "a", "b", "b", "b"]
