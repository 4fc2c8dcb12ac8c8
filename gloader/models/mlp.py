"""The layer of an MLP, which reads no neighbours: the baseline that shows the value of the edges.

`DenseConv` has the methods of `gloader.models.conv.Conv`, so that a network uses it like any convolution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional

from gloader.models.conv import no_own_terms, no_own_widths, one_part

if TYPE_CHECKING:
    import torch

    from gloader.models.adjacency import Part
    from gloader.models.conv import Table
    from gloader.types import DeviceBlock


class DenseConv(nn.Module):
    """``W x + b`` for the destinations. Every method ignores the edges.

    Parameters
    ----------
    in_dim, out_dim : width of an input row and of an output row
    """

    column_step = 1  # `project` can compute any range of columns
    edge_dim = 0  # no edge features are read
    edge_floats = 0  # `propagate` holds no floats per edge
    row_floats = 0  # `project` holds no floats per row besides the table
    is_rowwise = False  # a wide layer is made in slabs of columns, from a table
    head = None  # no layers follow `propagate`

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = self.sum_dim = out_dim
        self.lin = nn.Linear(in_dim, out_dim)

    def forward(self, _x_src: torch.Tensor, x_dst: torch.Tensor, _block: DeviceBlock) -> torch.Tensor:
        """Return (D, out_dim) for the destinations ``x_dst`` (D, in_dim). Sources and edges are ignored."""
        result: torch.Tensor = self.lin(x_dst)
        return result

    # The methods below are for inference, which computes a layer for all nodes, a range of output columns at a time.
    table_widths = one_part  # the table has one part, with one float per column

    def project(self, x: torch.Tensor, _degree: torch.Tensor, columns: slice) -> Table:
        """Return the given columns of ``W x + b`` for the rows of ``x`` (n, in_dim), as a table with one part.

        Parameters
        ----------
        x, _degree, columns : see `Conv.project`
        """
        return (functional.linear(x, self.lin.weight[columns], self.lin.bias[columns]),)

    # The table already has each node's result, so there are no own terms to add to it.
    own_widths = no_own_widths
    project_own = no_own_terms

    def propagate(self, table: Table, _own: Table, part: Part, _columns: slice) -> torch.Tensor:
        """Return the destinations' own rows of the table, whose ids are ``part.nodes``.

        Parameters
        ----------
        table, _own, part, _columns : see `Conv.propagate`
        """
        return table[0][part.nodes]
