"""A loader's compute device: its feature rows, and its topology if batches are sampled on the device.

This is a step of opening a loader (`gloader.pipeline.open.load_plan`). The first batches are sampled before it, and the
host's memory is planned after it. `open_device_tiers` measures the device's room, opens the device's sampler if that is
faster, and reserves memory for rows. `load_features` later loads a table into host memory, if the plan keeps it there.

- A tier (`DeviceTier`) is the part of a table's rows that the device holds, or reads from host memory itself.
- A table is the feature rows of a node type or of a relation.
- The room is the device memory for rows, in bytes. Sampling on the device takes a part of it.
- A probe is a batch that was sampled to measure its size. The device must sample the same batch as the CPU.
- A staged row is copied to the device in its storage format, and widened to float32 there.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from gloader.cache.static import cache_bytes
from gloader.core.units import format_bytes
from gloader.device import (
    DeviceTier,
    RowFormat,
    StaticCache,
    has_triton,
    open_device,
    reach_features,
    scale_on,
    upload_topology,
)
from gloader.device.tier import room_of_hop
from gloader.errors import ConfigError
from gloader.pipeline.open.device_rows import DeviceTable, RowChoice, Workload, room_for_rows
from gloader.pipeline.other_ranks import LoadedFeatures, NoOtherDevices
from gloader.samplers import CscGraph, HeteroGraph, MergedBlockSampler, NeighborSampler, TemporalSampler
from gloader.types import SampledBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gloader.cache import DeviceCachePlan
    from gloader.config import DeviceSettings, SamplingDevice
    from gloader.device import Device
    from gloader.device.device_sampler import DeviceSampler
    from gloader.pipeline.other_ranks import OtherDevices
    from gloader.samplers import Topology
    from gloader.ssd_store import FeatureStore
    from gloader.types import AnyBatch, AnySampler, Block


logger = logging.getLogger("gloader")

# Maximum number of threads that call a device's sampler. Its calls take turns: while the device works for one thread,
# the second thread does the host's part of another batch.
MOST_THREADS: Final = 2
# Number of sampled batches on the device: in the threads, in the queue after them, and in the stages up to the model.
_BATCHES: Final = 8
_LABEL_BYTES: Final = 4  # bytes per node for the sampler's node map
# Temporary bytes per edge of the current hop. They hold the edge's position, destination, draw and source, and the
# source's index among the batch's nodes.
_EDGE_BYTES: Final = 37
# Further temporary bytes, per edge and per destination of all hops, until the batch has arrays of its final size.
_KEPT_EDGE_BYTES, _KEPT_ROW_BYTES = 12, 32
_TRIALS: Final = 3  # number of timed trials; the fastest counts
# Largest share of the room for sampling. With this share rows lose few hits, and the host need not sample at all.
_MOST_OF_ROOM: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceSampling:
    """A device's sampler, and the sampler's device memory."""

    sampler: DeviceSampler
    num_bytes: int  # peak memory for sampling, including the topology


def open_device_sampler(
    wanted: SamplingDevice,
    device: Device,
    workload: Workload,
    *,
    room_bytes: int,
    all_rows_bytes: int | None,
    obstacle: str = "",
) -> tuple[DeviceSampling | None, str]:
    """Return the sampler of ``device`` if batches are sampled there, and a line with the place and the reason.

    "auto" chooses a GPU if two conditions hold. First, the topology and the sampler's memory fit into a quarter of the
    room, or leave enough room for all rows. Second, the GPU is at least as fast as all CPU threads together. To check
    this, the workload's largest batch is sampled on the GPU, compared and timed.

    Parameters
    ----------
    wanted : "auto", "cpu" or "cuda"
    device : computes the batches
    workload : the CPU's sampler and its threads, its topology, and a few batches
    room_bytes : device memory for rows or a topology
    all_rows_bytes : size of all rows; None if the rows already have their own memory
    obstacle : the reason that rules out device sampling for any graph and sampler, or ""

    Raises
    ------
    ConfigError
        "cuda" was requested and is impossible.
    """
    is_gpu, must = device.place.type == "cuda", wanted == "cuda"
    if wanted == "cpu" or not (is_gpu or must):
        return None, f"sampling: on the CPU, as sampling_device={wanted!r} says" if is_gpu else ""
    try:
        graph, cpu_sampler = _require_form(device, workload.sampler, workload.topology, obstacle=obstacle)
        probe = workload.largest if isinstance(workload.largest, SampledBatch) else None
        num_bytes = _needed_bytes(graph, probe, _uniform(cpu_sampler).fanouts)
        if not must:
            _require_worth(num_bytes, room_bytes, all_rows_bytes)
        device_sampler = _placed(device, cpu_sampler, graph, probe)
        if not must and probe is not None:
            _require_speed(device, device_sampler, cpu_sampler, probe, num_threads=workload.threads)
    except _Refused as refused:
        if must:
            text = f"sampling_device='cuda': {refused}; or use sampling_device='cpu'"
            raise ConfigError(text) from refused.__cause__
        if refused.is_fault:
            logger.warning("batches are sampled on the CPU: %s", refused)
        return None, f"sampling: on the CPU: {refused}"
    text = f"sampling: on {device.place}, with {format_bytes(num_bytes)} of edges and batches there"
    return DeviceSampling(sampler=device_sampler, num_bytes=num_bytes), text


class _Refused(Exception):  # noqa: N818 - an error only if the user requested the device
    """Carries, as its text, the reason why batches are not sampled on a device."""

    is_fault = False  # True if the device failed, so that a warning is logged


class _Failed(_Refused):
    """The device failed, or sampled a wrong batch."""

    is_fault = True


def _require_form(
    device: Device, sampler: AnySampler, topology: Topology | HeteroGraph, *, obstacle: str
) -> tuple[CscGraph, NeighborSampler | MergedBlockSampler]:
    """Return the topology and the CPU's sampler if ``device`` supports both; raise `_Refused` otherwise."""
    if isinstance(topology, HeteroGraph):
        raise _Refused("batches of several node types and relations are sampled on the CPU alone")
    if not device.is_asynchronous:
        raise _Refused("batches are computed on the CPU: compute on a GPU (device='cuda')")
    if obstacle:
        raise _Refused(obstacle)
    if isinstance(sampler, TemporalSampler):
        raise _Refused("seeds with query times are sampled on the CPU only")
    if not isinstance(sampler, NeighborSampler | MergedBlockSampler) or _uniform(sampler).weighted:
        raise _Refused("only sampler='neighbor' runs on a GPU")
    if not isinstance(topology, CscGraph):
        raise _Refused(
            "the edges are on the SSD: use topology='ram', or a memory_budget of more than twice the edges"
        )
    if not has_triton():
        raise _Refused("Triton is missing: pip install -e '.[gpu]' -c constraints.txt")
    return topology, sampler


