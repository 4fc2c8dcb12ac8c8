"""A convolution of a sample is, on average over draws, the convolution of all neighbours.

Everything is seeded, so a test passes always or never; the limits are standard errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gloader.models.gat import GatConv
from gloader.models.gcn import GcnConv
from gloader.models.gine import GineConv
from gloader.models.sage import SageConv
from gloader.pipeline.send import to_device_block
from gloader.samplers import CscGraph, NeighborSampler, make_sampler
from gloader.types import BatchId, Block, DeviceBlock, SampledBatch

DRAWS = 1500
DIM = 3
SEEDS = np.arange(12)
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("neighbor", 4, {}),
    ("neighbor", 4, {"replace": True}),
    ("weighted", 4, {}),
    ("weighted", 4, {"replace": True}),
    ("labor", 4, {}),
    ("labor", 4, {"iterations": 1}),
    ("labor", 4, {"iterations": -1}),
    ("ladies", 12, {}),
    ("ladies", 12, {"adjacency": "gcn"}),
    ("fastgcn", 25, {}),
    ("fastgcn", 25, {"adjacency": "gcn"}),
]
FE = 2


def gine_sum(in_dim: int, _: int) -> GineConv:
    """The sum of a GINE layer; what follows it is no linear function."""
    conv = GineConv(in_dim, in_dim, edge_dim=FE, hidden=1, batch_norm=False)
    conv.nn = torch.nn.Identity()
    return conv


CONVS: dict[str, Callable[[int, int], Any]] = {"graphsage": SageConv, "gcn": GcnConv, "gine": gine_sum}


@pytest.fixture(scope="module")
def graph() -> CscGraph:
    """60 nodes with 0 to 25 in-edges of very different weights, parallel edges and self loops."""
    random = np.random.default_rng(0)
    degrees = random.integers(0, 26, 60)
    num_edges = int(degrees.sum())
    return CscGraph(
        indptr=np.concatenate([[0], np.cumsum(degrees)]),
        indices=np.minimum(random.integers(0, 60, num_edges), random.integers(0, 60, num_edges)),
        edge_weight=random.lognormal(size=num_edges),
    )


def device_block(graph: CscGraph, batch: SampledBatch) -> DeviceBlock:
    degree = torch.from_numpy(graph.in_degrees(batch.nodes)).float()
    edge_x = torch.from_numpy(np.random.default_rng(4).normal(size=(graph.num_edges, FE))).float()
    block = batch.blocks[0]
    return replace(
        to_device_block(block, degree, torch.device("cpu")), edge_x=edge_x[torch.from_numpy(block.edge_ids)]
    )


def side_by_side(batches: list[SampledBatch]) -> SampledBatch:
    """Return all draws as one batch, no edge of which leads from one draw to another: a layer takes them at once."""
    blocks = [batch.blocks[0] for batch in batches]
    dst, counts = len(SEEDS), [block.num_src for block in blocks]
    # Seeds of all draws come first, then the other sources of all draws.
    others = len(blocks) * dst + np.cumsum([0, *counts[:-1]]) - dst * np.arange(len(blocks))
    indices = [
        np.where(block.indices < dst, block.indices + i * dst, block.indices + others[i] - dst)
        for i, block in enumerate(blocks)
    ]
    weights = [block.edge_weight for block in blocks if block.edge_weight is not None]
    lengths = np.concatenate([np.diff(block.indptr) for block in blocks])
    nodes = [batch.nodes[:dst] for batch in batches] + [batch.nodes[dst:] for batch in batches]
    block = Block(
        indptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        indices=np.concatenate(indices).astype(np.int32),
        edge_ids=np.concatenate([block.edge_ids for block in blocks]),
        num_src=sum(counts),
        num_dst=len(blocks) * dst,
        edge_weight=np.concatenate(weights) if weights else None,
    )
    return replace(batches[0], nodes=np.concatenate(nodes), num_seeds=block.num_dst, blocks=(block,))


def output(conv: Any, graph: CscGraph, batch: SampledBatch, *, strip: bool = False) -> np.ndarray:
    """What ``conv`` says about the seeds, (seeds, DIM)."""
    x = torch.from_numpy(np.random.default_rng(1).normal(2.0, 1.0, (graph.num_nodes, DIM))).float()
    block = device_block(graph, batch)
    block = replace(block, edge_weight=None) if strip else block
    with torch.no_grad():
        rows = x[torch.from_numpy(batch.nodes)]
        return conv(rows, rows[: block.num_dst], block).numpy()


def drawn(sampler: Any, draws: int) -> list[SampledBatch]:
    return [sampler.sample(BatchId(epoch=0, index=i), SEEDS) for i in range(draws)]


def outputs(conv: Any, graph: CscGraph, sampler: Any, *, draws: int, strip: bool = False) -> np.ndarray:
    """What ``conv`` says about the seeds in each draw, (draws, B, DIM)."""
    found = output(conv, graph, side_by_side(drawn(sampler, draws)), strip=strip)
    return found.reshape(draws, len(SEEDS), -1).astype(np.float64)


@pytest.mark.parametrize("name", ["neighbor", "ladies"])
@pytest.mark.parametrize("model", CONVS)
def test_draws_side_by_side_are_the_draws(graph: CscGraph, model: str, name: str) -> None:
    conv, sampler = CONVS[model](DIM, DIM), make_sampler(name, graph, [9], 3)
    apart = [output(conv, graph, batch) for batch in drawn(sampler, 5)]
    np.testing.assert_allclose(outputs(conv, graph, sampler, draws=5), apart, atol=1e-5)
    assert not np.allclose(apart[0], apart[1])


def errors(conv: Any, graph: CscGraph, sampler: Any, *, strip: bool = False) -> np.ndarray:
    """The distance of the mean from the full aggregate, in standard errors, where draws differ at all."""
    full = outputs(conv, graph, NeighborSampler(graph, [-1]), draws=1)[0]
    found = outputs(conv, graph, sampler, draws=DRAWS, strip=strip)
    spread = found.std(axis=0)
    is_random = spread > 1e-5
    np.testing.assert_allclose(found.mean(axis=0)[~is_random], full[~is_random], atol=1e-4)
    return np.abs(found.mean(axis=0) - full)[is_random] / (spread[is_random] / DRAWS**0.5)


@pytest.mark.parametrize(
    ("model", "name", "fanout", "options"),
    [
        (model, *case)
        for model in CONVS
        for case in (
            CASES if model != "gine" else [("neighbor", 4, {}), ("labor", 4, {}), ("ladies", 12, {})]
        )
    ],
)
def test_the_mean_over_draws_is_the_full_aggregate(
    graph: CscGraph, model: str, name: str, fanout: int, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    sampler = make_sampler(name, graph, [fanout], 3, **options)
    distance = errors(CONVS[model](DIM, DIM), graph, sampler)
    assert len(distance) > 20
    assert distance.max() < 4.5


@pytest.mark.parametrize("model", CONVS)
@pytest.mark.parametrize(("name", "fanout"), [("weighted", 4), ("ladies", 12), ("fastgcn", 25)])
def test_without_the_weights_the_mean_is_elsewhere(
    graph: CscGraph, model: str, name: str, fanout: int
) -> None:
    torch.manual_seed(0)
    sampler = make_sampler(name, graph, [fanout], 3)
    assert errors(CONVS[model](DIM, DIM), graph, sampler, strip=True).max() > 20


@pytest.mark.parametrize("name", ["labor", "ladies", "fastgcn", "weighted", "neighbor"])
@pytest.mark.parametrize(
    "conv",
    [
        SageConv(DIM, DIM),
        GcnConv(DIM, DIM),
        GatConv(DIM, DIM, heads=1, concat=True),
        GatConv(DIM, DIM, heads=1, concat=True, edge_dim=FE),
        GineConv(DIM, DIM, edge_dim=FE, hidden=4, batch_norm=False),
    ],
)
def test_a_sample_of_everything_is_the_full_aggregate(graph: CscGraph, name: str, conv: Any) -> None:
    full = outputs(conv, graph, NeighborSampler(graph, [-1]), draws=1)
    everything = outputs(conv, graph, make_sampler(name, graph, [-1], 0), draws=1)
    np.testing.assert_allclose(everything, full, atol=1e-5)


def test_edges_without_weight_leave_a_mean_a_mean() -> None:
    weights = np.array([0, 1, 0, 2, 4, 8.0])
    indptr = np.full(8, 6)
    indptr[0] = 0
    graph = CscGraph(indptr=indptr, indices=np.arange(1, 7), edge_weight=weights)
    values = np.arange(1.0, 7.0) ** 2
    for replace_ in (False, True):
        sampler = NeighborSampler(graph, [2], seed=4, weighted=True, replace=replace_)
        means = []
        for i in range(6000):
            block = sampler.sample(BatchId(epoch=0, index=i), np.array([0])).blocks[0]
            assert block.edge_weight is not None
            means.append((block.edge_weight * values[block.edge_ids]).sum() / 6)
        error = (np.mean(means) - values[weights > 0].mean()) / (np.std(means) / len(means) ** 0.5)
        assert abs(error) < 4


def test_attention_counts_an_edge_as_often_as_it_stands_for(make_block) -> None:
    torch.manual_seed(0)
    conv = GatConv(DIM, DIM, heads=1, concat=True)
    x = torch.randn(3, DIM)
    once = make_block([0, 2], [1, 2], num_src=3, src_degree=[4, 0, 0])
    weighted = replace(once, edge_weight=torch.tensor([3.0, 1.0]))
    repeated = make_block([0, 4], [1, 1, 1, 2], num_src=3, src_degree=[4, 0, 0])
    torch.testing.assert_close(conv(x, x[:1], weighted), conv(x, x[:1], repeated))
    assert not torch.allclose(conv(x, x[:1], weighted), conv(x, x[:1], once))


@pytest.mark.parametrize(
    "make",
    [
        lambda: GatConv(DIM, DIM, heads=3, concat=False, edge_dim=FE),
        lambda: GatConv(DIM, DIM, heads=1, concat=True, add_self_loops=False, edge_dim=FE),
        lambda: gine_sum(DIM, DIM),
    ],
)
def test_what_an_edge_says_counts_as_often_as_it_stands_for(make, make_block) -> None:
    torch.manual_seed(0)  # of the weights, too: or no message passes the ReLU, once in some hundred runs
    conv = make()
    x, told = torch.randn(3, DIM), torch.randn(2, FE)
    once = replace(make_block([0, 2], [1, 2], num_src=3), edge_x=told)
    weighted = replace(once, edge_weight=torch.tensor([3.0, 1.0]))
    repeated = replace(make_block([0, 4], [1, 1, 1, 2], num_src=3), edge_x=told[[0, 0, 0, 1]])
    torch.testing.assert_close(conv(x, x[:1], weighted), conv(x, x[:1], repeated))
    assert not torch.allclose(conv(x, x[:1], weighted), conv(x, x[:1], once))


def test_weights_reach_the_gradient(make_block) -> None:
    block = make_block([0, 2], [1, 2], num_src=3, src_degree=[4, 1, 1])
    weighted = replace(block, edge_weight=torch.tensor([3.0, 1.0]))
    x = torch.ones(3, 1, requires_grad=True)
    conv = SageConv(1, 1)
    conv(x, x[:1], weighted).sum().backward()
    scale = conv.lin_l.weight.item() / 4
    torch.testing.assert_close(x.grad[1:, 0], torch.tensor([3 * scale, 1 * scale]))
