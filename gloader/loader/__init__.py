"""Loaders: what a training loop iterates over."""

from gloader.loader.hetero import HeteroLoader
from gloader.loader.loader import Loader

__all__ = ["HeteroLoader", "Loader"]
