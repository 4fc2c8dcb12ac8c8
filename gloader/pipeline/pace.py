"""How far batches are sent ahead of the computation on a device that works behind the host."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from gloader.core.locks import SignalSafeCondition
from gloader.errors import ChannelClosedError

if TYPE_CHECKING:
    from gloader.device import Mark

# On the device, beside the batch that is computed on: one waits, one is being sent. Each more would take as much device
# memory again, and hide nothing while sending takes less than computing.
BATCHES_AHEAD: Final = 2


class Pace:
    """Lets a batch be sent when the device has begun with the second before it. Thread-safe.

    The host launches steps faster than the device does them, and memory of the device is given out again only when the
    device is done with it. Without a bound every batch that a step was launched for would be there at once.
    """

    def __init__(self) -> None:
        self._changed = SignalSafeCondition()
        self._begun: deque[Mark] = deque()  # of the batches from the first that the sender did not wait for
        self._num_sent = 0
        self._is_over = False

    def begun(self, mark: Mark) -> None:
        """Take the mark before the computation of the next batch, which the loop gets."""
        with self._changed.lock:
            self._begun.append(mark)
            self._changed.notify_all()

    def has_room(self) -> bool:
        """Return whether `wait_for_room` would return at once."""
        with self._changed.lock:
            return self._is_first or (bool(self._begun) and self._begun[0].is_reached())

    def wait_for_room(self) -> None:
        """Wait until there is room for one more batch, and count it as sent.

        Raises
        ------
        ChannelClosedError
            The run is over.
        """
        mark = self._changed.when(lambda: self._is_over or self._is_first or self._begun, self._take)
        if mark is not None:
            mark.wait()

    def cancel(self) -> None:
        """End every wait for the loop, now and later. Idempotent."""
        with self._changed.lock:
            self._is_over = True
            self._changed.notify_all()

    @property
    def _is_first(self) -> bool:
        """Whether there is room before anything is computed."""
        return self._num_sent < BATCHES_AHEAD

    def _take(self) -> Mark | None:
        if self._is_over:
            raise ChannelClosedError("the run is over")
        mark = None if self._is_first else self._begun.popleft()
        self._num_sent += 1
        return mark
