"""Scores of edges as shares of those into the same destination."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gloader.bridges.dgl_api.missing import missing
from gloader.core.near_names import near_keywords

if TYPE_CHECKING:
    import torch

    from gloader.bridges.dgl_api.block import Block


@near_keywords
def edge_softmax(
    graph: Block, logits: torch.Tensor, eids: Any = "__ALL__", norm_by: str = "dst"
) -> torch.Tensor:
    """Return the softmax of ``logits`` (E, ...) over the in-edges of each destination.

    Parameters
    ----------
    graph : a block of one relation
    logits : of each edge
    eids, norm_by : "__ALL__" and "dst"

    Raises
    ------
    DglFeatureError
        Some of the edges, or a softmax over out-edges, are asked for.
    """
    if not isinstance(eids, str) or norm_by != "dst":
        raise missing("edge_softmax(eids=..., norm_by=...)", "it is over all in-edges of each destination")
    return graph.edge_list().softmax(logits)
