"""Attention over the neighbours of one relation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gloader.models.adjacency import Adjacency
from gloader.models.aggregate import sum_neighbors
from gloader.models.attention import attend_between, edge_scores, reduce_edges
from gloader.models.conv import gather_cost, multiplies_first
from gloader.models.gat import glorot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.models.conv import Table
    from gloader.types import DeviceBlock


class RelationAttention(nn.Module):
    """Attention of destinations to sources of another type, or of their own; heads are laid side by side.

    The parameters are those of PyG's ``GATConv((in_dim, own_dim), ..., add_self_loops=False)``. An edge with an
    importance weight w counts as w edges in the softmax.

    Parameters
    ----------
    in_dim, own_dim : width of a source and of a destination
    out_dim : H, of which a head has H / heads columns
    heads : number of heads, which divides ``out_dim``
    """

    def __init__(self, in_dim: int, own_dim: int, out_dim: int, *, heads: int) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.heads = heads
        self.head_dim = out_dim // heads
        self.lin_src = nn.Linear(in_dim, out_dim, bias=False)
        self.lin_dst = nn.Linear(own_dim, out_dim, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, self.head_dim))
        self.att_dst = nn.Parameter(torch.empty(1, heads, self.head_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim))
        for weight in (self.lin_src.weight, self.lin_dst.weight, self.att_src, self.att_dst):
            glorot(weight)

    def forward(self, x_src: torch.Tensor, x_dst: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
        """Return (D, out_dim) for sources ``x_src`` (U, in_dim) and destinations ``x_dst`` (D, own_dim)."""
        edges = Adjacency.of_block(block)
        scores = (
            self._scores(x_src, self.lin_src, self.att_src),
            self._scores(x_dst, self.lin_dst, self.att_dst),
        )
        project_first = multiplies_first(
            num_src=block.num_src,
            num_dst=block.num_dst,
            num_edges=edges.num_edges,
            in_dim=self.in_dim,
            out_dim=self.out_dim,
            input_has_grad=x_src.requires_grad,
            gather_cost=gather_cost(x_src.device.type),
            num_heads=self.heads,
        )
        rows = self.lin_src(x_src).view(-1, self.heads, self.head_dim) if project_first else x_src
        result = attend_between(rows, *scores, edges, importance=block.edge_weight)
        if not project_first:
            result = result @ self._of_heads(self.lin_src, slice(None)).transpose(1, 2)
        return result.transpose(0, 1).flatten(1) + self.bias

    def _of_heads(self, lin: nn.Linear, heads: slice) -> torch.Tensor:
        """Return the projection of some heads, (heads, head_dim, width)."""
        return lin.weight.view(self.heads, self.head_dim, -1)[heads]

    def _scores(
        self, x: torch.Tensor, lin: nn.Linear, attention: torch.Tensor, heads: slice = slice(None)
    ) -> torch.Tensor:
        """Return the scores (n, heads) of nodes at one end, in the precision of the parameters.

        Autocast is off: a relative error e of a score s is one of e s in the attention.

        Parameters
        ----------
        x : (n, width) rows
        lin, attention : parameters of that end
        heads : which
        """
        with torch.autocast(x.device.type, enabled=False):
            # What maps an input row to its scores without projecting it.
            vectors = attention[:, heads].transpose(0, 1) @ self._of_heads(lin, heads)
            return functional.linear(x.to(vectors.dtype), vectors.squeeze(1))

    @property
    def column_step(self) -> int:
        """One head."""
        return self.head_dim

    def _heads_of(self, columns: slice) -> slice:
        return slice(columns.start // self.head_dim, columns.stop // self.head_dim)

    def table_widths(self, num_columns: int) -> tuple[int, ...]:
        """The projection of each head, and the source's scores of all of them."""
        heads = num_columns // self.head_dim
        return (*(self.head_dim,) * heads, heads)

    def project(self, x_src: torch.Tensor, columns: slice) -> Table:
        """Return the projection of ``x_src`` (n, in_dim) for each head, then the scores.

        Parameters
        ----------
        x_src, columns : as for `RelationConv.project`
        """
        heads = self._heads_of(columns)
        values = functional.linear(x_src, self.lin_src.weight[columns]).view(len(x_src), -1, self.head_dim)
        return (*values.unbind(1), self._scores(x_src, self.lin_src, self.att_src, heads))

    def own_widths(self, num_columns: int) -> tuple[int, ...]:
        """The destination's scores."""
        return (num_columns // self.head_dim,)

    def project_own(self, x_dst: torch.Tensor, columns: slice) -> Table:
        """Return the scores of ``x_dst`` (n, own_dim).

        Parameters
        ----------
        x_dst, columns : as for `RelationConv.project_own`
        """
        return (self._scores(x_dst, self.lin_dst, self.att_dst, self._heads_of(columns)),)

    def propagate(
        self,
        table: Table,
        own: Table,
        pieces: Iterable[Adjacency],
        degree: torch.Tensor,  # noqa: ARG002 - a softmax needs no degree
        columns: slice,
    ) -> torch.Tensor:
        """Return the attention over all in-edges; the softmax is carried from piece to piece.

        Parameters
        ----------
        table, own, pieces, degree, columns : as for `RelationConv.propagate`
        """
        *values, scores_src = table
        (scores_dst,) = own
        top = torch.full_like(scores_dst, torch.finfo(scores_dst.dtype).min)
        total = torch.zeros_like(top)
        sums = torch.zeros(len(values), len(top), self.head_dim, dtype=top.dtype, device=top.device)
        # A softmax in pieces: when a piece has a larger score, what was added up before is scaled down to it.
        for edges in pieces:
            scores = edge_scores(scores_src, scores_dst, (edges.indices, edges.dst))
            before, top = top, torch.maximum(top, reduce_edges(scores, edges, by="max"))
            decay = (before - top).exp_()
            powers = scores.sub_(top.index_select(0, edges.dst)).exp_()
            total = (total * decay).add_(reduce_edges(powers, edges, by="sum"))
            # Head by head: a piece of edges is as large as memory allows, and all heads at once would take it again.
            for head, value in enumerate(values):
                sums[head].mul_(decay[:, head, None]).add_(
                    sum_neighbors(value, edges, powers[:, head].contiguous())
                )
        sums /= total.clamp_(min=torch.finfo(total.dtype).tiny).t().unsqueeze(2)
        return sums.transpose(0, 1).flatten(1) + self.bias[columns]