def _uniform(sampler: NeighborSampler | MergedBlockSampler) -> NeighborSampler:
    """Return the neighbour sampler, without the layout of merged blocks."""
    return sampler.sampler if isinstance(sampler, MergedBlockSampler) else sampler


def _needed_bytes(graph: CscGraph, probe: SampledBatch | None, fanouts: tuple[int, ...]) -> int:
    """Return the peak device memory of sampling, in bytes. Pure.

    The peak is the sum of four terms: the topology and node map, `_BATCHES` finished batches, the temporary arrays of
    all hops, and the temporary arrays of the largest hop.
    """
    held = graph.indptr.nbytes + graph.indices.nbytes + _LABEL_BYTES * graph.num_nodes
    if probe is None:
        return held
    held += _BATCHES * _block_bytes(probe)
    num_rows, hop_bytes = probe.num_seeds, 0
    for fanout, block in zip(fanouts, reversed(probe.blocks), strict=True):
        room = room_of_hop(num_rows, fanout)  # maximum number of edges; None if unknown or too large
        num_edges = block.num_edges if room is None else room
        hop_bytes = max(hop_bytes, _EDGE_BYTES * num_edges)
        held += _KEPT_EDGE_BYTES * num_edges + _KEPT_ROW_BYTES * num_rows
        num_rows = min(num_rows + num_edges, graph.num_nodes)
    return held + hop_bytes + _KEPT_ROW_BYTES * num_rows


