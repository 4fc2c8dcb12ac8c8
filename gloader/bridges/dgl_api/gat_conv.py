"""Graph attention, and its second version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gloader.bridges.dgl_api.common import expand_as_pair, require_in_edges
from gloader.core.near_names import near_keywords

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.bridges.dgl_api.block import Block
    from gloader.bridges.dgl_api.common import Features


class _Attention(nn.Module):
    """What both have: heads, dropout and what is added to the sums."""

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
        """Take destinations without in-edges, or refuse them."""
        self._allow_zero_in_degree = set_value

    def _by_head(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.view(len(rows), self._num_heads, self._out_feats)

    def _dropped(self, feat: Features, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rows of sources and destinations after dropout, once where they are the same."""
        if not self._allow_zero_in_degree:
            require_in_edges(block)
        if isinstance(feat, tuple):
            return self.feat_drop(feat[0]), self.feat_drop(feat[1])
        return expand_as_pair(self.feat_drop(feat), block)

    def _residual(self, in_feats: int, *, bias: bool) -> nn.Module:
        """Return what is done to the destination's row before it is added."""
        out_feats = self._num_heads * self._out_feats
        return nn.Identity() if in_feats == out_feats else nn.Linear(in_feats, out_feats, bias=bias)

    def _result(self, total: torch.Tensor, weights: torch.Tensor, *, get_attention: bool) -> Any:
        result = total if self.activation is None else self.activation(total)
        return (result, weights) if get_attention else result


@near_keywords
class GATConv(_Attention):
    """Attention over the neighbours (Velickovic et al., 2018); parameters as of DGL's.

    Parameters
    ----------
    in_feats : width of the rows, or of those of sources and destinations
    out_feats : width of the result of a head
    num_heads : heads
    feat_drop, attn_drop : shares of the rows' values and of the attention that dropout takes
    negative_slope : of the leaky ReLU
    residual : add the destination's own row
    activation : function of the result
    allow_zero_in_degree : take destinations without in-edges
    bias : add one
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
        # In the order of DGL's, so that one seed of torch gives both the same weights.
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
        if isinstance(self.res_fc, nn.Linear):
            nn.init.xavier_normal_(self.res_fc.weight, gain=gain)
            if self.res_fc.bias is not None:
                nn.init.zeros_(self.res_fc.bias)

    def forward(
        self,
        graph: Block,
        feat: Features,
        edge_weight: torch.Tensor | None = None,
        get_attention: bool = False,
    ) -> Any:
        """Return (D, num_heads, out_feats), with ``get_attention`` also the attention (E, num_heads, 1).

        Parameters
        ----------
        graph : a block of one relation
        feat : (U, in_feats), or that and (D, in_feats) of the destinations
        edge_weight : (E,) what the attention of each edge is multiplied by; None: 1
        get_attention : return it

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
            # The rows of the destinations are among those of the sources, unless they were given apart.
            is_apart = isinstance(feat, tuple)
            dst_rows = self._by_head(self.fc(dst)) if is_apart else src_rows[: len(dst)]
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
class GATv2Conv(_Attention):
    """Attention whose scores are a network of both rows (Brody et al., 2022); parameters as of DGL's.

    Parameters
    ----------
    bias : of the projections
    share_weights : sources and destinations have one projection
    others : as of `GATConv`
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
        # In the order of DGL's, so that one seed of torch gives both the same weights.
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
        if isinstance(self.res_fc, nn.Linear):
            nn.init.xavier_normal_(self.res_fc.weight, gain=gain)
            if self.bias:
                nn.init.zeros_(self.res_fc.bias)

    def forward(self, graph: Block, feat: Features, get_attention: bool = False) -> Any:
        """Return (D, num_heads, out_feats), with ``get_attention`` also the attention (E, num_heads, 1).

        Parameters
        ----------
        graph, feat, get_attention : as of `GATConv.forward`

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
