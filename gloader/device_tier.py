"""How much of the features goes onto the compute device, and opening what goes there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from gloader.cache import automatic_bytes, rows_that_fit
from gloader.device import CpuDevice, DeviceTier, StaticCache, hottest_rows, open_device, reach_features
from gloader.gather import HostBatch
from gloader.transfer import Transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gloader.cache import DeviceHotness
    from gloader.device import Device, RowFormat
    from gloader.order import EpochOrder
    from gloader.ssd_store import RamFeatures
    from gloader.topology import Topology
    from gloader.types import FeatureSource, ReadyBatch, SampledBatch, Sampler

BATCHES_AHEAD: Final = 2  # on the device, beside the one that is computed on: one waits, one is being sent
_LARGER_THAN_PROBED: Final = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """What a user may say about the compute device."""

    place: torch.device = field(default_factory=lambda: torch.device("cpu"))
    cache_bytes: int | None = None  # None: what is free beside the model on a GPU, nothing on the CPU
    hotness: DeviceHotness = "presampled"
    dry_run: Callable[[ReadyBatch], object] | None = None  # one step, to see what it takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the device will work on."""

    topology: Topology
    sampler: Sampler
    order: EpochOrder
    fanouts: tuple[int, ...]
    probe: Sequence[SampledBatch]  # a few batches
    threads: int  # that may sample before the first epoch


def open_device_tier(
    settings: DeviceSettings, workload: Workload, *, source: FeatureSource, form: RowFormat
) -> DeviceTier:
    """Open the device, and put the hottest rows there that fit what it may take.

    Raises
    ------
    ConfigError
        There is no such device.
    ShapeError
        Rows of this dtype cannot be widened on a device, and a cache was asked for by its size.
    """
    device = open_device(settings.place)
    num_bytes = settings.cache_bytes
    if num_bytes is None:
        num_bytes = _automatic(device, settings, workload, form)
    num_rows = rows_that_fit(
        num_bytes, num_nodes=source.num_rows, row_bytes=form.row_bytes, has_scale=form.scale is not None
    )
    plan = hottest_rows(
        settings.hotness,
        num_rows,
        topology=workload.topology,
        sampler=workload.sampler,
        order=workload.order,
        fanouts=workload.fanouts,
        threads=workload.threads,
    )
    if not len(plan.rows):
        return DeviceTier(device=device)
    return DeviceTier(device=device, cache=StaticCache(plan, source=source, form=form, place=device.place))


def with_features(tier: DeviceTier, features: RamFeatures, form: RowFormat) -> DeviceTier:
    """Return ``tier`` where the device reads ``features`` in place, if it can and does not hold all of them."""
    if tier.cache is not None and tier.cache.plan.holds_all:
        return tier
    pinned = tier.device.pin(features.array)
    if pinned is None:
        return tier
    return DeviceTier(
        device=tier.device,
        cache=tier.cache,
        features=reach_features(tier.device, pinned, form),
        pinned=pinned,
    )


def _automatic(device: Device, settings: DeviceSettings, workload: Workload, form: RowFormat) -> int:
    """Return the bytes that a cache may take of the device; none of the CPU, whose memory has a budget."""
    if isinstance(device, CpuDevice) or not workload.probe:
        return 0
    largest = max(workload.probe, key=lambda batch: len(batch.nodes))
    batch = _blank_batch(largest, form.dim)
    batch_bytes = math.ceil(_LARGER_THAN_PROBED * _num_bytes(batch))
    free = device.free_bytes()
    step_bytes = None
    if settings.dry_run is not None:
        step_bytes = _step_bytes(device, settings.dry_run, batch)
    return automatic_bytes(free, step_bytes=step_bytes, batch_bytes=batch_bytes, batches_ahead=BATCHES_AHEAD)


def _step_bytes(device: Device, dry_run: Callable[[ReadyBatch], object], batch: HostBatch) -> int:
    """Return what one step takes of the device, its batch included."""

    def step() -> None:
        transfer = Transfer(DeviceTier(device=device))
        sent = transfer.send(batch, np.zeros(batch.sampled.num_seeds, dtype=np.int64))
        transfer.wait()
        dry_run(sent.receive())

    return device.most_bytes_of(step)


def _blank_batch(sampled: SampledBatch, dim: int) -> HostBatch:
    num_rows = len(sampled.nodes)
    return HostBatch(
        sampled=sampled,
        x=np.zeros((num_rows, dim), dtype=np.float32),
        src_degree=np.ones(num_rows, dtype=np.float32),
        superbatch=0,
        ends_superbatch=False,
    )


def _num_bytes(batch: HostBatch) -> int:
    blocks = sum(
        block.indptr.nbytes + block.indices.nbytes + block.edge_ids.nbytes for block in batch.sampled.blocks
    )
    return batch.x.nbytes + batch.src_degree.nbytes + batch.sampled.nodes.nbytes + blocks
