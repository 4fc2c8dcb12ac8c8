"""Graph attention, within a type (`GatConv`) and along a relation of two types (`RelationAttention`).

Both are convolutions of `gloader.models.conv.Conv`, and `gloader.models.build` makes them. Each head projects the rows
and has a score for each edge. The score is a sum of terms: one from the source, one from the destination, and one from
the edge's features if there are any. `gloader.models.attention` computes the weighted means. A loop is an edge from a
node to itself. `forward` computes a batch; inference calls `project`, then `propagate`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from gloader.models.adjacency import Adjacency
from gloader.models.attention import (
    NEGATIVE_SLOPE,
    RunningSoftmax,
    attend,
    attend_between,
    edge_scores,
    reduce_edges,
)
from gloader.models.conv import edge_features_of, no_own_terms, no_own_widths, projects_first

if TYPE_CHECKING:
    from gloader.models.adjacency import Part
    from gloader.models.conv import Table
    from gloader.types import DeviceBlock


class GatConv(nn.Module):
    """Attention over the neighbours, with the parameters of PyG's ``GATConv`` (Velickovic et al., 2018).

    Some samplers give each sampled edge an importance weight w, the number of full-graph edges that it represents. Such
    an edge counts as w edges in the softmax. Then the numerator and the denominator of the weighted mean are unbiased
    estimates of the sums over all neighbours. Their ratio is a consistent estimate.

    With edge features, the parameters are those of PyG's ``GATConv(edge_dim=...)``: each edge's features add a term to
    its score. A loop's term is the mean of the terms of the node's in-edges, estimated from the sampled edges.

    Parameters
    ----------
    in_dim, out_dim : F and H; with ``concat`` a head has H / heads columns, otherwise each head has H columns and
        the heads are averaged
    heads : number of heads
    concat : True concatenates the heads, False averages them
    add_self_loops : whether a node also attends to itself, in every sample
    edge_dim : edge feature width; 0 ignores edge features
    """

    row_floats = 0  # see `Conv`
    is_rowwise = False
    head = None  # no layers follow the sum, see `Conv.head`; not an attention head

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
        self.out_dim = self.sum_dim = out_dim
        self.edge_dim = edge_dim
        self.heads = heads
        self.concat = concat
        self.add_self_loops = add_self_loops
        self.head_dim = out_dim // heads if concat else out_dim  # columns of a head
        self.lin = nn.Linear(in_dim, heads * self.head_dim, bias=False)  # all heads' projections
        self.att_src = nn.Parameter(torch.empty(1, heads, self.head_dim))
        self.att_dst = nn.Parameter(torch.empty(1, heads, self.head_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim))
        _init(self.lin.weight, self.att_src, self.att_dst)
        if edge_dim:
            self.lin_edge = nn.Linear(edge_dim, heads * self.head_dim, bias=False)
            self.att_edge = nn.Parameter(torch.empty(1, heads, self.head_dim))
            _init(self.lin_edge.weight, self.att_edge)

    def forward(self, x_src: torch.Tensor, _x_dst: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
        """Return (D, out_dim) for ``x_src`` (U, in_dim), whose first D rows are the destinations.

        Raises
        ------
        ConfigError
            The layer reads edge features, and the block's are missing or have another width.
        """
        edges = Adjacency.of_block(block)
        weights = self.lin.weight.view(self.heads, self.head_dim, self.in_dim)
        scores = self._scores(x_src, weights)
        is_first = projects_first(
            x_src, block, in_dim=self.in_dim, out_dim=self.heads * self.head_dim, num_heads=self.heads
        )
        result = attend(
            self.lin(x_src).view(-1, self.heads, self.head_dim) if is_first else x_src,
            scores,
            edges,
            importance=block.edge_weight,
            has_loops=self.add_self_loops,
            edge_terms=self._edge_terms(block, edges) if self.edge_dim else None,
        )
        # The other order: the mean input row of each head, (heads, D, F), is projected afterwards.
        result = result if is_first else result @ weights.transpose(1, 2)
        return _join(result, concat=self.concat) + self.bias

    def _scores(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Return the source and destination scores (U, heads, 2), in the parameters' precision.

        Autocast is off. The softmax takes exp(s) of a score s: a relative error e of s changes the weight by the factor
        exp(e s), which is large for a large score in bfloat16.

        Parameters
        ----------
        x : (U, in_dim) rows
        weights : (heads, head_dim, in_dim) each head's projection
        """
        with torch.autocast(x.device.type, enabled=False):
            # Attention vectors times projection give one vector per score: a row's scores need no projected row.
            vectors = torch.cat((self.att_src, self.att_dst)).transpose(0, 1) @ weights
            scores = functional.linear(x.to(vectors.dtype), vectors.view(-1, self.in_dim))
        return scores.view(-1, self.heads, 2)

    def _edge_terms(self, block: DeviceBlock, edges: Adjacency) -> torch.Tensor:
        """Return each edge's score terms, (E, heads). With self loops the loops' terms follow, (E + D, heads)."""
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
        """Return the scores (E, heads) for ``features`` (E, edge_dim), in the parameters' precision."""
        return _scores_of(features, self.lin_edge, self.att_edge, heads)

    @property
    def edge_floats(self) -> int:
        """See `Conv.edge_floats`: each head's score from the edge's features, and its sum with the other terms."""
        return 2 * self.heads if self.edge_dim else 0

    @property
    def column_step(self) -> int:
        """See `Conv.column_step`: one head's columns if heads are concatenated, all columns if they are averaged."""
        return self.head_dim if self.concat else self.out_dim

    def _heads_of(self, columns: slice) -> slice:
        """Return the heads that compute these output columns."""
        return _heads_of(columns, self.head_dim) if self.concat else slice(0, self.heads)

    def table_widths(self, num_columns: int) -> tuple[int, ...]:
        """Return the widths: each head's projection, then all heads' source scores and destination scores."""
        heads = self._heads_of(slice(0, num_columns)).stop
        return (*(self.head_dim,) * heads, heads, heads)

    def project(self, x: torch.Tensor, _degree: torch.Tensor, columns: slice) -> Table:
        """Return each head's projection of ``x`` (n, in_dim), then the scores.

        Parameters
        ----------
        x, _degree, columns : see `Conv.project`
        """
        heads = self._heads_of(columns)
        weights = self.lin.weight.view(self.heads, self.head_dim, self.in_dim)[heads]
        values = functional.linear(x, weights.flatten(0, 1)).view(len(x), -1, self.head_dim)
        scores = [(values * attention[:, heads]).sum(2) for attention in (self.att_src, self.att_dst)]
        return (*values.unbind(1), *scores)

    own_widths = no_own_widths
    project_own = no_own_terms

    def propagate(self, table: Table, _own: Table, part: Part, columns: slice) -> torch.Tensor:
        """Return the attention over all in-edges.

        Parameters
        ----------
        table, _own, part, columns : see `Conv.propagate`
        """
        *values, scores_src, scores_dst = table  # ``values`` has one array (N, head_dim) per head
        nodes = part.nodes
        scores_dst = scores_dst[nodes]
        loops = scores_src[nodes] + scores_dst
        heads = self._heads_of(columns)
        softmax = RunningSoftmax(values, scores_dst)
        if self.add_self_loops and not self.edge_dim:
            softmax.add_loops(functional.leaky_relu(loops, NEGATIVE_SLOPE), nodes)
        loop_terms = torch.zeros_like(scores_dst)
        for edges in part.pieces:
            terms = self._edge_scores(edges.wanted_features, heads) if self.edge_dim else None
            if terms is not None and self.add_self_loops:
                loop_terms += reduce_edges(terms, edges, by="sum")
            softmax.add_edges(edge_scores(scores_src, scores_dst, (edges.indices, edges.dst), terms), edges)
        # With edge features, a loop's score needs the terms of all in-edges, so these loops come last.
        if self.add_self_loops and self.edge_dim:
            loop_terms /= part.degree.clamp(min=1.0).unsqueeze(1)
            softmax.add_loops(functional.leaky_relu(loops + loop_terms, NEGATIVE_SLOPE), nodes)
        return _join(softmax.rows(), concat=self.concat) + self.bias[columns]


