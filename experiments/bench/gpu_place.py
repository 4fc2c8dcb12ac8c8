"""The device that `gpu_check.py` checks, a CPU that rehearses where there is no GPU, and the graphs it loads from."""

from __future__ import annotations

import hashlib
import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from gloader import Dataset, Loader
from gloader.device import CpuDevice, gather_rows, open_device
from gloader.device.cuda import gather_kernel
from gloader.plan.available import available_memory_bytes
from gloader.samplers import CscGraph
from gloader.testing.rehearsed_device import RehearsedDevice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_sizes import Sizes

    from gloader.device import Device, RowParts
    from gloader.types import ReadyBatch

DIM, NUM_CLASSES = 128, 16


def device_of(sizes: Sizes) -> Device:
    """Return the GPU, or a CPU that goes its way."""
    return open_device(sizes.place) if sizes.is_gpu else rehearsing()


def rehearsing() -> Device:
    """Return a CPU that goes the way of a GPU."""
    return RehearsedDevice(reads_in_place=True)


def gather_by(programs: int | None, ids: torch.Tensor, parts: RowParts, out: torch.Tensor) -> None:
    """Gather with so many programs on the whole device; None: as many as gloader takes.

    Parameters
    ----------
    programs : at most
    ids : of a batch
    parts : where its rows are
    out : receives them
    """
    kernel = gather_kernel(out.device) if out.device.type == "cuda" else None
    if kernel is None or programs is None:
        gather_rows(ids, parts, out=out, launch=kernel)
    else:
        kernel(ids, parts, out, programs)


@contextmanager
def devices_opened_as(device: Device | None) -> Iterator[None]:
    """Let loaders open ``device`` in the block; None: the one they ask for."""
    if device is None:
        yield
        return
    with mock.patch("gloader.pipeline.open.device_tier.open_device", return_value=device):
        yield


@contextmanager
def loader_on(sizes: Sizes, dataset: Dataset, **settings: Any) -> Iterator[Loader]:
    """Open a loader to the checked device, or to ``device`` where it is given."""
    given: dict[str, Any] = {
        "fanouts": (10, 10),
        "batch_size": sizes.batch_size,
        "memory_budget": min(16 << 30, available_memory_bytes() // 2),
        "device": str(sizes.place),
    }
    given |= settings
    if given.get("features") == "ssd":
        given.setdefault("cache", dataset.num_nodes * DIM * 4 // 10)
    other = None if sizes.is_gpu else CpuDevice() if "device" in settings else rehearsing()
    with devices_opened_as(other), Loader(dataset, **given) as loader:
        yield loader


def large_graph(sizes: Sizes) -> Dataset:
    """Return a dataset whose features exceed any cache; written once."""
    return _graph(sizes, "large", sizes.graph_nodes, sizes.graph_edges)


def small_graph(sizes: Sizes) -> Dataset:
    """Return a dataset of which a CPU makes hundreds of batches in seconds; written once."""
    return _graph(sizes, "small", sizes.small_nodes, 15 * sizes.small_nodes)


def cache_bytes(dataset: Dataset, share: float) -> int:
    """Return the size of a device cache that holds a ``share`` of the rows, with a map unless that is all. Pure."""
    num_rows = int(share * dataset.num_nodes)
    return num_rows * 4 * DIM + (4 * dataset.num_nodes if 0 < share < 1 else 0)


def batch_digest(batch: ReadyBatch) -> str:
    """Return a digest of all that a batch holds, wherever it is."""
    digest = hashlib.sha256(batch.nodes.tobytes())
    parts = itertools.chain(*((b.indptr, b.indices, b.edge_ids, b.src_degree) for b in batch.blocks))
    for tensor in (batch.x, batch.y, *parts):
        digest.update(tensor.cpu().numpy().tobytes())
    return digest.hexdigest()


def skewed_graph(num_nodes: int, num_edges: int) -> CscGraph:
    """Return a graph with a half to three halves of the mean in-degree a node, and sources of which few are frequent.

    Its batches are as wide as those of ogbn-products: of R-MAT, where most nodes have few in-edges, they are a sixth.
    """
    rng, mean = np.random.default_rng(0), num_edges // num_nodes
    degrees = rng.integers(mean // 2, 3 * mean // 2 + 1, num_nodes)
    names = rng.permutation(num_nodes).astype(np.int32)
    ranks = num_nodes * rng.random(int(degrees.sum()), dtype=np.float32) ** 3.5
    return CscGraph(
        indptr=np.concatenate([[0], np.cumsum(degrees)]),
        indices=names[ranks.astype(np.int64).clip(0, num_nodes - 1)],
    )


def _graph(sizes: Sizes, name: str, num_nodes: int, num_edges: int) -> Dataset:
    path = sizes.workdir / name
    if path.exists():
        return Dataset.open(path)
    graph = skewed_graph(num_nodes, num_edges)
    rng = np.random.default_rng(0)
    with Dataset.create(path, name=name, num_nodes=num_nodes, num_classes=NUM_CLASSES) as writer:
        with writer.indptr() as column:
            column.append(graph.indptr)
        with writer.indices(graph.num_edges, "int32") as column:
            column.append(graph.indices)
        with writer.features(DIM, "float32") as column:
            for start in range(0, num_nodes, 1 << 18):
                num_rows = min(1 << 18, num_nodes - start)
                column.append(rng.standard_normal((num_rows, DIM), dtype=np.float32))
        writer.labels(rng.integers(0, NUM_CLASSES, num_nodes))
        order = rng.permutation(num_nodes)
        tenth = num_nodes // 10
        writer.splits(train=order[:tenth], valid=order[tenth : 2 * tenth], test=order[2 * tenth :])
    return Dataset.open(path)


def sync(sizes: Sizes) -> None:
    """Wait for the device."""
    if sizes.is_gpu:
        torch.cuda.synchronize(sizes.place)


def factor_of(sizes: Sizes) -> torch.Tensor:
    """Return a matrix whose multiplication keeps a GPU busy for a while."""
    return torch.ones(sizes.factor_side, sizes.factor_side, device=sizes.place)


def burn(factor: torch.Tensor, times: int) -> None:
    """Keep the current stream busy."""
    for _ in range(times):
        torch.mm(factor, factor)


def forever(loader: Loader) -> Iterator[ReadyBatch]:
    """Yield the batches of one epoch after another."""
    while True:
        yield from loader
