"""What the rank that loads knows of another rank, and what it tells it about an error."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from gloader.errors import RankError

if TYPE_CHECKING:
    from gloader.distributed.outlet import Outlet
    from gloader.distributed.wire import Message
    from gloader.observe.epoch_stats import WorkName
    from gloader.observe.watchdog import Watchdog
    from gloader.pipeline.gather import HostBatch
    from gloader.types import BatchId


class RemoteWait:
    """Another rank that waits for a batch: an activity for the watchdog."""

    def __init__(self, batch: BatchId) -> None:
        self.stage: WorkName = "wait"
        self.batch = batch
        self.since_ns = time.perf_counter_ns()
        self.thread_id = threading.get_ident()


class Peer:
    """Another rank, as the rank that loads sees it."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self.begins = 0  # the run that it wants to begin
        self.position: BatchId | None = None  # where
        self.is_closed = False  # said goodbye
        self._lock = threading.Lock()
        self._wait: RemoteWait | None = None
        self._watchdog: Watchdog | None = None

    def watch(self, watchdog: Watchdog) -> None:
        """Report waits to another watchdog from now on."""
        self._wait, self._watchdog = None, watchdog

    def deliver(self, host: HostBatch) -> None:
        """Send ``host``: the rank does not wait any more; errors as `Outlet.deliver`."""
        with self._lock:
            self.outlet.deliver(host)
            self._waits(None)

    def is_behind(self, num_batches: int) -> bool:
        """Return whether the rank takes part in the run and was sent fewer than ``num_batches``."""
        return self.outlet.takes_part and self.outlet.num_sent < num_batches

    def note_wait(self, batch: BatchId, *, num_received: int) -> None:
        """Note that the rank waits for ``batch``, unless something is on the way to it."""
        with self._lock:
            if self.outlet.takes_part and num_received == self.outlet.num_sent:
                self._waits(batch)

    def end_wait(self) -> None:
        """Note that the rank does not wait. Idempotent."""
        with self._lock:
            self._waits(None)

    def _waits(self, batch: BatchId | None) -> None:
        self.outlet.ring.note_wait(is_waiting=batch is not None)
        if batch is None:
            wait, self._wait = self._wait, None
            if wait is not None and self._watchdog is not None:
                self._watchdog.leave(wait, time.perf_counter_ns())
        elif self._wait is None and self._watchdog is not None:
            self._wait = RemoteWait(batch)
            self._watchdog.enter(self._wait)


def describe(error: BaseException, rank: int | None) -> Message:
    """Return what another rank is told of ``error``, which ``rank`` had, unless the error names one itself."""
    names_one = isinstance(error, RankError) or rank is None
    text = str(error) if names_one else f"rank {rank} failed: {type(error).__name__}: {error}"
    return {"op": "error", "text": text, "notes": list(getattr(error, "__notes__", []))}
