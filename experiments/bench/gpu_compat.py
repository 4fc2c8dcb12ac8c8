"""A loop of DGL's under `gloader.compat.dgl`, on the device against the CPU: what its layers make of the same batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from gpu_findings import GpuFinding, bounded, required
from gpu_place import DIM, small_graph
from torch import nn

from gloader.compat import dgl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpu_sizes import Clock, Sizes

WIDTH: Final = 32
LAYERS: Final[dict[str, Callable[[], nn.Module]]] = {
    "SAGEConv, mean": lambda: dgl.nn.SAGEConv(DIM, WIDTH, "mean"),
    "SAGEConv, pool": lambda: dgl.nn.SAGEConv(DIM, WIDTH, "pool"),
    "GraphConv": lambda: dgl.nn.GraphConv(DIM, WIDTH, allow_zero_in_degree=True),
    "GATConv": lambda: dgl.nn.GATConv(DIM, WIDTH // 4, 4, allow_zero_in_degree=True),
    "GATv2Conv": lambda: dgl.nn.GATv2Conv(DIM, WIDTH // 4, 4, allow_zero_in_degree=True),
}
FLOAT32: Final = 1e-4  # relative distance


def check_compat(sizes: Sizes, clock: Clock) -> Iterator[GpuFinding]:
    """Compute the first block of a batch here and there."""
    graph = dgl.DGLGraph(small_graph(sizes))
    on_host: Any
    on_device: Any
    on_host, on_device = (_first_batch(graph, place) for place in (torch.device("cpu"), sizes.place))
    same = torch.equal(on_host.srcdata["feat"], on_device.srcdata["feat"].cpu())
    yield required("features of a block of compat.dgl", same, "those of the CPU")
    ids = on_device.srcdata[dgl.NID]
    rows = graph.to(sizes.place).ndata["feat"][ids]
    where = f"on {rows.device.type}"
    yield required(
        "rows of g.ndata, by ids on the device",
        rows.device.type == sizes.place.type and torch.equal(rows, on_device.srcdata["feat"]),
        "those of the block, on the device",
        note=where,
    )
    for name in clock.each(LAYERS):
        torch.manual_seed(0)
        layer = LAYERS[name]()
        exact = _result(layer, on_host)
        found = _result(layer.to(sizes.place), on_device)
        for what, one, other in zip(("results", "gradients"), found, exact, strict=True):
            distance = float((one - other).norm() / other.norm())
            title = f"{name} of compat.dgl: {what}, relative distance to the CPU"
            yield bounded(title, distance, "", most=FLOAT32, is_right=False, predicted="so")


def _first_batch(graph: Any, place: torch.device) -> Any:
    seeds = graph.ndata["train_mask"].nonzero().squeeze(1)
    sampler = dgl.dataloading.NeighborSampler([4, 8])
    with dgl.dataloading.DataLoader(graph, seeds, sampler, device=place, batch_size=64) as loader:
        _, _, blocks = next(iter(loader))
        block = blocks[0]
        # The loader's buffer ends with it.
        block.srcdata["feat"] = block.srcdata["feat"].clone()
    return block


def _result(layer: nn.Module, block: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a layer makes of a block, and the gradients of its weights, both on the CPU."""
    layer.zero_grad()
    result = layer(block, block.srcdata["feat"])
    result.square().sum().backward()
    gradients = torch.cat([each.grad.flatten() for each in layer.parameters() if each.grad is not None])
    return result.detach().cpu().double(), gradients.cpu().double()
