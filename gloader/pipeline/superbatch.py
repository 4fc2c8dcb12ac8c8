"""The states of a superbatch: sampled, planned, staged, executed batch by batch, and measured.

A superbatch is S consecutive batches that are planned and read together. It passes from step to step of the pipeline
as one of these types: `SampledSuperbatch` to `Inspect`, which plans the cache; `PlannedSuperbatch` to `StageMisses`,
which reads rows ahead; `StagedSuperbatch` to `BatchFeed`, which splits it into batches. A batch then passes as
`BatchJob` to the read step and as `FilledBatch` to the gather step. `RunFeedback` compares a superbatch's predicted
times with its measurements, and corrects later predictions.

- A table is the feature rows of a node type or of a relation; a graph of one type without edge features has one table.
  Tuples hold an entry for each table on the SSD, in the order of the types. Where they hold an entry for each
  embedding, which is the trained rows of a node type, these come last.
- A trace is the distinct rows of each batch. A look-ahead is the trace of the next superbatch.
- A hit is a row in the host cache, which has one slot per cached row. A missing row, or miss, is read from the SSD. To
  admit a row is to copy it into a slot.
- A place is an index into a batch's rows.
- The calibration and the step factor are ratios of measured to predicted seconds, learned from past superbatches.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, overload

from gloader.observe.explain import MeasuredPass, SuperbatchReport, predict_step
from gloader.ssd_store.cost.device_rates import DeviceClock
from gloader.ssd_store.cost.io_rates import Calibration, learn_factor

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from gloader.cache import CachePlan, Trace
    from gloader.cache.write_plan import WritePlan
    from gloader.dataset.edge_passes import PassReport
    from gloader.pipeline.buffers import RowMatrix
    from gloader.ssd_store.cost.device_rates import RateLearner
    from gloader.ssd_store.cost.strategy import Choice
    from gloader.ssd_store.miss_sources import MissSource
    from gloader.types import AnyBatch, BatchId, CacheStep, IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedRows:
    """A batch's rows in one table, in ascending order, as plans and stores count them."""

    rows: IdArray  # (U,) in batch order
    ascending: IdArray  # (V,) the distinct rows
    order: IdArray  # (V,) the first place of each ascending row in ``rows``
    # (2, U - V) repeated places in ``rows``, and the first places of their rows
    repeats: IdArray | None = None

    def copy_repeats(self, x: RowMatrix) -> None:
        """Copy each row of ``x`` (U, F) from its first place to its repeated places."""
        if self.repeats is not None:
            again, first = self.repeats
            x[again] = x[first]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedBatch:
    """A sampled batch, its nodes' degrees, and its rows of each table in ascending order."""

    sampled: AnyBatch
    # (U,) in-degree, see `SampledBatch.in_degrees`; (0,) for a batch on the device or with several types
    src_degree: NDArray[np.float32]
    # One for each table on the SSD, and for each embedding. Features in memory are read in batch order.
    tables: tuple[OrderedRows, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledSuperbatch:
    """S consecutive sampled batches."""

    number: int  # counted from the start of the pipeline
    first: BatchId  # address of the first batch
    traces: tuple[Trace, ...]  # one per table and embedding

    @property
    def num_batches(self) -> int:
        """S; smaller, or 0, if the stream ended."""
        return len(self.traces[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectJob:
    """A superbatch to be planned, and the traces after it."""

    superbatch: SampledSuperbatch
    lookaheads: tuple[Trace, ...]  # traces of the next superbatch; empty if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSuperbatch:
    """A superbatch with its planned hits, misses and admissions, and with the planned slots of trained rows."""

    number: int  # counted from the start of the pipeline
    first: BatchId  # address of the first batch
    plans: tuple[CachePlan, ...]  # one per table
    writes: tuple[WritePlan, ...] = ()  # one per embedding

    @property
    def num_batches(self) -> int:
        """S."""
        return len(self.plans[0].misses) if self.plans else len(self.writes[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """A superbatch's missing rows of a table, fetched batch by batch. Owns ``misses`` until `close`."""

    plan: CachePlan  # without its trace
    misses: MissSource  # `misses.cost` counts the staging
    choice: Choice  # the read method, with its predicted seconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagedRows:
    """A superbatch whose rows of the table were read ahead."""

    plan: WritePlan
    # For each batch, and each of its `WritePlan.table_rows`: whether it was never trained, so that its formula makes it
    is_new: tuple[NDArray[np.bool_], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchSlots:
    """The slots of a batch's rows; for another rank, or for a whole step, without `order` and `repeats`."""

    number: int  # of the batch, counted from the planner's start or restart
    slots: torch.Tensor  # (U,) int64, in batch order; a row that repeats has its slot again
    order: torch.Tensor | None = None  # (V,) the first place of each distinct row, in ascending order of rows
    repeats: torch.Tensor | None = None  # (2, U - V) the repeated places, and the first places of their rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedSuperbatch:
    """A superbatch whose missing rows can be fetched batch by batch. Owns the staged rows until `close`."""

    number: int  # counted from the start of the pipeline
    first: BatchId  # address of the first batch
    tables: tuple[StagedTable, ...]  # each table's missing rows
    trained: tuple[StagedRows, ...] = ()  # each embedding's plan, with the rows that its batches load

    @property
    def num_batches(self) -> int:
        """S."""
        return len(self.tables[0].plan.misses) if self.tables else len(self.trained[0].plan)

    def close(self) -> None:
        """Release the staged rows. Idempotent."""
        with ExitStack() as stack:  # closes all tables even if one fails
            for table in self.tables:
                stack.callback(table.misses.close)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """One batch of a staged superbatch, ready to be executed."""

    superbatch: StagedSuperbatch
    index: int  # the batch's index in its superbatch
    batch: OrderedBatch

    @property
    def is_last(self) -> bool:
        """True for the last batch of a superbatch."""
        return self.index + 1 == self.superbatch.num_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledBatch:
    """A batch with its missing rows in its buffer; the hits are still in their slots."""

    job: BatchJob  # the batch and its superbatch
    steps: tuple[CacheStep, ...]  # for each table, the batch's hits, misses and admissions
    # (U, F) rows of each table, in a buffer of the ring; (0, F) if the device serves all rows
    x: tuple[RowMatrix, ...]  # () for features in memory
    slots: tuple[BatchSlots, ...] = ()  # the slots of each embedding's rows


class MissLists(Sequence["IdArray"]):
    """The ascending missing rows (M,) of each batch in a plan, computed on access."""

    def __init__(self, plan: CachePlan) -> None:
        self._plan = plan

    def __len__(self) -> int:
        """Return S."""
        return len(self._plan.misses)

    @overload
    def __getitem__(self, batch: int) -> IdArray: ...

    @overload
    def __getitem__(self, batch: slice) -> Sequence[IdArray]: ...

    def __getitem__(self, batch: int | slice) -> IdArray | Sequence[IdArray]:
        """Return the missing rows of ``batch``."""
        # Stored lists would take 8 bytes per miss for all batches; the plan takes 4 bytes per access.
        if isinstance(batch, slice):
            return [self._plan.miss_rows(b) for b in range(*batch.indices(len(self)))]
        if not -len(self) <= batch < len(self):
            raise IndexError(f"batch {batch} is not one of the superbatch's {len(self)}")
        return self._plan.miss_rows(batch % len(self))


# Maximum number of reports (and of passes) kept for `explain`: a longer run drops the oldest ones.
_REMEMBERED = 4096


@dataclass(slots=True, kw_only=True)
class _Sums:
    """One superbatch's sums during its execution."""

    staged: StagedSuperbatch  # the superbatch and its read methods
    predicted_step_s: float | None  # None for the first superbatches, before any measurement
    step_factor: float  # the correction in ``predicted_step_s``
    stage_s: tuple[float, ...]  # seconds before the first batch, per table
    retrieval_s: list[float]  # seconds in total, per table
    read_bytes: list[int]  # bytes from the disk, per table
    step_s: float = 0.0  # seconds of waits and computation
    compute_s: float = 0.0  # seconds of computation
    # The process's processor seconds at the delivery of the first batch.
    cpu_since: float = field(default_factory=time.process_time)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """Seconds per step in the last superbatch."""

    cpu_s: float  # processor time of the process
    compute_s: float  # computation of the training loop


class RunFeedback:
    """Measures superbatches from their staging to their last step, and learns from them. Thread-safe.

    A step is one batch's part of the training loop: the wait for the batch, and its computation. The staging thread
    calls `begin`, the reading thread `add_read`, the sweeping thread `add_pass`, and the consumer `delivered` and
    `computed`.

    Parameters
    ----------
    num_ranks : ranks that share a superbatch; each step takes one batch per rank
    table_names : the tables' names; used if there are several tables
    learner : receives the disk times, or None
    """

    def __init__(
        self, *, num_ranks: int = 1, table_names: Sequence[str] = (), learner: RateLearner | None = None
    ) -> None:
        self._num_ranks = num_ranks
        self._learner = learner
        self._table_names = tuple(table_names)
        self._lock = threading.Lock()  # held while the fields below change
        self._cores = len(os.sched_getaffinity(0))
        self._sums: dict[int, _Sums] = {}  # by superbatch number, from `begin` to the last step
        self._current: int | None = None  # number of the superbatch with the last delivered batch
        self._is_last_of_current = False  # whether this batch is the superbatch's last one
        self._known: _Known | None = None  # of the last finished superbatch
        self._step_factor = 1.0  # measured over predicted seconds of a step
        self._calibration = Calibration()  # corrections of predicted disk times
        self._device = DeviceClock()  # see `device`
        self._done: deque[SuperbatchReport] = deque(maxlen=_REMEMBERED)  # reports of finished superbatches
        self._passes: deque[MeasuredPass] = deque(maxlen=_REMEMBERED)  # measured passes over the edges
        self._edges_s = 0.0  # disk time for one batch's edges

    @property
    def reports(self) -> tuple[SuperbatchReport, ...]:
        """The superbatches executed so far."""
        with self._lock:
            return tuple(self._done)

    @property
    def passes(self) -> tuple[MeasuredPass, ...]:
        """The passes over the edges so far."""
        with self._lock:
            return tuple(self._passes)

    @property
    def device(self) -> DeviceClock:
        """The clock of the disk's users and times: a sweep and concurrent reads share the disk."""
        return self._device

    @property
    def calibration(self) -> Calibration:
        """The corrections of the disk's predictions, and the part of the disk time that the loop hides."""
        known = self._known
        if known is None:
            return self._calibration
        # The tables share the disk, and so do the batches of all ranks.
        hidden_s = known.compute_s / (self._num_ranks * max(1, len(self._table_names)))
        return replace(self._calibration, hidden_s=hidden_s)

    def name_of(self, table: int) -> str:
        """Return the table's name in reports; "" if there is only one table."""
        return self._table_names[table] if len(self._table_names) > 1 else ""

    def restart(self) -> None:
        """Drop the unfinished superbatches after their pipeline was closed."""
        with self._lock:
            self._sums.clear()
            self._current = None

    def begin(self, staged: StagedSuperbatch, *, stage_s: Sequence[float]) -> None:
        """Predict the step time of a superbatch; ``stage_s`` is each table's disk time for staging."""
        with self._lock:
            self._sums[staged.number] = _Sums(
                staged=staged,
                predicted_step_s=self._predicted_step(staged),
                step_factor=self._step_factor,
                stage_s=tuple(stage_s),
                retrieval_s=list(stage_s),
                read_bytes=[table.misses.cost.read.bytes_read for table in staged.tables],
            )

    def add_pass(self, report: PassReport, *, num_batches: int, measured_s: float, cpu_s: float) -> None:
        """Count a pass over the edges.

        Parameters
        ----------
        report : the pass's prediction and bytes
        num_batches : batches that received their last hop
        measured_s : disk time
        cpu_s : processor time of the pass's thread
        """
        with self._lock:
            self._passes.append(
                MeasuredPass(report=report, num_batches=num_batches, measured_s=measured_s, cpu_s=cpu_s)
            )
            if num_batches:
                self._edges_s = measured_s / num_batches

    def add_read(self, number: int, seconds: float, *, table: int = 0, num_bytes: int = 0) -> None:
        """Count one batch's read.

        Parameters
        ----------
        number : the superbatch's number
        seconds : disk time
        table : number of the table
        num_bytes : bytes read from the disk
        """
        with self._lock:
            self._sums[number].retrieval_s[table] += seconds
            self._sums[number].read_bytes[table] += num_bytes

    def delivered(self, superbatch: int, *, ends_superbatch: bool, wait_s: float) -> None:
        """Count the consumer's wait for a batch.

        Parameters
        ----------
        superbatch : the superbatch's number
        ends_superbatch : whether the batch is the superbatch's last one
        wait_s : seconds
        """
        with self._lock:
            sums = self._sums.get(superbatch)
            # Features in memory have no superbatches, and a closed run has dropped its sums.
            if sums is None:
                return
            if self._current != superbatch:
                # The previous superbatch ends here, as its last batch may have gone to another rank.
                self._finish_before(superbatch)
                self._current = superbatch
                sums.cpu_since = time.process_time()
            sums.step_s += wait_s
            self._is_last_of_current = ends_superbatch

    def computed(self, seconds: float) -> None:
        """Count the consumer's time for the last delivered batch; the last batch ends its superbatch."""
        with self._lock:
            sums = None if self._current is None else self._sums.get(self._current)
            if sums is None or self._current is None:
                return
            sums.step_s += seconds
            sums.compute_s += seconds
            if self._is_last_of_current:
                del self._sums[self._current]
                self._finish(sums)

    def _finish_before(self, number: int) -> None:
        """Finish earlier superbatches whose last batch went to another rank."""
        for earlier in sorted(other for other in self._sums if other < number):
            self._finish(self._sums.pop(earlier))

    def _steps(self, staged: StagedSuperbatch) -> float:
        """Return the superbatch's number of steps: each step takes one batch for every rank."""
        return staged.num_batches / self._num_ranks

    def _finish(self, sums: _Sums) -> None:
        """Learn from a superbatch, and add its report. The caller holds the lock."""
        staged = sums.staged
        steps = self._steps(staged)
        self._known = _Known(
            cpu_s=(time.process_time() - sums.cpu_since) / steps, compute_s=sums.compute_s / steps
        )
        for table, retrieval_s in zip(staged.tables, sums.retrieval_s, strict=True):
            choice = table.choice
            if choice.is_exchanged:
                self._calibration = self._calibration.after_exchange(
                    choice.predicted_s, retrieval_s, factor=choice.factor
                )
                continue
            self._calibration = self._calibration.after(
                choice.strategy, choice.predicted_s, retrieval_s, factor=choice.factor
            )
        self._teach(sums)
        step_s = sums.step_s / steps
        # The prediction's own factor is used: two superbatches are under way, and the factor may have changed.
        if sums.predicted_step_s is not None:
            self._step_factor = learn_factor(
                self._step_factor,
                predicted_s=sums.predicted_step_s,
                measured_s=step_s,
                made_with=sums.step_factor,
            )
        for number, (table, retrieval_s) in enumerate(zip(staged.tables, sums.retrieval_s, strict=True)):
            self._done.append(
                SuperbatchReport(
                    number=staged.number,
                    num_batches=staged.num_batches,
                    rows=table.plan.num_hits + table.plan.num_misses,
                    misses=table.plan.num_misses,
                    choice=table.choice,
                    predicted_step_s=sums.predicted_step_s,
                    measured_retrieval_s=retrieval_s,
                    measured_step_s=step_s,
                    measured_bytes=sums.read_bytes[number],
                    table=self.name_of(number),
                )
            )

    def _teach(self, sums: _Sums) -> None:
        """Report a superbatch's disk times to the rate learner."""
        if self._learner is None:
            return
        for table, stage_s, retrieval_s in zip(
            sums.staged.tables, sums.stage_s, sums.retrieval_s, strict=True
        ):
            choice = table.choice
            if choice.counts is not None and not choice.is_exchanged:
                self._learner.observe(
                    choice.counts, choice.strategy, staged_s=stage_s, read_s=retrieval_s - stage_s
                )

    def _predicted_step(self, staged: StagedSuperbatch) -> float | None:
        """Return the seconds of a step, for the measured processor time and the modelled disk time."""
        if self._known is None:
            return None
        return self._step_factor * predict_step(
            cpu_s=self._known.cpu_s,
            # The disk also reads edges for the batches of all ranks.
            retrieval_s=sum(table.choice.predicted_s for table in staged.tables) / self._steps(staged)
            + self._edges_s * self._num_ranks,
            compute_s=self._known.compute_s,
            cores=self._cores,
        )
