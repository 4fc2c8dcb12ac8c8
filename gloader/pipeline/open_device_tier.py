"""Opening the compute device, and putting the rows there that its memory allows."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from gloader.cache.device_plan import cache_bytes
from gloader.core.units import format_bytes
from gloader.device import (
    DeviceTier,
    RowFormat,
    StaticCache,
    open_device,
    reach_features,
    scale_on,
)
from gloader.pipeline.device_room import room_for_rows
from gloader.pipeline.device_rows import DeviceTable, RowChoice, Workload
from gloader.pipeline.open_device_sampler import open_device_sampler
from gloader.pipeline.other_devices import LoadedFeatures, NoOtherDevices

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from gloader.cache import DeviceCachePlan
    from gloader.config import DeviceSettings
    from gloader.device import Device
    from gloader.pipeline.other_devices import OtherDevices
    from gloader.ssd_store import FeatureStore
    from gloader.types import AnyBatch

T = TypeVar("T")

logger = logging.getLogger("gloader")

_SHORT_IDS: Final = 2**31  # nodes whose ids fit into 32 bits


def open_device_tiers(
    settings: DeviceSettings,
    workload: Workload,
    *,
    tables: Sequence[DeviceTable],
    others: OtherDevices | None = None,
) -> tuple[DeviceTier, ...]:
    """Open the device, with memory for the hottest rows that fit what it, and each of the ``others``, may take.

    The rows are not there until `DeviceTier.fill`, from what the host then has them in.

    Parameters
    ----------
    settings : which device, and how much of it rows may take
    workload : what the device will work on
    tables : the feature rows of each node type that has them
    others : the devices of the other ranks that this one loads for; defaults to none

    Returns
    -------
    One for each table, all of one device, of which the first says where batches are sampled; a bare one without tables

    Raises
    ------
    ConfigError
        There is no such device, or batches cannot be sampled there and must be.
    torch.OutOfMemoryError
        The rows do not fit the device; of an automatic size, nor do half of them.
    ShapeError
        Rows of this dtype cannot be widened on a device, and a cache was asked for by its size.
    RankError
        Another rank cannot open its device, or cannot hold the rows.
    """
    serves_ranks = others is not None
    others = others or NoOtherDevices()
    device = open_device(torch.device(settings.device))
    largest = workload.largest
    dims = {table.type_number: table.form.dim for table in tables}
    num_bytes = others.agree_on_cache_bytes(
        largest,
        lambda: room_for_rows(device, settings, largest=largest, dims=dims, dry_run=workload.dry_run),
    )
    is_sized = settings.device_cache != "auto"
    sampling, where = open_device_sampler(
        settings.sampling_device,
        device,
        workload,
        # What is left beside rows of a given size, or what rows could have.
        room_bytes=device.free_bytes() - num_bytes if is_sized else num_bytes,
        all_rows_bytes=None
        if is_sized
        else sum(table.whole_bytes for table in tables if not table.is_of_edges),
        obstacle=sampling_obstacle(largest, tables, serves_ranks=serves_ranks),
    )
    if sampling is not None and not is_sized:
        num_bytes = max(num_bytes - sampling.num_bytes, 0)
    # Buffers that the consumer itself gets are float32; one dtype for the buffers of all ranks.
    as_stored = device.is_asynchronous and others.are_asynchronous
    choice = RowChoice(settings.device_hotness, workload, tables, as_stored=as_stored)

    def hold(num_bytes: int) -> tuple[DeviceTier, ...]:
        plans = choice.plans(num_bytes) if tables else []
        return tuple(
            others.hold_same_rows(
                plan,
                partial(hold_rows, device, plan, form=table.form, as_stored=as_stored),
                as_stored=as_stored,
                table=number,
            )
            for number, (plan, table) in enumerate(zip(plans, tables, strict=True))
        )

    # Ranks hold the same rows: none of them takes fewer by itself.
    tiers = _halved_once(hold, num_bytes) if not (is_sized or serves_ranks) else hold(num_bytes)
    first, *rest = tiers or (bare_tier(device, num_nodes=0),)
    first = replace(first, where_sampled=where)
    if sampling is not None:
        first = replace(first, topology=sampling.sampler.graph, sampler=sampling.sampler)
    return (first, *rest)


def sampling_obstacle(probe: AnyBatch | None, tables: Sequence[DeviceTable], *, serves_ranks: bool) -> str:
    """Return what keeps batches from being sampled on a device, whatever graph and sampler; "" where nothing does.

    Parameters
    ----------
    probe : one of the batches; None: there are none
    tables : the feature rows of node types and relations
    serves_ranks : batches are loaded for other ranks too
    """
    if serves_ranks:
        return (
            "one rank loads for all of this machine, and hands batches on in the host's memory: give each rank its own "
            "loader with sharing='private'"
        )
    if probe is not None and probe.links is not None:
        return "batches of links are sampled on the CPU alone"
    if any(table.is_of_edges for table in tables):
        return "the rows of edges are looked up by the CPU alone: use edge_features='none'"
    return ""


def _halved_once(hold: Callable[[int], T], num_bytes: int) -> T:
    """Return what ``hold`` makes of ``num_bytes`` of rows, or of half as many where they do not fit."""
    try:
        return hold(num_bytes)
    except torch.OutOfMemoryError:
        logger.warning(
            "%s of rows do not fit the device, though that much was free: half of it is tried",
            format_bytes(num_bytes),
        )
    # Outside of the handler, whose traceback holds what the first try took.
    return hold(num_bytes // 2)


def hold_rows(device: Device, plan: DeviceCachePlan, *, form: RowFormat, as_stored: bool) -> DeviceTier:
    """Return ``device`` with memory for the rows of ``plan``, to be filled; errors as `open_device_tiers`.

    Parameters
    ----------
    device : where they will lie
    plan : which rows
    form : how they are stored
    as_stored : the host brings the other rows so, and the device widens them
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
    """Return ``device`` as it is before it holds or reaches any of the N rows."""
    return DeviceTier(device=device, has_short_ids=device.is_asynchronous and num_nodes <= _SHORT_IDS)


