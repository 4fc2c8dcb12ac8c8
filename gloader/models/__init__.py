"""GraphSAGE, GCN, GAT and an MLP on sampled blocks."""

from gloader.models.build import build_model
from gloader.models.network import GraphNetwork

__all__ = ["GraphNetwork", "build_model"]
