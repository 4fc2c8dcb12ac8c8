"""The names from ``dgl.utils`` that a user's own layers import."""

from gloader.bridges.dgl_api.layers import expand_as_pair
from gloader.bridges.dgl_api.names import missing_from

__all__ = ["expand_as_pair"]

__getattr__ = missing_from("dgl.utils")
