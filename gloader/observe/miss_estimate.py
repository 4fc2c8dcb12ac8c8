"""The misses of larger and smaller host caches, estimated from one superbatch of a run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from gloader.cache import MissCurve, belady_curve, next_use_counts

if TYPE_CHECKING:
    from gloader.cache import Trace
    from gloader.types import IdArray

_BYTES_PER_NODE = 4  # of the table that a count needs while it lasts
# Fewer batches use hardly a row twice, and say little of what a cache would do.
_MIN_BATCHES = 8


class MissSample:
    """The next uses within the largest superbatch seen. Thread-safe.

    Parameters
    ----------
    num_nodes : N
    max_bytes : memory that counting may take for a moment; nothing is counted where it needs more
    """

    def __init__(self, num_nodes: int, *, max_bytes: int) -> None:
        self._num_nodes = num_nodes
        self._is_affordable = _BYTES_PER_NODE * num_nodes <= max_bytes
        self._lock = threading.Lock()
        self._counts: IdArray | None = None
        self._num_accesses = 0

    def offer(self, trace: Trace) -> None:
        """Count ``trace`` where it is larger than what was counted before."""
        if not self._is_affordable or len(trace) < _MIN_BATCHES:
            return
        if self._counts is not None and len(trace) <= len(self._counts):
            return
        # Outside the lock: it takes as long as planning does, and one thread alone inspects.
        counts = next_use_counts(trace, self._num_nodes)
        with self._lock:
            self._counts, self._num_accesses = counts, trace.num_accesses

    def curve(self, *, capacity: int, miss_rate: float) -> MissCurve | None:
        """Return the misses of every capacity, scaled so that ``capacity`` has the ``miss_rate`` that was measured.

        A superbatch knows nothing of the rows that it uses once. Beyond the last capacity that it knows of, misses are
        taken to fall evenly, down to none with all N rows in memory. None: nothing was counted.
        """
        with self._lock:
            counts, accesses = self._counts, self._num_accesses
        if counts is None:
            return None
        known = belady_curve(counts, accesses)
        here = int(known.misses_at(np.array([capacity]))[0])
        scale = miss_rate * accesses / here if here else 0.0
        inside = known.capacities < self._num_nodes
        return MissCurve(
            capacities=np.append(known.capacities[inside], self._num_nodes),
            misses=np.append((known.misses[inside] * scale).astype(np.int64), 0),
            num_accesses=accesses,
        )
