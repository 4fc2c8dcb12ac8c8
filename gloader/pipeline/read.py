"""Read: the missing rows of a batch into a buffer of the ring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gloader.cache import batch_step
from gloader.pipeline.superbatch import FilledBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.observe.instruments import Instruments
    from gloader.pipeline.buffers import Buffers
    from gloader.pipeline.feedback import RunFeedback
    from gloader.pipeline.superbatch import BatchJob
    from gloader.types import BatchId, CacheStep, ReadStats


class ReadMisses:
    """Reads what a batch misses, while the hits of the batch before it are copied.

    Parameters
    ----------
    ring : gives the buffer of each batch
    brought : of each table, whether the device brings all rows, which then have no place in a buffer; None: of none
    feedback : told how long the disk was used
    instruments : measure it
    """

    name: Final = "read"

    def __init__(
        self,
        ring: Buffers,
        *,
        feedback: RunFeedback,
        instruments: Instruments,
        brought: Sequence[bool] | None = None,
    ) -> None:
        self._ring = ring
        self._brought = brought
        self._feedback = feedback
        self._instruments = instruments

    def process(self, job: BatchJob) -> FilledBatch:
        """Return the batch of ``job`` and a buffer with its missing rows, and nothing yet in the place of hits."""
        superbatch, batch = job.superbatch, job.batch
        # Outside of what is measured: who waits for a buffer waits for the consumer, and that is no stall.
        brought = self._brought or [False] * len(batch.tables)
        x = self._ring.acquire(
            [
                0 if by_device else len(rows.rows)
                for rows, by_device in zip(batch.tables, brought, strict=True)
            ]
        )
        steps: list[CacheStep] = []
        with self._instruments.working("read", batch.sampled.id) as work:
            work.note(superbatch=superbatch.number)
            for number, (staged, rows) in enumerate(zip(superbatch.tables, batch.tables, strict=True)):
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
        return FilledBatch(job=job, steps=tuple(steps), x=x)

    def _count(self, batch: BatchId, step: CacheStep, read: ReadStats, *, num_rows: int, table: int) -> None:
        hits, misses = len(step.hit_pos), len(step.miss_row)
        self._instruments.recorder(batch.epoch).add_gather(
            rows=num_rows,
            hits=hits,
            read=read,
            device_hits=num_rows - hits - misses,
            table=self._feedback.name_of(table),
        )
