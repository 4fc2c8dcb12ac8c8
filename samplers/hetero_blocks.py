"""The blocks of a hop of a graph of several types, once all its nodes are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gloader.types import Block, LocalArray

if TYPE_CHECKING:
    from collections.abc import Sequence

_NO_SOURCES = np.empty(0, dtype=np.int32)
_NO_EDGES = np.empty(0, dtype=np.int64)
_NO_WEIGHTS = np.empty(0, dtype=np.float32)


def finish_blocks(
    blocks: Sequence[Block | None],
    *,
    num_src: Sequence[int],
    num_dst: Sequence[int],
    has_weight: Sequence[bool],
) -> list[Block]:
    """Return the blocks of a hop, of each relation. Pure.

    Parameters
    ----------
    blocks : of the K relations; None: one without edges
    num_src, num_dst : nodes of the source type after the hop, and those of the destination type that drew in it
    has_weight : whether blocks of the relation have weights
    """
    # One array for all of a hop: relations without edges are to cost nothing.
    no_edges = np.zeros(max(num_dst, default=0) + 1, dtype=np.int32)
    return [
        _finished(block, num_src=sources, num_dst=destinations, has_weight=weighted, no_edges=no_edges)
        for block, sources, destinations, weighted in zip(blocks, num_src, num_dst, has_weight, strict=True)
    ]


def _finished(
    block: Block | None, *, has_weight: bool, num_src: int, num_dst: int, no_edges: LocalArray
) -> Block:
    if block is None:
        return Block(
            indptr=no_edges[: num_dst + 1],
            indices=_NO_SOURCES,
            edge_ids=_NO_EDGES,
            num_src=num_src,
            num_dst=num_dst,
            edge_weight=_NO_WEIGHTS if has_weight else None,
        )
    if block.num_src == num_src:
        return block
    return Block(  # a later relation found more nodes of that type
        indptr=block.indptr,
        indices=block.indices,
        edge_ids=block.edge_ids,
        num_src=num_src,
        num_dst=num_dst,
        edge_weight=block.edge_weight,
    )
