"""A layer that looks at no neighbour: the baseline on the same features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gloader.models.conv import no_own_terms, no_own_widths

if TYPE_CHECKING:
    from gloader.models.adjacency import Part
    from gloader.models.conv import Table
    from gloader.types import DeviceBlock


class DenseConv(nn.Module):
    """``W x + b`` of the destinations."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.edge_dim = 0
        self.head = None
        self.edge_floats = 0
        self.lin = nn.Linear(in_dim, out_dim)

    def forward(self, x: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
        """Return (D, out_dim) for ``x`` (U, in_dim)."""
        result: torch.Tensor = self.lin(x[: block.num_dst])
        return result

    @property
    def column_step(self) -> int:
        """Any column stands alone."""
        return 1

    def table_widths(self, num_columns: int) -> tuple[int, ...]:
        """The result."""
        return (num_columns,)

    def project(self, x: torch.Tensor, degree: torch.Tensor, columns: slice) -> Table:  # noqa: ARG002 - no graph here
        """Return the result for ``x`` (n, in_dim).

        Parameters
        ----------
        x, degree, columns : as for `Propagation.project`
        """
        return (functional.linear(x, self.lin.weight[columns], self.lin.bias[columns]),)

    own_widths = no_own_widths
    project_own = no_own_terms

    def propagate(self, table: Table, own: Table, part: Part, columns: slice) -> torch.Tensor:  # noqa: ARG002 - the table has these columns only
        """Return the rows of ``nodes``.

        Parameters
        ----------
        table, own, part, columns : as for `Propagation.propagate`
        """
        return table[0][part.nodes]
