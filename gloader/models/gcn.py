"""GCN: the sum of the neighbours' rows, each divided by the square roots of both ends' degrees in the full graph.

`GcnConv` is a convolution of `gloader.models.conv.Conv`. `gloader.models.build` makes one for each layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gloader.models.adjacency import Adjacency, sum_neighbors
from gloader.models.conv import no_own_terms, no_own_widths, one_part, projects_first

if TYPE_CHECKING:
    from gloader.models.adjacency import Part
    from gloader.models.conv import Table
    from gloader.types import DeviceBlock


class GcnConv(nn.Module):
    """``W sum_u x_u / sqrt(d_u d_v) + b``, with the parameters of PyG's ``GCNConv`` (Kipf and Welling, 2017).

    The sum is over the in-neighbours u of a node v, and the degrees d are in-degrees in the full graph. The sum over
    the sampled edges is rescaled: by v's in-degree over the number of its sampled edges, or each edge by the sampler's
    importance weight. Both give an unbiased estimate of the sum over all edges.

    Parameters
    ----------
    in_dim, out_dim : F and H
    add_self_loops : whether the node itself counts as one more neighbour, in every sample; False if the graph stores a
        self loop at every node
    """

    # See `Conv`.
    column_step = 1
    is_rowwise = False
    edge_dim = 0
    edge_floats = 0
    row_floats = 0
    head = None

    def __init__(self, in_dim: int, out_dim: int, *, add_self_loops: bool = True) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = self.sum_dim = out_dim
        self.add_self_loops = add_self_loops
        self.lin = nn.Linear(in_dim, out_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_dim))
        nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, x_src: torch.Tensor, _x_dst: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
        """Return (D, out_dim) for ``x_src`` (U, in_dim), whose first D rows are the destinations."""
        if projects_first(x_src, block, in_dim=self.in_dim, out_dim=self.out_dim):
            result = self._spread(self.lin(x_src), block)
        else:
            result = self.lin(self._spread(x_src, block))
        total: torch.Tensor = result + self.bias
        return total

    def _spread(self, x: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
        """Return the normalised, rescaled sum over the edges and the node itself, (D, width)."""
        edges = Adjacency.of_block(block)
        norm = self._norm(block.src_degree)
        norm_dst = norm[: edges.num_dst]
        # Without weights, each sampled edge of a destination represents equally many edges.
        if block.edge_weight is None:
            rescale = block.src_degree[: edges.num_dst] / edges.counts.clamp(min=1.0)
            weight = (norm_dst * rescale)[edges.dst] * norm[edges.indices]
        else:
            weight = block.edge_weight * norm_dst[edges.dst] * norm[edges.indices]
        total = sum_neighbors(x, edges, weight)
        if self.add_self_loops:
            total = total + x[: edges.num_dst] * norm_dst.square().unsqueeze(1)
        return total

    def _norm(self, degree: torch.Tensor) -> torch.Tensor:
        """Return each node's 1 / sqrt(d), or 0 for a node without edges."""
        if self.add_self_loops:
            return (degree + 1.0).rsqrt()
        return torch.where(degree > 0, degree.clamp(min=1.0).rsqrt(), 0.0)

    table_widths = one_part

    def project(self, x: torch.Tensor, degree: torch.Tensor, columns: slice) -> Table:
        """Return ``x`` (n, in_dim), projected and divided by the square root of each source's degree.

        Parameters
        ----------
        x, degree, columns : see `Conv.project`
        """
        return (functional.linear(x, self.lin.weight[columns]) * self._norm(degree).unsqueeze(1),)

    own_widths = no_own_widths
    project_own = no_own_terms

    def propagate(self, table: Table, _own: Table, part: Part, columns: slice) -> torch.Tensor:
        """Return the normalised sum over all in-edges and the node itself.

        Parameters
        ----------
        table, _own, part, columns : see `Conv.propagate`
        """
        (neighbors,) = table
        if self.add_self_loops:
            total = neighbors[part.nodes]
        else:
            total = neighbors.new_zeros(len(part.nodes), neighbors.shape[1])
        # The table's rows contain the source's factor. The destination's factor is equal for all its edges.
        for edges in part.pieces:
            total += sum_neighbors(neighbors, edges)
        return total * self._norm(part.degree).unsqueeze(1) + self.bias[columns]
