"""A layer whose result is added to its input, with layer norm and a feed-forward part.

Networks of such layers are the baselines of Platonov et al. (2023), "A critical look at the evaluation of GNNs under
heterophily". `ResidualConv` wraps any convolution within one node type, and is itself a convolution of
`gloader.models.conv.Conv`. `gloader.models.build` makes one for each layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from gloader.models.conv import no_own_terms, no_own_widths

if TYPE_CHECKING:
    from gloader.models.adjacency import Part
    from gloader.models.conv import Conv, Table
    from gloader.types import DeviceBlock


class ResidualConv(nn.Module):
    """``h + FF(conv(LayerNorm(h)))``, where FF is dropout, GELU, Linear, dropout.

    In the paper, the feed-forward part begins with a Linear of the neighbours' sum or mean, perhaps next to the node's
    own row. Here the convolution has this Linear. In the first layer, h is ``GELU(dropout(W x + b))`` of the
    features x. In the other layers, h is the output of the layer below.

    Inference keeps two rows per node between layers: the convolution's sums s, and h, which the feed-forward part is
    added to. Both are cut into groups of ``conv.column_step`` columns, and the groups alternate: s0, h0, s1, h1, and so
    on. So any range of columns has as many columns of s as of h.

    Parameters
    ----------
    conv : the convolution, from H to H columns
    in_dim : F, width of the features in the first layer; None in the other layers
    dropout : dropout probability
    """

    is_rowwise = False  # the table also has h, which `propagate` joins to the sums

    def __init__(self, conv: Conv, *, in_dim: int | None, dropout: float) -> None:
        super().__init__()
        self.out_dim = width = conv.out_dim  # H
        self.sum_dim = 2 * width  # s and h
        self.input = None
        if in_dim is not None:
            self.input = nn.Sequential(nn.Linear(in_dim, width), nn.Dropout(dropout), nn.GELU())
        self.norm = nn.LayerNorm(width)
        self.conv = conv
        self.edge_dim = conv.edge_dim
        self.feed_forward = nn.Sequential(
            nn.Dropout(dropout), nn.GELU(), nn.Linear(width, width), nn.Dropout(dropout)
        )

    def forward(self, x_src: torch.Tensor, _x_dst: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
        """Return (D, H) for ``x_src`` (U, F or H), whose first D rows are the destinations."""
        rows = self._rows(x_src)
        normed = self.norm(rows)
        sums = self.conv(normed, normed[: block.num_dst], block)
        result: torch.Tensor = rows[: block.num_dst] + self.feed_forward(sums)
        return result

    def _rows(self, x: torch.Tensor) -> torch.Tensor:
        """Return h (n, H) for the layer's inputs ``x`` (n, F or H)."""
        return x if self.input is None else self.input(x)

    def head(self, kept: torch.Tensor) -> torch.Tensor:
        """Return the layer's output (n, H) for ``kept`` (n, 2 H), rows of s and h in alternate groups."""
        step = self.conv.column_step
        groups = kept.reshape(len(kept), self.out_dim // step, 2, step)
        sums, rows = (groups[:, :, part].flatten(1) for part in (0, 1))
        if self.conv.head is not None:
            sums = self.conv.head(sums)
        result: torch.Tensor = rows + self.feed_forward(sums)
        return result

    @property
    def edge_floats(self) -> int:
        """See `Conv.edge_floats`."""
        return self.conv.edge_floats

    @property
    def row_floats(self) -> int:
        """See `Conv.row_floats`: h and its normalised copy."""
        return 2 * self.out_dim

    @property
    def column_step(self) -> int:
        """See `Conv.column_step`: a group of s and a group of h."""
        return 2 * self.conv.column_step

    def table_widths(self, num_columns: int) -> tuple[int, ...]:
        """Return the widths: the convolution's table for half of the columns, then as many columns of h."""
        return (*self.conv.table_widths(num_columns // 2), num_columns // 2)

    def project(self, x: torch.Tensor, degree: torch.Tensor, columns: slice) -> Table:
        """Return the convolution's table of the normalised rows, then h itself.

        Parameters
        ----------
        x, degree, columns : see `Conv.project`
        """
        rows, half = self._rows(x), _half(columns)
        return (*self.conv.project(self.norm(rows), degree, half), rows[:, half])

    # Within one type, a table has the terms of a node's own row.
    own_widths = no_own_widths
    project_own = no_own_terms

    def propagate(self, table: Table, own: Table, part: Part, columns: slice) -> torch.Tensor:
        """Return the convolution's sums over all in-edges, and the nodes' own h, in alternate groups.

        Parameters
        ----------
        table, own, part, columns : see `Conv.propagate`
        """
        *of_conv, rows = table
        sums = self.conv.propagate(tuple(of_conv), own, part, _half(columns))
        groups = (len(sums), -1 if len(sums) else 0, self.conv.column_step)
        pair = (sums.reshape(groups), rows[part.nodes].view(groups))
        return torch.stack(pair, dim=2).view(len(sums), columns.stop - columns.start)


def _half(columns: slice) -> slice:
    """Return the range of columns of s, which is also that of h, for a range of the alternate columns of both."""
    return slice(columns.start // 2, columns.stop // 2)
