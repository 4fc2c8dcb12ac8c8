"""Predictions for a recorded run: `open_run` reads the run, and a `Predictor` replays it under changes.

A replay simulates the run's work: each stage of each batch needs so much of the cores, the disk and the device. A
prediction takes one of two ways. If the changes need no new plan, such as more cores, the recorded work is replayed on
another machine. Else a `Replanner` samples and plans the batches again. The new counts, such as rows that miss the
cache, are turned into work by the recording's costs per row. Before the first prediction, the replay of the unchanged
run is compared with the measured run; if it explains too little, nothing is predicted.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

from gloader.errors import ConfigError, GloaderError, ReplayError
from gloader.lab.analyze.replan import Replanner
from gloader.replay.calibrate import calibrate, doubt_of
from gloader.replay.changes import (
    NO_CHANGES,
    REPLANNED,
    changed_compute,
    changed_machine,
    changed_rates,
    changed_shape,
)
from gloader.replay.demands import measure, work_of
from gloader.replay.planned_work import SampleCosts, learn_costs, planned_work, resized_work
from gloader.replay.recording import read_recording
from gloader.replay.replay import replay
from gloader.replay.work import Machine, PipelineShape, RunWork
from gloader.ssd_store.cost.io_rates import Calibration

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.lab.analyze.replan import Replanned
    from gloader.plan.memory_plan import MemoryPlan
    from gloader.replay.changes import Changes
    from gloader.replay.planned_work import Costs
    from gloader.replay.recording import Recording
    from gloader.replay.replay import Replayed


TRACE: Final = "trace.json"  # the recording's file in a run's folder
# Knobs are the names of changes.
_BATCH_KNOBS: Final = frozenset({"fanout", "batch-size"})  # with these, the batches are other ones
# Knobs that change the disk's rates.
_DISK_KNOBS: Final = ("disk", "disk.random", "disk.write")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A run with some changes, replayed."""

    change: str  # the requested changes as text; empty without changes
    replayed_s: float  # mean seconds per epoch, over the counted epochs
    replayed: Replayed  # the replay's times and events
    work: RunWork  # the replayed work
    machine: Machine  # the machine of the replay
    shape: PipelineShape  # the replayed pipeline: its threads, buffers and ranks
    plan: MemoryPlan | None = None  # the new memory plan, if there is one
    # Largest disk usage of packs, if there is a new memory plan. A pack is a file with a superbatch's missing rows,
    # batch by batch.
    pack_bytes: int = 0
    # Keywords of `gloader.Loader` for the changes.
    settings: dict[str, Any] = field(default_factory=dict)
    note: str = ""  # further remarks for the user, such as the command that prepares the dataset again


def open_run(run: Path) -> Predictor:
    """Return the predictor of the recorded run in a folder or a trace.

    Parameters
    ----------
    run : the folder of `gloader train ... --trace`, or a file that `Loader.write_trace` has written

    Raises
    ------
    ReplayError
        There is no recording, or it cannot be replayed.
    """
    folder = run if run.is_dir() else None
    return Predictor(read_recording(run if folder is None else run / TRACE), folder=folder)


