"""The same hop as a block of `gloader.compat.dgl` and as one of DGL's."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gloader.bridges.dgl_api.block import DGLBlock
from gloader.bridges.dgl_api.edge_list import EdgeList
from gloader.bridges.dgl_api.frame import Frame
from gloader.bridges.dgl_api.names import EID, NODE, RELATION
from gloader.convert.sources.dgl import quiet_dgl
from gloader.types import DeviceBlock

with quiet_dgl("these tests need") as dgl:
    pass


@dataclass(frozen=True)
class Pair:
    """Ours and DGL's."""

    ours: Any
    theirs: Any


def random_hop(
    num_src: int, num_dst: int, num_edges: int, *, seed: int = 0, every_node: bool = False
) -> DeviceBlock:
    """Return random edges, some of them parallel; with ``every_node`` each destination has one at least."""
    rng = np.random.default_rng(seed)
    dst = rng.integers(0, num_dst, num_edges)
    if every_node:
        dst[:num_dst] = np.arange(num_dst)
    indptr = np.concatenate(([0], np.cumsum(np.bincount(dst, minlength=num_dst)))).astype(np.int32)
    return DeviceBlock(
        indptr=torch.from_numpy(indptr),
        indices=torch.from_numpy(rng.integers(0, num_src, num_edges).astype(np.int32)),
        edge_ids=torch.arange(num_edges),
        src_degree=torch.ones(num_src),
        num_src=num_src,
        num_dst=num_dst,
    )


def block_pair(hop: DeviceBlock) -> Pair:
    """Return the edges of ``hop`` as both."""
    ours = DGLBlock(
        {RELATION: EdgeList.of_block(hop)},
        {RELATION: Frame(len(hop.indices), {EID: lambda: hop.edge_ids})},
        src_data={NODE: Frame(hop.num_src)},
        dst_data={NODE: Frame(hop.num_dst)},
        device=torch.device("cpu"),
    )
    theirs = dgl.create_block(
        ("csc", (hop.indptr.long(), hop.indices.long(), torch.arange(len(hop.indices)))),
        num_src_nodes=hop.num_src,
        num_dst_nodes=hop.num_dst,
    )
    return Pair(ours, theirs)


def typed_pair(hops: dict[Any, DeviceBlock], num_src: dict[str, int], num_dst: dict[str, int]) -> Pair:
    """Return the edges of several relations as both."""
    ours = DGLBlock(
        {relation: EdgeList.of_block(hop) for relation, hop in hops.items()},
        {relation: Frame(len(hop.indices)) for relation, hop in hops.items()},
        src_data={name: Frame(count) for name, count in num_src.items()},
        dst_data={name: Frame(count) for name, count in num_dst.items()},
        device=torch.device("cpu"),
    )
    edges = {
        relation: ("csc", (hop.indptr.long(), hop.indices.long(), torch.arange(len(hop.indices))))
        for relation, hop in hops.items()
    }
    return Pair(ours, dgl.create_block(edges, num_src_nodes=num_src, num_dst_nodes=num_dst))


def pair_graphs(src: torch.Tensor, dst: torch.Tensor, num_nodes: int) -> Pair:
    """Return pairs of nodes, in any order, as graphs of both."""
    nodes = {NODE: Frame(num_nodes)}
    ours = DGLBlock(
        {RELATION: EdgeList(src, dst, num_src=num_nodes, num_dst=num_nodes)},
        {RELATION: Frame(len(src))},
        src_data=nodes,
        dst_data=nodes,
        device=torch.device("cpu"),
    )
    return Pair(ours, dgl.graph((src, dst), num_nodes=num_nodes))
