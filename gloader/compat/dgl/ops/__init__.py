"""The softmax over in-edges, by the names of ``dgl.ops``."""

from gloader.bridges.dgl_api.missing import missing_from
from gloader.bridges.dgl_api.softmax import edge_softmax

__all__ = ["edge_softmax"]

__getattr__ = missing_from("dgl.ops")
