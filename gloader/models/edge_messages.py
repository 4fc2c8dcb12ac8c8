"""Sums over in-edges of messages that look at the edge too, a few columns at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional

from gloader.models.adjacency import stay_eager

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.models.adjacency import Adjacency

# Columns of a message that are there at once: wide enough for a kernel, and narrow beside most rows.
MESSAGE_COLUMNS: Final = 32


def sum_messages(
    x: torch.Tensor,
    features: torch.Tensor,
    edges: Adjacency,
    lin: tuple[torch.Tensor, torch.Tensor],
    weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the (weighted) sum of ``relu(x_source + W e + b)`` over the in-edges of each destination.

    A message is of one edge, so that none can be summed before it is there; but its columns stand alone. Memory beyond
    the result and the gradients is O(E `MESSAGE_COLUMNS`), forward and backward, never O(E F): messages are made again
    for the backward pass. Each sum has one order, on every device.

    Parameters
    ----------
    x : (num_src, F) float32 or bfloat16; messages are made and added up in float32
    features : (E, F_e) e of each edge
    edges : E edges into D destinations
    lin : W (F, F_e) and b (F,)
    weight : (E,) of each message; None for ones

    Returns
    -------
    (D, F) of the dtype of ``lin``; a destination without edges gets zeros
    """
    result: torch.Tensor = _MessageSum.apply(x, features, *lin, weight, edges)  # type: ignore[no-untyped-call]
    return result


class _MessageSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        features: torch.Tensor,
        w: torch.Tensor,
        b: torch.Tensor,
        weight: torch.Tensor | None,
        edges: Adjacency,
    ) -> torch.Tensor:
        stay_eager()
        ctx.edges = edges
        ctx.save_for_backward(x, features, w, b, weight)
        result = w.new_empty(edges.num_dst, len(w))
        number = _numbers(edges)
        for columns in _slabs(len(w)):
            messages = _before_relu(x, features, edges, w[columns], b[columns], columns).relu_()
            result[:, columns] = _bag(messages, number, edges.indptr, weight)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        edges: Adjacency = ctx.edges
        x, features, w, b, weight = ctx.saved_tensors
        needs_x, needs_features = ctx.needs_input_grad[:2]
        grad_x = torch.empty_like(x) if needs_x else None
        grad_features = torch.zeros_like(features) if needs_features else None
        grad_w, grad_b = torch.empty_like(w), torch.empty_like(b)
        grad_weight = None if weight is None or not ctx.needs_input_grad[4] else torch.zeros_like(weight)
        for columns in _slabs(len(w)):
            messages = _before_relu(x, features, edges, w[columns], b[columns], columns).relu_()
            each = grads[0][:, columns].index_select(0, edges.dst)
            if grad_weight is not None:
                grad_weight += (each * messages).sum(1)
            each.mul_(messages > 0)
            del messages
            if weight is not None:
                each.mul_(weight.unsqueeze(1))
            grad_w[columns], grad_b[columns] = each.t() @ features, each.sum(0)
            if grad_features is not None:
                grad_features.addmm_(each, w[columns])
            if grad_x is not None:
                # As of `sum_neighbors`: a sum over the edges of each source.
                offsets, _, order = edges.transposed
                grad_x[:, columns] = _bag(each, order, offsets, None)
        return grad_x, grad_features, grad_w, grad_b, grad_weight, None


def _slabs(width: int) -> Iterator[slice]:
    return (slice(start, start + MESSAGE_COLUMNS) for start in range(0, width, MESSAGE_COLUMNS))


def _before_relu(
    x: torch.Tensor,
    features: torch.Tensor,
    edges: Adjacency,
    w: torch.Tensor,
    b: torch.Tensor,
    columns: slice,
) -> torch.Tensor:
    """Return some columns of ``x_source + W e + b``, (E, columns), in the precision of W."""
    # In both passes, which must agree on who is above 0.
    with torch.autocast(x.device.type, enabled=False):
        messages = functional.linear(features, w, b)
    # Rows of few columns are gathered faster where they lie together.
    return messages.add_(x[:, columns].contiguous().index_select(0, edges.indices))


def _numbers(edges: Adjacency) -> torch.Tensor:
    return torch.arange(edges.num_edges, device=edges.indices.device, dtype=edges.indices.dtype)


def _bag(
    rows: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor, weight: torch.Tensor | None
) -> torch.Tensor:
    return functional.embedding_bag(
        index, rows, offsets, mode="sum", per_sample_weights=weight, include_last_offset=True
    )
