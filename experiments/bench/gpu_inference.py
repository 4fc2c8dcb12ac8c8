"""Inference with all neighbours on the device against that on the CPU, and how long it takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from gpu_findings import GpuFinding, bounded, reported
from gpu_models import NAMES, network
from gpu_place import large_graph, small_graph, sync

from gloader.training.inference.layerwise_inference import HeteroInference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_sizes import Clock, Sizes

    from gloader import Dataset

MOST = 1e-5  # relative distance of the logits


def check_inference(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Compute the logits of all nodes here and there, and those of a large graph there."""
    dataset, cpu = small_graph(sizes), torch.device("cpu")
    for name in clock.each(NAMES):
        exact, _ = _logits(dataset, name, sizes, cpu)
        found, _ = _logits(dataset, name, sizes, sizes.place)
        distance = float((found - exact).norm() / exact.norm())
        title = f"{name}: full-neighbour logits, relative distance to the CPU's"
        yield bounded(title, distance, "", most=MOST, is_right=False, predicted="so")
    if sizes.is_gpu:
        for name in clock.each(NAMES[:1], lambda name: f"{name} on the large graph"):
            _, seconds = _logits(large_graph(sizes), name, sizes, sizes.place)
            title = f"{name}: full-neighbour logits of {sizes.graph_nodes:,} nodes"
            yield reported(
                title, seconds, "s", predicted="about 1 s where topology and features fit the device"
            )


def _logits(dataset: Dataset, name: str, sizes: Sizes, place: torch.device) -> tuple[torch.Tensor, float]:
    graph = dataset.load_graph()
    with dataset.open_features() as features:
        job = HeteroInference.of_one_type(graph=graph, features=features, memory_budget_bytes=1 << 33)
        net = network(name, sizes, place, hidden=32)
        began = time.perf_counter()
        parts = [logits.cpu() for _, logits in job.logits(net, np.arange(dataset.num_nodes))]
        sync(sizes)
        return torch.cat(parts), time.perf_counter() - began
