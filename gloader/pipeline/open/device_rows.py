"""Rows on the compute device: the memory for these rows, and the choice of each table's rows.

`gloader.pipeline.open.device_tier` calls these parts when a loader opens. `room_for_rows` runs a trial step of the
model; rows get the memory that the step leaves free. `RowChoice` divides this memory between the tables, and selects
the rows that batches need most often.

- A table is the feature rows of a node type or of a relation. Tables are numbered: node types first, then relations.
- A row's heat is its access frequency: a count of batches, a probability, or a degree.
- A staged row is copied to the device in its storage format, and widened to float32 there. A row in int8 has a scale:
  a float32 factor.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch

from gloader.cache import (
    DeviceShelf,
    automatic_bytes,
    divide_device_bytes,
    no_device_cache,
    rows_that_fit,
    whole_device_cache,
)
from gloader.cache.static import cache_bytes
from gloader.core.units import format_bytes
from gloader.device import CpuDevice, DeviceTier
from gloader.device.dry_run import has_other_ranks
from gloader.device.hot_rows import heat_of_tables
from gloader.pipeline.gather import HostBatch
from gloader.pipeline.row_task import Answers
from gloader.pipeline.sample import count_rows
from gloader.pipeline.send import BATCHES_AHEAD, ROOMIER, Transfer
from gloader.samplers import HeteroGraph
from gloader.samplers.arguments import resolve_fanouts
from gloader.types import CollectiveFanouts, SampledBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gloader.cache import DeviceCachePlan
    from gloader.config import DeviceHotness, DeviceSettings
    from gloader.core.order import AnyOrder
    from gloader.device import Device, RowFormat
    from gloader.device.hot_rows import RowHeat
    from gloader.samplers import Topology
    from gloader.types import AnyBatch, AnySampler, Fanouts


logger = logging.getLogger("gloader")

# Ratio of the batch size in plans to the largest sampled batch. A larger batch may come late in an epoch, when no
# memory can be given back.
LARGER_THAN_PROBED: Final = 1.15

DryRun: TypeAlias = "Callable[[Any], object]"  # receives a batch of the loader


def room_for_rows(
    device: Device,
    settings: DeviceSettings,
    *,
    largest: AnyBatch | None,
    dims: Mapping[int, int],
    dry_run: DryRun | None = None,
) -> int:
    """Return the device bytes for rows: the requested size, or the memory that the model leaves free.

    For the CPU the result is 0 unless a size was requested: rows in host memory belong to the loader's memory budget.

    Parameters
    ----------
    device : the device that would hold the rows
    settings : the requested size
    largest : the largest sampled batch; None if no batch exists
    dims : F by table number
    dry_run : one model step, which is run and measured; without it the model gets half the free memory
    """
    # A requested size needs no measurement.
    if settings.device_cache != "auto":
        return settings.device_cache
    if isinstance(device, CpuDevice) or largest is None:
        return 0
    batch = _blank_batch(largest, dims)
    batch_bytes = math.ceil(LARGER_THAN_PROBED * ROOMIER * _num_bytes(batch))
    free = device.free_bytes()
    step_bytes = None
    if dry_run is not None:
        step_bytes = _step_bytes(device, dry_run, batch, tuple(dims))
    num_bytes = automatic_bytes(
        free,
        step_bytes=step_bytes,
        batch_bytes=batch_bytes,
        batches_ahead=BATCHES_AHEAD,
        has_other_ranks=has_other_ranks(),
    )
    if step_bytes is None:
        logger.info(
            "device_cache='auto' without device_dry_run: rows may take %s of %s, half of its free memory",
            format_bytes(num_bytes),
            device.place,
        )
    return num_bytes


def _step_bytes(device: Device, dry_run: DryRun, batch: HostBatch, types: Sequence[int]) -> int:
    """Return the peak device bytes of one step, including its batch; ``types`` are the tables' numbers."""

    def step() -> None:
        """Send the batch to the device as a run does, and run the model on it."""
        transfer = Transfer([DeviceTier(device=device)] * len(types), device=device, types=types)
        labels = np.zeros(sum(batch.sampled.seed_counts), dtype=np.int64)
        sent = transfer.send(batch, Answers(labels=labels))
        transfer.wait()
        dry_run(sent.receive())

    try:
        return device.most_bytes_of(step)
    except torch.OutOfMemoryError as error:
        error.add_note(f"in a trial step of the model: {DeviceTier(device=device).advice()}")
        raise


def _blank_batch(sampled: AnyBatch, dims: Mapping[int, int]) -> HostBatch:
    """Return ``sampled`` with zeros as features; ``dims`` is F by table number."""
    return HostBatch(
        sampled=sampled,
        x=tuple(
            np.zeros((count_rows(sampled, number), dim), dtype=np.float32) for number, dim in dims.items()
        ),
        src_degree=np.ones(len(sampled.nodes) if isinstance(sampled, SampledBatch) else 0, dtype=np.float32),
        superbatch=0,
        ends_superbatch=False,
    )


