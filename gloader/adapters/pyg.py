"""gloader for training loops written for PyTorch Geometric (PyG).

The loaders and `to_data` yield gloader's batches as PyG's ``Data``. `RowStore`, `TopologyStore` and `MergedSampler`
give PyG's own loaders features and topology on an SSD. Importing this module imports PyG, but neither pyg-lib nor
torch-sparse.
"""

from gloader.bridges.pyg.data import to_data, to_hetero_data, to_link_data
from gloader.bridges.pyg.graph_data import GraphData, HeteroGraphData
from gloader.bridges.pyg.link_loader import LinkLoader, LinkNeighborLoader
from gloader.bridges.pyg.node_loader import NeighborLoader, NodeLoader
from gloader.bridges.pyg.stores import MergedSampler, RowStore, TopologyStore

__all__ = [
    "GraphData",
    "HeteroGraphData",
    "LinkLoader",
    "LinkNeighborLoader",
    "MergedSampler",
    "NeighborLoader",
    "NodeLoader",
    "RowStore",
    "TopologyStore",
    "to_data",
    "to_hetero_data",
    "to_link_data",
]
