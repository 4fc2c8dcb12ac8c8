"""Loaders and samplers by the names of ``dgl.dataloading``."""

from gloader.compat.dgl.dataloading import negative_sampler
from gloader.compat.dgl.dataloading.loader import DataLoader
from gloader.compat.dgl.dataloading.samplers import (
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NeighborSampler,
    as_edge_prediction_sampler,
)
from gloader.compat.dgl.missing import missing_from

__all__ = [
    "DataLoader",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NeighborSampler",
    "as_edge_prediction_sampler",
    "negative_sampler",
]

__getattr__ = missing_from("dgl.dataloading")
