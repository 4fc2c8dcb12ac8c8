"""The name under which DGL's scripts import layers, too."""

from gloader.compat.dgl.missing import missing_from
from gloader.compat.dgl.nn.gat_conv import GATConv, GATv2Conv
from gloader.compat.dgl.nn.graph_conv import GraphConv
from gloader.compat.dgl.nn.hetero_graph_conv import HeteroGraphConv
from gloader.compat.dgl.nn.rel_graph_conv import RelGraphConv
from gloader.compat.dgl.nn.sage_conv import SAGEConv
from gloader.compat.dgl.softmax import edge_softmax

__all__ = ["GATConv", "GATv2Conv", "GraphConv", "HeteroGraphConv", "RelGraphConv", "SAGEConv", "edge_softmax"]

__getattr__ = missing_from("dgl.nn.pytorch")
