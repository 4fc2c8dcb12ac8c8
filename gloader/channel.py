"""Bounded channels between stage threads; every wait ends on an item, on close or on failure."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

from gloader.errors import ChannelClosedError

T = TypeVar("T")


class Channel(Generic[T]):
    """A bounded first-in first-out hand-over between threads. Thread-safe.

    ``close`` ends the stream: items already inside are still delivered, then `get` raises ChannelClosedError,
    or the error that ended it, so that an error keeps its place behind the items before it. ``cancel`` drops what
    is inside; every `put` and `get`, the waiting ones included, then raises ChannelClosedError.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._end: BaseException | None = None

    def put(self, item: T) -> None:
        """Hand ``item`` over, waiting while the channel is full."""
        with self._changed:
            self._changed.wait_for(lambda: self._end or len(self._items) < self._capacity)
            if self._end is not None:
                raise ChannelClosedError("put on a closed channel")
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> T:
        """Take the oldest item, waiting while the channel is empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._end)
            if not self._items and self._end is not None:
                raise self._end
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def close(self, error: BaseException | None = None) -> None:
        """End the stream, with ``error`` where there is one. Idempotent: the first end stays."""
        with self._changed:
            if self._end is None:
                self._end = error or ChannelClosedError("the channel is closed and empty")
            self._changed.notify_all()

    def cancel(self) -> None:
        """Drop everything and end both sides. Idempotent."""
        with self._changed:
            self._items.clear()
            self._end = ChannelClosedError("the channel is cancelled")
            self._changed.notify_all()


class ReorderChannel(Generic[T]):
    """A bounded hand-over whose items are put in any order and taken in order of their index. Thread-safe.

    ``put(index, item)`` waits while ``index`` is ``capacity`` or more ahead of the next index to be taken, so
    the item that the consumer waits for is always let in and the channel cannot block itself.
    """

    def __init__(self, capacity: int, *, first: int, end: int) -> None:
        self._capacity = capacity
        self._next = first
        self._items: dict[int, T] = {}
        self._changed = threading.Condition()
        self._end_index = end
        self._end: BaseException = ChannelClosedError("the channel is closed and empty")

    def put(self, index: int, item: T) -> None:
        """Hand over the item of ``index``, waiting while it is too far ahead."""
        with self._changed:
            self._changed.wait_for(lambda: index < self._next + self._capacity or index >= self._end_index)
            if index >= self._end_index:
                raise ChannelClosedError("put behind the end of a channel")
            self._items[index] = item
            self._changed.notify_all()

    def get(self) -> T:
        """Take the item of the next index, waiting until it is there."""
        with self._changed:
            self._changed.wait_for(lambda: self._next in self._items or self._next >= self._end_index)
            if self._next >= self._end_index:
                raise self._end
            item = self._items.pop(self._next)
            self._next += 1
            self._changed.notify_all()
            return item

    def end_at(self, index: int, error: BaseException) -> None:
        """End the stream before ``index`` with ``error``; of several ends the earliest index stays."""
        with self._changed:
            if index < self._end_index:
                self._end_index = index
                self._end = error
            self._changed.notify_all()

    def cancel(self) -> None:
        """Drop everything and end both sides. Idempotent."""
        with self._changed:
            self._items.clear()
            self._end_index = self._next
            self._end = ChannelClosedError("the channel is cancelled")
            self._changed.notify_all()
