"""GraphSAGE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from gloader.bridges.dgl_api.common import expand_as_pair
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.bridges.dgl_api.block import Block
    from gloader.bridges.dgl_api.common import Features
    from gloader.bridges.dgl_api.edge_list import EdgeList


_AGGREGATORS: Final = ("mean", "gcn", "pool", "lstm")


@near_keywords
class SAGEConv(nn.Module):
    """``W_self x + W_neigh aggregate(x_neighbours)`` (Hamilton et al., 2017); parameters as of DGL's.

    Parameters
    ----------
    in_feats : width of the rows, or of those of sources and destinations
    out_feats : width of the result
    aggregator_type : "mean", "gcn" (the node itself is one more neighbour), "pool" or "lstm"
    feat_drop : share of the values that dropout takes
    bias : add one
    norm, activation : functions of the result, the activation first

    Raises
    ------
    ConfigError
        The aggregator is unknown.
    """

    bias: nn.Parameter | None  # of "gcn" alone

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
        # In the order of DGL's, so that one seed of torch gives both the same weights.
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

    def forward(self, graph: Block, feat: Features, edge_weight: torch.Tensor | None = None) -> torch.Tensor:
        """Return (D, out_feats).

        Parameters
        ----------
        graph : a block of one relation
        feat : (U, in_feats), or that and (D, in_feats) of the destinations
        edge_weight : (E,) of each message; None: 1
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
        # Linear: the weights come first where that makes rows shorter.
        is_first = self._src_feats > self._out_feats
        if is_first:
            src, dst = self.fc_neigh(src), self.fc_neigh(dst)
        result = (edges.weighted_sum(src, weight) + dst) / (edges.in_degrees.to(dst) + 1).unsqueeze(1)
        if not is_first:
            result = self.fc_neigh(result)
        return result if self.bias is None else result + self.bias

    def _neighbors(self, edges: EdgeList, src: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        """Return W_neigh of the neighbours of each destination, (D, out_feats)."""
        found: torch.Tensor
        if self._aggregator == "mean":
            if self._src_feats > self._out_feats:
                found = edges.mean_of(edges.weighted_sum(self.fc_neigh(src), weight))
            else:
                found = self.fc_neigh(edges.mean_of(edges.weighted_sum(src, weight)))
            return found
        rows = torch.relu(self.fc_pool(src)) if self._aggregator == "pool" else src
        messages = rows.index_select(0, edges.src)
        if weight is not None:
            messages = messages * weight.view(-1, 1)
        found = self.fc_neigh(
            edges.reduce(messages, "max") if self._aggregator == "pool" else self._last(edges, messages)
        )
        return found

    def _last(self, edges: EdgeList, messages: torch.Tensor) -> torch.Tensor:
        """Return the last state of the LSTM over the messages of each destination; 0 of none."""
        result = messages.new_zeros(edges.num_dst, messages.shape[1])
        if not edges.num_edges:
            return result
        lists, reached = edges.in_neighbor_lists(messages)
        lengths = edges.in_degrees[reached].cpu()
        packed = nn.utils.rnn.pack_padded_sequence(lists, lengths, batch_first=True, enforce_sorted=False)
        _, (state, _) = self.lstm(packed)
        return result.index_copy(0, reached, state[0])
