"""Graph attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gloader.models.adjacency import Adjacency
from gloader.models.aggregate import sum_neighbors
from gloader.models.conv import multiplies_first

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gloader.models.conv import Table
    from gloader.types import DeviceBlock

_NEGATIVE_SLOPE = 0.2


class GatConv(nn.Module):
    """Attention over the neighbours; the parameters of PyG's ``GATConv`` (Velickovic et al., 2018).

    An edge with an importance weight w counts as w edges in the softmax: both of its sums are then estimates
    without bias of those over all neighbours (their ratio is a consistent one).

    Parameters
    ----------
    in_dim, out_dim : F and H; with ``concat`` a head has H / heads columns, else each has H and the heads
        are averaged
    heads : number of heads
    concat : whether the heads are laid side by side or averaged
    add_self_loops : a node also attends to itself, which is never left to sampling
    """

    def __init__(
        self, in_dim: int, out_dim: int, *, heads: int, concat: bool, add_self_loops: bool = True
    ) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.heads = heads
        self.concat = concat
        self.add_self_loops = add_self_loops
        self.head_dim = out_dim // heads if concat else out_dim
        self.lin = nn.Linear(in_dim, heads * self.head_dim, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, self.head_dim))
        self.att_dst = nn.Parameter(torch.empty(1, heads, self.head_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim))
        for weight in (self.lin.weight, self.att_src, self.att_dst):
            _glorot(weight)

    def forward(self, x: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
        """Return (D, out_dim) for ``x`` (U, in_dim)."""
        edges = Adjacency.of_block(block)
        weights = self._head_weights(slice(0, self.heads))
        attention, own = self._attend(*self._scores(x, block.num_dst, weights), edges, block.edge_weight)
        project_first = multiplies_first(
            num_src=block.num_src,
            num_dst=block.num_dst,
            num_edges=edges.num_edges,
            in_dim=self.in_dim,
            out_dim=self.heads * self.head_dim,
            input_has_grad=x.requires_grad,
            num_heads=self.heads,
        )
        x = _as_autocast(x) if project_first else x
        results = []
        for head, weight in enumerate(weights):
            values = functional.linear(x, weight) if project_first else x
            total = sum_neighbors(values, edges, attention[:, head].contiguous())
            if self.add_self_loops:
                total = total + values[: block.num_dst] * own[:, head, None]
            results.append(total if project_first else functional.linear(total, weight))
        return self._join(results) + self.bias

    def _head_weights(self, heads: slice) -> tuple[torch.Tensor, ...]:
        """Return the (head_dim, in_dim) projection of each head."""
        return self.lin.weight.view(self.heads, self.head_dim, self.in_dim)[heads].unbind()

    def _scores(
        self, x: torch.Tensor, num_dst: int, weights: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the scores of sources (U, heads) and destinations (D, heads), in the precision of the parameters.

        Autocast is off: a relative error e of a score s is one of e s in the attention.
        """
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.att_src.dtype)
            scores_src = x @ self._score_weight(self.att_src, weights)
            return scores_src, x[:num_dst] @ self._score_weight(self.att_dst, weights)

    def _score_weight(self, attention: torch.Tensor, weights: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Return (in_dim, heads): what maps an input row to its scores without projecting it."""
        return torch.stack([a @ w for a, w in zip(attention[0], weights, strict=True)], dim=1)

    def _attend(
        self,
        scores_src: torch.Tensor,
        scores_dst: torch.Tensor,
        edges: Adjacency,
        importance: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the softmax over in-edges and self loop: (E, heads) and (D, heads)."""
        dst = edges.dst
        scores = functional.leaky_relu(scores_src[edges.indices] + scores_dst[dst], _NEGATIVE_SLOPE)
        # An edge that stands for w edges is w equal terms of the sum: w exp(s) = exp(s + log w).
        if importance is not None:
            scores = scores + importance.log().unsqueeze(1)
        own = functional.leaky_relu(scores_src[: edges.num_dst] + scores_dst, _NEGATIVE_SLOPE)
        start = own if self.add_self_loops else torch.full_like(own, -torch.inf)
        # Scores are shifted by their maximum, so that no exponential overflows. The shift cancels out of the softmax,
        # and so does its gradient.
        top = _segment_max(start.detach(), dst, scores.detach())
        exp = (scores - top[dst]).exp()
        exp_own = (own - top).exp() if self.add_self_loops else torch.zeros_like(own)
        # Without edges and self loop the sum is zero; the smallest normal number makes that 0 / tiny = 0, not NaN.
        total = exp_own.index_add(0, dst, exp).clamp(min=torch.finfo(exp.dtype).tiny)
        return exp / total[dst], exp_own / total

    def _join(self, results: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(results, dim=1) if self.concat else torch.stack(results).mean(dim=0)

    @property
    def column_step(self) -> int:
        """One head if they are concatenated, all columns if they are averaged."""
        return self.head_dim if self.concat else self.out_dim

    def _heads_of(self, num_columns: int) -> int:
        return num_columns // self.head_dim if self.concat else self.heads

    def table_widths(self, num_columns: int) -> tuple[int, ...]:
        """The projection of each head, and both scores of all heads."""
        heads = self._heads_of(num_columns)
        return (*(self.head_dim,) * heads, heads, heads)

    def project(self, x: torch.Tensor, degree: torch.Tensor, columns: slice) -> Table:  # noqa: ARG002 - a softmax needs no degree
        """Return the projection of ``x`` (n, in_dim) for each head, then the scores.

        Parameters
        ----------
        x, degree, columns : as for `Conv.project`
        """
        first = columns.start // self.head_dim
        heads = slice(first, first + self._heads_of(columns.stop - columns.start))
        values = [functional.linear(x, weight) for weight in self._head_weights(heads)]
        pairs = (self.att_src[0, heads], self.att_dst[0, heads])
        scores = [
            torch.stack([v @ a for v, a in zip(values, attention, strict=True)], dim=1) for attention in pairs
        ]
        return (*values, *scores)

    def propagate(
        self,
        table: Table,
        nodes: torch.Tensor,
        pieces: Iterable[Adjacency],
        degree: torch.Tensor,  # noqa: ARG002 - a softmax needs no degree
        columns: slice,
    ) -> torch.Tensor:
        """Return the attention over all in-edges; the softmax is carried from piece to piece.

        Parameters
        ----------
        table, nodes, pieces, degree, columns : as for `Conv.propagate`
        """
        *values, scores_src, scores_dst = table
        scores_dst = scores_dst[nodes]
        if self.add_self_loops:
            top = functional.leaky_relu(scores_src[nodes] + scores_dst, _NEGATIVE_SLOPE)
            total = torch.ones_like(top)
            sums = [value[nodes] for value in values]
        else:
            top = torch.full_like(scores_dst, torch.finfo(scores_dst.dtype).min)
            total = torch.zeros_like(top)
            sums = [value.new_zeros(len(nodes), self.head_dim) for value in values]
        # A softmax in pieces: when a piece has a larger score, what was added up before is scaled down to it.
        for edges in pieces:
            dst = edges.dst
            scores = functional.leaky_relu(scores_src[edges.indices] + scores_dst[dst], _NEGATIVE_SLOPE)
            before, top = top, _segment_max(top, dst, scores)
            decay = (before - top).exp()
            exp = (scores - top[dst]).exp()
            total = (total * decay).index_add(0, dst, exp)
            sums = [
                s * decay[:, head, None] + sum_neighbors(value, edges, exp[:, head].contiguous())
                for head, (s, value) in enumerate(zip(sums, values, strict=True))
            ]
        total = total.clamp(min=torch.finfo(total.dtype).tiny)
        return self._join([s / total[:, head, None] for head, s in enumerate(sums)]) + self.bias[columns]


def _as_autocast(x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` as autocast multiplies it, once for all heads; the product of each head would make its own copy."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


def _segment_max(start: torch.Tensor, dst: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Return the largest of ``start`` (D, heads) and of the ``scores`` (E, heads) into each destination."""
    index = dst.long().unsqueeze(1).expand_as(scores)
    return start.scatter_reduce(0, index, scores, reduce="amax", include_self=True)


def _glorot(weight: torch.Tensor) -> None:
    """Fill as PyG does, from the last two dimensions."""
    bound = (6.0 / (weight.shape[-2] + weight.shape[-1])) ** 0.5
    nn.init.uniform_(weight, -bound, bound)
