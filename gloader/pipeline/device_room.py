"""How many bytes of the compute device rows may take: a step of the model is tried, and what is left is theirs."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch

from gloader.cache import automatic_bytes
from gloader.core.units import format_bytes
from gloader.device import CpuDevice, DeviceTier
from gloader.device.dry_run import has_other_ranks
from gloader.pipeline.gather import HostBatch
from gloader.pipeline.pace import BATCHES_AHEAD
from gloader.pipeline.table_rows import count_rows
from gloader.pipeline.transfer import ROOMIER, Transfer
from gloader.types import SampledBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gloader.config import DeviceSettings
    from gloader.device import Device
    from gloader.types import AnyBatch

logger = logging.getLogger("gloader")

# Budgets are planned for batches this much larger than the largest of the few that are sampled to know their size: a
# larger one comes late in an epoch, when nothing can be given back any more.
LARGER_THAN_PROBED: Final = 1.15

DryRun: TypeAlias = "Callable[[Any], object]"  # takes what the loader yields


def room_for_rows(
    device: Device,
    settings: DeviceSettings,
    *,
    largest: AnyBatch | None,
    dims: Mapping[int, int],
    dry_run: DryRun | None = None,
) -> int:
    """Return the bytes of ``device`` that rows may take: those asked for, or what is free beside the model.

    None of the CPU, whose memory has a budget, unless they were asked for.

    Parameters
    ----------
    device : where the rows would lie
    settings : how much of it was asked for
    largest : the largest of a few batches; None: there are none
    dims : F of each table, by its number
    dry_run : one step of the model, which is taken and measured; None: the model gets half of what is free
    """
    # Asked for by size: nothing is measured.
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
            "device_cache='auto' without device_dry_run: rows may take %s of %s, half of what is free",
            format_bytes(num_bytes),
            device.place,
        )
    return num_bytes


def _step_bytes(device: Device, dry_run: DryRun, batch: HostBatch, types: Sequence[int]) -> int:
    """Return what one step takes of the device, its batch included; ``types`` are those of its tables."""

    def step() -> None:
        transfer = Transfer([DeviceTier(device=device)] * len(types), device=device, types=types)
        sent = transfer.send(batch, np.zeros(sum(batch.sampled.seed_counts), dtype=np.int64))
        transfer.wait()
        dry_run(sent.receive())

    try:
        return device.most_bytes_of(step)
    except torch.OutOfMemoryError as error:
        error.add_note(f"in a trial step of the model: {DeviceTier(device=device).advice()}")
        raise


def _blank_batch(sampled: AnyBatch, dims: Mapping[int, int]) -> HostBatch:
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
    """Return the bytes that a batch takes on the device; ids at their longest."""
    blocks = sum(
        array.nbytes
        for block in batch.sampled.all_blocks
        for array in (block.indptr, block.indices, block.edge_weight)
        if array is not None
    )
    rows = sum(array.nbytes for array in (*batch.x, *batch.sampled.node_arrays))
    return rows + batch.src_degree.nbytes + blocks
