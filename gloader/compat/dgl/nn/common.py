"""What the layers share."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gloader.errors import GraphError

if TYPE_CHECKING:
    import torch

    from gloader.compat.dgl.block import Block

Features: TypeAlias = "torch.Tensor | tuple[torch.Tensor, torch.Tensor]"


def both_sides(feat: Features, block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the features of sources and destinations; of one tensor, the destinations are the first sources."""
    if isinstance(feat, tuple):
        return feat
    return feat, feat[: block.num_dst_nodes()] if block.is_block else feat


def both_widths(in_feats: int | tuple[int, int]) -> tuple[int, int]:
    """Return the widths of sources and destinations."""
    return in_feats if isinstance(in_feats, tuple) else (in_feats, in_feats)


def require_in_edges(block: Block) -> None:
    """Refuse destinations without in-edges, of which a layer would make nothing but a bias.

    Raises
    ------
    GraphError
        There are some.
    """
    num_bare = int((block.in_degrees() == 0).sum())
    if num_bare:
        raise GraphError(
            f"{num_bare} of {block.num_dst_nodes()} destinations have no in-edges: prepare the dataset with "
            "--self-loops, or build the layer with allow_zero_in_degree=True, which gives them the bias alone"
        )