def glorot(weight: torch.Tensor) -> None:
    """Initialise ``weight`` as PyG does, from its last two dimensions."""
    bound = (6.0 / (weight.shape[-2] + weight.shape[-1])) ** 0.5
    nn.init.uniform_(weight, -bound, bound)


def _init(*weights: torch.Tensor) -> None:
    """Initialise each of ``weights`` by `glorot`."""
    for weight in weights:
        glorot(weight)


def _heads_of(columns: slice, head_dim: int) -> slice:
    """Return the heads of these columns, with ``head_dim`` columns per head."""
    return slice(columns.start // head_dim, columns.stop // head_dim)


def _join(results: torch.Tensor, *, concat: bool = True) -> torch.Tensor:
    """Return (n, columns) from the ``results`` (heads, n, head_dim): the heads side by side, or their mean."""
    return results.transpose(0, 1).flatten(1) if concat else results.mean(dim=0)


def _scores_of(x: torch.Tensor, lin: nn.Linear, attention: torch.Tensor, heads: slice) -> torch.Tensor:
    """Return the scores (n, heads) of the rows ``x``, in the parameters' precision.

    Autocast is off, as in `GatConv._scores`.

    Parameters
    ----------
    x : (n, width) node or edge rows
    lin : projection of all heads, with a weight (heads * head_dim, width)
    attention : (1, heads, head_dim) attention vectors of all heads
    heads : the requested heads
    """
    with torch.autocast(x.device.type, enabled=False):
        # Attention vectors times projection, as in `GatConv._scores`.
        weights = lin.weight.view(*attention.shape[1:], -1)[heads]
        vectors = attention[:, heads].transpose(0, 1) @ weights
        return functional.linear(x.to(vectors.dtype), vectors.squeeze(1))


class RelationAttention(nn.Module):
    """Attention from destinations to sources with another type or the same type. Heads are concatenated.

    The parameters are those of PyG's ``GATConv((in_dim, own_dim), ..., add_self_loops=False)``. An edge with an
    importance weight w counts as w edges in the softmax.

    Parameters
    ----------
    in_dim, own_dim : source width and destination width
    out_dim : H; a head has H / heads columns
    heads : head count, a divisor of ``out_dim``
    """

    # See `Conv`.
    edge_dim = 0
    edge_floats = 0
    is_rowwise = False
    row_floats = 0
    head = None

    def __init__(self, in_dim: int, own_dim: int, out_dim: int, *, heads: int) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.out_dim = self.sum_dim = out_dim
        self.heads = heads
        self.head_dim = out_dim // heads  # columns of a head
        self.lin_src = nn.Linear(in_dim, out_dim, bias=False)
        self.lin_dst = nn.Linear(own_dim, out_dim, bias=False)
        self.att_src = nn.Parameter(torch.empty(1, heads, self.head_dim))
        self.att_dst = nn.Parameter(torch.empty(1, heads, self.head_dim))
        self.bias = nn.Parameter(torch.zeros(out_dim))
        _init(self.lin_src.weight, self.lin_dst.weight, self.att_src, self.att_dst)

    def forward(self, x_src: torch.Tensor, x_dst: torch.Tensor, block: DeviceBlock) -> torch.Tensor:
        """Return (D, out_dim) for sources ``x_src`` (U, in_dim) and destinations ``x_dst`` (D, own_dim)."""
        scores_src = _scores_of(x_src, self.lin_src, self.att_src, slice(None))
        scores_dst = _scores_of(x_dst, self.lin_dst, self.att_dst, slice(None))
        is_first = projects_first(
            x_src, block, in_dim=self.in_dim, out_dim=self.out_dim, num_heads=self.heads
        )
        rows = self.lin_src(x_src).view(-1, self.heads, self.head_dim) if is_first else x_src
        edges = Adjacency.of_block(block)
        result = attend_between(rows, scores_src, scores_dst, edges, importance=block.edge_weight)
        if not is_first:
            result = result @ self.lin_src.weight.view(self.heads, self.head_dim, -1).transpose(1, 2)
        return _join(result) + self.bias

    @property
    def column_step(self) -> int:
        """One head's columns."""
        return self.head_dim

    def table_widths(self, num_columns: int) -> tuple[int, ...]:
        """Return the widths: each head's projection, then all heads' source scores."""
        heads = num_columns // self.head_dim
        return (*(self.head_dim,) * heads, heads)

    def project(self, x: torch.Tensor, _degree: torch.Tensor, columns: slice) -> Table:
        """Return each head's projection of ``x`` (n, in_dim), then the scores.

        Parameters
        ----------
        x, _degree, columns : see `Conv.project`
        """
        heads = _heads_of(columns, self.head_dim)
        values = functional.linear(x, self.lin_src.weight[columns]).view(len(x), -1, self.head_dim)
        return (*values.unbind(1), _scores_of(x, self.lin_src, self.att_src, heads))

    def own_widths(self, num_columns: int) -> tuple[int, ...]:
        """Return the width of the destinations' scores: one score per head."""
        return (num_columns // self.head_dim,)

    def project_own(self, x: torch.Tensor, columns: slice) -> Table:
        """Return the destination scores of ``x`` (n, own_dim).

        Parameters
        ----------
        x, columns : see `Conv.project_own`
        """
        return (_scores_of(x, self.lin_dst, self.att_dst, _heads_of(columns, self.head_dim)),)

    def propagate(self, table: Table, own: Table, part: Part, columns: slice) -> torch.Tensor:
        """Return the attention over all in-edges.

        Parameters
        ----------
        table, own, part, columns : see `Conv.propagate`
        """
        *values, scores_src = table
        (scores_dst,) = own
        softmax = RunningSoftmax(values, scores_dst)
        for edges in part.pieces:
            softmax.add_edges(edge_scores(scores_src, scores_dst, (edges.indices, edges.dst)), edges)
        return _join(softmax.rows()) + self.bias[columns]
