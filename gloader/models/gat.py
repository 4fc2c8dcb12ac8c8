"""Graph attention, within a type and along a relation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gloader.models.adjacency import Adjacency, sum_neighbors
from gloader.models.attention import NEGATIVE_SLOPE, attend, attend_between, edge_scores, reduce_edges
from gloader.models.conv import (
    edge_features_of,
    gather_cost,
    multiplies_first,
    no_own_terms,
    no_own_widths,
)

if TYPE_CHECKING:
    from gloader.models.adjacency import Part
    from gloader.models.conv import Table
    from gloader.types import DeviceBlock


class GatConv(nn.Module):
    """Attention over the neighbours; the parameters of PyG's ``GATConv`` (Velickovic et al., 2018).

    An edge with an importance weight w counts as w edges in the softmax: both of its sums are then estimates
    without bias of those over all neighbours (their ratio is a consistent one).

    With features of edges, those of PyG's ``GATConv(edge_dim=...)``: each adds a score of its own. That of a node to
    itself is then the mean over its in-edges (its estimate, where edges have been sampled).

    Parameters
    ----------
    in_dim, out_dim : F and H; with ``concat`` a head has H / heads columns, else each has H and the heads
        are averaged
    heads : number of heads
    concat : whether the heads are laid side by side or averaged
    add_self_loops : a node also attends to itself, which is never left to sampling
    edge_dim : width of the features of an edge; 0: they are not looked at
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        heads: int,
        concat: bool,
        add_self_loops: bool = True,
        edge_dim: int = 0,
    ) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.edge_dim = edge_dim
        self.head = None
        self.heads = heads
        self.concat = concat
        self.add_self_loops = add_self_loops
        self.head_dim = out_dim // heads if concat else out_dim
        self.lin = nn.Linear(in_dim, heads * self.head_dim, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, self.head_dim))
        self.att_dst = nn.Parameter(torch.empty(1, heads, self.head_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim))
        for weight in (self.lin.weight, self.att_src, self.att_dst):
            glorot(weight)
        if edge_dim:
            self.lin_edge = nn.Linear(edge_dim, heads * self.head_dim, bias=False)
            self.att_edge = nn.Parameter(torch.empty(1, heads, self.head_dim))
            for weight in (self.lin_edge.weight, self.att_edge):
                glorot(weight)

    def forward(self, x: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
        """Return (D, out_dim) for ``x`` (U, in_dim).

        Raises
        ------
        ConfigError
            It looks at the features of edges, and those of ``block`` have none, or of another width.
        """
        edges = Adjacency.of_block(block)
        weights = self.lin.weight.view(self.heads, self.head_dim, self.in_dim)
        scores = self._scores(x, weights)
        project_first = multiplies_first(
            num_src=block.num_src,
            num_dst=block.num_dst,
            num_edges=edges.num_edges,
            in_dim=self.in_dim,
            out_dim=self.heads * self.head_dim,
            input_has_grad=x.requires_grad,
            gather_cost=gather_cost(x.device.type),
            num_heads=self.heads,
        )
        rows = self.lin(x).view(-1, self.heads, self.head_dim) if project_first else x
        result = attend(
            rows,
            scores,
            edges,
            importance=block.edge_weight,
            has_loops=self.add_self_loops,
            edge_terms=self._edge_terms(block, edges) if self.edge_dim else None,
        )
        return self._join(result if project_first else result @ weights.transpose(1, 2)) + self.bias

    def _scores(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the scores (U, heads, 2) as source and as destination, in the precision of the parameters.

        Autocast is off: a relative error e of a score s is one of e s in the attention.

        Parameters
        ----------
        x : (U, in_dim)
        weights : (heads, head_dim, in_dim) the projection of each head
        """
        with torch.autocast(x.device.type, enabled=False):
            # What maps an input row to its scores without projecting it.
            vectors = torch.cat((self.att_src, self.att_dst)).transpose(0, 1) @ weights
            scores = functional.linear(x.to(vectors.dtype), vectors.view(-1, self.in_dim))
        return scores.view(-1, self.heads, 2)

    def _edge_terms(self, block: DeviceBlock, edges: Adjacency) -> torch.Tensor:
        """Return what each edge adds to its scores (E, heads); behind them, (E + D, heads), what loops do."""
        terms = self._edge_scores(edge_features_of(block, self.edge_dim), slice(None))
        if not self.add_self_loops:
            return terms
        weight = block.edge_weight
        if weight is None:
            loops = reduce_edges(terms, edges, by="sum") / edges.counts.clamp(min=1.0).unsqueeze(1)
        else:
            total = reduce_edges(weight.unsqueeze(1), edges, by="sum")
            loops = reduce_edges(terms * weight.unsqueeze(1), edges, by="sum")
            loops = loops / total.clamp(min=torch.finfo(total.dtype).tiny)
        return torch.cat((terms, loops))

    def _edge_scores(self, features: torch.Tensor, heads: slice) -> torch.Tensor:
        """Return the scores (E, heads) of ``features`` (E, edge_dim), in the precision of the parameters."""
        with torch.autocast(features.device.type, enabled=False):
            # As of `_scores`.
            weights = self.lin_edge.weight.view(self.heads, self.head_dim, self.edge_dim)[heads]
            vectors = self.att_edge[:, heads].transpose(0, 1) @ weights
            return functional.linear(features.to(vectors.dtype), vectors.squeeze(1))

    def _join(self, results: torch.Tensor) -> torch.Tensor:
        """Return (n, columns) of the ``results`` (heads, n, head_dim)."""
        return results.transpose(0, 1).flatten(1) if self.concat else results.mean(dim=0)

    @property
    def edge_floats(self) -> int:
        """Scores of an edge from its features, and the room of their sum with the other scores."""
        return 2 * self.heads if self.edge_dim else 0

    @property
    def column_step(self) -> int:
        """One head if they are concatenated, all columns if they are averaged."""
        return self.head_dim if self.concat else self.out_dim

    def _heads_of(self, num_columns: int) -> int:
        return num_columns // self.head_dim if self.concat else self.heads

    def _head_range(self, columns: slice) -> slice:
        first = columns.start // self.head_dim if self.concat else 0
        return slice(first, first + self._heads_of(columns.stop - columns.start))

    def table_widths(self, num_columns: int) -> tuple[int, ...]:
        """The projection of each head, and both scores of all heads."""
        heads = self._heads_of(num_columns)
        return (*(self.head_dim,) * heads, heads, heads)

    def project(self, x: torch.Tensor, degree: torch.Tensor, columns: slice) -> Table:  # noqa: ARG002 - a softmax needs no degree
        """Return the projection of ``x`` (n, in_dim) for each head, then the scores.

        Parameters
        ----------
        x, degree, columns : as for `Propagation.project`
        """
        heads = self._head_range(columns)
        weights = self.lin.weight.view(self.heads, self.head_dim, self.in_dim)[heads]
        values = functional.linear(x, weights.flatten(0, 1)).view(len(x), -1, self.head_dim)
        scores = [(values * attention[:, heads]).sum(2) for attention in (self.att_src, self.att_dst)]
        return (*values.unbind(1), *scores)

    own_widths = no_own_widths
    project_own = no_own_terms

    def propagate(self, table: Table, own: Table, part: Part, columns: slice) -> torch.Tensor:  # noqa: ARG002 - no terms of their own
        """Return the attention over all in-edges; the softmax is carried from piece to piece.

        Parameters
        ----------
        table, own, part, columns : as for `Propagation.propagate`
        """
        *values, scores_src, scores_dst = table
        nodes = part.nodes
        scores_dst = scores_dst[nodes]
        heads = self._head_range(columns)
        # The score of a loop that knows features is there when all edges were seen: such a loop comes last.
        loop_comes_last = self.add_self_loops and self.edge_dim > 0
        loop_terms = torch.zeros_like(scores_dst)
        if self.add_self_loops and not loop_comes_last:
            top = functional.leaky_relu(scores_src[nodes] + scores_dst, NEGATIVE_SLOPE)
            total = torch.ones_like(top)
            sums = [value[nodes] for value in values]
        else:
            top = torch.full_like(scores_dst, torch.finfo(scores_dst.dtype).min)
            total = torch.zeros_like(top)
            sums = [value.new_zeros(len(nodes), self.head_dim) for value in values]
        # A softmax in pieces: when a piece has a larger score, what was added up before is scaled down to it.
        for edges in part.pieces:
            terms = self._edge_scores(edges.wanted_features, heads) if self.edge_dim else None
            if loop_comes_last and terms is not None:
                loop_terms += reduce_edges(terms, edges, by="sum")
            scores = edge_scores(scores_src, scores_dst, (edges.indices, edges.dst), terms)
            before, top = top, torch.maximum(top, reduce_edges(scores, edges, by="max"))
            decay = (before - top).exp_()
            powers = scores.sub_(top.index_select(0, edges.dst)).exp_()
            total = (total * decay).add_(reduce_edges(powers, edges, by="sum"))
            # Head by head: a piece of edges is as large as memory allows, and all heads at once would take it again.
            for head, value in enumerate(values):
                found = sum_neighbors(value, edges, powers[:, head].contiguous())
                sums[head] = found.addcmul_(sums[head], decay[:, head, None])
        if loop_comes_last:
            loop_terms /= part.degree.clamp(min=1.0).unsqueeze(1)
            loops = functional.leaky_relu(scores_src[nodes] + scores_dst + loop_terms, NEGATIVE_SLOPE)
            before, top = top, torch.maximum(top, loops)
            decay, powers = (before - top).exp_(), loops.sub_(top).exp_()
            total = (total * decay).add_(powers)
            for head, value in enumerate(values):
                sums[head] = (value[nodes] * powers[:, head, None]).addcmul_(sums[head], decay[:, head, None])
        total = total.clamp(min=torch.finfo(total.dtype).tiny)
        return self._join(torch.stack(sums) / total.t().unsqueeze(2)) + self.bias[columns]


def glorot(weight: torch.Tensor) -> None:
    """Fill as PyG does, from the last two dimensions."""
    bound = (6.0 / (weight.shape[-2] + weight.shape[-1])) ** 0.5
    nn.init.uniform_(weight, -bound, bound)


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
        self.edge_dim = 0
        self.edge_floats = 0
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

    def project(self, x: torch.Tensor, degree: torch.Tensor, columns: slice) -> Table:  # noqa: ARG002 - as of `GatConv`
        """Return the projection of ``x`` (n, in_dim) for each head, then the scores.

        Parameters
        ----------
        x, degree, columns : as for `Propagation.project`
        """
        heads = self._heads_of(columns)
        values = functional.linear(x, self.lin_src.weight[columns]).view(len(x), -1, self.head_dim)
        return (*values.unbind(1), self._scores(x, self.lin_src, self.att_src, heads))

    def own_widths(self, num_columns: int) -> tuple[int, ...]:
        """The destination's scores."""
        return (num_columns // self.head_dim,)

    def project_own(self, x: torch.Tensor, columns: slice) -> Table:
        """Return the scores of ``x`` (n, own_dim).

        Parameters
        ----------
        x, columns : as for `Propagation.project_own`
        """
        return (self._scores(x, self.lin_dst, self.att_dst, self._heads_of(columns)),)

    def propagate(self, table: Table, own: Table, part: Part, columns: slice) -> torch.Tensor:
        """Return the attention over all in-edges; the softmax is carried from piece to piece.

        Parameters
        ----------
        table, own, part, columns : as for `Propagation.propagate`
        """
        *values, scores_src = table
        (scores_dst,) = own
        top = torch.full_like(scores_dst, torch.finfo(scores_dst.dtype).min)
        total = torch.zeros_like(top)
        sums = torch.zeros(len(values), len(top), self.head_dim, dtype=top.dtype, device=top.device)
        # A softmax in pieces: when a piece has a larger score, what was added up before is scaled down to it.
        for edges in part.pieces:
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
