"""The softmax over in-edges, with the name in ``dgl.ops``."""

from gloader.bridges.dgl_api.layers import edge_softmax
from gloader.bridges.dgl_api.names import missing_from

__all__ = ["edge_softmax"]

__getattr__ = missing_from("dgl.ops")
