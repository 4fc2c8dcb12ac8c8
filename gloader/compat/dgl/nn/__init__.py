"""Layers with the names and parameters in ``dgl.nn``: a checkpoint from either library loads into the other."""

from gloader.bridges.dgl_api.layers import GATConv, GATv2Conv, GraphConv, SAGEConv, edge_softmax
from gloader.bridges.dgl_api.names import missing_from
from gloader.bridges.dgl_api.relation_layers import HeteroGraphConv, RelGraphConv
from gloader.compat.dgl.nn import functional, pytorch

__all__ = [
    "GATConv",
    "GATv2Conv",
    "GraphConv",
    "HeteroGraphConv",
    "RelGraphConv",
    "SAGEConv",
    "edge_softmax",
    "functional",
    "pytorch",
]

__getattr__ = missing_from("dgl.nn")
