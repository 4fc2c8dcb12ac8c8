"""What the loader of a recorded run brought batches of, opened again: edges, files of rows, and the stream itself."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from gloader.cache.trace import NO_ROWS
from gloader.core.loader_state import LoaderState
from gloader.dataset.topology import open_hetero_topology, open_topology
from gloader.errors import BudgetError, ConfigError, ReplayError, StateError
from gloader.lab.analyze.recorded_stream import (
    is_typed_run,
    open_recorded_dataset,
    plan_recorded_seeds,
    read_config,
    require_all_rows,
    require_own_rows,
    require_same_stream,
    with_recorded_device,
)
from gloader.lab.analyze.replan_settings import recorded_settings
from gloader.lab.analyze.row_numbers import reordered_rows
from gloader.lab.analyze.sampled_stream import SampledStream
from gloader.pipeline.measured_load import measure_load, sampler_for
from gloader.pipeline.positions import BatchStream
from gloader.pipeline.table_files import KnownDisk
from gloader.plan.available import default_budget_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from gloader.config import LoaderSettings
    from gloader.dataset import Dataset
    from gloader.pipeline.measured_load import MeasuredLoad
    from gloader.pipeline.seed_order import SeedPlan
    from gloader.pipeline.table_files import TableFiles
    from gloader.replay.recording import RunHeader
    from gloader.samplers import HeteroGraph, Topology
    from gloader.ssd_store.cost.strategy import IoRates
    from gloader.types import Fanouts, IdArray


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadKey:
    """The settings that batches, and what is opened for them, depend on."""

    fanouts: Fanouts
    batch_size: int
    budget_bytes: int | None

    @classmethod
    def of(cls, settings: LoaderSettings) -> Self:
        """Return those of ``settings``."""
        sampling = settings.sampling
        return cls(
            fanouts=sampling.fanouts,
            batch_size=sampling.batch_size,
            budget_bytes=settings.memory.memory_budget,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLoad:
    """What a loader of some settings would bring batches of, and these batches."""

    measured: MeasuredLoad
    stream: SampledStream

    @property
    def held(self) -> tuple[IdArray, ...]:
        """The rows of each table that the device holds."""
        tiers = self.measured.tiers[: len(self.measured.files.tables)]
        return tuple(NO_ROWS if tier.cache is None else tier.cache.plan.rows for tier in tiers)

    def files(self, rates: IoRates) -> TableFiles:
        """Return the files of the rows, on a disk of ``rates``."""
        return replace(self.measured.files, rates=rates)

    def rows_in_memory(self, num_batches: int) -> IdArray:
        """Return (batches,) the rows that the host gathers out of features in memory."""
        rows = self.stream.places(num_batches)
        for number, tier in enumerate(self.measured.tiers[: len(self.measured.files.tables)]):
            share = tier.share()
            if share.held is not None or share.holds_all:
                traces = self.stream.traces(num_batches)[number]
                rows = rows - np.array([share.num_held(nodes) for nodes in traces], np.int64)
        return rows


class RecordedLoads:
    """The load of a recorded run, and the last one with changes. Owns the dataset and what is opened until `close`.

    Parameters
    ----------
    header : of the recording
    dataset : of the run
    settings : of its loader
    is_typed : whether batches have several types
    """

    def __init__(
        self, header: RunHeader, dataset: Dataset, settings: LoaderSettings, *, is_typed: bool
    ) -> None:
        self.settings = settings
        self._header = header
        self._dataset = dataset
        self._is_typed = is_typed
        self._first = LoaderState.from_json(header.state).next
        self._stack = ExitStack()
        self._stack.callback(dataset.close)
        self._changed_stack = self._stack.enter_context(ExitStack())
        self._changed: tuple[LoadKey, RecordedLoad] | None = None
        try:
            self._base_key = LoadKey.of(settings)
            measured = self._measure_run()
            self.topology = self._held_topology(measured)
            self.base = RecordedLoad(measured=measured, stream=self._new_stream(settings, measured))
        except BaseException:
            self._stack.close()
            raise

    @classmethod
    def open(cls, header: RunHeader, *, run: Path | None) -> Self:
        """Open what a recorded run loaded, and check that its batches are the same; ReplayError where they are not.

        Parameters
        ----------
        header : of the recording
        run : the run folder; None: there is none
        """
        try:
            LoaderState.from_json(header.state)
        except StateError as error:
            raise ReplayError(f"the state in the recording cannot be read: {error}") from error
        config = read_config(run)
        settings = recorded_settings(header)
        require_own_rows(header, settings)
        dataset = open_recorded_dataset(header, config)
        try:
            require_all_rows(dataset)
            is_typed = is_typed_run(dataset, settings)
            settings = with_recorded_device(settings, header, dataset)
            seeds = plan_recorded_seeds(dataset, settings, header, is_typed=is_typed)
            require_same_stream(dataset, seeds, settings, header)
        except BaseException:
            dataset.close()
            raise
        return cls(header, dataset, settings, is_typed=is_typed)

    def get(self, settings: LoaderSettings) -> RecordedLoad:
        """Return the load of ``settings``, which is usable until that of others is asked for.

        Raises
        ------
        BudgetError, ConfigError
            There cannot be such a loader.
        ReplayError
            There are no such batches.
        """
        key = LoadKey.of(settings)
        if key == self._base_key:
            return self.base
        if self._changed is None or self._changed[0] != key:
            self._changed = None
            self._changed_stack.close()
            measured = self._measure(settings, self._changed_stack)
            same = replace(key, budget_bytes=self._base_key.budget_bytes) == self._base_key
            stream = self.base.stream if same else self._new_stream(settings, measured)
            self._changed = (key, RecordedLoad(measured=measured, stream=stream))
        return self._changed[1]

    def seeds(self, settings: LoaderSettings) -> SeedPlan:
        """Return the seeds of a loader of ``settings``; ReplayError where there are none."""
        return plan_recorded_seeds(self._dataset, settings, self._header, is_typed=self._is_typed)

    def reordered_rows(self, order: str) -> IdArray | None:
        """Return what `gloader.lab.analyze.row_numbers.reordered_rows` does."""
        return reordered_rows(self._dataset, self.base.measured.files, self.topology, order)

    def close(self) -> None:
        """Close what was opened. Idempotent."""
        self._stack.close()

    def _measure_run(self) -> MeasuredLoad:
        try:
            return self._measure(self.settings, self._stack)
        except (BudgetError, ConfigError) as error:
            raise ReplayError(f"the run cannot be planned here, as it was recorded: {error}") from error

    def _measure(self, settings: LoaderSettings, stack: ExitStack) -> MeasuredLoad:
        header = self._header
        budget = settings.memory.memory_budget
        return measure_load(
            self._dataset,
            self.seeds(settings),
            settings,
            stack,
            budget_bytes=header.budget_bytes if budget is None else budget,
            dry_run=None,
            num_ranks=header.shape.num_ranks,
            num_loaders=1,
            others=None,
            machines=None,
            known=KnownDisk(rates=header.rates, spill_bytes=header.spill_bytes),
        )

    def _held_topology(self, measured: MeasuredLoad) -> Topology | HeteroGraph:
        """Return the edges, in memory where they fit, though the run may have read them from the SSD.

        A batch is the same wherever they are, and there is no cache of features here that needs the memory.
        """
        work, home = measured.work, measured.home
        if home.home == "ram" or home.topology_bytes > default_budget_bytes():
            return work.topology
        is_temporal = self.settings.sampling.is_temporal
        if self._is_typed:
            opened = open_hetero_topology(self._dataset, max_bytes=home.topology_bytes, times=is_temporal)
            return self._stack.enter_context(opened)
        return self._stack.enter_context(
            open_topology(self._dataset, max_bytes=home.topology_bytes, times=is_temporal)
        )

    def _new_stream(self, settings: LoaderSettings, measured: MeasuredLoad) -> SampledStream:
        """Return the stream of ``settings``, from the batch on that was recorded first."""
        order, num_ranks = measured.work.order, self._header.shape.num_ranks
        first, size = self._first, settings.sampling.batch_size
        if size != self.settings.sampling.batch_size:
            # The same part of the epoch, in other batches.
            seen = first.index * self.settings.sampling.batch_size
            first = replace(first, index=min(seen // size, max(order.num_batches - 1, 0)))
        epochs = settings.stages.epochs
        stream = BatchStream(
            order,
            first,
            end_epoch=None if epochs is None else max(epochs, first.epoch + 1),
            ranks=range(num_ranks) if num_ranks > 1 else None,
        )
        return SampledStream(sampler_for(self.topology, order, settings), stream, measured.files.types)
