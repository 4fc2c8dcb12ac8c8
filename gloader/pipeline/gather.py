"""Read and gather: the steps that put all rows of a batch into one host buffer. The send step follows.

With features on the SSD, `ReadMisses` reads missing rows into a buffer of the ring. `GatherCached` adds rows from the
cache's slots, and admits rows to the cache. With features in memory, `GatherWhole` copies all rows. `ReadMisses` also
loads the trained rows of the batch (embeddings) into their slots, where they stay until the batch's step. Each class is
a stage: `gloader.pipeline.run` starts a thread that calls `process` for every batch. The ring is a set of reused host
buffers (`gloader.pipeline.buffers`).

- A table is the feature rows of a node type or of a relation; a buffer has one matrix for each table.
- A hit is a row in the host cache, which has one slot per cached row. A missing row, or miss, is read from the SSD. To
  admit a row is to copy it into a slot.
- A device serves a row if the device holds it, or reads it from host memory itself; such a row needs no gather.
- Staged rows are missing rows that the stage step has read ahead. A plan has, for each batch, the action per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gloader.cache import batch_step
from gloader.pipeline.sample import rows_of
from gloader.pipeline.superbatch import FilledBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gloader.cache import DeviceShare, SlotCache
    from gloader.observe.instruments import Instruments
    from gloader.pipeline.buffers import InterleavedRings, RowMatrix
    from gloader.pipeline.superbatch import BatchJob, BatchSlots, OrderedBatch, RunFeedback
    from gloader.pipeline.trained_embedding import TrainedEmbedding
    from gloader.types import AnyBatch, BatchId, CacheStep, FeatureSource, IdArray, ReadStats


class ReadMisses:
    """Reads a batch's missing rows, while the previous batch's hits are copied.

    Parameters
    ----------
    ring : provides each batch's buffer; None for features in memory, which are gathered later
    brought : for each table, whether the device serves all rows, which then need no buffer. None means that every
        table needs a buffer
    feedback : receives the disk times
    instruments : measure the reads
    embeddings : the embeddings whose rows are loaded
    """

    name: Final = "read"  # the stage's name in errors and in the timeline

    def __init__(
        self,
        ring: InterleavedRings | None,
        *,
        feedback: RunFeedback,
        instruments: Instruments,
        brought: Sequence[bool] | None = None,
        embeddings: Sequence[TrainedEmbedding] = (),
    ) -> None:
        self._ring = ring
        self._embeddings = embeddings
        self._brought = brought
        self._feedback = feedback
        self._instruments = instruments

    def process(self, job: BatchJob) -> FilledBatch:
        """Return the batch of ``job`` and a buffer with its missing rows; the rows of hits are not yet written."""
        superbatch, batch = job.superbatch, job.batch
        # `acquire` is not measured: a wait for a buffer is a wait for the consumer, and no stall.
        tables = batch.tables[: len(superbatch.tables)]
        brought = self._brought or [False] * len(tables)
        x: tuple[RowMatrix, ...] = ()
        if self._ring is not None:
            x = self._ring.acquire(
                [0 if by_device else len(rows.rows) for rows, by_device in zip(tables, brought, strict=True)]
            )
        steps: list[CacheStep] = []
        with self._instruments.working("read", batch.sampled.id) as work:
            work.note(superbatch=superbatch.number)
            for number, (staged, rows) in enumerate(zip(superbatch.tables, tables, strict=True)):
                step = batch_step(
                    staged.plan.batch_actions(job.index),
                    rows.ascending,
                    rows.order,
                    num_places=len(rows.rows),
                )
                with self._feedback.device.using() as use:
                    read = staged.misses.read_into(job.index, step.miss_row, x[number], at=step.miss_pos)
                staged.misses.release(job.index)
                work.add_bytes(read=read.bytes_read, requests=read.requests)
                self._count(batch.sampled.id, step, read, num_rows=len(rows.order), table=number)
                self._feedback.add_read(
                    superbatch.number, use.seconds, table=number, num_bytes=read.bytes_read
                )
                steps.append(step)
            work.note(misses=sum(len(step.miss_row) for step in steps))
        return FilledBatch(job=job, steps=tuple(steps), x=x, slots=self._load(job))

    def _load(self, job: BatchJob) -> tuple[BatchSlots, ...]:
        """Load the trained rows of the batch into their slots, as soon as the earlier batches' steps allow it."""
        superbatch, batch = job.superbatch, job.batch
        first = len(superbatch.tables)
        loaded = []
        for embedding, staged, ordered in zip(
            self._embeddings, superbatch.trained, batch.tables[first:], strict=True
        ):
            # This wait is not measured: it depends on the training loop, and is no stall.
            open_steps = embedding.rows.wait(staged, job.index)
            recorder = self._instruments.recorder(batch.sampled.id.epoch)
            embedding.count_bytes(recorder)
            with self._instruments.working("read", batch.sampled.id) as work:
                work.note(superbatch=superbatch.number, open_steps=open_steps)
                loaded.append(embedding.rows.load(staged, job.index, ordered))
                embedding.count_bytes(recorder, work)
        return tuple(loaded)

    def _count(self, batch: BatchId, step: CacheStep, read: ReadStats, *, num_rows: int, table: int) -> None:
        """Add a table's rows in the batch to the epoch's sums. The device serves all rows but hits and misses."""
        hits, misses = len(step.hit_pos), len(step.miss_row)
        self._instruments.recorder(batch.epoch).add_gather(
            rows=num_rows,
            hits=hits,
            read=read,
            device_hits=num_rows - hits - misses,
            table=self._feedback.name_of(table),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBatch:
    """A sampled batch with its features, in host memory."""

    sampled: AnyBatch
    # (U, F) rows of each table, in a buffer of the ring; (0, F) if the device reads every row itself
    x: tuple[RowMatrix, ...]
    # (U,) full-graph in-degree; (0,) with several types, or for a batch on the device, which has the degrees
    src_degree: NDArray[np.float32]
    superbatch: int  # number of the superbatch; 0 for features in memory
    ends_superbatch: bool  # whether it is the superbatch's last batch
    slots: tuple[BatchSlots, ...] = ()  # the slots of each embedding's rows


class GatherWhole:
    """Gathers a batch from features in memory; rows in device memory are left out.

    Parameters
    ----------
    sources : all rows of each table
    shares : the rows of each table that the device serves
    types : the numbers of the tables: node types first, then relations
    ring : provides each batch's buffer
    instruments : measure the gather
    """

    name: Final = "gather"

    def __init__(
        self,
        sources: Sequence[FeatureSource],
        shares: Sequence[DeviceShare],
        types: Sequence[int],
        *,
        ring: InterleavedRings,
        instruments: Instruments,
    ) -> None:
        self._sources = sources
        self._shares = shares
        self._types = types
        self._ring = ring
        self._instruments = instruments

    def process(self, item: OrderedBatch | FilledBatch) -> HostBatch:
        """Return the batch with its rows. A `FilledBatch` has trained rows in slots, and no features yet."""
        job, slots = (item.job, item.slots) if isinstance(item, FilledBatch) else (None, ())
        whole = item.job.batch if isinstance(item, FilledBatch) else item
        batch = whole.sampled
        nodes = [rows_of(batch, number) for number in self._types]
        brings_all = [share.reaches_all or share.holds_all for share in self._shares]
        # `acquire` is not measured: a wait for a buffer is a wait for the consumer, and no stall.
        x = self._ring.acquire(
            [0 if brought else len(ids) for ids, brought in zip(nodes, brings_all, strict=True)]
        )
        num_rows, held = sum(map(len, nodes)), 0  # all rows of the batch, and the rows that the device serves
        with self._instruments.working("gather", batch.id) as work:
            for ids, out, source, share, is_brought in zip(
                nodes, x, self._sources, self._shares, brings_all, strict=True
            ):
                if not is_brought:
                    gather_whole(ids, out, source, positions=share.positions_left(ids))
                held += share.num_held(ids)
            work.note(rows=num_rows - held)
        self._instruments.recorder(batch.id.epoch).add_gather(
            rows=num_rows, hits=num_rows - held, read=None, device_hits=held
        )
        return HostBatch(
            sampled=batch,
            x=x,
            src_degree=whole.src_degree,
            superbatch=0 if job is None else job.superbatch.number,
            ends_superbatch=job is not None and job.is_last,
            slots=slots,
        )


class GatherCached:
    """Gathers a batch after its misses are read: copies the hits, then admits rows as planned.

    Parameters
    ----------
    slots : the host cache of each table
    instruments : measure the gather
    """

    name: Final = "gather"

    def __init__(self, slots: Sequence[SlotCache], instruments: Instruments) -> None:
        self._slots = slots
        self._instruments = instruments

    def process(self, filled: FilledBatch) -> HostBatch:
        """Return the batch with all of its rows."""
        job = filled.job
        batch = job.batch.sampled
        with self._instruments.working("gather", batch.id) as work:
            # The batch's rows of embeddings, behind those of the tables, are in their slots already.
            tables = job.batch.tables[: len(self._slots)]
            for slots, table, step, x in zip(self._slots, tables, filled.steps, filled.x, strict=True):
                if len(x):  # false if the batch has no row of the table, or the device serves all rows
                    gather_cached(step, table.rows, x, slots)
                    table.copy_repeats(x)
            hits = sum(len(step.hit_pos) for step in filled.steps)
            admitted = sum(len(step.admit_pos) for step in filled.steps)
            work.note(superbatch=job.superbatch.number, hits=hits, admitted=admitted)
        return HostBatch(
            sampled=batch,
            x=filled.x,
            src_degree=job.batch.src_degree,
            superbatch=job.superbatch.number,
            ends_superbatch=job.is_last,
            slots=filled.slots,
        )


def gather_whole(
    nodes: IdArray, out: RowMatrix, source: FeatureSource, *, positions: IdArray | None = None
) -> ReadStats:
    """Copy a batch's rows into a buffer, and return the read statistics.

    Parameters
    ----------
    nodes : (U,) int64 row ids
    out : (U, F) float32 or in the stored dtype, changed in place
    source : all N rows
    positions : (M,) indices into ``nodes`` of the rows to copy; the other rows of ``out`` stay unchanged. None means
        all rows
    """
    if positions is None:
        return source.read_into(nodes, out)
    return source.read_into(nodes[positions], out, at=positions)


def gather_cached(step: CacheStep, nodes: IdArray, x: RowMatrix, slots: SlotCache) -> None:
    """Copy a batch's hits into its buffer, which has the misses, then admit rows as planned.

    Parameters
    ----------
    step : the cache's step for the batch
    nodes : (U,) int64 row ids
    x : (U, F) with the missing rows, changed in place
    slots : the cache

    Raises
    ------
    PlanError
        A hit's slot holds another row than planned.
    """
    # Hits go first: an admission may overwrite the slot of a row that this batch still reads.
    slots.copy_hits(step, nodes, x)
    slots.admit(step, nodes, x)
