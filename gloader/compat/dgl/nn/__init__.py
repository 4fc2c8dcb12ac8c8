"""Layers by the names of ``dgl.nn``, with its parameters: a checkpoint of either loads into the other."""

from gloader.bridges.dgl_api.gat_conv import GATConv, GATv2Conv
from gloader.bridges.dgl_api.graph_conv import GraphConv
from gloader.bridges.dgl_api.hetero_graph_conv import HeteroGraphConv
from gloader.bridges.dgl_api.missing import missing_from
from gloader.bridges.dgl_api.rel_graph_conv import RelGraphConv
from gloader.bridges.dgl_api.sage_conv import SAGEConv
from gloader.bridges.dgl_api.softmax import edge_softmax
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
