"""A recorded run's load, opened again: edges, files with feature rows, and the sampled batches.

A load is the part of a loader that its memory plan needs: the dataset's open files and the measured first batches
(`MeasuredLoad`). `RecordedLoads` opens the load of the recorded run, and loads with changed settings.
`SampledStream` samples the recorded batches again and keeps their traces. A trace has the rows of each table that a
batch accesses. It is kept as a code of about a byte per row.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from gloader.cache import Trace, access_counts, decode_ids
from gloader.cache.trace import NO_ROWS
from gloader.convert.csc.external_csc import CscPiece
from gloader.convert.node_order import NodeOrder, by_falling_degree, order_of_communities
from gloader.convert.progress import NO_PROGRESS
from gloader.core.loader_state import LoaderState
from gloader.core.signals import run_together
from gloader.errors import BudgetError, ConfigError, ReplayError, StateError
from gloader.lab.analyze.recorded_run import (
    open_recorded_dataset,
    plan_recorded_seeds,
    read_config,
    recorded_settings,
    require_all_rows,
    require_own_rows,
    require_same_stream,
    with_recorded_device,
)
from gloader.pipeline.open.disk import KnownDisk, open_edges
from gloader.pipeline.open.load_plan import LoadRequest, sampler_for
from gloader.pipeline.sample import CodedRows, count_rows, trace_entry
from gloader.pipeline.seeds import BatchStream
from gloader.plan.available import available_memory_bytes, default_budget_bytes
from gloader.samplers import CscGraph, HeteroGraph

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from gloader.config import LoaderSettings
    from gloader.dataset import Dataset
    from gloader.pipeline.open.disk import TableFiles
    from gloader.pipeline.open.load_plan import MeasuredLoad
    from gloader.pipeline.sample import TraceEntry
    from gloader.pipeline.seeds import SeedPlan
    from gloader.replay.recording import RunHeader
    from gloader.samplers import Topology
    from gloader.ssd_store.cost.io_rates import IoRates
    from gloader.types import AnySampler, Fanouts, IdArray


def _order_of(dataset: Dataset) -> str:
    """Return the order in which a dataset was prepared, or "none" if another program wrote it."""
    options = dataset.metadata.get("options")
    return str(options.get("order", "none")) if isinstance(options, dict) else "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldLists:
    """A graph's in-neighbours in memory, in the form that `order_of_communities` reads."""

    graph: CscGraph

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.graph.num_nodes

    def pieces(self, max_edges: int) -> Iterator[CscPiece]:  # noqa: ARG002 - they are in memory already
        """Yield all lists as one piece."""
        yield CscPiece(first=0, indptr=self.graph.indptr, indices=self.graph.indices)


MOST_BATCHES: Final = 4000  # largest number of batches sampled again: enough to show a change's effect
_MEMORY_PARTS: Final = 4  # the free memory divided by this number is the limit for the traces
_PER_THREAD: Final = 16  # batches per thread between two checks of the memory


class _Sampled(NamedTuple):
    """Facts that are kept about a sampled batch."""

    entry: TraceEntry  # the row ids of each table, coded
    places: tuple[int, ...]  # number of rows that the batch has of each table, repeats included
    edges: int  # number of edges
    seconds: float  # processor seconds


