"""GraphSAGE's convolution: the mean of the neighbours' rows, within a type and along a relation of two types.

`SageConv` is a convolution of `gloader.models.conv.Conv`. `gloader.models.build` makes one per layer and relation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gloader.models.adjacency import Adjacency, mean_neighbors, sum_neighbors
from gloader.models.attention import reduce_edges
from gloader.models.conv import no_own_terms, no_own_widths, projects_first

if TYPE_CHECKING:
    from gloader.models.adjacency import Part
    from gloader.models.conv import Table
    from gloader.types import DeviceBlock


class SageConv(nn.Module):
    """``W_l mean(x_neighbours) + b + W_r x``: PyG's ``SAGEConv`` (Hamilton et al., 2017).

    If edges have importance weights, the mean is their weighted sum divided by the in-degree: an unbiased estimate of
    the mean over all in-neighbours. Blocks of typed batches have no in-degrees. For them the sum of the weights
    estimates the degree, and the mean is a consistent estimate.

    Parameters
    ----------
    in_dim, out_dim : F and H
    has_root : False leaves out ``W_r x``, like PyG's ``root_weight=False``
    bias : False leaves out ``b``, like a relation in OGB's R-GCN
    """

    # See `Conv`.
    column_step = 1
    is_rowwise = False
    edge_dim = 0
    edge_floats = 0
    row_floats = 0
    head = None

    def __init__(self, in_dim: int, out_dim: int, *, has_root: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = self.sum_dim = out_dim
        self.lin_l = nn.Linear(in_dim, out_dim, bias=bias)  # W_l and b, for the neighbours
        self.lin_r = nn.Linear(in_dim, out_dim, bias=False) if has_root else None  # W_r, for the node itself

    def forward(self, x_src: torch.Tensor, x_dst: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
        """Return (D, out_dim) for sources ``x_src`` (U, in_dim) and destinations ``x_dst`` (D, in_dim)."""
        # A mean is linear, so W may be applied to the rows before the gather or to their means.
        if projects_first(x_src, block, in_dim=self.in_dim, out_dim=self.out_dim):
            result = _mean(functional.linear(x_src, self.lin_l.weight), block)
            result = result if self._bias is None else result + self._bias
        else:
            result = self.lin_l(_mean(x_src, block))
        return result if self.lin_r is None else result + self.lin_r(x_dst)

    @property
    def _bias(self) -> torch.Tensor | None:
        """The bias (H,), or None."""
        return self.lin_l.bias

    def table_widths(self, num_columns: int) -> tuple[int, ...]:
        """Return the widths: the projected neighbour, then the node's own term."""
        return (num_columns,) if self.lin_r is None else (num_columns, num_columns)

    def project(self, x: torch.Tensor, _degree: torch.Tensor, columns: slice) -> Table:
        """Return the projections of ``x`` (n, in_dim) as a neighbour and as the node itself.

        Parameters
        ----------
        x, _degree, columns : see `Conv.project`
        """
        neighbors = functional.linear(x, self.lin_l.weight[columns])
        if self.lin_r is None:
            return (neighbors,)
        bias = None if self._bias is None else self._bias[columns]
        return neighbors, functional.linear(x, self.lin_r.weight[columns], bias)

    own_widths = no_own_widths
    project_own = no_own_terms

    def propagate(self, table: Table, _own: Table, part: Part, columns: slice) -> torch.Tensor:
        """Return the mean over all in-edges, plus the own term and the bias.

        Parameters
        ----------
        table, _own, part, columns : see `Conv.propagate`
        """
        neighbors, *own_rows = table  # ``own_rows`` has one array, or none without ``W_r``
        total = neighbors.new_zeros(len(part.degree), neighbors.shape[1])
        for edges in part.pieces:
            total += sum_neighbors(neighbors, edges)
        total /= part.degree.clamp(min=1.0).unsqueeze(1)
        if own_rows:
            return total.add_(own_rows[0][part.nodes])
        return total if self._bias is None else total.add_(self._bias[columns])


def _mean(x: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
    """Return the mean row (D, width) of each destination's sources in ``x`` (U, width); zeros without sources."""
    edges, weight, degree = Adjacency.of_block(block), block.edge_weight, block.src_degree
    if weight is None:
        return mean_neighbors(x, edges)
    if len(degree):
        return mean_neighbors(x, edges, weight, degree[: block.num_dst])
    total = reduce_edges(weight.unsqueeze(1), edges, by="sum")
    return sum_neighbors(x, edges, weight) / total.clamp(min=torch.finfo(total.dtype).tiny)
