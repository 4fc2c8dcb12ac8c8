"""DGL's layers over one relation, without DGL: GCN, GraphSAGE, GAT, GATv2, and the softmax over in-edges.

Each layer has the same parameters as DGL's layer, so that a checkpoint of either library loads into the other. A layer
takes a `DGLBlock` with one relation (edge type). Shapes: U sources, D destinations and E edges of the block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import nn

from gloader.bridges.dgl_api.names import missing
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError, GraphError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.bridges.dgl_api.block import DGLBlock
    from gloader.bridges.dgl_api.edge_list import EdgeList


# Source rows, or a pair of source rows and destination rows.
Features: TypeAlias = "torch.Tensor | tuple[torch.Tensor, torch.Tensor]"


def expand_as_pair(input_: Any, g: DGLBlock | None = None) -> tuple[Any, Any]:
    """Return one input for the sources and one for the destinations. A pair is returned unchanged. Pure.

    Any other input serves for both. With a block ``g``, the destinations get only the input's first rows, because the
    destinations are the first sources.

    Parameters
    ----------
    input_ : a pair; or a width, rows, or a mapping from types to rows
    g : a block; with None or a graph, both sides have the same rows
    """
    if isinstance(input_, tuple):
        return input_
    if g is None or not g.is_block:
        return input_, input_
    if isinstance(input_, Mapping):
        return input_, {name: rows[: g.num_dst_nodes(name)] for name, rows in input_.items()}
    return input_, input_[: g.num_dst_nodes()]


def require_in_edges(block: DGLBlock) -> None:
    """Refuse destinations without in-edges: a layer would return only its bias for them.

    Raises
    ------
    GraphError
        There are such destinations.
    """
    num_bare = int((block.in_degrees() == 0).sum())
    if num_bare:
        raise GraphError(
            f"{num_bare} of {block.num_dst_nodes()} destinations have no in-edges: prepare the dataset with "
            "--self-loops, or build the layer with allow_zero_in_degree=True: their result is then only the bias"
        )


@near_keywords
def edge_softmax(
    graph: DGLBlock, logits: torch.Tensor, eids: Any = "__ALL__", norm_by: str = "dst"
) -> torch.Tensor:
    """Return the softmax of ``logits`` (E, ...) over the in-edges of each destination.

    Parameters
    ----------
    graph : a block of one relation
    logits : one value, or several, per edge
    eids : only "__ALL__"
    norm_by : only "dst"

    Raises
    ------
    DglFeatureError
        Some of the edges, or a softmax over out-edges, are requested.
    """
    if not isinstance(eids, str) or norm_by != "dst":
        raise missing("edge_softmax(eids=..., norm_by=...)", "it is over all in-edges of each destination")
    return graph.edge_list().softmax(logits)


_NORMS: Final = ("none", "both", "right", "left")  # see `GraphConv`


@near_keywords
class GraphConv(nn.Module):
    """``W^T sum(x_neighbours) + b``, normalised by the block's degrees (Kipf and Welling, 2017); parameters as in DGL.

    Parameters
    ----------
    in_feats, out_feats : widths of the rows and of the result
    norm : the divisor: "both" for the square roots of both degrees, "right" for the in-degree, "left" for the source's
        out-degree, "none" for no division
    weight, bias : whether the layer has a weight and a bias
    activation : applied to the result
    allow_zero_in_degree : accept destinations without in-edges

    Raises
    ------
    ConfigError
        ``norm`` is unknown.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        in_feats: int,
        out_feats: int,
        norm: str = "both",
        weight: bool = True,
        bias: bool = True,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        allow_zero_in_degree: bool = False,
    ) -> None:
        super().__init__()
        if norm not in _NORMS:
            raise ConfigError(f"norm={norm!r}: choose one of {', '.join(_NORMS)}")
        self._in_feats = in_feats
        self._out_feats = out_feats
        self._norm = norm
        self._allow_zero_in_degree = allow_zero_in_degree
        self.register_parameter("weight", nn.Parameter(torch.empty(in_feats, out_feats)) if weight else None)
        self.register_parameter("bias", nn.Parameter(torch.empty(out_feats)) if bias else None)
        self.reset_parameters()
        self._activation = activation

    def reset_parameters(self) -> None:
        """Draw the weights anew (Glorot and Bengio, 2010); the bias is 0."""
        if self.weight is not None:
            nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Accept destinations without in-edges, or refuse them."""
        self._allow_zero_in_degree = set_value

    def forward(
        self,
        graph: DGLBlock,
        feat: Features,
        weight: torch.Tensor | None = None,
        edge_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return (D, out_feats).

        Parameters
        ----------
        graph : a block of one relation
        feat : (U, in_feats) source rows, or a pair of source and destination rows
        weight : (in_feats, out_feats), for a layer without its own weight
        edge_weight : (E,) factor of each message; None means 1

        Raises
        ------
        GraphError
            Destinations have no in-edges.
        ConfigError
            The layer has its own weight, and a second one is given.
        """
        if not self._allow_zero_in_degree:
            require_in_edges(graph)
        if weight is not None and self.weight is not None:
            raise ConfigError(
                "the layer already has a weight; build it with weight=False to pass a weight to forward"
            )
        weight = self.weight if weight is None else weight
        edges = graph.edge_list()
        rows, _ = expand_as_pair(feat, graph)
        if self._norm in ("left", "both"):
            rows = rows * self._factor(edges.out_degrees, rows)
        # Sum and product are linear, so their order is free: the product comes first if it shortens the rows.
        is_product_first = self._in_feats > self._out_feats
        if weight is not None and is_product_first:
            rows = rows @ weight
        if edge_weight is not None:
            edge_weight = edge_weight.flatten()
        result = edges.weighted_sum(rows, edge_weight)
        if weight is not None and not is_product_first:
            result = result @ weight
        if self._norm in ("right", "both"):
            result = result * self._factor(edges.in_degrees, result)
        if self.bias is not None:
            result = result + self.bias
        return result if self._activation is None else self._activation(result)

    def _factor(self, degrees: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the factor for each of ``rows``, from its node's degree; a degree of 0 counts as 1."""
        factor = degrees.to(rows).clamp(min=1).pow(-0.5 if self._norm == "both" else -1.0)
        return factor.view(-1, *(1,) * (rows.dim() - 1))


_AGGREGATORS: Final = ("mean", "gcn", "pool", "lstm")


@near_keywords
class SAGEConv(nn.Module):
    """``W_self x + W_neigh aggregate(x_neighbours)`` (Hamilton et al., 2017); parameters as in DGL.

    Parameters
    ----------
    in_feats : width of the rows, or a pair for sources and destinations
    out_feats : width of the result
    aggregator_type : "mean", "gcn" (the mean with the node itself as one more neighbour), "pool" (the maximum of
        transformed rows) or "lstm" (the last state of an LSTM over the neighbours)
    feat_drop : dropout rate of the rows
    bias : whether the layer has a bias
    norm, activation : applied to the result, the activation first

    Raises
    ------
    ConfigError
        The aggregator is unknown.
    """

    bias: nn.Parameter | None  # only for "gcn"

    def __init__(
        self,
        in_feats: int | tuple[int, int],
        out_feats: int,
        aggregator_type: str,
        feat_drop: float = 0.0,
        bias: bool = True,
        norm: Callable[[torch.Tensor], torch.Tensor] | None = None,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        if aggregator_type not in _AGGREGATORS:
            raise ConfigError(f"aggregator_type={aggregator_type!r}: choose one of {', '.join(_AGGREGATORS)}")
        self._src_feats, dst_feats = expand_as_pair(in_feats)
        self._out_feats = out_feats
        self._aggregator = aggregator_type
        self.norm = norm
        self.feat_drop = nn.Dropout(feat_drop)
        self.activation = activation
        # The modules are made in DGL's order, so that DGL and gloader draw the same weights from one torch seed.
        if aggregator_type == "pool":
            self.fc_pool = nn.Linear(self._src_feats, self._src_feats)
        if aggregator_type == "lstm":
            self.lstm = nn.LSTM(self._src_feats, self._src_feats, batch_first=True)
        self.fc_neigh = nn.Linear(self._src_feats, out_feats, bias=False)
        if aggregator_type != "gcn":
            self.fc_self = nn.Linear(dst_feats, out_feats, bias=bias)
        else:
            self.register_parameter("bias", nn.Parameter(torch.zeros(out_feats)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew (Glorot and Bengio, 2010)."""
        gain = nn.init.calculate_gain("relu")
        if self._aggregator == "pool":
            nn.init.xavier_uniform_(self.fc_pool.weight, gain=gain)
        if self._aggregator == "lstm":
            self.lstm.reset_parameters()
        if self._aggregator != "gcn":
            nn.init.xavier_uniform_(self.fc_self.weight, gain=gain)
        nn.init.xavier_uniform_(self.fc_neigh.weight, gain=gain)

    def forward(
        self, graph: DGLBlock, feat: Features, edge_weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return (D, out_feats).

        Parameters
        ----------
        graph : a block of one relation
        feat : (U, in_feats) source rows, or a pair with the destination rows (D, in_feats)
        edge_weight : (E,) factor of each message; None means 1
        """
        if isinstance(feat, tuple):
            src, dst = self.feat_drop(feat[0]), self.feat_drop(feat[1])
        else:
            src, dst = expand_as_pair(self.feat_drop(feat), graph)
        edges = graph.edge_list()
        if self._aggregator == "gcn":
            result = self._gcn(edges, src, dst, edge_weight)
        else:
            result = self.fc_self(dst) + self._neighbors(edges, src, edge_weight)
        if self.activation is not None:
            result = self.activation(result)
        return result if self.norm is None else self.norm(result)

    def _gcn(
        self, edges: EdgeList, src: torch.Tensor, dst: torch.Tensor, weight: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the mean over neighbours and node, times the weight, plus the bias: (D, out_feats)."""
        # Sum and product are linear, so their order is free: the product comes first if it shortens the rows.
        is_product_first = self._src_feats > self._out_feats
        if is_product_first:
            src, dst = self.fc_neigh(src), self.fc_neigh(dst)
        result = (edges.weighted_sum(src, weight) + dst) / (edges.in_degrees.to(dst) + 1).unsqueeze(1)
        if not is_product_first:
            result = self.fc_neigh(result)
        return result if self.bias is None else result + self.bias

    def _neighbors(self, edges: EdgeList, src: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """Return ``W_neigh aggregate(x_neighbours)``, (D, out_feats)."""
        result: torch.Tensor
        if self._aggregator == "mean":
            if self._src_feats > self._out_feats:
                result = edges.mean_of(edges.weighted_sum(self.fc_neigh(src), weight))
            else:
                result = self.fc_neigh(edges.mean_of(edges.weighted_sum(src, weight)))
            return result
        rows = torch.relu(self.fc_pool(src)) if self._aggregator == "pool" else src
        messages = rows.index_select(0, edges.src)
        if weight is not None:
            messages = messages * weight.view(-1, 1)
        result = self.fc_neigh(
            edges.reduce(messages, "max") if self._aggregator == "pool" else self._last(edges, messages)
        )
        return result

    def _last(self, edges: EdgeList, messages: torch.Tensor) -> torch.Tensor:
        """Return the LSTM's last state over each destination's messages; 0 without messages."""
        result = messages.new_zeros(edges.num_dst, messages.shape[1])
        if not edges.num_edges:
            return result
        lists, reached = edges.in_neighbor_lists(messages)
        lengths = edges.in_degrees[reached].cpu()
        packed = nn.utils.rnn.pack_padded_sequence(lists, lengths, batch_first=True, enforce_sorted=False)
        _, (state, _) = self.lstm(packed)
        return result.index_copy(0, reached, state[0])


class _AttentionLayer(nn.Module):
    """The common part of both attention layers: heads, dropout and the residual. Parameters as in `GATConv`."""

    def __init__(
        self,
        out_feats: int,
        num_heads: int,
        *,
        feat_drop: float,
        attn_drop: float,
        negative_slope: float,
        activation: Callable[[torch.Tensor], torch.Tensor] | None,
        allow_zero_in_degree: bool,
    ) -> None:
        super().__init__()
        self._num_heads = num_heads
        self._out_feats = out_feats
        self._allow_zero_in_degree = allow_zero_in_degree
        self.feat_drop = nn.Dropout(feat_drop)
        self.attn_drop = nn.Dropout(attn_drop)
        self.leaky_relu = nn.LeakyReLU(negative_slope)
        self.activation = activation

    def set_allow_zero_in_degree(self, set_value: bool) -> None:
        """Accept destinations without in-edges, or refuse them."""
        self._allow_zero_in_degree = set_value

    def _by_head(self, rows: torch.Tensor) -> torch.Tensor:
        """Return ``rows`` (n, num_heads * out_feats) as (n, num_heads, out_feats)."""
        return rows.view(len(rows), self._num_heads, self._out_feats)

    def _dropped(self, feat: Features, block: DGLBlock) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the source rows and the destination rows after dropout.

        Without separate destination rows, both get the same dropout mask. Raises GraphError for destinations without
        in-edges, if the layer does not allow them.
        """
        if not self._allow_zero_in_degree:
            require_in_edges(block)
        if isinstance(feat, tuple):
            return self.feat_drop(feat[0]), self.feat_drop(feat[1])
        return expand_as_pair(self.feat_drop(feat), block)

    def _residual(self, in_feats: int, *, bias: bool) -> nn.Module:
        """Return the projection of the destination rows for the residual sum."""
        out_feats = self._num_heads * self._out_feats
        return nn.Identity() if in_feats == out_feats else nn.Linear(in_feats, out_feats, bias=bias)

    def _reset_residual(self, gain: float) -> None:
        """Draw the residual's weights anew, if it has weights."""
        if isinstance(self.res_fc, nn.Linear):
            nn.init.xavier_normal_(self.res_fc.weight, gain=gain)
            if self.res_fc.bias is not None:
                nn.init.zeros_(self.res_fc.bias)

    def _result(self, total: torch.Tensor, weights: torch.Tensor, *, get_attention: bool) -> Any:
        """Return ``total`` after the activation, with ``get_attention`` also the attention ``weights``."""
        result = total if self.activation is None else self.activation(total)
        return (result, weights) if get_attention else result


@near_keywords
class GATConv(_AttentionLayer):
    """Attention over the neighbours (Velickovic et al., 2018); parameters as in DGL.

    An edge's score is ``a_l . W x_source + a_r . W x_destination``, after a leaky ReLU. The softmax of the scores over
    a destination's in-edges is the attention, by which the source rows are summed.

    Parameters
    ----------
    in_feats : width of the rows, or a pair for sources and destinations
    out_feats : width of each head's result
    num_heads : number of heads
    feat_drop, attn_drop : dropout rates of the rows and of the attention
    negative_slope : slope of the leaky ReLU for negative values
    residual : add the destination's own row, projected if its width differs from the result's
    activation : applied to the result
    allow_zero_in_degree : accept destinations without in-edges
    bias : whether the layer has a bias
    """

    bias: nn.Parameter | None
    res_fc: nn.Module | None

    def __init__(  # noqa: PLR0913 - as of DGL
        self,
        in_feats: int | tuple[int, int],
        out_feats: int,
        num_heads: int,
        feat_drop: float = 0.0,
        attn_drop: float = 0.0,
        negative_slope: float = 0.2,
        residual: bool = False,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        allow_zero_in_degree: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__(
            out_feats,
            num_heads,
            feat_drop=feat_drop,
            attn_drop=attn_drop,
            negative_slope=negative_slope,
            activation=activation,
            allow_zero_in_degree=allow_zero_in_degree,
        )
        src_feats, dst_feats = expand_as_pair(in_feats)
        width = out_feats * num_heads
        # The modules are made in DGL's order, so that DGL and gloader draw the same weights from one torch seed.
        if isinstance(in_feats, tuple):
            self.fc_src = nn.Linear(src_feats, width, bias=False)
            self.fc_dst = nn.Linear(dst_feats, width, bias=False)
        else:
            self.fc = nn.Linear(src_feats, width, bias=False)
        self.attn_l = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.attn_r = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.register_module("res_fc", self._residual(dst_feats, bias=bias) if residual else None)
        has_bias = bias and not isinstance(self.res_fc, nn.Linear)
        self.register_parameter("bias", nn.Parameter(torch.empty(width)) if has_bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew (Glorot and Bengio, 2010); biases are 0."""
        gain = nn.init.calculate_gain("relu")
        for layer in (self.fc_src, self.fc_dst) if hasattr(self, "fc_src") else (self.fc,):
            nn.init.xavier_normal_(layer.weight, gain=gain)
        nn.init.xavier_normal_(self.attn_l, gain=gain)
        nn.init.xavier_normal_(self.attn_r, gain=gain)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        self._reset_residual(gain)

    def forward(
        self,
        graph: DGLBlock,
        feat: Features,
        edge_weight: torch.Tensor | None = None,
        get_attention: bool = False,
    ) -> Any:
        """Return (D, num_heads, out_feats), with ``get_attention`` also the attention (E, num_heads, 1).

        Parameters
        ----------
        graph : a block of one relation
        feat : (U, in_feats) source rows, or a pair with the destination rows (D, in_feats)
        edge_weight : (E,) factor of each edge's attention; None means 1
        get_attention : whether to return the attention too

        Raises
        ------
        GraphError
            Destinations have no in-edges.
        """
        src, dst = self._dropped(feat, graph)
        if hasattr(self, "fc_src"):
            src_rows, dst_rows = self._by_head(self.fc_src(src)), self._by_head(self.fc_dst(dst))
        else:
            src_rows = self._by_head(self.fc(src))
            # Unless given as a pair, the destination rows are the first source rows, which are projected already.
            is_pair = isinstance(feat, tuple)
            dst_rows = self._by_head(self.fc(dst)) if is_pair else src_rows[: len(dst)]
        edges = graph.edge_list()
        scores = (src_rows * self.attn_l).sum(-1, keepdim=True).index_select(0, edges.src)
        scores = scores + (dst_rows * self.attn_r).sum(-1, keepdim=True).index_select(0, edges.dst)
        weights = self.attn_drop(edges.softmax(self.leaky_relu(scores)))
        if edge_weight is not None:
            weights = weights * edge_weight.view(-1, 1, 1)
        total = edges.weighted_sum(src_rows, weights)
        if self.res_fc is not None:
            total = total + self._by_head(self.res_fc(dst))
        if self.bias is not None:
            total = total + self.bias.view(1, self._num_heads, self._out_feats)
        return self._result(total, weights, get_attention=get_attention)


@near_keywords
class GATv2Conv(_AttentionLayer):
    """Attention with scores from the sum of both projected rows (Brody et al., 2022); parameters as in DGL.

    An edge's score is ``a . leaky_relu(W_src x_source + W_dst x_destination)``.

    Parameters
    ----------
    bias : whether the projections have a bias
    share_weights : use one projection for sources and destinations
    others : as in `GATConv`
    """

    res_fc: nn.Module | None

    def __init__(  # noqa: PLR0913 - as of DGL
        self,
        in_feats: int | tuple[int, int],
        out_feats: int,
        num_heads: int,
        feat_drop: float = 0.0,
        attn_drop: float = 0.0,
        negative_slope: float = 0.2,
        residual: bool = False,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        allow_zero_in_degree: bool = False,
        bias: bool = True,
        share_weights: bool = False,
    ) -> None:
        super().__init__(
            out_feats,
            num_heads,
            feat_drop=feat_drop,
            attn_drop=attn_drop,
            negative_slope=negative_slope,
            activation=activation,
            allow_zero_in_degree=allow_zero_in_degree,
        )
        src_feats, dst_feats = expand_as_pair(in_feats)
        width = out_feats * num_heads
        # The modules are made in DGL's order, so that DGL and gloader draw the same weights from one torch seed.
        self.fc_src = nn.Linear(src_feats, width, bias=bias)
        is_shared = share_weights and not isinstance(in_feats, tuple)
        self.fc_dst = self.fc_src if is_shared else nn.Linear(dst_feats, width, bias=bias)
        self.attn = nn.Parameter(torch.empty(1, num_heads, out_feats))
        self.register_module("res_fc", self._residual(dst_feats, bias=bias) if residual else None)
        self.share_weights = share_weights
        self.bias = bias
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew (Glorot and Bengio, 2010); biases are 0."""
        gain = nn.init.calculate_gain("relu")
        for layer in (self.fc_src,) if self.share_weights else (self.fc_src, self.fc_dst):
            nn.init.xavier_normal_(layer.weight, gain=gain)
            if self.bias:
                nn.init.zeros_(layer.bias)
        nn.init.xavier_normal_(self.attn, gain=gain)
        self._reset_residual(gain)

    def forward(self, graph: DGLBlock, feat: Features, get_attention: bool = False) -> Any:
        """Return (D, num_heads, out_feats), with ``get_attention`` also the attention (E, num_heads, 1).

        Parameters
        ----------
        graph, feat, get_attention : as in `GATConv.forward`

        Raises
        ------
        GraphError
            Destinations have no in-edges.
        """
        src, dst = self._dropped(feat, graph)
        src_rows, dst_rows = self._by_head(self.fc_src(src)), self._by_head(self.fc_dst(dst))
        edges = graph.edge_list()
        rows = src_rows.index_select(0, edges.src) + dst_rows.index_select(0, edges.dst)
        scores = (self.leaky_relu(rows) * self.attn).sum(-1, keepdim=True)
        weights = self.attn_drop(edges.softmax(scores))
        total = edges.weighted_sum(src_rows, weights)
        if self.res_fc is not None:
            total = total + self._by_head(self.res_fc(dst))
        return self._result(total, weights, get_attention=get_attention)