class SampledStream:
    """Samples a stream's batches on demand, each once, from the first batch on.

    Takes about a byte of memory per accessed row. Not thread-safe; samples in its own threads.

    Parameters
    ----------
    sampler : draws the neighbours; thread-safe
    stream : the batches' ids (epoch and index) and seeds, by position
    types : each table's number for `trace_entry`
    """

    def __init__(self, sampler: AnySampler, stream: BatchStream, types: Sequence[int]) -> None:
        self.stream = stream
        self._sampler = sampler
        self._types = tuple(types)
        self._sampled: list[_Sampled] = []
        self._num_bytes = 0
        self._is_full = False

    def sample(self, num_batches: int) -> int:
        """Sample the first batches. Return their number, which is smaller if the stream or the memory ends.

        Raises
        ------
        StoreError
            The edges cannot be read, or are damaged.
        ThreadStartError
            The system allows no more threads.
        """
        threads = len(os.sched_getaffinity(0))
        num_needed = min(num_batches, MOST_BATCHES)
        most_bytes = available_memory_bytes() // _MEMORY_PARTS + self._num_bytes
        while len(self._sampled) < num_needed and not self._is_full:
            first = len(self._sampled)
            past = min(first + threads * _PER_THREAD, num_needed)
            tasks = [
                partial(self._sample, position)
                for position in range(first, past)
                if self.stream.has(position)
            ]
            sampled = run_together(tasks, threads=threads, name="gloader-replan")
            self._sampled += sampled
            self._num_bytes += sum(len(rows.code) for one in sampled for rows in one.entry)
            # The stream has ended, or the memory is used up.
            self._is_full = len(tasks) < past - first or self._num_bytes > most_bytes
        return min(num_needed, len(self._sampled))

    def entries(self, num_batches: int, new_ids: IdArray | None = None) -> list[TraceEntry]:
        """Return the first batches' traces.

        Parameters
        ----------
        num_batches : number of sampled batches
        new_ids : (N,) the only table's new row numbers. None means the present numbers.
        """
        entries = [one.entry for one in self._sampled[:num_batches]]
        return entries if new_ids is None else [_renumbered(entry, new_ids) for entry in entries]

    def traces(self, num_batches: int) -> tuple[Trace, ...]:
        """Return each table's trace over the first batches."""
        traces = tuple(Trace() for _ in self._types)
        for entry in self.entries(num_batches):
            for trace, rows in zip(traces, entry, strict=True):
                trace.append_code(rows.code, rows.count)
        return traces

    def places(self, num_batches: int) -> IdArray:
        """Return (batches,) each batch's number of rows over all tables, repeats included."""
        return np.array([sum(one.places) for one in self._sampled[:num_batches]], np.int64)

    def edges(self, num_batches: int) -> IdArray:
        """Return (batches,) each batch's number of edges."""
        return np.array([one.edges for one in self._sampled[:num_batches]], np.int64)

    @property
    def sample_s(self) -> float:
        """Median processor seconds to sample a batch, because some batches include compilation or reads."""
        return median([one.seconds for one in self._sampled]) if self._sampled else 0.0

    def _sample(self, position: int) -> _Sampled:
        """Sample the batch at a stream position."""
        began = time.thread_time()
        batch = self._sampler.sample(self.stream.id_of(position), self.stream.seeds_at(position))
        seconds = time.thread_time() - began
        return _Sampled(
            entry=trace_entry(batch, self._types),
            places=tuple(count_rows(batch, number) for number in self._types),
            edges=sum(block.num_edges for block in batch.all_blocks),
            seconds=seconds,
        )


def _renumbered(entry: TraceEntry, new_ids: IdArray) -> TraceEntry:
    """Return the trace of a batch with one table after its rows got ``new_ids`` (N,)."""
    (rows,) = entry
    return (CodedRows.of(np.sort(new_ids[decode_ids(rows.code, rows.count)])),)


def load_key(settings: LoaderSettings) -> tuple[tuple[Fanouts, int], int | None]:
    """Return the settings on which a load depends: those of the batches, and the budget."""
    sampling = settings.sampling
    return (sampling.fanouts, sampling.batch_size), settings.memory.memory_budget


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLoad:
    """A loader's measured load with some settings, and its batches."""

    measured: MeasuredLoad
    stream: SampledStream

    @property
    def held(self) -> tuple[IdArray, ...]:
        """Each table's rows on the device."""
        tiers = self.measured.tiers[: len(self.measured.files.tables)]
        return tuple(NO_ROWS if tier.cache is None else tier.cache.plan.rows for tier in tiers)

    def files(self, rates: IoRates) -> TableFiles:
        """Return the row files, on a disk with ``rates``."""
        return replace(self.measured.files, rates=rates)

    def rows_in_memory(self, num_batches: int) -> IdArray:
        """Return (batches,) the number of rows that the host gathers from features in memory."""
        rows = self.stream.places(num_batches)
        for number, tier in enumerate(self.measured.tiers[: len(self.measured.files.tables)]):
            share = tier.share()
            if share.held is not None or share.holds_all:
                traces = self.stream.traces(num_batches)[number]
                rows = rows - np.array([share.num_held(nodes) for nodes in traces], np.int64)
        return rows


