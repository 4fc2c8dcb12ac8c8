"""The loader's batches of several types as DGL's message flow graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from gloader.bridges.dgl.block import create_block, fill_edges, require_device
from gloader.bridges.hop_sizes import nodes_by_hop
from gloader.convert.sources.dgl import quiet_dgl
from gloader.core.near_names import near_keywords

if TYPE_CHECKING:
    from gloader.types import HeteroReadyBatch


with quiet_dgl("gloader.adapters.dgl needs") as dgl:
    pass

HeteroBlockBatch: TypeAlias = "tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[Any]]"


@near_keywords
def to_hetero_blocks(
    batch: HeteroReadyBatch,
    *,
    labelled: str,
    feature: str = "feat",
    label: str = "label",
    edge_feature: str = "feat",
) -> HeteroBlockBatch:
    """Return the input nodes and the seeds of each type, and a typed DGL block per hop, without copying. Pure.

    Every type and relation is there, perhaps empty; types and relations stand in DGL's order, that of their names.

    Parameters
    ----------
    batch : a native batch; its arrays are shared
    labelled : the type whose labels ``batch.y`` holds
    feature, label : names of the node data of the first and the last block; types without features have none
    edge_feature : name of the edge data of every block, of relations that have features

    Raises
    ------
    ConfigError
        The batch is on a device that this DGL cannot use.
    """
    nodes, blocks = unlabelled_hetero_blocks(batch, feature=feature, edge_feature=edge_feature)
    # On the outermost block alone, as DGL's loader does.
    blocks[-1].dstnodes[labelled].data[label] = batch.y
    return nodes, {name: ids[: batch.num_seeds[name]] for name, ids in nodes.items()}, blocks


def unlabelled_hetero_blocks(
    batch: HeteroReadyBatch, *, feature: str, edge_feature: str
) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """Return the input nodes of each type and a typed DGL block per hop; as of `to_hetero_blocks`."""
    device = batch.y.device
    require_device(device)
    nodes = {name: torch.from_numpy(ids).to(device) for name, ids in batch.nodes.items()}
    known = nodes_by_hop(batch.num_seeds, batch.blocks)
    blocks = []
    for depth, hop in enumerate(batch.blocks):
        # The first block is next to the features, and holds the nodes that are known after the last hop.
        after = len(batch.blocks) - depth
        num_src = {name: counts[after] for name, counts in known.items()}
        num_dst = {name: counts[after - 1] for name, counts in known.items()}
        block = create_block(hop, num_src, num_dst)
        for name, ids in nodes.items():
            block.srcnodes[name].data[dgl.NID] = ids[: num_src[name]]
            block.dstnodes[name].data[dgl.NID] = ids[: num_dst[name]]
        for relation, edges in hop.items():
            fill_edges(block.edges[relation].data, edges, edge_feature)
        blocks.append(block)
    for name, rows in batch.x.items():
        if rows.shape[1]:
            blocks[0].srcnodes[name].data[feature] = rows
    return nodes, blocks
