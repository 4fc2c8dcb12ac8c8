"""The layers under the older name ``dgl.nn.pytorch``, which many scripts for DGL import."""

from gloader.bridges.dgl_api.layers import GATConv, GATv2Conv, GraphConv, SAGEConv, edge_softmax
from gloader.bridges.dgl_api.names import missing_from
from gloader.bridges.dgl_api.relation_layers import HeteroGraphConv, RelGraphConv

__all__ = ["GATConv", "GATv2Conv", "GraphConv", "HeteroGraphConv", "RelGraphConv", "SAGEConv", "edge_softmax"]

__getattr__ = missing_from("dgl.nn.pytorch")
