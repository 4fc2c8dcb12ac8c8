"""GraphSAGE with the mean aggregator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gloader.models.adjacency import Adjacency
from gloader.models.aggregate import mean_neighbors, sum_neighbors
from gloader.models.conv import gather_cost, multiplies_first

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.models.conv import Table
    from gloader.types import DeviceBlock


class SageConv(nn.Module):
    """``W_l mean(x_neighbours) + b + W_r x``: PyG's ``SAGEConv`` (Hamilton et al., 2017)."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.edge_dim = 0
        self.head = None
        self.edge_floats = 0
        self.lin_l = nn.Linear(in_dim, out_dim)
        self.lin_r = nn.Linear(in_dim, out_dim, bias=False)

    def forward(self, x: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
        """Return (D, out_dim) for ``x`` (U, in_dim)."""
        edges = Adjacency.of_block(block)
        importance = (block.edge_weight, block.src_degree[: block.num_dst])
        # A mean is linear: W may be applied to the rows before they are gathered or to their means.
        if multiplies_first(
            num_src=block.num_src,
            num_dst=block.num_dst,
            num_edges=edges.num_edges,
            in_dim=self.in_dim,
            out_dim=self.out_dim,
            input_has_grad=x.requires_grad,
            gather_cost=gather_cost(x.device.type),
        ):
            projected = functional.linear(x, self.lin_l.weight)
            neighbors = mean_neighbors(projected, edges, *importance) + self.lin_l.bias
        else:
            neighbors = self.lin_l(mean_neighbors(x, edges, *importance))
        result: torch.Tensor = neighbors + self.lin_r(x[: block.num_dst])
        return result

    @property
    def column_step(self) -> int:
        """Any column stands alone."""
        return 1

    def table_widths(self, num_columns: int) -> tuple[int, ...]:
        """The projected neighbour and the node's own term."""
        return (num_columns, num_columns)

    def project(self, x: torch.Tensor, degree: torch.Tensor, columns: slice) -> Table:  # noqa: ARG002 - a mean needs no degree of the source
        """Return both projections of ``x`` (n, in_dim).

        Parameters
        ----------
        x, degree, columns : as for `Conv.project`
        """
        own = functional.linear(x, self.lin_r.weight[columns], self.lin_l.bias[columns])
        return functional.linear(x, self.lin_l.weight[columns]), own

    def propagate(
        self,
        table: Table,
        nodes: torch.Tensor,
        pieces: Iterable[Adjacency],
        degree: torch.Tensor,
        columns: slice,  # noqa: ARG002 - the table holds these columns only
    ) -> torch.Tensor:
        """Return the mean over all in-edges plus the own term.

        Parameters
        ----------
        table, nodes, pieces, degree, columns : as for `Conv.propagate`
        """
        neighbors, own = table
        total = neighbors.new_zeros(len(nodes), neighbors.shape[1])
        for edges in pieces:
            total += sum_neighbors(neighbors, edges)
        return total / degree.clamp(min=1.0).unsqueeze(1) + own[nodes]
