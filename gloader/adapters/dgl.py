"""gloader under DGL's loops: blocks with features, DGL's own data loader over an SSD, graphs both ways.

Importing this module imports DGL, which the optional dependencies ``dgl`` bring (docs/from-dgl.md).
"""

from gloader.bridges.dgl.blocks import (
    BlockBatch,
    BlockLoader,
    HeteroBlockBatch,
    LinkBlockBatch,
    LinkBlockLoader,
    to_blocks,
    to_hetero_blocks,
    to_link_blocks,
)
from gloader.bridges.dgl.storage import GraphWithStores, RowStorage, wrap_graph
from gloader.convert.sources.dgl import from_graph as from_dgl
from gloader.convert.sources.dgl import to_graph as to_dgl

__all__ = [
    "BlockBatch",
    "BlockLoader",
    "GraphWithStores",
    "HeteroBlockBatch",
    "LinkBlockBatch",
    "LinkBlockLoader",
    "RowStorage",
    "from_dgl",
    "to_blocks",
    "to_dgl",
    "to_hetero_blocks",
    "to_link_blocks",
    "wrap_graph",
]
