"""Putting the rows of one batch into one buffer: hits from the host cache, misses from the feature source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gloader.host_cache import HostCache
    from gloader.ring import BufferRing, FloatMatrix
    from gloader.stats import StatsRecorder
    from gloader.types import FeatureSource, IdArray, SampledBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBatch:
    """A sampled batch with its features, in host memory."""

    sampled: SampledBatch
    x: FloatMatrix  # (U, F), a buffer of the ring
    src_degree: IdArray  # (U,) full-graph in-degree


class Gather:
    """The gather stage. Thread-safe where its source is; owns nothing.

    Parameters
    ----------
    source : all N rows
    cache : rows in memory in front of the source, or None
    ring : where the buffers come from
    """

    def __init__(
        self, source: FeatureSource, cache: HostCache | None, ring: BufferRing, *, is_in_memory: bool
    ) -> None:
        self._source = source
        self._cache = cache
        self._ring = ring
        self._is_in_memory = is_in_memory

    def gather(self, nodes: IdArray, recorder: StatsRecorder) -> FloatMatrix:
        """Return the rows of ``nodes`` (U,) as (U, F) float32 in a buffer of the ring."""
        out = self._ring.acquire(len(nodes))
        with recorder.stage("gather"):
            if self._cache is None:
                read = self._source.read_into(nodes, out)
                hits = len(nodes) if self._is_in_memory else 0
                recorder.add_gather(rows=len(nodes), hits=hits, read=None if self._is_in_memory else read)
                return out
            hits, read = self._cache.gather(nodes, out)
            recorder.add_gather(rows=len(nodes), hits=hits, read=read)
        return out
