"""gloader for training loops written for DGL.

`BlockLoader` and `LinkBlockLoader` yield gloader's batches as DGL blocks. `wrap_graph` gives DGL's own data loader
features on an SSD. `from_dgl` and `to_dgl` convert graphs in both directions. Importing this module imports DGL, one of
the optional dependencies ``dgl`` (docs/from-dgl.md).
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
