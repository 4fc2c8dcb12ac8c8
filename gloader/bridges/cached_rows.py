"""Feature rows for other libraries' loops: any ids, at any time, through a cache in host memory.

gloader's own pipeline plans its cache from future batches. In the bridges to DGL, GraphBolt and PyG, the other library
chooses the batches. So an online policy (LRU and similar) decides with each batch which rows the cache keeps.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np

from gloader.cache import OnlineName, SlotCache, make_policy
from gloader.core.ids import as_ids, outside
from gloader.core.units import parse_bytes
from gloader.errors import ConfigError, ForkError, SeedError
from gloader.types import ReadStats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import FeatureSource, IdArray


_OVERHEAD_BYTES: Final = 40  # per slot, in addition to its row: the row's id, the policy's queue and marks
_NOTHING: Final = ReadStats(rows=0, requests=0, bytes_read=0)  # before the first read


class CachedRows:
    """A source's rows behind a cache of float32 rows, which an online policy fills and evicts batch by batch.

    Thread-safe: one call runs at a time. Does not own the source.

    Parameters
    ----------
    source : all N rows, such as a `gloader.ssd_store.FeatureStore`
    cache : bytes for the cache ("2GB" or a number); 0 means no cache
    policy : "sieve", "s3fifo", "lru", "clock" or "fifo"

    Raises
    ------
    ConfigError
        The policy is unknown, or the size malformed.
    """

    def __init__(self, source: FeatureSource, *, cache: str | int = 0, policy: OnlineName = "sieve") -> None:
        if policy not in get_args(OnlineName):
            raise ConfigError(
                f"policy={policy!r}: another library chooses the batches, so the future is unknown; "
                f"choose one of {', '.join(get_args(OnlineName))}"
            )
        self.source = source
        self._capacity = min(parse_bytes(cache) // (4 * source.dim + _OVERHEAD_BYTES), source.num_rows)
        self._policy_name = policy
        self._slots = SlotCache(self._capacity, dim=source.dim)
        self._policy = self._new_policy()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self.hits = 0  # rows found in the cache so far
        self.read = _NOTHING  # rows, requests and bytes read from the source so far

    @property
    def num_slots(self) -> int:
        """Number of rows that fit in the cache."""
        return self._capacity

    def gather(self, nodes: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Return the rows for ``nodes`` (M,), in any order and with repeats, as a new (M, F) float32 array.

        Raises
        ------
        ForkError
            Called in a forked worker process: the loop must fetch features in the process that opened the store.
        SeedError
            An id is not a row.
        StoreError
            Reading failed; the cache is empty then.
        """
        self.require_own_process()
        ids = self._checked(nodes)
        unique, inverse = np.unique(ids, return_inverse=True)
        with self._lock:
            if len(unique) == len(ids):
                return self._gather_unique(ids)
            # The policy needs each row once: a repeat would count as a second use and fill a second slot.
            return self._gather_unique(unique)[inverse]

    def require_own_process(self) -> None:
        """Raise ForkError in a forked child of the process that made this object."""
        # A forked child has its parent's locks, and perhaps a cache that another thread had half changed.
        if os.getpid() != self._pid:
            raise ForkError(
                "a worker process requested features of a gloader store; fetch features in the main process "
                "(PyG: filter_per_worker=False; DGL: prefetch_node_feats instead of indexing in the sampler)"
            )

    def _gather_unique(self, ids: IdArray) -> NDArray[np.float32]:
        """Return the rows (M, F) for distinct ``ids`` (M,). The caller holds the lock."""
        out = np.empty((len(ids), self.source.dim), dtype=np.float32)
        if self._capacity == 0:
            self._count(0, self.source.read_into(ids, out))
            return out
        step = self._policy.step(ids)
        try:
            read = self._slots.execute(step, ids, out, self.source)
        # After an error, slots may hold only a part of a batch, while the policy assumes the whole batch. So both start
        # anew.
        except BaseException:
            self._slots.clear()
            self._policy = self._new_policy()
            raise
        self._count(len(step.hit_pos), read)
        return out

    def _checked(self, nodes: NDArray[np.integer[Any]]) -> IdArray:
        """Return ``nodes`` as int64. Raise SeedError if an id is not a row."""
        ids = as_ids(nodes, noun="ids", error=SeedError)
        if len(bad := outside(ids, self.source.num_rows)):
            raise SeedError(
                f"{len(bad)} of {len(ids)} ids are not rows 0..{self.source.num_rows - 1}, "
                f"among them {bad[:5].tolist()}"
            )
        return ids

    def _count(self, hits: int, read: ReadStats) -> None:
        """Add a batch's hits and reads to the totals."""
        self.hits += hits
        self.read = ReadStats(
            rows=self.read.rows + read.rows,
            requests=self.read.requests + read.requests,
            bytes_read=self.read.bytes_read + read.bytes_read,
        )

    def _new_policy(self) -> Any:
        return make_policy(self._policy_name, num_nodes=self.source.num_rows, capacity=self._capacity)
