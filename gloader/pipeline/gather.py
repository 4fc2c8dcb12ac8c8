"""Gather: the rows of a batch into one buffer, from the slots of the cache or from features in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gloader.cache import DeviceShare, SlotCache
    from gloader.observe.instruments import Instruments
    from gloader.pipeline.buffers import Buffers, RowMatrix
    from gloader.pipeline.sample import WholeBatch
    from gloader.pipeline.superbatch import FilledBatch
    from gloader.types import FeatureSource, IdArray, ReadStats, SampledBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBatch:
    """A sampled batch with its features, in host memory."""

    sampled: SampledBatch
    x: RowMatrix  # (U, F), a buffer of the ring; (0, F) where the device reaches every row itself
    src_degree: NDArray[
        np.float32
    ]  # (U,) full-graph in-degree; (0,) of a batch on the device, which has them
    superbatch: int  # number of its superbatch
    ends_superbatch: bool


class GatherWhole:
    """Gathers a batch from features in memory; rows that the device holds are left out.

    Parameters
    ----------
    source : all N rows
    share : the rows that the device brings
    ring : gives the buffer (U, F) of each batch
    instruments : measure it
    """

    name: Final = "gather"

    def __init__(
        self,
        source: FeatureSource,
        share: DeviceShare,
        *,
        ring: Buffers,
        instruments: Instruments,
    ) -> None:
        self._source = source
        self._share = share
        self._ring = ring
        self._instruments = instruments

    def process(self, whole: WholeBatch) -> HostBatch:
        """Return the batch with its rows."""
        batch = whole.sampled
        num_rows, share = len(batch.nodes), self._share
        brings_all = share.reaches_all or share.holds_all
        # Outside of what is measured: who waits for a buffer waits for the consumer, and that is no stall.
        x = self._ring.acquire(0 if brings_all else num_rows)
        with self._instruments.working("gather", batch.id) as work:
            if not brings_all:
                gather_whole(batch.nodes, x, self._source, positions=share.positions_left(batch.nodes))
            held = share.num_held(batch.nodes)
            work.note(rows=num_rows - held)
        self._instruments.recorder(batch.id.epoch).add_gather(
            rows=num_rows, hits=num_rows - held, read=None, device_hits=held
        )
        return HostBatch(sampled=batch, x=x, src_degree=whole.src_degree, superbatch=0, ends_superbatch=False)


class GatherCached:
    """Gathers a batch whose misses were read: copies the hits, then admits what the plan lets in.

    Parameters
    ----------
    slots : the rows of the host cache
    instruments : measure it
    """

    name: Final = "gather"

    def __init__(self, slots: SlotCache, instruments: Instruments) -> None:
        self._slots = slots
        self._instruments = instruments

    def process(self, filled: FilledBatch) -> HostBatch:
        """Return the batch with all of its rows."""
        job = filled.job
        batch = job.batch.sampled
        with self._instruments.working("gather", batch.id) as work:
            gather_cached(filled, self._slots)
            work.note(superbatch=job.superbatch.number, hits=len(filled.step.hit_pos))
        return HostBatch(
            sampled=batch,
            x=filled.x,
            src_degree=job.batch.src_degree,
            superbatch=job.superbatch.number,
            ends_superbatch=job.is_last,
        )


def gather_whole(
    nodes: IdArray, out: RowMatrix, source: FeatureSource, *, positions: IdArray | None = None
) -> ReadStats:
    """Put the rows of a batch into a buffer, and return what was read.

    Parameters
    ----------
    nodes : (U,) int64 row ids
    out : (U, F) float32 or as stored, changed in place
    source : all N rows
    positions : (M,) of the nodes whose rows are wanted, the others stay as they are; None: all
    """
    if positions is None:
        return source.read_into(nodes, out)
    return source.read_into(nodes[positions], out, at=positions)


def gather_cached(filled: FilledBatch, slots: SlotCache) -> None:
    """Copy the hits of a batch whose misses are there into its buffer, then admit what the plan lets in.

    Raises
    ------
    PlanError
        A hit's slot holds another row than planned.
    """
    nodes = filled.job.batch.sampled.nodes
    # Hits go first: an admission may take the slot of a row that this batch still reads.
    slots.copy_hits(filled.step, nodes, filled.x)
    slots.admit(filled.step, nodes, filled.x)
