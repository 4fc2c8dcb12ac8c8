"""Bounded channels between stage threads; every wait ends on an item, on close or on failure."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from gloader.core.locks import SignalSafeCondition
from gloader.errors import ChannelClosedError

T = TypeVar("T")


class Channel(Generic[T]):
    """A bounded first-in first-out hand-over between threads. Thread-safe.

    ``close`` ends the stream: items already inside are still delivered, then `get` raises ChannelClosedError,
    or the error that ended it, so that an error keeps its place behind the items before it. ``fail`` drops what
    is inside and ends both sides at once with an error; ``cancel`` does so with ChannelClosedError.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._items: deque[T] = deque()
        self._changed = SignalSafeCondition()
        self._is_closed = False
        self._error: BaseException | None = None

    def put(self, item: T) -> None:
        """Hand ``item`` over, waiting while the channel is full."""
        self._changed.when(
            lambda: self._is_closed or len(self._items) < self._capacity, lambda: self._append(item)
        )

    def get(self) -> T:
        """Take the oldest item, waiting while the channel is empty."""
        return self._changed.when(lambda: self._items or self._is_closed, self._popleft)

    def has_next(self) -> bool:
        """Return whether `get` would return an item at once."""
        with self._changed.lock:
            return bool(self._items)

    def close(self, error: BaseException | None = None) -> None:
        """End the stream, with ``error`` where there is one. Idempotent: the first end stays."""
        with self._changed.lock:
            if not self._is_closed:
                self._is_closed = True
                self._error = error
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Drop everything and end both sides; `get` raises ``error``."""
        self._drop(error)

    def cancel(self) -> None:
        """Drop everything and end both sides. Idempotent."""
        self._drop(None)

    def _append(self, item: T) -> None:
        if self._is_closed:
            raise ChannelClosedError("put on a closed channel")
        self._items.append(item)
        # All of them: one bell would be lost on a waiter that a signal has taken away from its wait.
        self._changed.notify_all()

    def _popleft(self) -> T:
        if self._items:
            item = self._items.popleft()
            self._changed.notify_all()
            return item
        # Behind the items: the batches before a failure are good, and are still handed out.
        if self._error is not None:
            raise self._error
        # A new one each time: an error that is kept holds the frames that it passed, and what they hold.
        raise ChannelClosedError("the channel is closed and empty")

    def _drop(self, error: BaseException | None) -> None:
        with self._changed.lock:
            self._items.clear()
            self._is_closed = True
            self._error = error
            self._changed.notify_all()
