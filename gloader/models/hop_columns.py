"""Models of hop columns: SIGN and SGC, which compute a node's output from the node's own row.

`gloader propagate` sums the rows of a node's neighbours, hop after hop, before training. The sums are hop columns of
the node's own row, in groups: the features themselves, then one group for each hop. So a model of them reads no edges.
`HopConv` has the methods of `gloader.models.conv.Conv`, so that a network uses it like any convolution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import torch
from torch import nn

from gloader.models.conv import no_own_terms, no_own_widths, normalised, one_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gloader.models.adjacency import Part
    from gloader.models.conv import Table
    from gloader.types import DeviceBlock

ColumnGroup: TypeAlias = "tuple[str, int, int]"  # name, first column and end of a group of hop columns
_LABELS: Final = "label."  # begins the names of groups that are made of labels


def last_hop(groups: Sequence[ColumnGroup]) -> ColumnGroup:
    """Return the last group that is not of labels, or the last group if all are. Pure."""
    return next((group for group in reversed(groups) if not group[0].startswith(_LABELS)), groups[-1])


class SgcRows(nn.Module):
    """One Linear of one group of columns (Wu et al., "Simplifying graph convolutional networks", ICML 2019).

    Parameters
    ----------
    group : the columns of the last hop
    out_dim : width of an output row
    """

    floats = 0  # number of floats per row that a call holds, besides its input and output

    def __init__(self, group: ColumnGroup, out_dim: int) -> None:
        super().__init__()
        _, start, stop = group
        self._columns = slice(start, stop)
        self.lin = nn.Linear(stop - start, out_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (n, out_dim) for rows ``x`` (n, F)."""
        result: torch.Tensor = self.lin(x[:, self._columns])
        return result


class SignRows(nn.Module):
    """SIGN: a Linear for each group of columns, joined, then an MLP (Frasca et al., 2020, arXiv 2004.11198, section 4).

    The parts are: the Linears, batch norm, PReLU and dropout over their joined results; then Linear, batch norm, PReLU,
    dropout, Linear. The batch norms are optional.

    Parameters
    ----------
    groups : the groups of columns
    hidden : width of each group's result, and of the MLP
    out_dim : width of an output row
    dropout : dropout probability
    batch_norm : whether to normalise before each PReLU
    """

    def __init__(
        self, groups: Sequence[ColumnGroup], *, hidden: int, out_dim: int, dropout: float, batch_norm: bool
    ) -> None:
        super().__init__()
        joined = hidden * len(groups)
        # The most that a call holds: the joined rows before and after an operation, and the results of the groups.
        self.floats = 3 * joined
        self._columns = tuple(slice(start, stop) for _, start, stop in groups)
        self.lins = nn.ModuleList(nn.Linear(stop - start, hidden) for _, start, stop in groups)
        self.mlp = nn.Sequential(
            *([nn.BatchNorm1d(joined)] if batch_norm else []),
            nn.PReLU(),
            nn.Dropout(dropout),
            nn.Linear(joined, hidden),
            *([nn.BatchNorm1d(hidden)] if batch_norm else []),
            nn.PReLU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, out_dim),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (n, out_dim) for rows ``x`` (n, F)."""
        parts = zip(self.lins, self._columns, strict=True)
        rows = torch.cat([lin(x[:, columns]) for lin, columns in parts], dim=1)
        for part in self.mlp:
            rows = normalised(part, rows) if isinstance(part, nn.BatchNorm1d) else part(rows)
        return rows


class HopConv(nn.Module):
    """A function of the destinations' own rows. Every method ignores the edges.

    Parameters
    ----------
    rows : the function, from (n, in_dim) to (n, out_dim)
    in_dim, out_dim : width of an input row and of an output row
    """

    edge_dim = 0  # no edge features are read
    edge_floats = 0  # `propagate` holds no floats per edge
    head = None  # no layers follow `propagate`
    is_rowwise = True

    def __init__(self, rows: SgcRows | SignRows, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.in_dim = in_dim
        # All columns of an output row are computed together, because they share the hidden rows.
        self.out_dim = self.sum_dim = self.column_step = out_dim
        self.row_floats = rows.floats
        self.rows = rows

    def forward(self, _x_src: torch.Tensor, x_dst: torch.Tensor, _block: DeviceBlock) -> torch.Tensor:
        """Return (D, out_dim) for the destinations ``x_dst`` (D, in_dim). Sources and edges are ignored."""
        result: torch.Tensor = self.rows(x_dst)
        return result

    table_widths = one_part

    def project(self, x: torch.Tensor, _degree: torch.Tensor, _columns: slice) -> Table:
        """Return the output rows for ``x`` (n, in_dim), as a table with one part.

        Parameters
        ----------
        x, _degree, _columns : see `Conv.project`; the columns are always all
        """
        return (self.rows(x),)

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
