"""GCN with the symmetric normalisation of the whole graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gloader.models.adjacency import Adjacency, sum_neighbors
from gloader.models.conv import gather_cost, multiplies_first, no_own_terms, no_own_widths

if TYPE_CHECKING:
    from gloader.models.adjacency import Part
    from gloader.models.conv import Table
    from gloader.types import DeviceBlock


class GcnConv(nn.Module):
    """``W sum_u x_u / sqrt(d_u d_v) + b``; the parameters of PyG's ``GCNConv`` (Kipf and Welling, 2017).

    The degrees are those of the full graph. The sum over the sampled edges of a node is rescaled by its
    in-degree over the number sampled, or each edge by the importance weight its sampler gave it; either makes
    it an unbiased estimate of the sum over all of them.

    Parameters
    ----------
    in_dim, out_dim : F and H
    add_self_loops : the node itself counts as one more neighbour, which is never left to sampling; False if
        the graph stores a self loop at every node
    """

    def __init__(self, in_dim: int, out_dim: int, *, add_self_loops: bool = True) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.edge_dim = 0
        self.head = None
        self.edge_floats = 0
        self.add_self_loops = add_self_loops
        self.lin = nn.Linear(in_dim, out_dim, bias=False)
        self.bias = nn.Parameter(torch.zeros(out_dim))
        nn.init.xavier_uniform_(self.lin.weight)

    def forward(self, x: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
        """Return (D, out_dim) for ``x`` (U, in_dim)."""
        edges = Adjacency.of_block(block)
        if multiplies_first(
            num_src=block.num_src,
            num_dst=block.num_dst,
            num_edges=edges.num_edges,
            in_dim=self.in_dim,
            out_dim=self.out_dim,
            input_has_grad=x.requires_grad,
            gather_cost=gather_cost(x.device.type),
        ):
            result = self._spread(self.lin(x), edges, block)
        else:
            result = self.lin(self._spread(x, edges, block))
        total: torch.Tensor = result + self.bias
        return total

    def _spread(self, x: torch.Tensor, edges: Adjacency, block: DeviceBlock) -> torch.Tensor:
        """Return the normalised, rescaled sum over ``edges`` and the node itself, (D, width)."""
        norm = self._norm(block.src_degree)
        own = norm[: edges.num_dst]
        # A sampler that chose by weight says what each edge stands for; of a uniform one all stand for equally many.
        if block.edge_weight is None:
            rescale = block.src_degree[: edges.num_dst] / edges.counts.clamp(min=1.0)
            weight = (own * rescale)[edges.dst] * norm[edges.indices]
        else:
            weight = block.edge_weight * own[edges.dst] * norm[edges.indices]
        total = sum_neighbors(x, edges, weight)
        if self.add_self_loops:
            total = total + x[: edges.num_dst] * own.square().unsqueeze(1)
        return total

    def _norm(self, degree: torch.Tensor) -> torch.Tensor:
        """Return 1 / sqrt(d) of each node, 0 for a node without edges."""
        if self.add_self_loops:
            return (degree + 1.0).rsqrt()
        return torch.where(degree > 0, degree.clamp(min=1.0).rsqrt(), 0.0)

    @property
    def column_step(self) -> int:
        """Any column stands alone."""
        return 1

    def table_widths(self, num_columns: int) -> tuple[int, ...]:
        """The projected row, already divided by the root of its degree."""
        return (num_columns,)

    def project(self, x: torch.Tensor, degree: torch.Tensor, columns: slice) -> Table:
        """Return the scaled projection of ``x`` (n, in_dim).

        Parameters
        ----------
        x, degree, columns : as for `Propagation.project`
        """
        return (functional.linear(x, self.lin.weight[columns]) * self._norm(degree).unsqueeze(1),)

    own_widths = no_own_widths
    project_own = no_own_terms

    def propagate(self, table: Table, own: Table, part: Part, columns: slice) -> torch.Tensor:  # noqa: ARG002 - no terms of their own
        """Return the normalised sum over all in-edges and the node itself.

        Parameters
        ----------
        table, own, part, columns : as for `Propagation.propagate`
        """
        (neighbors,) = table
        if self.add_self_loops:
            total = neighbors[part.nodes]
        else:
            total = neighbors.new_zeros(len(part.nodes), neighbors.shape[1])
        # Rows of the table have the source's factor; the destination's is the same for all of its edges.
        for edges in part.pieces:
            total += sum_neighbors(neighbors, edges)
        return total * self._norm(part.degree).unsqueeze(1) + self.bias[columns]