def _num_bytes(batch: HostBatch) -> int:
    """Return a batch's device bytes; ids count with their maximum size."""
    blocks = sum(
        array.nbytes
        for block in batch.sampled.all_blocks
        for array in (block.indptr, block.indices, block.edge_weight)
        if array is not None
    )
    rows = sum(array.nbytes for array in (*batch.x, *batch.sampled.node_arrays))
    return rows + batch.src_degree.nbytes + blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTable:
    """A device's view of a feature table, for a node type or a relation."""

    type_number: int  # the table's number: node types first, then relations
    num_nodes: int  # N; for a relation, its number of edges
    form: RowFormat  # the storage format
    is_of_edges: bool = False  # whether the rows are edge features

    def num_rows(self, num_bytes: int, *, as_stored: bool) -> int:
        """Return the number of rows that fit into ``num_bytes``.

        With ``as_stored`` the host sends all other rows in their storage format. The device then needs the scales of
        all rows, if the format has scales.
        """
        has_scale = self.form.scale is not None
        return rows_that_fit(
            num_bytes,
            num_nodes=self.num_nodes,
            row_bytes=self.form.row_bytes,
            has_scale=has_scale,
            has_all_scales=as_stored and has_scale,
        )

    @property
    def whole_bytes(self) -> int:
        """Bytes of all rows on a device."""
        return cache_bytes(
            self.num_nodes,
            num_nodes=self.num_nodes,
            row_bytes=self.form.row_bytes,
            has_scale=self.form.scale is not None,
        )

    def shelf(self, heat: RowHeat, *, as_stored: bool) -> DeviceShelf:
        """Return the table's values for `divide_device_bytes`: the rows' scores and sizes."""
        has_scale = self.form.scale is not None
        return DeviceShelf(
            scores=heat.scores,
            row_bytes=self.form.row_bytes,
            saved_bytes=self.form.row_bytes if as_stored else 4 * self.form.dim,
            has_scale=has_scale,
            has_all_scales=as_stored and has_scale,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The device's future work: sampler, batches and model step."""

    topology: Topology | HeteroGraph  # the edges that the sampler draws from
    sampler: AnySampler  # the CPU's sampler
    order: AnyOrder  # each batch's seeds
    fanouts: Fanouts  # number of neighbours per node, by hop
    probe: list[Any]  # the run's first batches, sampled to measure their size
    probe_s: float  # processor seconds to sample the fastest of these batches
    threads: int  # number of threads that may sample before the first epoch
    dry_run: DryRun | None = None  # one step of the model, to measure its memory

    @property
    def largest(self) -> AnyBatch | None:
        """The largest sampled batch; None without batches."""
        return max(self.probe, key=lambda batch: sum(map(len, batch.node_arrays)), default=None)


class RowChoice:
    """Chooses each table's rows for a device: the hottest rows that fit.

    Parameters
    ----------
    hotness : the method for the heat: "presampled", "vip" or "degree", as in `heat_of_tables`
    workload : the device's future work
    tables : the feature tables, node types before relations
    as_stored : whether the host sends the other rows in their storage format
    """

    def __init__(
        self, hotness: DeviceHotness, workload: Workload, tables: Sequence[DeviceTable], *, as_stored: bool
    ) -> None:
        self._hotness = hotness
        self._work = workload
        self._all = tables
        self._tables = [table for table in tables if not table.is_of_edges]  # the tables of nodes
        self._as_stored = as_stored

    def plans(self, num_bytes: int) -> list[DeviceCachePlan]:
        """Return each table's rows; all tables share ``num_bytes``, and edges get none.

        An edge is needed only in batches with its destination: the few edges that fit on a device are seldom hit.
        """
        plans = iter(self._plans_of_nodes(num_bytes))
        return [no_device_cache(table.num_nodes) if table.is_of_edges else next(plans) for table in self._all]

    def _plans_of_nodes(self, num_bytes: int) -> list[DeviceCachePlan]:
        """Return the plans of the tables of nodes: all rows if they fit, else the hottest ones."""
        tables = self._tables
        if sum(table.whole_bytes for table in tables) <= num_bytes:
            return [whole_device_cache(table.num_nodes) for table in tables]
        if not any(table.num_rows(num_bytes, as_stored=self._as_stored) for table in tables):
            return [no_device_cache(table.num_nodes) for table in tables]
        shares: tuple[int, ...] = (num_bytes,)
        if len(tables) > 1:
            shelves = [
                table.shelf(heat, as_stored=self._as_stored)
                for table, heat in zip(tables, self._heats, strict=True)
            ]
            shares = divide_device_bytes(num_bytes, shelves)
        return [
            heat.plan(table.num_rows(share, as_stored=self._as_stored))
            for table, heat, share in zip(tables, self._heats, shares, strict=True)
        ]

    @cached_property
    def _heats(self) -> tuple[RowHeat, ...]:
        """The heat of each row, for each table of nodes."""
        # Computed once: if the rows do not fit, `open_device_tiers` tries half of the room with the same heats.
        work = self._work
        graph = HeteroGraph.of(work.topology)
        return heat_of_tables(
            self._hotness,
            [table.type_number for table in self._tables],
            graph=graph,
            sampler=work.sampler,
            order=work.order,
            fanouts=resolve_fanouts(work.fanouts, tuple(graph.relations)),
            is_collective=isinstance(work.fanouts, CollectiveFanouts),
            threads=work.threads,
        )
