"""What the layers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from gloader.errors import GraphError

if TYPE_CHECKING:
    import torch

    from gloader.bridges.dgl_api.block import Block


Features: TypeAlias = "torch.Tensor | tuple[torch.Tensor, torch.Tensor]"


def expand_as_pair(input_: Any, g: Block | None = None) -> tuple[Any, Any]:
    """Return what belongs to sources and to destinations: a pair as it is, one thing twice.

    Of a tensor, or a mapping of tensors, the destinations of the block ``g`` have the first rows. Pure.

    Parameters
    ----------
    input_ : a pair, or widths, rows or a mapping of rows by type
    g : a block; None, or a graph: both sides have the same rows
    """
    if isinstance(input_, tuple):
        return input_
    if g is None or not g.is_block:
        return input_, input_
    if isinstance(input_, Mapping):
        return input_, {name: rows[: g.num_dst_nodes(name)] for name, rows in input_.items()}
    return input_, input_[: g.num_dst_nodes()]


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
