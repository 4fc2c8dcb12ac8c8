"""Graph isomorphism network whose messages look at the edges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from gloader.models.adjacency import Adjacency
from gloader.models.conv import edge_features_of
from gloader.models.edge_messages import MESSAGE_COLUMNS, sum_messages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.models.conv import Table
    from gloader.types import DeviceBlock


class GineConv(nn.Module):
    """``MLP((1 + eps) x + sum_u relu(x_u + W e_u + b))`` (Hu et al., 2020).

    The parameters of PyG's ``GINEConv(edge_dim=..., train_eps=True)`` around a Linear, ReLU and Linear, with a batch
    norm between where it is asked for. As in `gloader.models.gcn.GcnConv` the sum over the sampled edges of a node is
    rescaled by its in-degree over the number sampled, or each edge by the importance weight its sampler gave it:
    an unbiased estimate of the sum over all of them, which is what evaluation computes.

    Parameters
    ----------
    in_dim, out_dim : F and H
    edge_dim : F_e, width of the features of an edge
    hidden : width between the two Linear layers
    batch_norm : normalise between them
    """

    def __init__(self, in_dim: int, out_dim: int, *, edge_dim: int, hidden: int, batch_norm: bool) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.edge_dim = edge_dim
        norm = [nn.BatchNorm1d(hidden)] if batch_norm else []
        self.nn = nn.Sequential(nn.Linear(in_dim, hidden), *norm, nn.ReLU(), nn.Linear(hidden, out_dim))
        self.eps = nn.Parameter(torch.zeros(1))
        self.lin = nn.Linear(edge_dim, in_dim)

    def forward(self, x: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
        """Return (D, out_dim) for ``x`` (U, in_dim).

        Raises
        ------
        ConfigError
            The edges of ``block`` have no features, or of another width.
        """
        edges, features = Adjacency.of_block(block), edge_features_of(block, self.edge_dim)
        lin = (self.lin.weight, self.lin.bias)
        total = sum_messages(x, features, edges, lin, block.edge_weight)
        if block.edge_weight is None:
            total = total * (block.src_degree[: block.num_dst] / edges.counts.clamp(min=1.0)).unsqueeze(1)
        result: torch.Tensor = self.nn((1.0 + self.eps) * x[: block.num_dst] + total)
        return result

    @property
    def head(self) -> nn.Module:
        """The MLP, which takes all columns of a sum."""
        return self.nn

    @property
    def edge_floats(self) -> int:
        """Some columns of the messages, and of what they are made of."""
        return 2 * MESSAGE_COLUMNS

    @property
    def column_step(self) -> int:
        """Any column of a sum stands alone."""
        return 1

    def table_widths(self, num_columns: int) -> tuple[int, ...]:
        """The row itself."""
        return (num_columns,)

    def project(self, x: torch.Tensor, degree: torch.Tensor, columns: slice) -> Table:  # noqa: ARG002 - a sum needs no degree
        """Return the columns of ``x`` (n, in_dim).

        Parameters
        ----------
        x, degree, columns : as for `Conv.project`
        """
        return (x[:, columns],)

    def propagate(
        self,
        table: Table,
        nodes: torch.Tensor,
        pieces: Iterable[Adjacency],
        degree: torch.Tensor,  # noqa: ARG002 - as above
        columns: slice,
    ) -> torch.Tensor:
        """Return the node's own row and the sum of the messages of all in-edges.

        Parameters
        ----------
        table, nodes, pieces, degree, columns : as for `Conv.propagate`
        """
        (rows,) = table
        lin = (self.lin.weight[columns], self.lin.bias[columns])
        total = (1.0 + self.eps) * rows[nodes]
        for edges in pieces:
            total += sum_messages(rows, edges.wanted_features, edges, lin)
        return total
