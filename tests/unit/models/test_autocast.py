"""Every model on the batches of every sampler in bf16, beside the same in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from gloader.config import ModelConfig
from gloader.models import GraphNetwork, build_model
from gloader.models.adjacency import Adjacency, mean_neighbors, sum_neighbors
from gloader.models.gat import GatConv
from gloader.pipeline.send import to_device_block
from gloader.samplers import CscGraph, make_sampler
from gloader.samplers.make import SAMPLER_NAMES
from gloader.types import BatchId, DeviceBlock

SEEDS = np.arange(40)
BF16_STEP = 2.0**-8  # from 1.0 to the next number


@pytest.fixture(scope="module")
def graph() -> CscGraph:
    """200 nodes with 0 to 25 in-edges of very different weights."""
    random = np.random.default_rng(0)
    degrees = random.integers(0, 26, 200)
    num_edges = int(degrees.sum())
    return CscGraph(
        indptr=np.concatenate([[0], np.cumsum(degrees)]),
        indices=random.integers(0, 200, num_edges),
        edge_weight=random.lognormal(size=num_edges),
    )


def _step(
    model: GraphNetwork, x: torch.Tensor, blocks: Sequence[DeviceBlock], *, is_reduced: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits and all gradients in one row."""
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_reduced):
        logits = model(x, blocks)
    upstream = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    (logits.float() * upstream).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and gradient.dtype == torch.float32 for gradient in gradients)
    return logits.detach().float(), torch.cat([g.flatten() for g in gradients if g is not None])


def _distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


# From 6 columns to 32 a layer multiplies first, from 64 to 5 it aggregates first.
@pytest.mark.parametrize(("in_dim", "hidden"), [(6, 32), (64, 8)])
@pytest.mark.parametrize("sampler", SAMPLER_NAMES)
@pytest.mark.parametrize("name", ["graphsage", "gcn", "gat", "gine", "residual graphsage", "residual gat"])
def test_logits_and_gradients_are_those_of_float32_but_for_rounding(
    graph: CscGraph, name: str, sampler: str, in_dim: int, hidden: int
) -> None:
    batch = make_sampler(sampler, graph, [6, 5], 0).sample(BatchId(epoch=0, index=0), SEEDS)
    assert sampler == "neighbor" or batch.blocks[0].edge_weight is not None
    degree = torch.from_numpy(graph.in_degrees(batch.nodes)).float()
    blocks = [to_device_block(block, degree, torch.device("cpu")) for block in batch.blocks]
    edge_x = torch.randn(graph.num_edges, 3, generator=torch.Generator().manual_seed(3))
    blocks = [replace(block, edge_x=edge_x[block.edge_ids]) for block in blocks]
    x = torch.randn(len(batch.nodes), in_dim, generator=torch.Generator().manual_seed(1))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        is_residual, name = name.startswith("residual"), name.rsplit(maxsplit=1)[-1]
        config = ModelConfig(name=name, hidden=hidden, heads=4, dropout=0.0, residual=is_residual)
        model = build_model(config, in_dim=in_dim, out_dim=5, num_layers=2, edge_dim=3)
    exact, exact_gradient = _step(model, x, blocks, is_reduced=False)
    logits, gradient = _step(model, x, blocks, is_reduced=True)
    assert gradient.isfinite().all()
    assert 0 < _distance(logits, exact) < 4 * BF16_STEP
    # Larger than the logits': where rounding moves an input of a ReLU over 0, its gradient is another one.
    assert _distance(gradient, exact_gradient) < 16 * BF16_STEP


@pytest.mark.parametrize(("in_dim", "out_dim"), [(6, 32), (64, 8)])
def test_gradients_of_attention_are_as_near_as_its_rows_are(
    graph: CscGraph, in_dim: int, out_dim: int
) -> None:
    """Those of scores are differences, and nearly cancel over a destination: rounded apart they were 4 steps off."""
    batch = make_sampler("neighbor", graph, [6], 0).sample(BatchId(epoch=0, index=0), SEEDS)
    (block,) = (to_device_block(b, torch.zeros(len(batch.nodes)), torch.device("cpu")) for b in batch.blocks)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(len(batch.nodes), in_dim, generator=generator)
    upstream = torch.randn(len(SEEDS), out_dim, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        conv = GatConv(in_dim, out_dim, heads=4, concat=True)
    found = []
    for is_reduced in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_reduced):
            result = conv(x, x[: len(SEEDS)], block)
        gradients = torch.autograd.grad(result, (conv.lin.weight, conv.att_src, conv.att_dst), upstream)
        found.append((result.detach(), *gradients))
    for exact, reduced in zip(*found, strict=True):
        assert _distance(reduced, exact) < 1.5 * BF16_STEP


def test_sums_in_bf16_are_added_up_in_float32() -> None:
    """A bfloat16 that has reached 256 stays there when 1 is added."""
    edges = Adjacency(torch.tensor([0, 600]), torch.arange(600), num_src=600)
    x = torch.ones(600, 3, dtype=torch.bfloat16)
    for weight in (None, torch.ones(600)):
        total = sum_neighbors(x, edges, weight)
        assert total.dtype == torch.bfloat16
        assert total.tolist() == [[600.0] * 3]
    assert mean_neighbors(x, edges, torch.ones(600), torch.tensor([600.0])).tolist() == [[1.0] * 3]


def test_gradients_of_a_source_in_bf16_are_added_up_in_float32() -> None:
    edges = Adjacency(torch.arange(601), torch.zeros(600, dtype=torch.int64), num_src=1)
    x = torch.ones(1, 3, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.ones(600, requires_grad=True)
    sum_neighbors(x, edges, weight).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[600.0] * 3]
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert weight.grad.tolist() == [3.0] * 600


def test_attention_is_that_of_float32_however_large_the_scores(make_block) -> None:
    """Scores of 100.1 and 100.9, in bf16 100 and 101; the second column is the attention to the second source."""
    conv = GatConv(2, 2, heads=1, concat=True, add_self_loops=False)
    with torch.no_grad():
        conv.lin.weight.copy_(torch.eye(2))
        conv.att_src.copy_(torch.tensor([[[100.0, 0.0]]]))
        conv.att_dst.zero_()
    x = torch.tensor([[0.0, 0.0], [1.001, 0.0], [1.009, 1.0]])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        attention = conv(x, x[:1], make_block([0, 2], [1, 2], num_src=3))[0, 1]
    assert float(attention) == pytest.approx(1 / (1 + np.exp(-0.8)), rel=BF16_STEP)
