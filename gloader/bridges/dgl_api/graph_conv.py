"""The layer of GCN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from gloader.bridges.dgl_api.common import expand_as_pair, require_in_edges
from gloader.core.near_names import near_keywords
from gloader.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gloader.bridges.dgl_api.block import Block
    from gloader.bridges.dgl_api.common import Features


_NORMS: Final = ("none", "both", "right", "left")


@near_keywords
class GraphConv(nn.Module):
    """``W^T sum(x_neighbours) + b``, normalised by degrees of the block (Kipf and Welling, 2017); parameters of DGL's.

    Parameters
    ----------
    in_feats, out_feats : widths of the rows and of the result
    norm : divide by the square roots of both degrees, "both"; by the in-degree, "right"; by the source's out-degree,
        "left"; or by "none"
    weight, bias : have some
    activation : function of the result
    allow_zero_in_degree : take destinations without in-edges

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
        """Take destinations without in-edges, or refuse them."""
        self._allow_zero_in_degree = set_value

    def forward(
        self,
        graph: Block,
        feat: Features,
        weight: torch.Tensor | None = None,
        edge_weight: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return (D, out_feats).

        Parameters
        ----------
        graph : a block of one relation
        feat : (U, in_feats), or that and the rows of the destinations
        weight : (in_feats, out_feats) of a layer without its own
        edge_weight : (E,) of each message; None: 1

        Raises
        ------
        GraphError
            Destinations have no in-edges.
        ConfigError
            The layer has a weight, and is given another.
        """
        if not self._allow_zero_in_degree:
            require_in_edges(graph)
        if weight is not None and self.weight is not None:
            raise ConfigError(
                "the layer has a weight of its own; build it with weight=False to give it another"
            )
        weight = self.weight if weight is None else weight
        edges = graph.edge_list()
        rows, _ = expand_as_pair(feat, graph)
        if self._norm in ("left", "both"):
            rows = rows * self._factor(edges.out_degrees, rows)
        # Linear: the weights come first where that makes rows shorter.
        is_first = self._in_feats > self._out_feats
        if weight is not None and is_first:
            rows = rows @ weight
        if edge_weight is not None:
            edge_weight = edge_weight.flatten()
        result = edges.weighted_sum(rows, edge_weight)
        if weight is not None and not is_first:
            result = result @ weight
        if self._norm in ("right", "both"):
            result = result * self._factor(edges.in_degrees, result)
        if self.bias is not None:
            result = result + self.bias
        return result if self._activation is None else self._activation(result)

    def _factor(self, degrees: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return what each of ``rows`` is multiplied by, for the degrees of their nodes."""
        found = degrees.to(rows).clamp(min=1).pow(-0.5 if self._norm == "both" else -1.0)
        return found.view(-1, *(1,) * (rows.dim() - 1))
