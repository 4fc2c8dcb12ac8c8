"""What layers of DGL's users import from ``dgl.utils``."""

from gloader.compat.dgl.missing import missing_from
from gloader.compat.dgl.nn.common import expand_as_pair

__all__ = ["expand_as_pair"]

__getattr__ = missing_from("dgl.utils")
