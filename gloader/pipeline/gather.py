"""Putting the rows of one batch into one buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gloader.cache import SlotCache
    from gloader.pipeline.buffers import FloatMatrix
    from gloader.pipeline.superbatch import FilledBatch
    from gloader.types import FeatureSource, IdArray, ReadStats, SampledBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBatch:
    """A sampled batch with its features, in host memory."""

    sampled: SampledBatch
    x: FloatMatrix  # (U, F), a buffer of the ring; (0, F) where the device reaches every row itself
    src_degree: NDArray[np.float32]  # (U,) full-graph in-degree
    superbatch: int  # number of its superbatch
    ends_superbatch: bool


def gather_whole(
    nodes: IdArray, out: FloatMatrix, source: FeatureSource, *, positions: IdArray | None = None
) -> ReadStats:
    """Put the rows of ``nodes`` (U,), or of those at ``positions`` (M,), into ``out`` (U, F), all from ``source``."""
    if positions is None:
        return source.read_into(nodes, out)
    return source.read_into(nodes[positions], out, at=positions)


def gather_cached(filled: FilledBatch, slots: SlotCache) -> None:
    """Copy the hits of a batch whose misses are there into its buffer, then admit what the plan lets in.

    Hits go first: an admission may take the slot of a row that this batch still reads.

    Raises
    ------
    PlanError
        A hit's slot holds another row than planned.
    """
    nodes = filled.job.batch.sampled.nodes
    slots.copy_hits(filled.step, nodes, filled.x)
    slots.admit(filled.step, nodes, filled.x)
