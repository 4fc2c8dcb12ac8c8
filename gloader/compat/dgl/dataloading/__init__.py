"""Loaders and samplers with the names in ``dgl.dataloading``."""

from gloader.bridges.dgl_api.loader import (
    DataLoader,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NeighborSampler,
    as_edge_prediction_sampler,
)
from gloader.bridges.dgl_api.names import missing_from
from gloader.compat.dgl.dataloading import negative_sampler

__all__ = [
    "DataLoader",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NeighborSampler",
    "as_edge_prediction_sampler",
    "negative_sampler",
]

__getattr__ = missing_from("dgl.dataloading")
