"""GraphSAGE's mean aggregator, within a type and along a relation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gloader.models.adjacency import Adjacency, mean_neighbors, sum_neighbors
from gloader.models.attention import reduce_edges
from gloader.models.conv import gather_cost, multiplies_first, no_own_terms, no_own_widths

if TYPE_CHECKING:
    from gloader.models.adjacency import Part
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
        x, degree, columns : as for `Propagation.project`
        """
        own = functional.linear(x, self.lin_r.weight[columns], self.lin_l.bias[columns])
        return functional.linear(x, self.lin_l.weight[columns]), own

    own_widths = no_own_widths
    project_own = no_own_terms

    def propagate(self, table: Table, own: Table, part: Part, columns: slice) -> torch.Tensor:  # noqa: ARG002 - the table has these columns only
        """Return the mean over all in-edges plus the own term.

        Parameters
        ----------
        table, own, part, columns : as for `Propagation.propagate`
        """
        neighbors, own_rows = table
        return _mean_of_all(neighbors, part) + own_rows[part.nodes]


class RelationMean:
    """``W mean(x_neighbours)``, and ``+ b`` where ``lin`` has a bias; shares its parameters.

    Without a bias a relation of OGB's R-GCN; with one PyG's ``SAGEConv(root_weight=False)``. Where a sampler gave
    weights to edges it is their weighted mean, a consistent estimate of that over all neighbours.

    Parameters
    ----------
    lin : from the width of a source to that of the layer
    """

    def __init__(self, lin: nn.Linear) -> None:
        self.lin = lin
        self.out_dim = lin.out_features
        self.edge_dim = 0
        self.edge_floats = 0

    def __call__(self, x_src: torch.Tensor, x_dst: torch.Tensor, block: DeviceBlock) -> torch.Tensor:  # noqa: ARG002 - a mean knows no destination
        """Return (D, out_dim) for the sources ``x_src`` (U, in_dim)."""
        edges = Adjacency.of_block(block)
        # A mean is linear: W may be applied to the rows before they are gathered or to their means.
        if multiplies_first(
            num_src=block.num_src,
            num_dst=block.num_dst,
            num_edges=edges.num_edges,
            in_dim=self.lin.in_features,
            out_dim=self.out_dim,
            input_has_grad=x_src.requires_grad,
            gather_cost=gather_cost(x_src.device.type),
        ):
            result = _mean(functional.linear(x_src, self.lin.weight), edges, block.edge_weight)
            return result if self._bias is None else result + self._bias
        found: torch.Tensor = self.lin(_mean(x_src, edges, block.edge_weight))
        return found

    @property
    def _bias(self) -> torch.Tensor | None:
        return self.lin.bias

    @property
    def column_step(self) -> int:
        """Any column stands alone."""
        return 1

    def table_widths(self, num_columns: int) -> tuple[int, ...]:
        """The projected source."""
        return (num_columns,)

    def project(self, x: torch.Tensor, degree: torch.Tensor, columns: slice) -> Table:  # noqa: ARG002 - as of `SageConv`
        """Return the projection of ``x`` (n, in_dim).

        Parameters
        ----------
        x, degree, columns : as for `Propagation.project`
        """
        return (functional.linear(x, self.lin.weight[columns]),)

    own_widths = no_own_widths
    project_own = no_own_terms

    def propagate(self, table: Table, own: Table, part: Part, columns: slice) -> torch.Tensor:  # noqa: ARG002 - no terms of their own
        """Return the mean over all in-edges.

        Parameters
        ----------
        table, own, part, columns : as for `Propagation.propagate`
        """
        (neighbors,) = table
        total = _mean_of_all(neighbors, part)
        return total if self._bias is None else total.add_(self._bias[columns])


def _mean_of_all(rows: torch.Tensor, part: Part) -> torch.Tensor:
    """Return the mean of ``rows`` (N, width) over all in-edges of each destination of ``part``, (n, width)."""
    total = rows.new_zeros(len(part.degree), rows.shape[1])
    for edges in part.pieces:
        total += sum_neighbors(rows, edges)
    total /= part.degree.clamp(min=1.0).unsqueeze(1)
    return total


def _mean(x: torch.Tensor, edges: Adjacency, weight: torch.Tensor | None) -> torch.Tensor:
    """Return the mean row (D, width) of each destination's sources; of none zeros.

    Parameters
    ----------
    x : (U, width)
    edges : E edges into D destinations
    weight : (E,) how much each counts; None: all alike
    """
    if weight is None:
        return mean_neighbors(x, edges)
    # By the sum of the weights: blocks of relations hold no in-degrees, of which the sum is an estimate.
    total = reduce_edges(weight.unsqueeze(1), edges, by="sum")
    return sum_neighbors(x, edges, weight) / total.clamp(min=torch.finfo(total.dtype).tiny)
