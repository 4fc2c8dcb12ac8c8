"""The softmax over in-edges, with the name in ``dgl.nn.functional``."""

from gloader.bridges.dgl_api.layers import edge_softmax
from gloader.bridges.dgl_api.names import missing_from

__all__ = ["edge_softmax"]

__getattr__ = missing_from("dgl.nn.functional")
