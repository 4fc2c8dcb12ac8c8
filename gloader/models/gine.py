"""GINE: messages that depend on edge features, summed in slabs of a few columns.

A message is a source row plus the projected features of its edge; negative values become 0 (ReLU). Each edge has a
different message, so all messages together would take E rows of memory. A slab has a few columns of all messages, which
are summed before the next slab is computed. `GineConv` is a convolution of `gloader.models.conv.Conv`, and calls
`sum_messages`. `gloader.models.build` makes one for each layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn import functional

from gloader.models.adjacency import Adjacency, stay_eager
from gloader.models.conv import edge_features_of, no_own_terms, no_own_widths, one_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gloader.models.adjacency import Part
    from gloader.models.conv import Table
    from gloader.types import DeviceBlock


# Message columns held at once: wide enough for a kernel, and narrower than most rows.
MESSAGE_COLUMNS: Final = 32


def sum_messages(
    x: torch.Tensor,
    features: torch.Tensor,
    edges: Adjacency,
    lin: tuple[torch.Tensor, torch.Tensor],
    weight: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the (weighted) sum of ``relu(x_source + W e + b)`` over each destination's in-edges.

    Columns are independent and computed in slabs. Memory beyond the result and the gradients is O(E `MESSAGE_COLUMNS`)
    in the forward and backward pass, never O(E F). The backward pass recomputes the messages. Each sum has a fixed
    order on every device.

    Parameters
    ----------
    x : (num_src, F) float32 or bfloat16 rows; messages are computed and summed in float32
    features : (E, F_e) each edge's features e
    edges : E edges into D destinations
    lin : W (F, F_e) and b (F,)
    weight : (E,) factor of each message; None means ones

    Returns
    -------
    (D, F), with ``lin``'s dtype; zeros for a destination without edges
    """
    result: torch.Tensor = _MessageSum.apply(x, features, *lin, weight, edges)  # type: ignore[no-untyped-call]
    return result


class _MessageSum(torch.autograd.Function):
    """`sum_messages` as an operation of autograd; ``w`` and ``b`` are W and b."""

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
        """Return the sums (D, F), slab by slab."""
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
        """Return a gradient or None for each parameter of `forward`, in their order."""
        edges: Adjacency = ctx.edges
        x, features, w, b, weight = ctx.saved_tensors
        needs_x, needs_features = ctx.needs_input_grad[:2]
        grad_x = torch.empty_like(x) if needs_x else None
        grad_features = torch.zeros_like(features) if needs_features else None
        grad_w, grad_b = torch.empty_like(w), torch.empty_like(b)
        grad_weight = None if weight is None or not ctx.needs_input_grad[4] else torch.zeros_like(weight)
        for columns in _slabs(len(w)):
            messages = _before_relu(x, features, edges, w[columns], b[columns], columns).relu_()
            each = grads[0][:, columns].index_select(0, edges.dst)  # the messages' gradients
            if grad_weight is not None:
                grad_weight += (each * messages).sum(1)
            each.mul_(messages > 0)  # the derivative of the ReLU
            del messages
            if weight is not None:
                each.mul_(weight.unsqueeze(1))
            grad_w[columns], grad_b[columns] = each.t() @ features, each.sum(0)
            if grad_features is not None:
                grad_features.addmm_(each, w[columns])
            if grad_x is not None:
                # This is a sum over each source's edges, as in `sum_neighbors`.
                offsets, _, order = edges.transposed
                grad_x[:, columns] = _bag(each, order, offsets, None)
        return grad_x, grad_features, grad_w, grad_b, grad_weight, None


def _slabs(width: int) -> Iterator[slice]:
    """Yield ranges of `MESSAGE_COLUMNS` columns."""
    return (slice(start, start + MESSAGE_COLUMNS) for start in range(0, width, MESSAGE_COLUMNS))


def _before_relu(
    x: torch.Tensor,
    features: torch.Tensor,
    edges: Adjacency,
    w: torch.Tensor,
    b: torch.Tensor,
    columns: slice,
) -> torch.Tensor:
    """Return some columns of ``x_source + W e + b``, (E, columns), in W's precision."""
    # Both passes use the same precision, because they must agree on the sign of each value.
    with torch.autocast(x.device.type, enabled=False):
        messages = functional.linear(features, w, b)
    # Rows with few columns are gathered faster from contiguous memory.
    return messages.add_(x[:, columns].contiguous().index_select(0, edges.indices))


