"""The rows of an embedding while a run trains them: in slots, on their way to a later batch, or in the table.

An embedding is the trainable rows of one node type; a row is its weights and the optimizer's state. A slot holds one
row in memory. To load a row is to put it into a slot, to evict it is to take it out. A step is one optimizer step, for
one batch or, with several ranks, for one batch of each rank. A `WritePlan` says for each batch which rows leave their
slots, where they go, and which rows come:

- to and from the table, `EmbeddingTable`;
- forward to the known later batch that loads the row: it waits in `RowPieces`.

Three threads use an `EmbeddingRows`. No two of them touch the same slot at the same time:

- The stage thread calls `stage`, which reads rows of the table for a whole superbatch. It touches no slot.
- The read thread calls `load`, batch after batch, ahead of the steps. It evicts only rows whose last batch has made its
  step, which `WriteStep.wait_for` says, and writes only to the slots that it has emptied.
- The training thread calls `leaf` and `step`. They touch only the slots of the batch whose step is next. The plan
  evicts none of its rows before that step.

`read`, `pieces` and `checkpoint` look at all slots, so they and `load` exclude each other by a lock. They are called
between steps.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gloader.cache.write_plan import FORWARD, LATE, TABLE, WritePlanner, write_slot_bytes
from gloader.core.aligned_memory import aligned_bytes
from gloader.core.signals import NEVER, Cancellation, SignalSafeCondition, uninterrupted
from gloader.errors import ChannelClosedError, PlanError, ShapeError, StateError
from gloader.pipeline.embedding_optimizers import check_same_optimizer
from gloader.pipeline.superbatch import BatchSlots, StagedRows
from gloader.ssd_store.embedding.piece_kernels import copy_rows
from gloader.ssd_store.embedding.row_pieces import RowPieces, append_rows, copy_matching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from gloader.cache.write_plan import WritePlan, WriteStep
    from gloader.pipeline.embedding_optimizers import RowOptimizer
    from gloader.pipeline.superbatch import OrderedRows
    from gloader.ssd_store.embedding.embedding_table import EmbeddingTable
    from gloader.ssd_store.spill.folder import SpillFolder
    from gloader.types import IdArray


NO_ROWS: Final[IdArray] = np.empty(0, np.int64)


_SLOT_BYTES: Final = 8 + 1  # bytes per slot beside the row and the planner: the row's id and a flag


def slot_bytes(width: int) -> int:
    """Return the memory for a row of ``width`` float32 in a slot. Pure."""
    return 4 * width + write_slot_bytes() + _SLOT_BYTES


# Steps between a load and the step under way, at most, with several ranks: batches for other ranks wait in no channel
# with a bound. The stages hold fewer batches of each rank.
_STEPS_AHEAD: Final = 8


@dataclass(slots=True, kw_only=True)
class RowStats:
    """Counts of trained rows while a loader trains them. A row counts at each of its loads and evictions."""

    bytes_read: int = 0  # from the table and the spill folder, since the embedding was opened
    bytes_written: int = 0  # to the table and the spill folder, since the embedding was opened
    loaded_forward: int = 0  # rows loaded that were evicted forward
    loaded_table: int = 0  # rows loaded that the staging read, and fresh ones
    loaded_fresh: int = 0  # rows loaded that were never trained, for which nothing is read
    loaded_late: int = 0  # rows read from the table at their load, because the staging could not see them
    evicted_forward: int = 0  # rows evicted to a later batch
    evicted_table: int = 0  # rows evicted to the table
    evicted_clean: int = 0  # rows evicted without a write, because the table has them
    saved: int = 0  # rows written to the table by checkpoints and at the end of a run; they stay in memory
    waited_s: float = 0.0  # seconds that loads waited for steps
    num_superbatches: int = 0  # superbatches that were read ahead
    num_batches: int = 0  # batches that were loaded
    staged_s: float = 0.0  # seconds of reading ahead
    loaded_s: float = 0.0  # seconds of evictions and loads


class EmbeddingRows:
    """An embedding's rows in a run. Owns the slots and the waiting rows until `close`, but not ``table``.

    If waiting rows are damaged, or the optimizer fails, the rows in memory are incomplete. All calls except `leaf` and
    `step` of loaded batches then raise StateError: open the table's last record. After any other error, `restart`
    continues from the rows in memory.

    Parameters
    ----------
    table : all rows, as of the last checkpoint and later evictions
    optimizer : changes the rows
    capacity : C, the slots; at least the distinct rows of the largest batch
    depth : steps whose rows may be loaded at the same time, as for `WritePlanner`
    batches_per_step : R, batches of a step; R = 1 without other ranks
    spill : folder for waiting rows that do not fit in memory. None means that they go to the table
    staging_bytes : memory for waiting rows
    expected_accesses : rows in a superbatch and its look-ahead, as for `WritePlanner`
    allocate : called once, with the slots' bytes; returns their memory, aligned

    Raises
    ------
    BudgetError
        ``staging_bytes`` is too small.
    StateError
        The table was trained by another optimizer, or has another width than the optimizer needs.
    """

    def __init__(  # noqa: PLR0913 - the parts of a run's rows, each a keyword
        self,
        table: EmbeddingTable,
        optimizer: RowOptimizer,
        *,
        capacity: int,
        depth: int = 4,
        batches_per_step: int = 1,
        spill: SpillFolder | None = None,
        staging_bytes: int,
        expected_accesses: int | None = None,
        allocate: Callable[[int], NDArray[np.uint8]] = aligned_bytes,
    ) -> None:
        dim = table.initial.dim
        state_width = optimizer.state_width(dim)
        if table.width != dim + state_width:
            raise StateError(
                f"rows of the embedding have {table.width} values, and {dim} weights with the state of "
                f"{optimizer.name} have {dim + state_width}; pass the optimizer that the embedding was made with"
            )
        if "optimizer" in table.facts:
            check_same_optimizer(optimizer, table.facts["optimizer"])
        self.table = table
        self.optimizer = optimizer
        self.planner = WritePlanner(
            table.num_rows,
            capacity,
            depth=depth,
            batches_per_step=batches_per_step,
            expected_accesses=expected_accesses,
        )
        self.batches_per_step = batches_per_step
        self.num_steps = table.num_steps
        self.counts = RowStats()
        # Every waiting row is an access of the superbatch in work or of the next one, and waits once.
        most_waiting = min(table.num_rows, expected_accesses or table.num_rows)
        self._pieces = RowPieces(
            table.width,
            num_bytes=staging_bytes,
            most_spilled=most_waiting,
            append=table.append,
            spill=spill,
        )
        memory = allocate(capacity * table.width * 4)[: capacity * table.width * 4]
        self._rows: NDArray[np.float32] = memory.view(np.float32).reshape(capacity, table.width)
        rows = torch.from_numpy(self._rows)
        self._weights, self._state = rows[:, :dim], rows[:, dim:]
        self._tags = np.full(capacity, -1, np.int64)  # the row in each slot, -1 if empty
        self._is_dirty = np.zeros(capacity, np.bool_)  # whether the table lacks the slot's newest version
        # Held while rows move between slots, waiting rows and table. `step` does not take it: its rows do not move.
        self._moving = threading.RLock()
        self._changed = SignalSafeCondition()  # guards the three fields below
        self._done = 0  # steps that were made or skipped
        self._evicted = 0  # batches whose evictions are done
        self._is_cancelled = False
        self._broken = ""  # why the rows in memory may be incomplete

    @property
    def capacity(self) -> int:
        """C, the slots."""
        return len(self._tags)

    @property
    def dim(self) -> int:
        """D, the weights of a row."""
        return self._weights.shape[1]

    @property
    def num_bytes(self) -> int:
        """Memory of the slots and their tags, without ``staging_bytes`` and the planner."""
        return self._rows.nbytes + self._tags.nbytes + self._is_dirty.nbytes

    @property
    def bytes_read(self) -> int:
        """Bytes read from the table and the spill folder."""
        return self.table.bytes_read + self._pieces.bytes_read

    @property
    def bytes_spilled(self) -> int:
        """Bytes written to the spill folder."""
        return self._pieces.bytes_written

    @property
    def bytes_written(self) -> int:
        """Bytes written to the table and the spill folder."""
        return self.table.bytes_written + self._pieces.bytes_written

    def rows_in(self, slots: torch.Tensor) -> torch.Tensor:
        """Return the rows (n,) in ``slots`` (n,)."""
        return torch.from_numpy(self._tags[slots.numpy()])

    def stage(self, plan: WritePlan, *, cancellation: Cancellation = NEVER) -> StagedRows:
        """Read the rows that ``plan`` loads from the table, each once, in ascending order. Called by the stage thread.

        Raises
        ------
        PlanError
            Two batches of the plan load the same row from the table.
        StoreError, BudgetError
            The table cannot be read, or waiting rows cannot be written.
        ChannelClosedError
            The work was cancelled.
        """
        self._wait(lambda: self._evicted >= plan.staged_after, "the staging of an embedding")
        begin = time.perf_counter()
        # A row and its batch are sorted as one number: faster than an indirect sort, and 8 bytes for each row.
        bits = len(plan).bit_length()
        pairs = np.empty(plan.num_loads_from(TABLE), np.int64)
        bounds = np.zeros(len(plan) + 1, np.int64)
        for index in range(len(plan)):
            rows = plan.table_rows(index)
            bounds[index + 1] = bounds[index] + len(rows)
            pairs[bounds[index] : bounds[index + 1]] = (rows << bits) | index
        pairs.sort()
        is_new = np.zeros(len(pairs), np.bool_)  # batch after batch
        seen = bounds[:-1].copy()  # for each batch, the entry of `is_new` for its next row
        last = -1
        for start in range(0, len(pairs), self._pieces.chunk_rows):
            cancellation.raise_if_set("the staging of an embedding")
            chunk = pairs[start : start + self._pieces.chunk_rows]
            ids, batches = chunk >> bits, chunk & ((1 << bits) - 1)
            twice = np.flatnonzero(np.diff(ids, prepend=last) == 0)
            if len(twice):
                raise PlanError(f"two batches of a superbatch load row {int(ids[twice[0]])} from the table")
            last = int(ids[-1])

            def read(rows: NDArray[np.float32], places: IdArray, ids: IdArray = ids) -> IdArray:
                return self.table.read_stored(ids, rows, at=places)

            dropped = self._pieces.add(ids, batches + plan.first, np.zeros(len(ids), np.bool_), read)
            is_new[_entries(batches, seen)[dropped]] = True
        self.counts.num_superbatches += 1
        self.counts.staged_s += time.perf_counter() - begin
        return StagedRows(plan=plan, is_new=tuple(np.split(is_new, bounds[1:-1])))

    def wait(self, staged: StagedRows, index: int, *, cancellation: Cancellation = NEVER) -> int:
        """Wait until the steps are complete that the load of batch ``index`` waits for; see `load`.

        Returns
        -------
        Steps before the batch's own step that may be incomplete at its load.

        Raises
        ------
        ChannelClosedError
            The work was cancelled.
        """
        wait_for, begin = int(staged.plan.waits[index]), time.perf_counter()
        step = (staged.plan.first + index) // self.batches_per_step
        if self.batches_per_step > 1:
            wait_for = max(wait_for, step - _STEPS_AHEAD)
        self._wait(lambda: cancellation.is_set() or self._done >= wait_for, "a load of an embedding")
        cancellation.raise_if_set("a load of an embedding")
        self.counts.waited_s += time.perf_counter() - begin
        return step - wait_for

    def load(
        self, staged: StagedRows, index: int, rows: OrderedRows, *, cancellation: Cancellation = NEVER
    ) -> BatchSlots:
        """Wait for the steps of earlier batches, then evict and load. Called by the read thread, batch after batch.

        Parameters
        ----------
        staged : the superbatch
        index : the batch's index in it
        rows : the batch's rows
        cancellation : ends the wait, when `cancel` is called too

        Raises
        ------
        PlanError
            The plan does not fit the batch, the slots or the waiting rows.
        StoreError, BudgetError
            A row cannot be read or written.
        ChannelClosedError
            The work was cancelled.
        """
        self.wait(staged, index, cancellation=cancellation)
        step, begin = staged.plan.batch(index), time.perf_counter()
        with self._moving:
            self._require_whole()
            self._evict(step)
            with self._changed.lock:
                self._evicted = step.number + 1
                self._changed.notify_all()
            self._load(step, rows.ascending, staged.is_new[index])
            bad = np.flatnonzero(self._tags[step.slots] != rows.ascending)
            if len(bad):
                raise PlanError(
                    f"batch {step.number} has row {int(rows.ascending[bad[0]])} in slot {int(step.slots[bad[0]])}, "
                    f"which holds row {int(self._tags[step.slots[bad[0]]])}"
                )
        self.counts.num_batches += 1
        self.counts.loaded_s += time.perf_counter() - begin
        slots = np.empty(len(rows.rows), np.int64)
        slots[rows.order] = step.slots
        repeats = None
        if rows.repeats is not None and rows.repeats.shape[1]:
            slots[rows.repeats[0]] = slots[rows.repeats[1]]
            repeats = torch.from_numpy(rows.repeats)
        return BatchSlots(
            number=step.number,
            slots=torch.from_numpy(slots),
            order=torch.from_numpy(rows.order),
            repeats=repeats,
        )

    def leaf(self, slots: BatchSlots, device: torch.device | None = None) -> torch.Tensor:
        """Return a copy of the batch's weights (U, D), a leaf with gradients. All earlier batches must be done.

        Raises
        ------
        StateError
            An earlier batch has made no step, or this batch is done.
        """
        self._require_next(slots)
        weights = self._weights.index_select(0, slots.slots)
        return (weights if device is None else weights.to(device)).requires_grad_()

    def step(self, slots: BatchSlots, grad: torch.Tensor | None) -> None:
        """Change the batch's rows by the optimizer, after which the batch is done. Called by the training thread.

        If a row is in the batch several times, its gradients are added first, as torch does for a sparse gradient.

        Parameters
        ----------
        slots : the batch
        grad : (U, D) float32, in batch order. None means that the optimizer makes no step, as torch does without a
            gradient

        Raises
        ------
        StateError
            An earlier batch has made no step, or this batch is done.
        ShapeError
            The gradient has another shape or dtype.
        """
        self._require_next(slots)
        if grad is not None:
            shape = (len(slots.slots), self.dim)
            if grad.shape != shape or grad.dtype != torch.float32 or grad.layout != torch.strided:
                raise ShapeError(
                    f"the gradient of an embedding's batch is {grad.dtype} of shape {tuple(grad.shape)}; it must be a "
                    f"dense torch.float32 of shape {shape}"
                )
            # A Ctrl-C between two operations would leave rows that are changed in part.
            with uninterrupted(), self._breaking(f"the step of batch {slots.number}"), torch.no_grad():
                self._apply(slots, grad.detach().cpu())
                self.num_steps += 1
        with self._changed.lock:
            self._done += 1
            self._changed.notify_all()

    def read(self, ids: IdArray) -> NDArray[np.float32]:
        """Return the newest weights (M, D) of ``ids`` (M,), in any order, wherever they are. Writes nothing.

        Raises
        ------
        ShapeError
            An id is out of range.
        StoreError
            A row cannot be read.
        """
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.table.num_rows:
            raise ShapeError(
                f"ids of the embedding are in 0..{self.table.num_rows - 1}, got {ids.min()}..{ids.max()}"
            )
        wanted, back = np.unique(ids, return_inverse=True)
        wanted = wanted.astype(np.int64)
        out = np.empty((len(wanted), self.table.width), np.float32)
        is_found = np.zeros(len(wanted), np.bool_)
        with self._moving:
            self._require_whole()
            copy_matching(self._tags, lambda: self._rows, wanted, out, is_found)
            self._pieces.copy_held(wanted, out, is_found)
        # A row that was in neither may be loaded meanwhile, but the table keeps its version until it is evicted again.
        left = np.flatnonzero(~is_found)
        self.table.read_into(wanted[left], out, at=left)
        return out[back, : self.dim]

    def pieces(self, max_rows: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the first id and the newest weights (n, D) of all rows, in id order. Writes nothing; see `read`.

        Parameters
        ----------
        max_rows : most rows of a piece
        """
        for first in range(0, self.table.num_rows, max_rows):
            yield first, self.read(np.arange(first, min(first + max_rows, self.table.num_rows)))

    def checkpoint(self, record: str, facts: Mapping[str, Any]) -> None:
        """Make all rows durable under the name ``record``. Called by the training thread, between two steps.

        The rows stay where they are, and are then clean. In the middle of a superbatch the changed rows that wait for a
        later batch are written too, which may be several times the bytes of the slots.

        Parameters
        ----------
        record : name of the record; a record with this name is replaced
        facts : facts of the record; those of the optimizer are added

        Raises
        ------
        StoreError
            A row cannot be read or written. The earlier records and the rows in memory are unchanged, so that the
            checkpoint can be tried again.
        """
        with self._moving:
            self.flush()
            self.table.commit(
                record, num_steps=self.num_steps, facts={**facts, "optimizer": self.optimizer.facts()}
            )

    def flush(self) -> None:
        """Write all rows that changed to the table; they stay where they are, and are then clean. Commits nothing.

        Raises
        ------
        StateError
            Rows in memory may be incomplete.
        StoreError
            A row cannot be read or written.
        """
        with self._moving:
            self._require_whole()
            dirty = np.flatnonzero(self._is_dirty)
            self._append_slots(dirty)
            self.counts.saved += len(dirty) + self._pieces.save()

    def restart(self) -> None:
        """Make ready for another run, which begins with batch 0. No thread of the last run may be left.

        Waiting rows go to the table; the rows in slots stay.

        Raises
        ------
        StoreError
            A row cannot be read or written.
        """
        with self._moving:
            self._require_whole()
            self.counts.saved += self._pieces.save()
            with uninterrupted():
                self._pieces.clear()
                self.planner.restart(self._tags.copy())
        with self._changed.lock:
            self._done, self._evicted, self._is_cancelled = 0, 0, False

    def cancel(self) -> None:
        """End all waits, now and until `restart`. Idempotent."""
        with self._changed.lock:
            self._is_cancelled = True
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits, and remove the files. Rows since the last checkpoint are lost. Idempotent."""
        self.cancel()
        with self._moving:
            self._broken = self._broken or "close()"
            self._pieces.close()

    def _wait(self, is_ready: Callable[[], bool], work: str) -> None:
        """Wait until ``is_ready``; raises ChannelClosedError after `cancel`."""
        self._changed.when(lambda: self._is_cancelled or is_ready(), lambda: None)
        if self._is_cancelled:
            raise ChannelClosedError(f"{work} was cancelled")

    @contextmanager
    def _breaking(self, work: str) -> Iterator[None]:
        """Let `_require_whole` refuse later calls if the block raises."""
        try:
            yield
        except BaseException:
            self._broken = f"{work} failed"
            raise

    def _require_whole(self) -> None:
        """Raise StateError if rows in memory may be incomplete."""
        if self._broken:
            raise StateError(
                f"the embedding's rows in memory cannot be used after {self._broken}; open the embedding again from "
                "its last checkpoint"
            )

    def _require_next(self, slots: BatchSlots) -> None:
        """Raise StateError unless ``slots`` belong to the next batch to make a step."""
        step = slots.number // self.batches_per_step
        if step > self._done:
            raise StateError(
                f"batch {slots.number - self.batches_per_step} of the embedding has made no step: call step(batch) "
                "after backward(), or skip(batch), before the next batch is used"
            )
        if step < self._done:
            raise StateError(
                f"batch {slots.number} of the embedding has already made its step; call step(batch) or skip(batch) "
                "once for each batch"
            )

    def _evict(self, step: WriteStep) -> None:
        """Take the batch's victims out of their slots."""
        slots, ids = step.evict_slot.astype(np.int64), step.evict_row
        wrong = np.flatnonzero(self._tags[slots] != ids)
        if len(wrong):
            raise PlanError(
                f"batch {step.number} evicts row {int(ids[wrong[0]])} from slot {int(slots[wrong[0]])}, which holds "
                f"row {int(self._tags[slots[wrong[0]]])}"
            )
        is_dirty = self._is_dirty[slots]
        forward = step.evict_to >= 0
        chosen = np.flatnonzero(forward)
        for start in range(0, len(chosen), self._pieces.chunk_rows):
            part = chosen[start : start + self._pieces.chunk_rows]

            def copy(rows: NDArray[np.float32], places: IdArray, taken: IdArray = slots[part]) -> IdArray:
                copy_rows(self._rows.reshape(-1), taken, rows.reshape(-1), places, self.table.width)
                return NO_ROWS

            self._pieces.add(ids[part], step.evict_to[part], is_dirty[part], copy)
        self._append_slots(slots[~forward & is_dirty])
        self._tags[slots] = -1
        self.counts.evicted_forward += len(chosen)
        self.counts.evicted_table += int(np.count_nonzero(~forward & is_dirty))
        self.counts.evicted_clean += int(np.count_nonzero(~forward & ~is_dirty))

    def _load(self, step: WriteStep, ascending: IdArray, is_new: NDArray[np.bool_]) -> None:
        """Put the rows that the batch loads into their slots; ``is_new`` are those of the table without a version."""
        ids = ascending[step.load_pos]
        slots = step.slots[step.load_pos].astype(np.int64)
        filled = np.flatnonzero(self._tags[slots] >= 0)
        if len(filled):
            raise PlanError(
                f"batch {step.number} loads row {int(ids[filled[0]])} into slot {int(slots[filled[0]])}, which still "
                f"holds row {int(self._tags[slots[filled[0]]])}"
            )
        is_left = np.ones(len(ids), np.bool_)
        new = np.flatnonzero(step.load_from == TABLE)[is_new]
        is_left[new] = False
        waiting = np.flatnonzero(is_left & (step.load_from != LATE))
        with self._breaking(f"the load of batch {step.number}"):
            is_found = self._pieces.take(
                step.number, ids[waiting], self._rows, slots[waiting], self._is_dirty
            )
            found = waiting[is_found]
            # The slots count as full at once: if the table cannot be read below, these rows are nowhere else.
            self._tags[slots[found]] = ids[found]
        is_left[found] = False
        left = np.flatnonzero(is_left)
        self.table.initial.fill(ids[new], self._rows, at=slots[new])
        self.table.read_into(ids[left], self._rows, at=slots[left])
        self._is_dirty[slots[new]] = False
        self._is_dirty[slots[left]] = False
        self._tags[slots] = ids
        self.counts.loaded_forward += int(np.count_nonzero(step.load_from == FORWARD))
        self.counts.loaded_table += int(np.count_nonzero(step.load_from == TABLE))
        self.counts.loaded_fresh += len(new)
        self.counts.loaded_late += int(np.count_nonzero(step.load_from == LATE))

    def _append_slots(self, slots: IdArray) -> None:
        """Write the rows in ``slots`` to the table, after which they are clean."""
        append_rows(self.table.append, self._tags, self._rows, slots)
        self._is_dirty[slots] = False

    def _apply(self, slots: BatchSlots, grad: torch.Tensor) -> None:
        """Change the batch's distinct rows."""
        distinct = slots.slots
        if slots.repeats is not None and slots.order is not None:
            again, first = slots.repeats
            distinct = slots.slots[slots.order]
            index = torch.empty(1, len(slots.slots), dtype=torch.int64)
            index[0, slots.order] = torch.arange(len(distinct))
            index[0, again] = index[0, first]
            # torch's own sum, because its order of equal rows is that of its sort.
            shape = (len(distinct), self.dim)
            grad = torch.sparse_coo_tensor(index, grad, shape, check_invariants=False).coalesce().values()
        if len(distinct):
            self.optimizer.apply(self._weights, self._state, distinct, grad, self.num_steps + 1)
        self._is_dirty[distinct.numpy()] = True


def _entries(batches: IdArray, seen: IdArray) -> IdArray:
    """Return ``seen`` of each of ``batches`` (n,), plus the number of its equals before it, and move ``seen`` on."""
    order = np.argsort(batches, kind="stable")
    counts = np.bincount(batches, minlength=len(seen))
    entries = np.empty(len(batches), np.int64)
    entries[order] = np.repeat(seen - np.cumsum(counts) + counts, counts) + np.arange(len(batches))
    seen += counts
    return entries
