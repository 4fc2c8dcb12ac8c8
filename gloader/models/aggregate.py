"""Sums over in-edges that never hold one row per edge, forward or backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from gloader.models.adjacency import stay_eager

if TYPE_CHECKING:
    from gloader.models.adjacency import Adjacency

_SUM_MODE = 0


def sum_neighbors(x: torch.Tensor, edges: Adjacency, weight: torch.Tensor | None = None) -> torch.Tensor:
    """Return the (weighted) sum of the rows of each destination's sources.

    Measured against ``torch.sparse`` CSR products, ``segment_reduce`` and ``index_add``, an embedding bag
    is the fastest forward; its own backward scatters, so the gradient is a second bag over the transposed
    edges.
    Memory beyond the result is O(E), never O(E F).

    Parameters
    ----------
    x : (num_src, F) float32 or bfloat16; either is added up in float32
    edges : E edges into D destinations
    weight : (E,) float32, rounded to the dtype of ``x``; None for ones

    Returns
    -------
    (D, F) of the dtype of ``x``; a destination without edges gets zeros
    """
    # A bag takes one dtype: wider rows would cost O(num_src F), and a weight rounds no more than the rows have.
    weight = None if weight is None else weight.to(x.dtype)
    result: torch.Tensor = _NeighborSum.apply(x.contiguous(), weight, edges)  # type: ignore[no-untyped-call]
    return result


def mean_neighbors(
    x: torch.Tensor, edges: Adjacency, weight: torch.Tensor | None = None, degree: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the mean row of each destination's sources, (D, F); zeros if it has none.

    With ``weight`` and ``degree`` it is the weighted sum over the degree: an estimate without bias of the mean over
    all in-neighbours.

    Parameters
    ----------
    x : (num_src, F) float32 or bfloat16
    edges : E edges into D destinations
    weight : (E,) full-graph edges that each stands for; None: the mean over ``edges`` as they are
    degree : (D,) full-graph in-degrees; None: as without ``weight``
    """
    if weight is None or degree is None:
        return sum_neighbors(x, edges) / edges.counts.clamp(min=1.0).unsqueeze(1)
    return sum_neighbors(x, edges, weight) / degree.clamp(min=1.0).unsqueeze(1)


def _bag(
    x: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, weight: torch.Tensor | None
) -> torch.Tensor:
    return functional.embedding_bag(
        indices, x, offsets, mode="sum", per_sample_weights=weight, include_last_offset=True
    )


class _NeighborSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor | None, edges: Adjacency) -> torch.Tensor:
        stay_eager()
        ctx.edges = edges
        # The rows are saved only for the gradient of the weights: they are the largest tensor of a layer.
        needs_x = weight is not None and ctx.needs_input_grad[1]
        ctx.save_for_backward(x if needs_x else None, weight)
        return _bag(x, edges.indices, edges.indptr, weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        edges: Adjacency = ctx.edges
        x, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            # The gradient of a sum is a scatter to the sources; over the transposed edges it is a sum again, and in an
            # order that does not change from run to run.
            offsets, destinations, order = edges.transposed
            grad_x = _bag(
                grad, destinations, offsets, None if weight is None else weight.index_select(0, order)
            )
        if ctx.needs_input_grad[1]:
            grad_weight = torch.ops.aten._embedding_bag_per_sample_weights_backward(  # noqa: SLF001 - no public name
                grad, x, edges.indices, edges.indptr, edges.dst, _SUM_MODE
            )
        return grad_x, grad_weight, None
