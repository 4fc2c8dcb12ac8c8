"""Read: the missing rows of a batch into a buffer of the ring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gloader.cache import batch_step
from gloader.pipeline.superbatch import FilledBatch

if TYPE_CHECKING:
    from gloader.observe.instruments import Instruments
    from gloader.pipeline.buffers import Buffers
    from gloader.pipeline.feedback import RunFeedback
    from gloader.pipeline.superbatch import BatchJob


class ReadMisses:
    """Reads what a batch misses, while the hits of the batch before it are copied.

    Parameters
    ----------
    ring : gives the buffer (U, F) of each batch
    feedback : told how long the disk was used
    instruments : measure it
    """

    name: Final = "read"

    def __init__(self, ring: Buffers, *, feedback: RunFeedback, instruments: Instruments) -> None:
        self._ring = ring
        self._feedback = feedback
        self._instruments = instruments

    def process(self, job: BatchJob) -> FilledBatch:
        """Return the batch of ``job`` and a buffer with its missing rows, and nothing yet in the place of hits."""
        superbatch, batch = job.superbatch, job.batch
        # Outside of what is measured: who waits for a buffer waits for the consumer, and that is no stall.
        x = self._ring.acquire(len(batch.ascending))
        with self._instruments.working("read", batch.sampled.id) as work:
            step = batch_step(superbatch.plan.batch_actions(job.index), batch.ascending, batch.order)
            with self._feedback.device.using() as use:
                read = superbatch.misses.read_into(job.index, step.miss_row, x, at=step.miss_pos)
            superbatch.misses.release(job.index)
            work.add_bytes(read=read.bytes_read)
            work.note(superbatch=superbatch.number, misses=len(step.miss_row))
        hits, misses = len(step.hit_pos), len(step.miss_row)
        self._instruments.recorder(batch.sampled.id.epoch).add_gather(
            rows=len(batch.order), hits=hits, read=read, device_hits=len(batch.order) - hits - misses
        )
        self._feedback.add_read(superbatch.number, use.seconds)
        return FilledBatch(job=job, step=step, x=x)