def _require_worth(num_bytes: int, room_bytes: int, all_rows_bytes: int | None) -> None:
    """Raise `_Refused` if sampling takes too much of the room for rows."""
    leaves_all = all_rows_bytes is not None and room_bytes - num_bytes >= all_rows_bytes
    if num_bytes > _MOST_OF_ROOM * room_bytes and not leaves_all:
        raise _Refused(
            f"edges and batches would take {format_bytes(num_bytes)} on the GPU, more than {_MOST_OF_ROOM:.0%} of the "
            f"{format_bytes(max(room_bytes, 0))} for rows"
        )


def _placed(
    device: Device, sampler: NeighborSampler | MergedBlockSampler, graph: CscGraph, probe: SampledBatch | None
) -> DeviceSampler:
    """Return a sampler on ``device``, after a check that it samples the same batch ``probe`` as ``sampler``."""
    try:
        from gloader.device.device_sampler import DeviceSampler  # imports Triton, which searches for a GPU

        placed = DeviceSampler(sampler, graph=upload_topology(graph, device.place), device=device)
        is_same = probe is None or _is_same(placed, probe)
    except Exception as error:
        # A driver, a compiler or an allocator can raise any error, and the CPU needs none of them.
        raise _Failed(f"the GPU failed on a first batch: {type(error).__name__}: {error}") from error
    if not is_same:
        raise _Failed("the GPU sampled another first batch than the CPU: its driver or compiler is at fault")
    return placed


def _require_speed(
    device: Device,
    device_sampler: DeviceSampler,
    cpu_sampler: NeighborSampler | MergedBlockSampler,
    probe: SampledBatch,
    *,
    num_threads: int,
) -> None:
    """Raise `_Refused` if the CPU threads together sample ``probe`` faster than ``device``.

    The device runs one call after another, and the CPU ``num_threads`` calls at the same time.
    """
    seeds = probe.nodes[: probe.num_seeds]

    def device_seconds() -> float:
        """Return the seconds for one batch between two marks in the device's queue of work."""
        with device.sampling():
            began = device.mark_computing()
        device_sampler.sample(probe.id, seeds)
        with device.sampling():
            ended = device.mark_computing()
        ended.wait()
        return ended.seconds_since(began)

    def cpu_seconds() -> float:
        """Return the seconds per batch, if every thread takes as long as this one."""
        started = time.perf_counter()
        cpu_sampler.sample(probe.id, seeds)
        return (time.perf_counter() - started) / num_threads

    try:
        device_s = min(device_seconds() for _ in range(_TRIALS))
    except Exception as error:
        raise _Failed(f"the GPU failed on a batch: {type(error).__name__}: {error}") from error
    cpu_s = min(cpu_seconds() for _ in range(_TRIALS))
    if device_s > cpu_s:
        raise _Refused(
            f"a batch takes {1e3 * device_s:.1f} ms on the GPU, and {1e3 * cpu_s:.1f} ms on the CPU with "
            f"{num_threads} threads"
        )


def _is_same(sampler: DeviceSampler, probe: SampledBatch) -> bool:
    """Return whether ``sampler`` reproduces the CPU's batch ``probe``."""
    from gloader.device.device_sampler import blocks_on_host

    batch = blocks_on_host(sampler.sample(probe.id, probe.nodes[: probe.num_seeds]))
    return np.array_equal(batch.nodes, probe.nodes) and all(
        np.array_equal(array, expected)
        for block, probe_block in zip(batch.blocks, probe.blocks, strict=True)
        for array, expected in zip(_arrays(block), _arrays(probe_block), strict=True)
    )


def _block_bytes(batch: SampledBatch) -> int:
    """Return the bytes of the batch's edges."""
    return sum(array.nbytes for block in batch.blocks for array in _arrays(block))