def row_format(store: FeatureStore) -> RowFormat:
    """Return how the rows of ``store`` are stored."""
    stored = store.stored_rows
    return RowFormat(dtype=store.dtype, dim=store.dim, is_bfloat16=stored.is_bfloat16, scale=stored.scale)


def load_features(
    store: FeatureStore, tier: DeviceTier, *, others: OtherDevices | None = None, table: int = 0
) -> LoadedFeatures:
    """Load all features, where the device, and every one of the ``others``, reads them in place if all of them can.

    The rows that the device holds come from there.

    Parameters
    ----------
    store : holds them; is closed
    tier : what the device holds so far
    others : the devices of the other ranks that this one loads for; defaults to none
    table : the number of the rows' table
    """
    form = row_format(store)

    def load(memory: NDArray[np.uint8] | None) -> LoadedFeatures:
        source = store.load(into=memory)
        store.close()
        # From memory: not once more from the disk.
        tier.fill(source)
        return LoadedFeatures(source=source, tier=with_features(tier, source.array, form))

    others = others or NoOtherDevices()
    return others.reach_same_features(tier.device, form.row_bytes * store.num_rows, load, table=table)


def with_features(tier: DeviceTier, rows: NDArray[Any], form: RowFormat) -> DeviceTier:
    """Return ``tier`` where the device reads ``features`` in place, if it can and does not hold all of them.

    Parameters
    ----------
    tier : what the device holds so far
    rows : (N, F) as stored, all of them, in host memory, which is pinned
    form : how these rows are stored
    """
    if tier.cache is not None and tier.cache.plan.holds_all:
        return tier
    pinned = tier.device.pin(rows)
    if pinned is None:
        return tier
    with ExitStack() as undo:
        undo.callback(pinned.close)
        table = reach_features(tier.device, pinned, form, scale=tier.scale)
        undo.pop_all()
    return replace(tier, features=table, pinned=pinned)
