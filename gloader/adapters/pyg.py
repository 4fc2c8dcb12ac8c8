"""gloader under PyTorch Geometric's loops: batches as ``Data``, and PyG's own loader over an SSD.

Importing this module imports PyG, which the optional dependencies ``pyg`` bring; pyg-lib and torch-sparse are not
needed.
"""

from gloader.bridges.pyg.data import to_data
from gloader.bridges.pyg.graph_data import GraphData
from gloader.bridges.pyg.hetero_data import to_hetero_data
from gloader.bridges.pyg.hetero_graph_data import HeteroGraphData
from gloader.bridges.pyg.link_data import to_link_data
from gloader.bridges.pyg.link_loader import LinkLoader, LinkNeighborLoader
from gloader.bridges.pyg.merged_sampler import MergedSampler
from gloader.bridges.pyg.node_loader import NeighborLoader, NodeLoader
from gloader.bridges.pyg.stores import RowStore, TopologyStore

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