def _numbers(edges: Adjacency) -> torch.Tensor:
    """Return the edge numbers 0 to E - 1."""
    return torch.arange(edges.num_edges, device=edges.indices.device, dtype=edges.indices.dtype)


def _bag(
    rows: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor, weight: torch.Tensor | None
) -> torch.Tensor:
    """Return the (weighted) sum of the ``rows`` in each bag; bag i has ``index[offsets[i]:offsets[i + 1]]``."""
    return functional.embedding_bag(
        index, rows, offsets, mode="sum", per_sample_weights=weight, include_last_offset=True
    )


class GineConv(nn.Module):
    """``MLP((1 + eps) x + sum_u relu(x_u + W e_u + b))``, with ``e_u`` the features of u's edge (Hu et al., 2020).

    The parameters are those of PyG's ``GINEConv(edge_dim=..., train_eps=True)`` around a Linear, ReLU and Linear, with
    an optional batch norm. The sum over a node's sampled edges is rescaled as in `gloader.models.gcn.GcnConv`: by the
    in-degree over the number sampled, or each edge by its importance weight. This is an unbiased estimate of the sum
    over all edges, which evaluation computes.

    Parameters
    ----------
    in_dim, out_dim : F and H
    edge_dim : F_e, edge feature width
    hidden : width between the two Linear layers
    batch_norm : whether to normalise between the Linear layers
    """

    # See `Conv`.
    column_step = 1
    is_rowwise = False
    row_floats = 0
    # See `Conv.edge_floats`: one slab of messages, and the source rows that are added to it.
    edge_floats = 2 * MESSAGE_COLUMNS

    def __init__(self, in_dim: int, out_dim: int, *, edge_dim: int, hidden: int, batch_norm: bool) -> None:
        super().__init__()
        self.in_dim = self.sum_dim = in_dim
        self.out_dim = out_dim
        self.edge_dim = edge_dim
        norm = [nn.BatchNorm1d(hidden)] if batch_norm else []
        self.nn = nn.Sequential(nn.Linear(in_dim, hidden), *norm, nn.ReLU(), nn.Linear(hidden, out_dim))
        self.eps = nn.Parameter(torch.zeros(1))  # weight of the node's own row, minus 1
        self.lin = nn.Linear(edge_dim, in_dim)  # W and b of a message

    def forward(self, x_src: torch.Tensor, x_dst: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
        """Return (D, out_dim) for sources ``x_src`` (U, in_dim) and destinations ``x_dst`` (D, in_dim).

        Raises
        ------
        ConfigError
            The edge features of ``block`` are missing or have another width.
        """
        edges, features = Adjacency.of_block(block), edge_features_of(block, self.edge_dim)
        lin = (self.lin.weight, self.lin.bias)
        total = sum_messages(x_src, features, edges, lin, block.edge_weight)
        if block.edge_weight is None:
            total = total * (block.src_degree[: block.num_dst] / edges.counts.clamp(min=1.0)).unsqueeze(1)
        result: torch.Tensor = self.nn((1.0 + self.eps) * x_dst + total)
        return result

    @property
    def head(self) -> nn.Module:
        """The MLP, which takes all columns of a sum."""
        return self.nn

    table_widths = one_part

    def project(self, x: torch.Tensor, _degree: torch.Tensor, columns: slice) -> Table:
        """Return some columns of ``x`` (n, in_dim).

        Parameters
        ----------
        x, _degree, columns : see `Conv.project`
        """
        return (x[:, columns],)

    own_widths = no_own_widths
    project_own = no_own_terms

    def propagate(self, table: Table, _own: Table, part: Part, columns: slice) -> torch.Tensor:
        """Return the node's own row plus the sum of all in-edges' messages.

        Parameters
        ----------
        table, _own, part, columns : see `Conv.propagate`
        """
        (rows,) = table
        lin = (self.lin.weight[columns], self.lin.bias[columns])
        total = (1.0 + self.eps) * rows[part.nodes]
        for edges in part.pieces:
            total += sum_messages(rows, edges.wanted_features, edges, lin)
        return total
