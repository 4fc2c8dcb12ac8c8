"""The choice of where batches are sampled, and the topology put onto the device where that is the one."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gloader.core.units import format_bytes
from gloader.device import has_triton, upload_topology
from gloader.device.topology import room_of_hop
from gloader.errors import ConfigError
from gloader.samplers import CscGraph, HeteroGraph, MergedBlockSampler, NeighborSampler, TemporalSampler
from gloader.types import SampledBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.config import SamplingDevice
    from gloader.device import Device
    from gloader.device.device_sampler import DeviceSampler
    from gloader.pipeline.device_rows import Workload
    from gloader.samplers import Topology
    from gloader.types import AnySampler, Block

logger = logging.getLogger("gloader")

# Calls take turns: a second thread does the host's part of a batch beside the device's part of the next.
MOST_THREADS: Final = 2
# Sampled batches on the device: those of the threads, of the queue behind them, and of the stages up to the model.
_BATCHES: Final = 8
_LABEL_BYTES: Final = 4  # of a node
# Of an edge of the hop that is sampled: its place, destination, draw, source, and whether and in which place it found a
# node; of an edge and a destination of all hops, until the batch has its own arrays of the size that they came to.
_EDGE_BYTES, _KEPT_EDGE_BYTES, _KEPT_ROW_BYTES = 37, 12, 32
_TRIALS: Final = 3  # of which the fastest counts
# Of what rows could have. They lose few hits by it, and the host all of its sampling.
_MOST_OF_ROOM: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceSampling:
    """The sampler of a device, and what it takes there."""

    sampler: DeviceSampler
    num_bytes: int  # with its topology


def open_device_sampler(
    wanted: SamplingDevice,
    device: Device,
    workload: Workload,
    *,
    room_bytes: int,
    all_rows_bytes: int | None,
    obstacle: str = "",
) -> tuple[DeviceSampling | None, str]:
    """Return the sampler of ``device`` where batches are sampled there, and a line that says where and why.

    "auto" is a GPU where the topology and what sampling holds beside it take at most a quarter of the room, or leave
    enough for all rows, and where it is not slower than the CPU's threads together. The largest of the workload's
    batches is sampled there first, compared and timed.

    Parameters
    ----------
    wanted : "auto", "cpu" or "cuda"
    device : batches are computed there
    workload : the CPU's sampler and its threads, its topology, and a few batches
    room_bytes : of ``device``, that rows or a topology may take
    all_rows_bytes : of all rows; None: rows have memory of their own already
    obstacle : what keeps these batches from being sampled there, whatever the graph and the sampler; "": nothing

    Raises
    ------
    ConfigError
        "cuda" was asked for, and cannot be.
    """
    is_gpu, must = device.place.type == "cuda", wanted == "cuda"
    if wanted == "cpu" or not (is_gpu or must):
        return None, f"sampling: on the CPU, as sampling_device={wanted!r} says" if is_gpu else ""
    try:
        graph, own = _require_form(device, workload.sampler, workload.topology, obstacle=obstacle)
        first = workload.largest if isinstance(workload.largest, SampledBatch) else None
        num_bytes = _needed_bytes(graph, first, _uniform(own).fanouts)
        if not must:
            _require_worth(num_bytes, room_bytes, all_rows_bytes)
        found = _placed(device, own, graph, first)
        if not must and first is not None:
            _require_speed(device, found, own, first, num_threads=workload.threads)
    except _Refused as refused:
        if must:
            text = f"sampling_device='cuda': {refused}; or use sampling_device='cpu'"
            raise ConfigError(text) from refused.__cause__
        if refused.is_fault:
            logger.warning("batches are sampled on the CPU: %s", refused)
        return None, f"sampling: on the CPU: {refused}"
    text = f"sampling: on {device.place}, with {format_bytes(num_bytes)} of edges and batches there"
    return DeviceSampling(sampler=found, num_bytes=num_bytes), text


class _Refused(Exception):  # noqa: N818 - no error where nobody asked for it
    """Why batches are not sampled on a device."""

    is_fault = False  # something failed that ought to work


class _Failed(_Refused):
    is_fault = True


def _require_form(
    device: Device, sampler: AnySampler, topology: Topology | HeteroGraph, *, obstacle: str
) -> tuple[CscGraph, NeighborSampler | MergedBlockSampler]:
    """Return topology and sampler where ``device`` could do the same."""
    if isinstance(topology, HeteroGraph):
        raise _Refused("batches of several node types and relations are sampled on the CPU alone")
    if not device.is_asynchronous:
        raise _Refused("batches are computed on the CPU: compute on a GPU (device='cuda')")
    if obstacle:
        raise _Refused(obstacle)
    if isinstance(sampler, TemporalSampler):
        raise _Refused("seeds that ask at a time are sampled on the CPU alone")
    if not isinstance(sampler, NeighborSampler | MergedBlockSampler) or _uniform(sampler).weighted:
        raise _Refused("of the samplers, 'neighbor' alone runs there")
    if not isinstance(topology, CscGraph):
        raise _Refused(
            "the edges are on the SSD: use topology='ram', or a memory_budget of more than twice the edges"
        )
    if not has_triton():
        raise _Refused("Triton is missing: pip install -e '.[gpu]' -c constraints.txt")
    return topology, sampler


def _uniform(sampler: NeighborSampler | MergedBlockSampler) -> NeighborSampler:
    return sampler.sampler if isinstance(sampler, MergedBlockSampler) else sampler


def _needed_bytes(graph: CscGraph, probe: SampledBatch | None, fanouts: tuple[int, ...]) -> int:
    """Return the most that sampling holds on a device. Pure."""
    held = graph.indptr.nbytes + graph.indices.nbytes + _LABEL_BYTES * graph.num_nodes
    if probe is None:
        return held
    held += _BATCHES * _block_bytes(probe)
    num_rows, most = probe.num_seeds, 0
    for fanout, block in zip(fanouts, reversed(probe.blocks), strict=True):
        room = room_of_hop(num_rows, fanout)
        num_edges = block.num_edges if room is None else room
        most = max(most, _EDGE_BYTES * num_edges)
        held += _KEPT_EDGE_BYTES * num_edges + _KEPT_ROW_BYTES * num_rows
        num_rows = min(num_rows + num_edges, graph.num_nodes)
    return held + most + _KEPT_ROW_BYTES * num_rows


def _require_worth(num_bytes: int, room_bytes: int, all_rows_bytes: int | None) -> None:
    leaves_all = all_rows_bytes is not None and room_bytes - num_bytes >= all_rows_bytes
    if num_bytes > _MOST_OF_ROOM * room_bytes and not leaves_all:
        raise _Refused(
            f"edges and batches would take {format_bytes(num_bytes)} there, more than {_MOST_OF_ROOM:.0%} of the "
            f"{format_bytes(max(room_bytes, 0))} for rows"
        )


def _placed(
    device: Device, sampler: NeighborSampler | MergedBlockSampler, graph: CscGraph, probe: SampledBatch | None
) -> DeviceSampler:
    """Return the sampler of ``device``, which has sampled the batch ``probe`` as ``sampler`` did."""
    try:
        from gloader.device.device_sampler import DeviceSampler  # imports Triton, which looks for a GPU

        found = DeviceSampler(sampler, graph=upload_topology(graph, device.place), device=device)
        is_same = probe is None or _is_same(found, probe)
    except Exception as error:
        # Whatever a driver, a compiler or an allocator raises: the CPU needs none of them.
        raise _Failed(f"it failed there with a first batch: {type(error).__name__}: {error}") from error
    if not is_same:
        raise _Failed("a first batch was another one there: its driver or compiler is at fault")
    return found


def _require_speed(
    device: Device,
    there: DeviceSampler,
    here: NeighborSampler | MergedBlockSampler,
    probe: SampledBatch,
    *,
    num_threads: int,
) -> None:
    """Raise where the threads of the CPU sample ``probe`` faster than ``device``, whose calls take turns."""
    seeds = probe.nodes[: probe.num_seeds]

    def seconds_there() -> float:
        with device.sampling():
            began = device.mark_computing()
        there.sample(probe.id, seeds)
        with device.sampling():
            ended = device.mark_computing()
        ended.wait()
        return ended.seconds_since(began)

    def seconds_here() -> float:
        started = time.perf_counter()
        here.sample(probe.id, seeds)
        return (time.perf_counter() - started) / num_threads

    try:
        there_s = min(seconds_there() for _ in range(_TRIALS))
    except Exception as error:
        raise _Failed(f"it failed there with a batch: {type(error).__name__}: {error}") from error
    here_s = min(seconds_here() for _ in range(_TRIALS))
    if there_s > here_s:
        raise _Refused(
            f"a batch takes {1e3 * there_s:.1f} ms there, and {1e3 * here_s:.1f} ms here by {num_threads} threads"
        )


def _is_same(sampler: DeviceSampler, probe: SampledBatch) -> bool:
    """Return whether ``sampler`` finds the batch that the CPU found."""
    from gloader.device.device_sampler import blocks_on_host

    found = blocks_on_host(sampler.sample(probe.id, probe.nodes[: probe.num_seeds]))
    return np.array_equal(found.nodes, probe.nodes) and all(
        np.array_equal(mine, other)
        for block, expected in zip(found.blocks, probe.blocks, strict=True)
        for mine, other in zip(_arrays(block), _arrays(expected), strict=True)
    )


def _block_bytes(batch: SampledBatch) -> int:
    return sum(array.nbytes for block in batch.blocks for array in _arrays(block))


def _arrays(block: Block) -> tuple[NDArray[Any], ...]:
    return block.indptr, block.indices, block.edge_ids