class Predictor:
    """Replays a recorded run, with and without changes. Owns the files that it opens for new plans until `close`.

    Parameters
    ----------
    recording : the run's recording
    folder : the run's folder with its config.yaml, or None

    Raises
    ------
    ReplayError
        Batches are missing from the recording.
    """

    def __init__(self, recording: Recording, *, folder: Path | None = None) -> None:
        self.recording = recording
        self.measured = measure(recording)
        self._folder = folder
        self._stack = ExitStack()
        header = recording.header
        # All speeds are 1, as recorded. The disk's rates are separate: they are part of the work's demands.
        self._machine = Machine(cores=header.cores)
        self._rates = header.rates
        self._recorded = work_of(recording, self.measured)
        # The calibration compares the replay with the measured times, stage by stage.
        calibrated = calibrate(
            self._recorded,
            self.measured,
            self._machine,
            header.shape,
            threads=header.torch_threads,
            device=header.device,
        )
        self.unexplained, self.lags = calibrated.unexplained, calibrated.lags
        self._fit = calibrated.fit  # corrections with which a replay takes the measured time
        self.base = self._replayed("", calibrated.work, self._machine, header.shape)

    def predict(self, changes: Changes) -> Prediction:
        """Return the predicted epoch with ``changes``.

        Raises
        ------
        ReplayError
            The replay explains too little of the run, or its batches cannot be sampled again.
        ConfigError, BudgetError
            The run cannot have these changes.
        """
        self.require_trust()
        if not changes.values:
            return self.base
        if "network" in changes.values and self._has_exchanged:
            raise ConfigError(
                "network= cannot be answered: a recording with an exchange does not separate sent rows from read rows; "
                "leave it out"
            )
        self._require_same_loads(changes)
        machine = changed_machine(self._machine, changes)
        # Other rates of the disk may change how rows are read, so the reads are planned again if possible.
        touches_disk = any(name in changes.values for name in _DISK_KNOBS)
        if not changes.needs_plan and not (touches_disk and self._can_replan):
            work = work_of(self.recording, self.measured, rates=changed_rates(self._rates, changes))
            shape = changed_shape(self.recording.header.shape, changes)
            return self._replayed(
                changes.text, changed_compute(self._fit.apply(work), changes), machine, shape
            )
        planned = self._planned(changes)
        work = changed_compute(self._fit.apply(self._work_of(planned, changes)), changes)
        prediction = self._replayed(changes.text, work, machine, changed_shape(planned.shape, changes))
        # Counts and costs reproduce the unchanged run with a small error. The prediction has the same relative error,
        # which the correction removes.
        return replace(
            prediction,
            replayed_s=prediction.replayed_s * self._correction,
            plan=planned.plan,
            pack_bytes=_pack_bytes(planned),
            settings=dict(planned.settings),
            note=planned.note,
        )

    @property
    def doubt(self) -> str:
        """The reason against predictions, or "" if the replay is trusted."""
        return doubt_of(self.unexplained, self.lags)

    def require_trust(self) -> None:
        """Raise ReplayError if the replay explains too little of the run for predictions."""
        if self.doubt:
            raise ReplayError(f"{self.doubt}; record the run again while the machine does nothing else")

    def _require_same_loads(self, changes: Changes) -> None:
        """Raise ConfigError if ``changes`` move the rows of embeddings in another way."""
        embeddings = self.recording.header.embeddings
        if refused := [f"{name}=" for name in changes.values if embeddings and name in REPLANNED | {"ranks"}]:
            raise ConfigError(
                f"{', '.join(refused)} cannot be answered: the run trains embeddings "
                f"({', '.join(one.name for one in embeddings)}), and the loads of their rows are not planned again. "
                "Leave it out; `gloader inspect --embed` shows the reads and writes at other sizes of their cache"
            )

    def memory_bytes(self, prediction: Prediction) -> int:
        """Return the memory bytes in a prediction's loader plan."""
        plan = prediction.plan or self._base_plan.plan
        return plan.total_bytes

    def spill_bytes(self, prediction: Prediction) -> int:
        """Return the largest number of disk bytes that a prediction's packs take."""
        return prediction.pack_bytes if prediction.plan else _pack_bytes(self._base_plan)

    @cached_property
    def replanner(self) -> Replanner:
        """Samples and plans the run's batches again."""
        header = self.recording.header
        return self._stack.enter_context(
            Replanner.open(header, run=self._folder, sample_s=header.sample_s or None)
        )

    def close(self) -> None:
        """Close the opened files. Idempotent."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def _has_exchanged(self) -> bool:
        """True if machines exchanged rows: the read strategy is then, for example, "staged, exchanged".

        Otherwise another network changes nothing.
        """
        return any("exchanged" in str(event.notes.get("strategy", "")) for event in self.recording.events)

    @cached_property
    def _can_replan(self) -> bool:
        """True if the batches can be sampled again."""
        try:
            _ = self._base_plan
        except GloaderError:
            return False
        return True

    @cached_property
    def _base_plan(self) -> Replanned:
        """The unchanged run, planned again."""
        return self._planned(NO_CHANGES)

    @cached_property
    def _costs(self) -> Costs:
        return learn_costs(self.recording)

    @cached_property
    def _sample_costs(self) -> SampleCosts:
        return SampleCosts.of(self.recording)

    @cached_property
    def _correction(self) -> float:
        """The factor for predictions from counts and costs.

        It is the unchanged run's time in the replay of the recorded work, divided by its time from counts and costs.
        """
        planned = self._base_plan
        work = self._fit.apply(self._work_of(planned, NO_CHANGES))
        modelled = self._replayed("", work, self._machine, self.recording.header.shape)
        return self.base.replayed_s / modelled.replayed_s

    def _planned(self, changes: Changes) -> Replanned:
        """Return a plan with ``changes``, for as many epochs as were recorded."""
        header, count = self.recording.header, len(self._recorded.batches)  # count: batches of all ranks
        # Another batch size gives another number of batches in as many epochs.
        if _has_other_batches(changes):
            epochs = -(-count // (header.num_batches * header.shape.num_ranks))  # rounded up
            count = epochs * self.replanner.epoch_batches(changes) * header.shape.num_ranks
        return self.replanner.counts(
            changes,
            num_batches=count,
            rates=changed_rates(self._rates, changes),
            # A run also chooses its read methods by the computing time, as soon as it has measured some batches.
            calibration=Calibration(hidden_s=self._hidden_s),
        )

    @cached_property
    def _hidden_s(self) -> float:
        """The model's mean seconds per batch, in which reads can hide, divided among ranks and tables; 0 if unknown.

        They are divided, because the batches of all ranks and the reads of all tables share the disk.
        """
        header = self.recording.header
        seconds = [event.seconds for event in self.recording.events if event.stage == "compute"]
        tables = max(1, len(header.tables))
        return sum(seconds) / len(seconds) / (header.shape.num_ranks * tables) if seconds else 0.0

    def _work_of(self, planned: Replanned, changes: Changes) -> RunWork:
        """Return a plan's work, from the recorded work, the plan's counts and the recording's costs."""
        rates = changed_rates(self._rates, changes)
        sampling = 1.0  # a batch's sampling seconds, relative to the recorded batches
        recorded = work_of(self.recording, self.measured, rates=rates)
        if _has_other_batches(changes):
            base = self._base_plan
            # (batches,) each new batch's size, relative to the mean recorded batch.
            sizes = (planned.rows + planned.edges) / max(float((base.rows + base.edges).mean()), 1.0)
            sampling = planned.sample_s / base.sample_s if base.sample_s else 1.0
            recorded = resized_work(recorded, planned.batches, sizes, sampling=sampling)
        # The costs depend on the new cache's slots. The sampling depends on the share of batches that stay in memory
        # from their trace on, because these are not sampled again.
        return planned_work(
            recorded,
            planned.superbatches,
            rows=planned.rows,
            costs=self._costs.with_slots(sum(table.cache_rows for table in planned.tables)),
            sampling=self._sample_costs.of_plan(kept_share=planned.kept_share, factor=sampling),
            rates=rates,
        )

    def _replayed(self, change: str, work: RunWork, machine: Machine, shape: PipelineShape) -> Prediction:
        """Replay ``work``, and return the prediction without a new memory plan."""
        replayed = replay(work, machine, shape)
        return Prediction(
            change=change,
            replayed_s=replayed.mean_s(self.measured.counted),
            replayed=replayed,
            work=work,
            machine=machine,
            shape=shape,
        )


def _has_other_batches(changes: Changes) -> bool:
    """Return True if batches differ from the recorded ones."""
    return not _BATCH_KNOBS.isdisjoint(changes.values)


def _pack_bytes(planned: Replanned) -> int:
    """Return the disk bytes for two packs: one is read while one is written."""
    return 2 * max((one.written_bytes for one in planned.superbatches), default=0)