class RecordedLoads:
    """A recorded run's load, and the last load with changes. Owns dataset and opened files until `close`.

    Parameters
    ----------
    header : the recording's header
    dataset : the run's dataset
    settings : the run's loader settings
    """

    def __init__(self, header: RunHeader, dataset: Dataset, settings: LoaderSettings) -> None:
        self.settings = settings
        self._header = header
        self._dataset = dataset
        self._first = LoaderState.from_json(header.state).next  # the first recorded batch
        self._stack = ExitStack()
        self._stack.callback(dataset.close)
        self._changed_stack = self._stack.enter_context(ExitStack())
        # The last load with changes, after its `load_key`.
        self._changed: tuple[object, RecordedLoad] | None = None
        try:
            self._base_key = load_key(settings)
            measured = self._measure_run()
            self.topology = self._held_topology(measured)
            self.base = RecordedLoad(measured=measured, stream=self._new_stream(settings, measured))
        except BaseException:
            self._stack.close()
            raise

    @classmethod
    def open(cls, header: RunHeader, *, run: Path | None) -> Self:
        """Open a recorded run's load, and check that the batches are the same. Raises ReplayError if they differ.

        Parameters
        ----------
        header : the recording's header
        run : the run folder, or None
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
            settings = with_recorded_device(settings, header, dataset)
            seeds = plan_recorded_seeds(dataset, settings, header)
            require_same_stream(dataset, seeds, settings, header)
        except BaseException:
            dataset.close()
            raise
        return cls(header, dataset, settings)

    def get(self, settings: LoaderSettings) -> RecordedLoad:
        """Return the load for ``settings``. It is valid until the next call with other settings.

        Raises
        ------
        BudgetError, ConfigError
            No loader can have these settings.
        ReplayError
            No batches have these settings.
        """
        key = load_key(settings)
        if key == self._base_key:
            return self.base
        if self._changed is None or self._changed[0] != key:
            self._changed = None
            self._changed_stack.close()
            measured = self._measure(settings, self._changed_stack)
            has_same_batches = key[0] == self._base_key[0]
            stream = self.base.stream if has_same_batches else self._new_stream(settings, measured)
            self._changed = (key, RecordedLoad(measured=measured, stream=stream))
        return self._changed[1]

    def seeds(self, settings: LoaderSettings) -> SeedPlan:
        """Return a loader's seeds with ``settings``. Raises ReplayError if there are none."""
        return plan_recorded_seeds(self._dataset, settings, self._header)

    def reordered_rows(self, name: str) -> IdArray | None:
        """Return each row's new number (N,), as `gloader prepare --order` computes it. None for the present order.

        Nodes with equal degree keep their present order. Batches are sampled as before, because two orders are
        comparable only on batches with the same nodes.

        Parameters
        ----------
        name : the order's name

        Raises
        ------
        ConfigError
            The order cannot be computed for this dataset.
        """
        files, topology = self.base.measured.files.tables, self.topology
        if isinstance(topology, HeteroGraph) or len(files) != 1 or files[0].is_of_edges:
            raise ConfigError(
                f"order={name}: another order can be predicted only with one node type and without edge features"
            )
        if _order_of(self._dataset) == name:
            return None
        if name == "none":
            return self._dataset.original_ids
        if name == "degree":
            degrees = access_counts(topology.sources.pieces(), topology.num_nodes)
            return NodeOrder.of(by_falling_degree(degrees)).new_ids
        if not isinstance(topology, CscGraph):
            raise ConfigError(
                f"order={name}: this order needs the edges in memory, and the free memory of this machine is too small"
            )
        graph = _HeldLists(graph=topology)
        nodes = order_of_communities(graph, max_edges=max(topology.num_edges, 1), progress=NO_PROGRESS)
        return NodeOrder.of(nodes).new_ids

    def close(self) -> None:
        """Close the opened files. Idempotent."""
        self._stack.close()

    def _measure_run(self) -> MeasuredLoad:
        """Return the load of the unchanged run. Raises ReplayError if it cannot be opened on this machine."""
        try:
            return self._measure(self.settings, self._stack)
        except (BudgetError, ConfigError) as error:
            raise ReplayError(f"the run cannot be planned here, as it was recorded: {error}") from error

    def _measure(self, settings: LoaderSettings, stack: ExitStack) -> MeasuredLoad:
        """Return the load with ``settings``, on the recorded disk. Opened files go to ``stack``."""
        header = self._header
        budget = settings.memory.memory_budget
        request = LoadRequest(
            dataset=self._dataset,
            seeds=self.seeds(settings),
            settings=settings,
            num_ranks=header.shape.num_ranks,
            known=KnownDisk(rates=header.rates, spill_bytes=header.spill_bytes),
        )
        return request.measure(stack, budget_bytes=header.budget_bytes if budget is None else budget)

    def _held_topology(self, measured: MeasuredLoad) -> Topology | HeteroGraph:
        """Return the edges, in memory if they fit, even if the run read them from the SSD.

        Batches do not depend on where the edges are, and no feature cache needs the memory here.
        """
        work, home = measured.work, measured.home
        if home.home == "ram" or home.topology_bytes > default_budget_bytes():
            return work.topology
        seeds = self.seeds(self.settings)
        settings = self.settings
        return self._stack.enter_context(
            open_edges(
                self._dataset,
                seeds.types,
                max_bytes=home.topology_bytes,
                io=settings.reading.io,
                times=settings.sampling.is_temporal,
            )
        )

    def _new_stream(self, settings: LoaderSettings, measured: MeasuredLoad) -> SampledStream:
        """Return the stream for ``settings``, from the first recorded batch on."""
        order, num_ranks = measured.work.order, self._header.shape.num_ranks
        first, size = self._first, settings.sampling.batch_size
        if size != self.settings.sampling.batch_size:
            # The stream starts at the same part of the epoch, in other batches.
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
