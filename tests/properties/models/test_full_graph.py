"""At full fan-out a block forward is the forward of PyG's layers on the whole graph, gradients included."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gloader.config import ModelConfig
from gloader.models import build_model
from gloader.samplers import CscGraph, NeighborSampler
from gloader.types import BatchId, DeviceBlock

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # PyG scripts classes while it is imported
    from torch_geometric.nn import GATConv, GCNConv, GINEConv, SAGEConv

F, H, C, HEADS = 5, 8, 3, 2
FE = 4  # features of an edge
NAMES = ("graphsage", "gcn", "gat", "gat with edges", "gine with edges")


def _mlp(in_dim: int, out_dim: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(in_dim, H), torch.nn.ReLU(), torch.nn.Linear(H, out_dim))


def _layers(name: str, *, loops: bool):
    if name == "gine with edges":
        return [GINEConv(_mlp(i, o), train_eps=True, edge_dim=FE) for i, o in ((F, H), (H, C))]
    if name == "graphsage":
        return [SAGEConv(F, H), SAGEConv(H, C)]
    if name == "gcn":
        return [GCNConv(F, H, add_self_loops=loops), GCNConv(H, C, add_self_loops=loops)]
    more = {"add_self_loops": loops, "edge_dim": FE if name == "gat with edges" else None}
    return [
        GATConv(F, H // HEADS, heads=HEADS, **more),
        GATConv(H, C, heads=HEADS, concat=False, **more),
    ]


def _graph(num_nodes: int, pairs: list[tuple[int, int]], *, loops: bool) -> CscGraph:
    """Sorted by destination; parallel edges stay, self loops go, or every node gets exactly one."""
    edges = [(v, u) for u, v in pairs if u != v and u < num_nodes and v < num_nodes]
    edges += [(v, v) for v in range(num_nodes)] if loops else []
    edges.sort()
    destinations = np.array([v for v, _ in edges], dtype=np.int64)
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(np.bincount(destinations, minlength=num_nodes), out=indptr[1:])
    return CscGraph(indptr=indptr, indices=np.array([u for _, u in edges], dtype=np.int32))


def _device_blocks(batch, graph: CscGraph, edge_x: torch.Tensor) -> list[DeviceBlock]:
    degrees = graph.in_degrees(batch.nodes).astype(np.float32)
    return [
        DeviceBlock(
            indptr=torch.tensor(block.indptr),
            indices=torch.tensor(block.indices),
            edge_ids=torch.tensor(block.edge_ids),
            src_degree=torch.tensor(degrees[: block.num_src]),
            num_src=block.num_src,
            num_dst=block.num_dst,
            edge_x=edge_x[torch.tensor(block.edge_ids)],
        )
        for block in batch.blocks
    ]


@pytest.mark.reliability("C9")
@pytest.mark.parametrize("name", NAMES)
@given(
    num_nodes=st.integers(2, 12),
    pairs=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=60),
    has_loops=st.booleans(),
    seed=st.integers(0, 5),
)
def test_block_forward_and_backward_equal_the_full_graph(name, num_nodes, pairs, has_loops, seed) -> None:
    graph = _graph(num_nodes, pairs, loops=has_loops)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build_model(
            ModelConfig(name=name.split()[0], hidden=H, heads=HEADS, dropout=0.0),
            in_dim=F, out_dim=C, num_layers=2, add_self_loops=not has_loops,
            edge_dim=FE if name.endswith("edges") else 0,
        )  # fmt: skip
        reference = _layers(name, loops=not has_loops)
    for ours, theirs in zip(model.convs, reference, strict=True):
        if name == "gine with edges":  # of zero, nothing would be said
            torch.nn.init.uniform_(ours.eps, -1, 1, generator=generator)
        theirs.load_state_dict(ours.state_dict())

    seeds = np.arange(min(3, num_nodes), dtype=np.int64)[::-1].copy()
    batch = NeighborSampler(graph, [-1, -1], seed=0).sample(BatchId(epoch=0, index=0), seeds)
    x = torch.randn(num_nodes, F, generator=generator)
    ours_x, theirs_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    edge_x = torch.randn(graph.num_edges, FE, generator=generator)
    edge_attr = edge_x.clone().requires_grad_()
    edge_x.requires_grad_()
    ours = model(ours_x[torch.tensor(batch.nodes)], _device_blocks(batch, graph, edge_x))

    destinations = np.repeat(np.arange(num_nodes), np.diff(graph.indptr))
    edge_index = torch.tensor(np.stack([graph.indices.astype(np.int64), destinations]))
    told = {"edge_attr": edge_attr} if name.endswith("edges") else {}
    hidden = reference[0](theirs_x, edge_index, **told).relu()
    theirs = reference[1](hidden, edge_index, **told)[torch.tensor(seeds)]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)

    upstream = torch.randn(ours.shape, generator=generator)
    ours.backward(upstream)
    theirs.backward(upstream)
    torch.testing.assert_close(ours_x.grad, theirs_x.grad, atol=1e-5, rtol=1e-4)
    if told:
        torch.testing.assert_close(edge_x.grad, edge_attr.grad, atol=1e-5, rtol=1e-4)
    for mine, other in zip(model.convs, reference, strict=True):
        expected = dict(other.named_parameters())
        for key, parameter in mine.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[key].grad, atol=1e-4, rtol=1e-3)
