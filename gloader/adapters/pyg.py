"""gloader under PyTorch Geometric's loops: batches as ``Data``, and PyG's own loader over an SSD.

Importing this module imports PyG, which the optional dependencies ``pyg`` bring; pyg-lib and torch-sparse are not
needed.
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
