"""Items that are read on a thread ahead of their use: their order, their errors, and the thread's end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from gloader.convert.read_ahead import ITEMS_AT_A_TIME, read_ahead
from gloader.core import signals
from gloader.errors import ThreadStartError

if TYPE_CHECKING:
    from collections.abc import Iterator


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "gloader-keys"]


def test_items_come_in_order_and_are_read_on_the_thread() -> None:
    readers = set()

    def items() -> Iterator[int]:
        for number in range(100):
            readers.add(threading.current_thread().name)
            yield number

    with read_ahead(items(), name="keys") as ahead:
        assert list(ahead) == [*range(100)]
    assert readers == {"gloader-keys"}
    assert threads() == []


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("row 2 is wrong")

    taken = []
    with pytest.raises(ValueError, match="row 2 is wrong"), read_ahead(items(), name="keys") as ahead:
        taken.extend(iter(ahead))
    assert taken == [1]
    assert threads() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_end_of_the_block_ends_the_thread_and_the_items(error: type[BaseException]) -> None:
    made, is_closed = [], threading.Event()

    def items() -> Iterator[int]:
        try:
            while True:
                made.append(len(made))
                yield made[-1]
        finally:
            is_closed.set()

    with pytest.raises(error), read_ahead(items(), name="keys") as ahead:
        assert next(ahead) == 0
        raise error
    assert threads() == []
    assert is_closed.is_set()
    # The block has one item, one is ready, and one was read.
    assert len(made) <= ITEMS_AT_A_TIME


def test_a_thread_that_cannot_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with (
        pytest.raises(ThreadStartError, match="start no further thread"),
        read_ahead([1], name="keys") as ahead,
    ):
        next(ahead)
    assert signals.is_signal_pending() is False
