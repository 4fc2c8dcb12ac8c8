"""Negative samplers with the names in ``dgl.dataloading.negative_sampler``."""

from gloader.bridges.dgl_api.names import missing_from
from gloader.core.negatives import Uniform

__all__ = ["Uniform"]

__getattr__ = missing_from("dgl.dataloading.negative_sampler")
