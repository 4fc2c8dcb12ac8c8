"""An embedding that a loader trains: its rows in slots, and the batch that waits for its step.

An embedding is the trained rows of a node type. A slot holds one row in memory. A leaf is a batch's weights as a tensor
that receives a gradient. The stages of a run plan and load the rows. The training loop gets a batch's leaf, and then
steps or skips the batch.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gloader.core.signals import uninterrupted
from gloader.errors import BudgetError, GloaderError, ShapeError, StateError
from gloader.observe.explain import RowReport, explain_rows
from gloader.pipeline.embedding_rows import slot_bytes
from gloader.plan.embedding_cost import RowTraffic, TableSizes, predict_rows
from gloader.ssd_store.cost.profile import default_row_gap_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from gloader.cache import Trace
    from gloader.cache.write_plan import WritePlan
    from gloader.observe.epoch_stats import StatsRecorder
    from gloader.observe.instruments import Work
    from gloader.pipeline.embedding_rows import EmbeddingRows
    from gloader.pipeline.superbatch import BatchSlots
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.types import BatchId, Delivered


logger = logging.getLogger("gloader")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """The batch that the training loop has."""

    id: BatchId
    slots: BatchSlots
    leaf: torch.Tensor  # (U, D)


class TrainedEmbedding:
    """An embedding that a loader trains: its rows in slots, and the batch that the training loop has.

    `deliver`, `step` and `skip` are for the thread of the training loop.

    Parameters
    ----------
    name : the node type
    number : the node type's number
    rows : the rows
    step : makes a batch's step, together with other ranks; None means `EmbeddingRows.step`
    """

    def __init__(
        self,
        *,
        name: str,
        number: int,
        rows: EmbeddingRows,
        step: Callable[[BatchSlots, torch.Tensor | None], None] | None = None,
    ) -> None:
        self.name = name
        self.number = number
        self.rows = rows
        self._step = rows.step if step is None else step
        self._present: _Present | None = None  # the delivered batch, until its step
        self._counting = threading.Lock()  # guards the next field
        self._before = (rows.bytes_read, rows.bytes_written)  # when the loader was opened
        # Bytes that merges read and wrote, and all bytes, at the last call of `count_bytes`. The first call is without
        # work, and takes no bytes of merges.
        self._counted = (0, 0, *self._before)

    def plan(self, trace: Trace, lookahead: Trace) -> WritePlan:
        """Plan the slots of a superbatch; see `WritePlanner.plan`."""
        try:
            return self.rows.planner.plan(trace, lookahead)
        except BudgetError as error:
            # A step has one batch of each rank, and their rows may all differ.
            largest = max(int(part.lengths.max(initial=0)) for part in (trace, lookahead))
            least = slot_bytes(self.rows.table.width) * self.rows.batches_per_step * largest
            error.add_note(
                f"the embedding is that of {self.name!r}: these rows fit into NodeEmbedding(cache={least}), a number "
                "of bytes; in gloader train give a larger --embed-cache, which the types share"
            )
            raise

    def count_bytes(self, recorder: StatsRecorder, work: Work | None = None) -> None:
        """Add the bytes since the last call, of the table and the spill folder, to an epoch and to a stage's work.

        A call without ``work`` comes before a stage's work: other threads moved the bytes until then, for example those
        of a checkpoint. The bytes of merges count for the epoch alone.
        """
        rows = self.rows
        with self._counting:  # the stages that load and those that read ahead count together
            before = self._counted
            self._counted = (*rows.table.bytes_merged, rows.bytes_read, rows.bytes_written)
            more = [after - count for after, count in zip(self._counted, before, strict=True)]
        merged_read, merged_written, read, written = more
        if work is not None:
            # A merge may have ended between the first two numbers and the others.
            work.add_bytes(read=max(read - merged_read, 0), written=max(written - merged_written, 0))
        recorder.add_staged(bytes_read=read, bytes_written=written, requests=0)

    def explain_run(self, rates: IoRates) -> str:
        """Return lines on the loaded rows and the bytes moved, measured and predicted; "" before the first load.

        Parameters
        ----------
        rates : the disk's rates
        """
        counts, rows = self.rows.counts, self.rows
        row_bytes = 4 * rows.table.width
        traffic = RowTraffic(
            num_superbatches=counts.num_superbatches,
            num_batches=counts.num_batches,
            forward=counts.loaded_forward,
            staged=counts.loaded_table - counts.loaded_fresh,
            late=counts.loaded_late,
            fresh=counts.loaded_fresh,
            appended=counts.evicted_table + counts.saved,
            spilled=rows.bytes_spilled // row_bytes,
        )
        storage = TableSizes(
            num_rows=rows.table.num_rows,
            row_bytes=row_bytes,
            buffer_rows=rows.table.buffer_rows,
            gap_bytes=default_row_gap_bytes(rows.table.folder, row_bytes),
        )
        return explain_rows(
            RowReport(
                name=self.name,
                traffic=traffic,
                row_bytes=row_bytes,
                predicted=predict_rows(traffic, storage, rates),
                bytes_read=rows.bytes_read - self._before[0],
                bytes_written=rows.bytes_written - self._before[1],
                measured_s=counts.staged_s + counts.loaded_s,
                waited_s=counts.waited_s,
                is_assumed=rates.is_assumed,
            )
        )

    def require_done(self) -> None:
        """Raise StateError if the delivered batch was neither stepped nor skipped."""
        if self._present is not None:
            raise StateError(
                f"{_named(self._present.id)} was not stepped: call embedding.step(batch) after loss.backward(), or "
                f"embedding.skip(batch), before the next batch; this is for the embedding of {self.name!r}"
            )

    def deliver(self, batch: BatchId, slots: BatchSlots, device: torch.device) -> torch.Tensor:
        """Return the leaf (U, D) of ``batch`` on ``device``; the loop has the batch from now on."""
        leaf = self.rows.leaf(slots, device)
        self._present = _Present(id=batch, slots=slots, leaf=leaf)
        return leaf

    def step(self, batch: Delivered) -> None:
        """Change the rows of ``batch`` by its leaf's gradient; see `NodeEmbedding.step`."""
        present = self._require_present(batch, "step")
        leaf = present.leaf
        grad = leaf.grad
        if grad is None and len(leaf):
            raise StateError(
                f"{_named(batch.id)} has no gradient for the rows of {self.name!r}: call loss.backward() before "
                "embedding.step(batch), or embedding.skip(batch) if the loss does not depend on them"
            )
        if grad is not None and (grad.shape != leaf.shape or grad.dtype != leaf.dtype):
            raise ShapeError(
                f"the gradient of {_named(batch.id)} for the rows of {self.name!r} has shape {tuple(grad.shape)} and "
                f"dtype {grad.dtype}; it must have those of the leaf, {tuple(leaf.shape)} and {leaf.dtype}"
            )
        # Without a row there is nothing to do, as for torch's optimizers if a parameter has no gradient.
        self._finish(present, grad)

    def skip(self, batch: Delivered) -> None:
        """Finish ``batch`` without a change; see `NodeEmbedding.skip`."""
        self._finish(self._require_present(batch, "skip"), None)

    def restart(self) -> None:
        """Make the rows ready for another run, after the threads of a run have ended.

        A batch that was neither stepped nor skipped is dropped.
        """
        if self._present is not None:
            logger.warning(
                "%s was left without a step of the embedding of %r", _named(self._present.id), self.name
            )
        self._present = None
        try:
            self.rows.restart()
        except GloaderError:
            # The rows refuse every later call, so that the error is not lost.
            logger.exception("the trained rows of %r could not be written at the end of a run", self.name)

    def _require_present(self, batch: Delivered, verb: str) -> _Present:
        """Return the batch that the loop has. Raises StateError if it is not ``batch``."""
        present = self._present
        if present is None or present.id != batch.id:
            has = "no batch is waiting for its step" if present is None else f"{_named(present.id)} is"
            raise StateError(
                f"embedding.{verb} of {_named(batch.id)} comes at the wrong time: {has}. Each batch is stepped or "
                "skipped once, before the next batch is taken and before its epoch is left"
            )
        if batch.embedded is None or batch.embedded.get(self.name) is not present.leaf:
            raise StateError(
                f"embedding.{verb}: {_named(batch.id)} is of another loader, or without the rows of {self.name!r}"
            )
        return present

    def _finish(self, present: _Present, grad: torch.Tensor | None) -> None:
        """Make the step, and mark the batch as done. A signal does not cut it."""
        with uninterrupted():
            self._step(present.slots, grad)
            self._present = None


def _named(batch: BatchId) -> str:
    """Return the batch's address as text."""
    return f"batch (epoch {batch.epoch}, index {batch.index})"