def _arrays(block: Block) -> tuple[NDArray[Any], ...]:
    """Return the arrays of a block that has no edge weights."""
    return block.indptr, block.indices, block.edge_ids


_SHORT_IDS: Final = 2**31  # maximum number of nodes for 32-bit ids


def open_device_tiers(
    settings: DeviceSettings,
    workload: Workload,
    *,
    tables: Sequence[DeviceTable],
    others: OtherDevices | None = None,
) -> tuple[DeviceTier, ...]:
    """Open the device, and reserve its memory for the hottest rows; the ``others`` reserve memory for the same rows.

    The steps: measure each device's room, open the device's sampler, choose the rows, and allocate their memory.
    `DeviceTier.fill` later copies the rows from host memory.

    Parameters
    ----------
    settings : the device, and the memory for its rows
    workload : the device's future work
    tables : the tables with features: node types first, then relations
    others : devices of other ranks for which this rank loads; defaults to none

    Returns
    -------
    One tier for each table, all on one device. The first tier holds the sampler. Without tables, one tier without rows

    Raises
    ------
    ConfigError
        The device does not exist, or cannot sample although the user requested it.
    torch.OutOfMemoryError
        The rows do not fit on the device. If their size is automatic, half of them do not fit either.
    ShapeError
        Rows of this dtype cannot be widened on a device, and a cache size was requested.
    RankError
        Another rank cannot open its device, or cannot hold the rows.
    """
    serves_ranks = others is not None
    others = others or NoOtherDevices()
    device = open_device(torch.device(settings.device))
    largest = workload.largest
    dims = {table.type_number: table.form.dim for table in tables}
    with others.trying_step(largest) as rooms:
        rooms.append(room_for_rows(device, settings, largest=largest, dims=dims, dry_run=workload.dry_run))
    num_bytes = min(rooms)
    is_sized = settings.device_cache != "auto"
    sampling, where = open_device_sampler(
        settings.sampling_device,
        device,
        workload,
        # If the rows' size was requested, sampling gets the remaining room; otherwise it shares the rows' room.
        room_bytes=device.free_bytes() - num_bytes if is_sized else num_bytes,
        all_rows_bytes=None
        if is_sized
        else sum(table.whole_bytes for table in tables if not table.is_of_edges),
        obstacle=sampling_obstacle(largest, tables, serves_ranks=serves_ranks),
    )
    if sampling is not None and not is_sized:
        num_bytes = max(num_bytes - sampling.num_bytes, 0)
    # The consumer's own buffers are float32, and the buffers of all ranks have one dtype.
    as_stored = device.is_asynchronous and others.are_asynchronous
    choice = RowChoice(settings.device_hotness, workload, tables, as_stored=as_stored)

    tiers: list[DeviceTier] = []
    # All ranks hold the same rows: no rank may shrink its cache by itself.
    sizes = [num_bytes] if is_sized or serves_ranks else [num_bytes, num_bytes // 2]
    for size in sizes:
        try:
            plans = choice.plans(size) if tables else []
            tiers = _hold_all(device, tables, plans, others, as_stored=as_stored)
            break
        except torch.OutOfMemoryError:
            if size == sizes[-1]:
                raise
            logger.warning(
                "%s of rows do not fit the device, though that much was free: half of it is tried",
                format_bytes(size),
            )
    first, *rest = tiers or [bare_tier(device, num_nodes=0)]
    first = replace(first, where_sampled=where)
    if sampling is not None:
        first = replace(first, topology=sampling.sampler.graph, sampler=sampling.sampler)
    return (first, *rest)


def sampling_obstacle(probe: AnyBatch | None, tables: Sequence[DeviceTable], *, serves_ranks: bool) -> str:
    """Return the reason that rules out device sampling for any graph and sampler, or "".

    Parameters
    ----------
    probe : a sampled batch, or None
    tables : the feature rows of node types and relations
    serves_ranks : whether batches are loaded for other ranks too
    """
    if serves_ranks:
        return (
            "one rank loads for all ranks of this machine, and passes batches on in host memory: give each rank its "
            "own loader with sharing='private'"
        )
    if probe is not None and probe.links is not None:
        return "batches of links are sampled on the CPU alone"
    if any(table.is_of_edges for table in tables):
        return "the rows of edges are looked up by the CPU alone: use edge_features='none'"
    return ""


def _hold_all(
    device: Device,
    tables: Sequence[DeviceTable],
    plans: Sequence[DeviceCachePlan],
    others: OtherDevices,
    *,
    as_stored: bool,
) -> list[DeviceTier]:
    """Return each table's tier, with memory for its plan's rows; the ``others`` hold the same rows."""
    tiers = []
    for number, (plan, table) in enumerate(zip(plans, tables, strict=True)):
        with others.holding(plan, as_stored=as_stored, table=number):
            tiers.append(hold_rows(device, plan, form=table.form, as_stored=as_stored))
    return tiers


def hold_rows(device: Device, plan: DeviceCachePlan, *, form: RowFormat, as_stored: bool) -> DeviceTier:
    """Return a tier with memory for the rows of ``plan``, not yet filled; errors as in `open_device_tiers`.

    Parameters
    ----------
    device : holds the rows
    plan : selects the rows
    form : the rows' storage format
    as_stored : whether the host sends all other rows in their storage format, which the device widens to float32
    """
    tier = bare_tier(device, num_nodes=plan.num_nodes)
    if as_stored:
        tier = replace(tier, staged=form, scale=None if plan.holds_all else scale_on(device, form))
    if not len(plan.rows):
        return tier
    try:
        return replace(tier, cache=StaticCache(plan, form=form, place=device.place))
    except torch.OutOfMemoryError as error:
        size = cache_bytes(
            len(plan.rows),
            num_nodes=plan.num_nodes,
            row_bytes=form.row_bytes,
            has_scale=form.scale is not None,
        )
        error.add_note(f"lower device_cache (now {format_bytes(size)})")
        raise


def bare_tier(device: Device, *, num_nodes: int) -> DeviceTier:
    """Return a tier of ``device`` that holds none of the N rows."""
    return DeviceTier(device=device, has_short_ids=device.is_asynchronous and num_nodes <= _SHORT_IDS)


def load_features(
    store: FeatureStore, tier: DeviceTier, *, others: OtherDevices | None = None, table: int = 0
) -> LoadedFeatures:
    """Load a table's features into memory; either all devices read them there in place, or none.

    The device's own rows are then copied from host memory.

    Parameters
    ----------
    store : the rows on the disk; closed after the load
    tier : the rows that the device holds
    others : devices of other ranks for which this rank loads; defaults to none
    table : the table's number
    """
    form, others = store.stored_rows.form, others or NoOtherDevices()
    num_bytes = form.row_bytes * store.num_rows
    with others.sharing_features(tier.device, num_bytes, table=table) as shared:
        source = store.load(into=shared.memory)
        store.close()
        # The rows come from host memory, without a second read from the disk.
        tier.fill(source)
        loaded = LoadedFeatures(source=source, tier=with_features(tier, source.array, form))
        shared.is_reached = loaded.is_reached
    return loaded if shared.is_reached else loaded.out_of_reach()


def with_features(tier: DeviceTier, rows: NDArray[Any], form: RowFormat) -> DeviceTier:
    """Return ``tier`` so that the device reads ``rows`` in place, if it can and lacks some of them.

    Parameters
    ----------
    tier : the rows that the device holds
    rows : (N, F) all rows in their storage format, in host memory; the call pins this memory
    form : the rows' storage format
    """
    if tier.cache is not None and tier.cache.plan.holds_all:
        return tier
    pinned = tier.device.pin(rows)
    if pinned is None:
        return tier
    with ExitStack() as undo:  # an error unpins the memory
        undo.callback(pinned.close)
        table = reach_features(tier.device, pinned, form, scale=tier.scale)
        undo.pop_all()
    return replace(tier, features=table, pinned=pinned)
