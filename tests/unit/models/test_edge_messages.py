from __future__ import annotations

import pytest
import torch

from gloader.models.adjacency import Adjacency
from gloader.models.gine import MESSAGE_COLUMNS, sum_messages
from gloader.training.step_memory import LiveBytes

FE = 3


def _given(num_edges: int, width: int, *, num_src: int = 7, num_dst: int = 4, dtype=torch.float64):
    """Rows, features, edges and a Linear layer; the last destination has no edge."""
    generator = torch.Generator().manual_seed(width)
    ends = torch.randint(num_dst - 1, (num_edges,), generator=generator).sort().values
    edges = Adjacency(
        torch.cat([torch.zeros(1), ends.bincount(minlength=num_dst).cumsum(0)]).int(),
        torch.randint(num_src, (num_edges,), generator=generator).int(),
        num_src=num_src,
    )
    tensors = (
        torch.randn(num_src, width, generator=generator, dtype=dtype),
        torch.randn(num_edges, FE, generator=generator, dtype=dtype),
        torch.randn(width, FE, generator=generator, dtype=dtype),
        torch.randn(width, generator=generator, dtype=dtype),
        torch.rand(num_edges, generator=generator, dtype=dtype),
    )
    return edges, [tensor.requires_grad_() for tensor in tensors]


def _plain(x, features, w, b, weight, edges):
    """Each message as such, added to its destination."""
    messages = (x[edges.indices.long()] + features @ w.T + b).relu() * weight.unsqueeze(1)
    return torch.zeros(edges.num_dst, x.shape[1], dtype=x.dtype).index_add(0, edges.dst.long(), messages)


@pytest.mark.parametrize("num_edges", [0, 1, 25])
@pytest.mark.parametrize("width", [1, MESSAGE_COLUMNS, 2 * MESSAGE_COLUMNS + 3])
def test_sums_and_all_gradients_are_those_of_messages_one_by_one(num_edges, width) -> None:
    edges, tensors = _given(num_edges, width)
    x, features, w, b, weight = tensors
    found = sum_messages(x, features, edges, (w, b), weight)
    expected = _plain(x, features, w, b, weight, edges)
    torch.testing.assert_close(found, expected)
    assert (found[-1] == 0).all()
    upstream = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=found.dtype)
    for mine, other in zip(
        torch.autograd.grad(found, tensors, upstream),
        torch.autograd.grad(expected, tensors, upstream),
        strict=True,
    ):
        torch.testing.assert_close(mine, other)
    ones = torch.ones(num_edges, dtype=torch.float64)
    torch.testing.assert_close(
        sum_messages(x, features, edges, (w, b)), _plain(x, features, w, b, ones, edges)
    )


def test_no_pass_holds_a_row_of_every_edge() -> None:
    num_edges, width = 2000, 20 * MESSAGE_COLUMNS
    edges, tensors = _given(num_edges, width, num_src=50, num_dst=20, dtype=torch.float32)
    x, features, w, b, _ = tensors
    with LiveBytes([edges.indptr, edges.indices, *tensors]) as live:
        sum_messages(x, features.detach(), edges, (w, b)).sum().backward()
    rows = 4 * num_edges * MESSAGE_COLUMNS
    assert rows < live.peak_bytes < 5 * rows


def test_rows_in_bf16_are_added_up_in_float32() -> None:
    edges = Adjacency(torch.tensor([0, 600]), torch.arange(600), num_src=600)
    x = torch.ones(600, 3, dtype=torch.bfloat16, requires_grad=True)
    lin = (torch.zeros(3, FE, requires_grad=True), torch.zeros(3, requires_grad=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = sum_messages(x, torch.ones(600, FE), edges, lin)
    assert total.dtype == torch.float32
    assert total.tolist() == [[600.0] * 3]  # a bfloat16 that has reached 256 stays there
    total.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16
    assert (lin[1].grad == 600).all()
